//! A guest's disks, and overlays over them.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use super::answer::Field;
use crate::qmp::Qmp;
use crate::{Disk, Overlay, VmmError};

const QUERY: &str = "query-block";

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

/// Puts `overlays` over disks in one transaction: all, or none. QEMU makes the images.
pub(super) fn snapshot(
    qmp: &mut Qmp,
    overlays: &[Overlay],
    limit: Duration,
) -> Result<(), VmmError> {
    let actions = overlays.iter().map(action).collect::<Result<Vec<_>, _>>()?;
    are_distinct(overlays)?;
    let arguments = json!({ "actions": actions });
    qmp.execute_within("transaction", arguments, &[], limit).map(drop).map_err(|error| {
        // QEMU makes the images before it looks at what else may fail, and leaves them. Only a refusal is
        // known to have made no use of them.
        if matches!(error, crate::qmp::QmpError::Refused { .. }) {
            overlays.iter().for_each(|overlay| remove(&overlay.path));
        }
        error.into()
    })
}

fn action(overlay: &Overlay) -> Result<Value, VmmError> {
    let refused = |why: &str| VmmError::Overlay { path: overlay.path.clone(), why: why.to_owned() };
    if !overlay.path.is_absolute() {
        return Err(refused("its path must be absolute: QEMU may work in another directory"));
    }
    let path = overlay.path.to_str().ok_or_else(|| refused("its path must be UTF-8"))?;
    match fs::symlink_metadata(&overlay.path) {
        Ok(_) => return Err(refused("something is there already: choose another path")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(refused(&error.to_string())),
    }
    let data = json!({
        "node-name": overlay.node,
        "snapshot-file": path,
        "snapshot-node-name": overlay.overlay_node,
        "format": "qcow2",
        "mode": "absolute-paths",
    });
    Ok(json!({ "type": "blockdev-snapshot-sync", "data": data }))
}

fn are_distinct(overlays: &[Overlay]) -> Result<(), VmmError> {
    let mut seen = HashSet::new();
    let twice = overlays.iter().find(|overlay| !seen.insert(&overlay.path));
    twice.map_or(Ok(()), |overlay| {
        let why = "two disks cannot have the same overlay".to_owned();
        Err(VmmError::Overlay { path: overlay.path.clone(), why })
    })
}

fn remove(path: &Path) {
    if let Err(error) = fs::remove_file(path)
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!("an overlay that is not in use, {}, stays: {error}", path.display());
    }
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

    #[test]
    fn overlays_are_never_made_over_something() {
        let directory = tempfile::tempdir().unwrap();
        let overlay = |path: &Path| Overlay {
            node: "n".to_owned(),
            path: path.to_owned(),
            overlay_node: "o".to_owned(),
        };
        let (free, taken) = (directory.path().join("free"), directory.path().join("taken"));
        std::os::unix::fs::symlink("nowhere", &taken).unwrap();
        assert!(action(&overlay(&free)).is_ok());
        assert!(action(&overlay(&taken)).is_err());
        assert!(action(&overlay(Path::new("relative"))).is_err());
        assert!(are_distinct(&[overlay(&free), overlay(&taken)]).is_ok());
        assert!(are_distinct(&[overlay(&free), overlay(&free)]).is_err());
    }
}
