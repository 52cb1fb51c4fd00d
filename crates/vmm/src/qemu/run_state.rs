//! The state of a guest's virtual CPUs, and starting them.

use std::time::{Duration, Instant, SystemTime};

use serde_json::json;

use super::answer::Field;
use super::left;
use crate::VmmError;
use crate::qmp::{Event, Qmp, QmpError};

/// QEMU's name of the state in which virtual CPUs run.
pub(super) const RUNNING: &str = "running";

/// Name of the event that virtual CPUs run.
pub(super) const RESUMED: &str = "RESUME";

/// Name of the event that virtual CPUs stand.
pub(super) const STOPPED: &str = "STOP";

/// Interval between tries of `cont` while QEMU closes what it has saved.
const FINALIZING_POLL: Duration = Duration::from_millis(1);

/// Returns QEMU's name of the state.
pub(super) fn of(qmp: &mut Qmp) -> Result<String, VmmError> {
    let answer = qmp.execute("query-status", json!({}))?;
    Ok(answer.text("query-status", "status")?.to_owned())
}

/// Starts the virtual CPUs, and returns the time of QEMU's event. [`VmmError::Disturbed`] if they run already.
pub(super) fn start(qmp: &mut Qmp, limit: Duration) -> Result<SystemTime, VmmError> {
    qmp.forget_events(RESUMED);
    let begun = Instant::now();
    loop {
        match qmp.execute_within("cont", json!({}), &[], left(begun, limit)) {
            Ok(_) => break,
            // "Migration is not finalized yet", for some milliseconds after it was completed.
            Err(QmpError::Refused { description, .. })
                if description.contains("finalized") && begun.elapsed() < limit =>
            {
                std::thread::sleep(FINALIZING_POLL);
            }
            Err(error) => return Err(error.into()),
        }
    }
    let is_resumed = |event: &Event| event.name == RESUMED;
    // QEMU sends the event before it answers, and none if it had nothing to do.
    if !qmp.has_event(RESUMED) && of(qmp)? == RUNNING && !qmp.has_event(RESUMED) {
        return Err(VmmError::Disturbed);
    }
    let resumed = qmp.wait_event(is_resumed, left(begun, limit))?;
    resumed.map(|event| event.at).ok_or(VmmError::TimedOut { what: "resuming", limit })
}
