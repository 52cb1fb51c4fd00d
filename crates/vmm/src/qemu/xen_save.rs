//! Saves device state by `xen-save-devices-state`.

use std::os::fd::AsFd;
use std::time::Duration;

use serde_json::json;

use super::state_file::StateFile;
use crate::qmp::Qmp;
use crate::{Purpose, VmmError};

/// QEMU's name of the command.
pub(super) const COMMAND: &str = "xen-save-devices-state";

/// Saves the devices' state to `file`.
pub(super) fn save(
    qmp: &mut Qmp,
    file: &StateFile,
    purpose: Purpose,
    limit: Duration,
) -> Result<(), VmmError> {
    match file {
        StateFile::Path(path) => save_to(qmp, &path.0.to_string_lossy(), purpose, limit),
        StateFile::Memory(memory) => {
            let writer = StateFile::writer(memory)?;
            let added = qmp.execute_within("add-fd", json!({}), &[writer.as_fd()], limit)?;
            let set = added.get("fdset-id").and_then(serde_json::Value::as_u64);
            let set = set.ok_or(VmmError::Answer { command: "add-fd", missing: "fdset-id" })?;
            let saved = save_to(qmp, &format!("/dev/fdset/{set}"), purpose, limit);
            let removed = qmp.execute("remove-fd", json!({ "fdset-id": set }));
            saved.and(removed.map(drop).map_err(VmmError::from))
        }
    }
}

fn save_to(qmp: &mut Qmp, name: &str, purpose: Purpose, limit: Duration) -> Result<(), VmmError> {
    // Its `live` means that the guest goes on elsewhere: its disks are let go of.
    let arguments = json!({ "filename": name, "live": purpose == Purpose::HandOver });
    Ok(qmp.execute_within(COMMAND, arguments, &[], limit).map(drop)?)
}
