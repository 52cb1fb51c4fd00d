//! Whether an answer is what the API's description says: as much of JSON Schema as it uses.

use serde_json::Value;

/// Compares `value` with `schema`, in which references are into `description`. Fields that are not
/// described are as wrong as those that are missing.
///
/// # Panics
/// If they differ, with where.
pub(crate) fn check(description: &Value, schema: &Value, value: &Value, place: &str) {
    if let Some(reference) = schema["$ref"].as_str() {
        let pointer = reference.strip_prefix('#').unwrap();
        let target = description.pointer(pointer).unwrap_or_else(|| panic!("{reference}: none"));
        return check(description, target, value, place);
    }
    let types: Vec<&str> = match &schema["type"] {
        Value::String(name) => vec![name],
        Value::Array(names) => names.iter().map(|name| name.as_str().unwrap()).collect(),
        _ => panic!("{place}: its schema has no type: {schema}"),
    };
    let is = |name: &&str| match *name {
        "integer" => value.is_i64() || value.is_u64(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        name => panic!("{place}: type {name} is not used"),
    };
    assert!(types.iter().any(is), "{place}: {value} is none of {types:?}");
    if let Some(allowed) = schema["enum"].as_array() {
        assert!(allowed.contains(value), "{place}: {value} is none of {allowed:?}");
    }
    if let Some(items) = value.as_array() {
        for (at, item) in items.iter().enumerate() {
            check(description, &schema["items"], item, &format!("{place}[{at}]"));
        }
    }
    let (Some(fields), Some(properties)) = (value.as_object(), schema["properties"].as_object())
    else {
        return;
    };
    for name in schema["required"].as_array().unwrap() {
        assert!(fields.contains_key(name.as_str().unwrap()), "{place}: no {name}");
    }
    for (name, field) in fields {
        let property = properties.get(name);
        let property = property.unwrap_or_else(|| panic!("{place}.{name} is not described"));
        assert!(property["description"].is_string() || property["$ref"].is_string(), "{name}");
        check(description, property, field, &format!("{place}.{name}"));
    }
}
