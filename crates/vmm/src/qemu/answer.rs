//! Reads parts of QEMU's answers.

use std::collections::HashSet;

use serde_json::{Value, json};

use crate::VmmError;
use crate::qmp::Qmp;

/// Parts of an answer that must be there.
pub(super) trait Field {
    /// Returns the text at `name`.
    ///
    /// # Errors
    /// [`VmmError::Answer`] if there is none.
    fn text(&self, command: &'static str, name: &'static str) -> Result<&str, VmmError>;

    /// Returns the elements of a list.
    ///
    /// # Errors
    /// [`VmmError::Answer`] if it is none.
    fn list(&self, command: &'static str) -> Result<&[Value], VmmError>;
}

impl Field for Value {
    fn text(&self, command: &'static str, name: &'static str) -> Result<&str, VmmError> {
        let text = self.get(name).and_then(Self::as_str);
        text.ok_or(VmmError::Answer { command, missing: name })
    }

    fn list(&self, command: &'static str) -> Result<&[Value], VmmError> {
        let list = self.as_array().map(Vec::as_slice);
        list.ok_or(VmmError::Answer { command, missing: "list" })
    }
}

/// Returns the texts at `name` of the list that `command` answers.
pub(super) fn names(
    qmp: &mut Qmp,
    command: &'static str,
    name: &'static str,
) -> Result<HashSet<String>, VmmError> {
    let answer = qmp.execute(command, json!({}))?;
    answer.list(command)?.iter().map(|entry| Ok(entry.text(command, name)?.to_owned())).collect()
}

/// Returns a property of an object of QEMU that is text.
pub(super) fn property(qmp: &mut Qmp, path: &str, property: &str) -> Result<String, VmmError> {
    let answer = qmp.execute("qom-get", json!({ "path": path, "property": property }))?;
    let text = answer.as_str().map(str::to_owned);
    text.ok_or(VmmError::Answer { command: "qom-get", missing: "text" })
}

/// Returns the type of machine, as streams name it: `pc-i440fx-10.0`.
pub(super) fn machine(qmp: &mut Qmp) -> Result<String, VmmError> {
    let class = property(qmp, "/machine", "type")?;
    let machine = class.strip_suffix("-machine").map(str::to_owned);
    machine.ok_or(VmmError::Answer { command: "qom-get", missing: "type of machine" })
}
