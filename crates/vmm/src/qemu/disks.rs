//! A guest's disks.

use serde_json::{Value, json};

use super::answer::Field;
use crate::qmp::Qmp;
use crate::{Disk, VmmError};

/// The command that lists disks.
pub(super) const QUERY: &str = "query-block";

/// Returns the disks of the guest that it may write. Block nodes that no device of the guest has are not
/// among them.
pub(super) fn writable(qmp: &mut Qmp) -> Result<Vec<Disk>, VmmError> {
    let answer = qmp.execute(QUERY, json!({}))?;
    let disks = answer.list(QUERY)?.iter().map(read);
    disks.filter_map(Result::transpose).collect()
}

/// Reads an entry of `query-block`; `None` for one that is empty or cannot be written.
fn read(entry: &Value) -> Result<Option<Disk>, VmmError> {
    let Some(inserted) = entry.get("inserted").filter(|inserted| !inserted.is_null()) else {
        return Ok(None);
    };
    if inserted.get("ro").and_then(Value::as_bool) == Some(true) {
        return Ok(None);
    }
    // A drive has a name of its own; a `-blockdev` has that of the device which uses it.
    let device = entry.get("device").and_then(Value::as_str).filter(|name| !name.is_empty());
    let device = device.or_else(|| entry.get("qdev").and_then(Value::as_str)).unwrap_or_default();
    Ok(Some(Disk {
        node: inserted.text(QUERY, "node-name")?.to_owned(),
        device: device.to_owned(),
        image: inserted.text(QUERY, "file")?.to_owned(),
        format: inserted.text(QUERY, "drv")?.to_owned(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disks_are_those_that_can_be_written() {
        let inserted = json!({"node-name": "#block1", "ro": false, "file": "/a.raw", "drv": "raw"});
        let entry = json!({"device": "disk0", "qdev": "/machine/x", "inserted": inserted});
        let disk = read(&entry).unwrap().unwrap();
        assert_eq!((&*disk.node, &*disk.device, &*disk.format), ("#block1", "disk0", "raw"));
        let unnamed = json!({"device": "", "qdev": "/machine/x", "inserted": inserted});
        assert_eq!(read(&unnamed).unwrap().unwrap().device, "/machine/x");
        let mut read_only = entry.clone();
        read_only["inserted"]["ro"] = json!(true);
        assert_eq!(read(&read_only).unwrap(), None);
        assert_eq!(read(&json!({"device": "cd", "removable": true})).unwrap(), None);
        assert!(read(&json!({"device": "x", "inserted": {"ro": false}})).is_err());
    }
}
