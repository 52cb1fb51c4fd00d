//! Arguments of a VMM that another host sends, checked against what this host allows.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use thiserror::Error;

use super::options::{ValueKind, is_allowed_property, value_kind};
use super::paths::PathPolicy;

/// Most arguments, and most bytes of them all.
const MOST: (usize, usize) = (4096, 256 << 10);

/// Reason why a VMM is not started.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ArgumentRefusal {
    /// The program is none that may be started.
    #[error(
        "the program {0} may not be started here: add it to the policy, or give its place here by a rewrite"
    )]
    Program(String),
    /// A path is not allowed.
    #[error(
        "{option}: {path} may not be used here: allow its directory, or give its place here by a rewrite"
    )]
    Path {
        /// Option that has it.
        option: String,
        /// Path.
        path: String,
    },
    /// An option is not among those that are allowed.
    #[error(
        "the option {0} is not allowed from another host: start the guest without it, if it is to migrate"
    )]
    Option(String),
    /// A value is not allowed.
    #[error("{option}: {why}")]
    Value {
        /// Option that has it.
        option: String,
        /// Description of what is wrong.
        why: String,
    },
    /// The list is longer than any that is needed, or no text.
    #[error("the arguments are too long, or no text: {0}")]
    Shape(&'static str),
}

/// Policy of a destination for what a source wants started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ArgumentPolicy {
    /// Programs that may be started, as paths here.
    pub programs: Vec<PathBuf>,
    /// Files that the VMM may use.
    pub paths: PathPolicy,
}

impl ArgumentPolicy {
    /// Checks QEMU's arguments, the program first, and returns those to start it with here. They are for execve(2):
    /// no shell sees them.
    ///
    /// # Errors
    /// [`ArgumentRefusal`] for the first that is not allowed.
    pub fn check(&self, arguments: &[Vec<u8>]) -> Result<Vec<OsString>, ArgumentRefusal> {
        let bytes: usize = arguments.iter().map(Vec::len).sum();
        if arguments.len() > MOST.0 || bytes > MOST.1 {
            return Err(ArgumentRefusal::Shape("at most 4096 of them, and 256 KiB"));
        }
        let texts = arguments.iter().map(|argument| std::str::from_utf8(argument));
        let texts: Vec<&str> = texts
            .collect::<Result<_, _>>()
            .map_err(|_| ArgumentRefusal::Shape("one is no UTF-8"))?;
        if texts.iter().any(|text| text.contains(['\0', '\n'])) {
            return Err(ArgumentRefusal::Shape("one has a NUL or a line break in it"));
        }
        let (program, mut rest) =
            texts.split_first().ok_or(ArgumentRefusal::Shape("there are none"))?;
        let mut checked = vec![self.program(program)?.into_os_string()];
        while let Some((option, behind)) = rest.split_first() {
            rest = behind;
            // The canonical form; what begins with no dash would be an image of a disk.
            let name = option.strip_prefix('-').map(|name| name.strip_prefix('-').unwrap_or(name));
            let kind =
                name.and_then(value_kind).ok_or_else(|| ArgumentRefusal::Option(shown(option)))?;
            checked.push((*option).into());
            if kind == ValueKind::None {
                continue;
            }
            let (value, behind) =
                rest.split_first().ok_or_else(|| refuse(option, "its value is missing"))?;
            rest = behind;
            checked.push(self.value(option, kind, value)?);
        }
        Ok(checked)
    }

    fn program(&self, program: &str) -> Result<PathBuf, ArgumentRefusal> {
        let as_it_is = Path::new(program).to_owned();
        let programs =
            PathPolicy { allowed: self.programs.clone(), rewrites: self.paths.rewrites.clone() };
        let placed = programs.place(&as_it_is).filter(|placed| self.programs.contains(placed));
        placed.ok_or_else(|| ArgumentRefusal::Program(shown(program)))
    }

    fn value(
        &self,
        option: &str,
        kind: ValueKind,
        value: &str,
    ) -> Result<OsString, ArgumentRefusal> {
        match kind {
            ValueKind::None => Ok(value.into()),
            ValueKind::Plain if option.ends_with("append") => Ok(value.into()),
            ValueKind::Plain if value.contains('/') => {
                Err(refuse(option, "a path is in it, where none is expected"))
            }
            ValueKind::Plain => Ok(value.into()),
            ValueKind::Path => Ok(self.path(option, value)?.into()),
            ValueKind::Properties => self.properties(option, value),
            ValueKind::Backend(kinds) => {
                let word = value.split(',').next().unwrap_or_default();
                let is_known = kinds.iter().any(|kind| match kind.strip_suffix(':') {
                    Some(scheme) => {
                        word.strip_prefix(scheme).is_some_and(|rest| rest.starts_with(':'))
                    }
                    None => *kind == word,
                });
                if !is_known {
                    return Err(refuse(
                        option,
                        &format!("{} is not allowed from another host", shown(word)),
                    ));
                }
                if word == "tap"
                    && !["script=no", "downscript=no"].iter().all(|it| has_part(value, it))
                {
                    return Err(refuse(option, "a tap must have script=no and downscript=no"));
                }
                self.properties(option, value)
            }
        }
    }

    fn path(&self, option: &str, path: &str) -> Result<String, ArgumentRefusal> {
        let placed = self.paths.place(Path::new(path));
        let placed = placed
            .map(|it| it.into_os_string().into_vec())
            .and_then(|it| String::from_utf8(it).ok());
        // A path that has a colon is a protocol to some of QEMU's parsers, one with a comma is two values, and one with
        // an equals sign could be another property.
        let placed = placed.filter(|it| !it.contains([':', ',', '=']));
        let refusal = || ArgumentRefusal::Path { option: shown(option), path: shown(path) };
        placed.ok_or_else(refusal)
    }

    fn properties(&self, option: &str, value: &str) -> Result<OsString, ArgumentRefusal> {
        if value.trim_start().starts_with('{') {
            let mut json =
                serde_json::from_str(value).map_err(|_| refuse(option, "it is no JSON"))?;
            self.json(option, "", &mut json)?;
            return Ok(json.to_string().into());
        }
        // Two commas would be one within a value.
        if value.contains(",,") {
            return Err(refuse(option, "a value has a comma in it"));
        }
        let part = |part: &str| match part.split_once('=') {
            Some((key, value)) => Ok(format!("{key}={}", self.property(option, key, value)?)),
            None => self.property(option, "", part),
        };
        let parts = value.split(',').map(part).collect::<Result<Vec<_>, _>>()?;
        Ok(parts.join(",").into())
    }

    /// Checks all texts in a JSON value, and puts paths of here in.
    fn json(
        &self,
        option: &str,
        key: &str,
        value: &mut serde_json::Value,
    ) -> Result<(), ArgumentRefusal> {
        match value {
            serde_json::Value::String(text) => *text = self.property(option, key, text)?,
            serde_json::Value::Array(list) => {
                list.iter_mut().try_for_each(|value| self.json(option, key, value))?;
            }
            serde_json::Value::Object(fields) => {
                fields.iter_mut().try_for_each(|(key, value)| self.json(option, key, value))?;
            }
            other => _ = self.property(option, key, &other.to_string())?,
        }
        Ok(())
    }

    fn property(&self, option: &str, key: &str, value: &str) -> Result<String, ArgumentRefusal> {
        if !is_allowed_property(key, value) {
            return Err(refuse(
                option,
                &format!("{} is not allowed from another host", shown(key)),
            ));
        }
        let last = key.rsplit('.').next().unwrap_or(key);
        let is_file = matches!(
            last,
            "file" | "filename" | "path" | "mem-path" | "romfile" | "dtb" | "backing"
        );
        // A node's name has no slash; "file=disk0" of a block device names a node.
        let is_node = matches!(last, "file" | "backing") && option.ends_with("blockdev");
        let names_protocol = is_file && value.contains(':');
        let is_path = value.contains('/') || matches!(value, "." | "..");
        if is_path || names_protocol || (is_file && !is_node) {
            return self.path(option, value);
        }
        Ok(value.to_owned())
    }
}

fn has_part(value: &str, wanted: &str) -> bool {
    value.split(',').any(|part| part == wanted)
}

fn refuse(option: &str, why: &str) -> ArgumentRefusal {
    ArgumentRefusal::Value { option: shown(option), why: why.to_owned() }
}

/// Returns what a peer has written, as a terminal can show it.
fn shown(text: &str) -> String {
    text.chars().take(200).filter(|letter| !letter.is_control()).collect()
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
