//! Takes an overlay away: what the guest wrote to it goes into the image below.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{left, overlay};
use crate::qmp::{Event, Qmp, QmpError};
use crate::{Overlay, VmmError};

/// Name of the job.
const JOB: &str = "bindery-commit";

/// The command, for errors.
const COMMAND: &str = "block-commit";

/// Writes what `overlay` has into the image below, while the guest runs, and removes the overlay. It must be the
/// topmost, and nobody else may need the image below as it is. If this fails the overlay is not removed.
pub(super) fn commit(qmp: &mut Qmp, overlay: &Overlay, limit: Duration) -> Result<(), VmmError> {
    let begun = Instant::now();
    for name in ["BLOCK_JOB_READY", "BLOCK_JOB_COMPLETED"] {
        qmp.forget_events(name);
    }
    let arguments =
        json!({ "job-id": JOB, "device": overlay.overlay_node, "base-node": overlay.node });
    qmp.execute(COMMAND, arguments)?;
    await_event(qmp, "BLOCK_JOB_READY", begun, limit)?;
    qmp.execute("block-job-complete", json!({ "device": JOB }))?;
    await_event(qmp, "BLOCK_JOB_COMPLETED", begun, limit)?;
    overlay::remove(&overlay.path);
    Ok(())
}

/// Waits for an event of the job. Its end is one at any time, and may be a failure.
fn await_event(qmp: &mut Qmp, name: &str, begun: Instant, limit: Duration) -> Result<(), VmmError> {
    let is_ours = |event: &Event| {
        let is_step = event.name == name || event.name == "BLOCK_JOB_COMPLETED";
        is_step && event.data["device"] == JOB
    };
    let Some(event) = qmp.wait_event(is_ours, left(begun, limit))? else {
        qmp.execute("block-job-cancel", json!({ "device": JOB }))?;
        return Err(VmmError::TimedOut { what: "committing an overlay", limit });
    };
    match event.data.get("error").and_then(Value::as_str) {
        None if event.name == name => Ok(()),
        words => {
            let description = words.unwrap_or("somebody else ended the job").to_owned();
            Err(QmpError::Refused { command: COMMAND.to_owned(), description }.into())
        }
    }
}
