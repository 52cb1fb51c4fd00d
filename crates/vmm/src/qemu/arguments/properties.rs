//! Values of options that are lists of properties: `key=value,…`, or one JSON object.

use serde_json::{Map, Value};

/// Properties in their order.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Properties {
    /// A word without `=` has no value; the first may be the value of a key that is implied.
    Pairs(Vec<(String, Option<String>)>),
    Json(Map<String, Value>),
}

impl Properties {
    /// Reads a value; `implied` is the key of a first word that has none. None if it begins as JSON and is no
    /// object, or with a comma.
    pub(super) fn read(text: &str, implied: &str) -> Option<Self> {
        if text.starts_with(',') {
            // Written again without what is empty, it could be read as something else.
            return None;
        }
        if text.starts_with('{') {
            return serde_json::from_str(text).ok().map(Self::Json);
        }
        let pair = |(at, word): (usize, String)| match word.split_once('=') {
            Some((key, value)) => (key.to_owned(), Some(value.to_owned())),
            None if at == 0 && !implied.is_empty() => (implied.to_owned(), Some(word)),
            None => (word, None),
        };
        Some(Self::Pairs(split(text).into_iter().enumerate().map(pair).collect()))
    }

    /// Returns the last value of a key as text; `on` for a word alone.
    pub(super) fn get(&self, key: &str) -> Option<String> {
        match self {
            Self::Pairs(pairs) => {
                let (_, value) = pairs.iter().rev().find(|(name, _)| name == key)?;
                Some(value.clone().unwrap_or_else(|| "on".into()))
            }
            Self::Json(map) => match key.split_once('.') {
                Some((outer, inner)) => text_of(map.get(outer)?.as_object()?.get(inner)?),
                None => text_of(map.get(key)?),
            },
        }
    }

    pub(super) fn has(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    pub(super) fn is_on(&self, key: &str) -> bool {
        self.get(key).is_some_and(|value| matches!(&*value, "on" | "yes" | "true" | "y"))
    }

    /// Returns true if a key begins so.
    pub(super) fn has_any(&self, prefix: &str) -> bool {
        match self {
            Self::Pairs(pairs) => pairs.iter().any(|(key, _)| key.starts_with(prefix)),
            Self::Json(map) => map.iter().any(|(key, value)| {
                key.starts_with(prefix) || (prefix == format!("{key}.") && value.is_object())
            }),
        }
    }

    /// Sets a key to a text, in its place or at the end. A dot leads into the object of its name.
    pub(super) fn set(&mut self, key: &str, value: &str) {
        match self {
            Self::Pairs(pairs) => match pairs.iter_mut().rev().find(|(name, _)| name == key) {
                Some((_, old)) => *old = Some(value.to_owned()),
                None => pairs.push((key.to_owned(), Some(value.to_owned()))),
            },
            Self::Json(map) => {
                let inner = key.split_once('.').and_then(|(outer, inner)| {
                    Some((map.get_mut(outer)?.as_object_mut()?, inner.to_owned()))
                });
                match inner {
                    Some((object, inner)) => _ = object.insert(inner, value.into()),
                    None => _ = map.insert(key.to_owned(), value.into()),
                }
            }
        }
    }

    /// Removes a key, and those below it.
    pub(super) fn remove(&mut self, key: &str) {
        let below = format!("{key}.");
        match self {
            Self::Pairs(pairs) => {
                pairs.retain(|(name, _)| name != key && !name.starts_with(&below));
            }
            Self::Json(map) => _ = map.remove(key),
        }
    }

    /// Returns the text that QEMU reads them from.
    pub(super) fn write(&self) -> String {
        match self {
            Self::Pairs(pairs) => {
                let escaped = |text: &str| text.replace(',', ",,");
                let word = |(key, value): &(String, Option<String>)| match value {
                    Some(value) => format!("{}={}", escaped(key), escaped(value)),
                    None => escaped(key),
                };
                pairs.iter().map(word).collect::<Vec<_>>().join(",")
            }
            Self::Json(map) => Value::Object(map.clone()).to_string(),
        }
    }
}

fn text_of(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Bool(is_on) => Some(if *is_on { "on" } else { "off" }.into()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

/// Splits at single commas; two are one that belongs to the word.
fn split(text: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        let last = words.len() - 1;
        if letter != ',' {
            words[last].push(letter);
        } else if letters.next_if_eq(&',').is_some() {
            words[last].push(',');
        } else {
            words.push(String::new());
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn pairs_come_back_as_they_went(
            pairs in prop::collection::vec(("[a-z.]{1,6}", prop::option::of("[a-z,=/ ]{1,8}")), 1..6)
        ) {
            let written = Properties::Pairs(pairs.clone()).write();
            let read = Properties::read(&written, "").unwrap();
            // A value that begins or ends with a comma meets the one that separates.
            if pairs.iter().all(|(_, value)| value.as_deref().is_none_or(|value| !value.contains(','))) {
                prop_assert_eq!(&read, &Properties::Pairs(pairs));
            }
            prop_assert_eq!(read.write(), written);
        }

        #[test]
        fn no_text_stops_the_reader(text in "[{}a-z=,\":. ]{0,40}") {
            if let Some(read) = Properties::read(&text, "driver") {
                let again = Properties::read(&read.write(), "driver").unwrap();
                prop_assert_eq!(again, read);
            }
        }
    }

    #[test]
    fn both_shapes_are_asked_alike() {
        for text in [
            "qcow2,node-name=a,,b,file.filename=/x,read-only=on",
            r#"{"driver":"qcow2","node-name":"a,b","file":{"filename":"/x"},"read-only":true}"#,
        ] {
            let mut read = Properties::read(text, "driver").unwrap();
            assert_eq!(read.get("driver").as_deref(), Some("qcow2"));
            assert_eq!(read.get("node-name").as_deref(), Some("a,b"));
            assert!(read.is_on("read-only") && read.has_any("file.") && !read.has("size"));
            read.set("file.filename", "/y");
            assert_eq!(read.get("file.filename").as_deref(), Some("/y"));
            read.remove("file");
            assert!(!read.has("file.filename"), "{}", read.write());
        }
    }
}
