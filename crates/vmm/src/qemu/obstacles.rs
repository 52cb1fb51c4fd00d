//! Obstacles that QEMU itself reports.

use serde_json::{Value, json};

use crate::qmp::Qmp;
use crate::{Obstacle, SaveMethod, VmmError};

/// States of a migration that is over, or was none.
const OVER: [&str; 4] = ["none", "completed", "failed", "cancelled"];

/// Returns the obstacle that a state of the virtual CPUs is, if it is one.
pub(super) fn of_state(state: &str) -> Option<Obstacle> {
    let (what, remedy) = match state {
        "running" | "paused" => return None,
        "suspended" => ("sleeps", "wake it with `system_wakeup`"),
        "prelaunch" | "preconfig" => ("has not been started", "start it with `cont`"),
        "inmigrate" => ("waits for its device state", "load that first"),
        "io-error" => ("was stopped by a disk that failed", "mend the storage, then `cont`"),
        "postmigrate" | "finish-migrate" => (
            "was saved or migrated by somebody else",
            "end that, then `cont` if it runs nowhere else",
        ),
        _ => ("has stopped", "see its console, and restart it"),
    };
    Some(Obstacle::new(format!("the guest {what} (QEMU's state is `{state}`)"), remedy))
}

/// Returns the obstacle that a paused guest could not be left as it is: `migrate` puts it into another state,
/// and lets go of its disks.
pub(super) fn of_paused(state: &str, method: SaveMethod) -> Option<Obstacle> {
    (state == "paused" && method == SaveMethod::IgnoreShared).then(|| {
        Obstacle::new(
            format!("the guest is paused, and saving it by {method} would not leave it so"),
            "resume it with `cont` first",
        )
    })
}

/// Asks for migration blockers, for devices that cannot be saved, and for a migration that goes on.
pub(super) fn of_migration(qmp: &mut Qmp) -> Result<Vec<Obstacle>, VmmError> {
    Ok(read_migration(&qmp.execute("query-migrate", json!({}))?))
}

fn read_migration(answer: &Value) -> Vec<Obstacle> {
    let mut found = Vec::new();
    let status = answer.get("status").and_then(Value::as_str).unwrap_or("none");
    if !OVER.contains(&status) {
        let what = format!("a migration of it is {status}");
        found.push(Obstacle::new(what, "wait for its end, or end it with `migrate_cancel`"));
    }
    let reasons =
        answer.get("blocked-reasons").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    found.extend(reasons.iter().map(|reason| {
        let words = reason.as_str().map_or_else(|| reason.to_string(), str::to_owned);
        Obstacle::new(
            format!("QEMU cannot save it: {words}"),
            "unplug the device, or start the guest without it",
        )
    }));
    found
}

/// Returns the obstacle that there is no way of saving device state.
pub(super) fn no_method(tried: &[SaveMethod]) -> Obstacle {
    let names: Vec<_> = tried.iter().map(ToString::to_string).collect();
    Obstacle::new(
        format!(
            "this QEMU has no way to save its devices without its memory ({})",
            names.join(", ")
        ),
        "use QEMU 7.2 or newer, or give all guest memory as `memory-backend-file,share=on`",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_other_than_running_and_paused_are_obstacles() {
        assert_eq!((of_state("running"), of_state("paused")), (None, None));
        for state in ["suspended", "prelaunch", "inmigrate", "io-error", "postmigrate", "new-one"] {
            let obstacle = of_state(state).unwrap();
            assert!(obstacle.what.contains(state) && !obstacle.remedy.is_empty(), "{obstacle}");
        }
    }

    #[test]
    fn paused_guests_are_not_saved_by_migrating() {
        assert!(of_paused("paused", SaveMethod::IgnoreShared).is_some());
        assert_eq!(of_paused("paused", SaveMethod::XenSaveDevicesState), None);
        assert_eq!(of_paused("running", SaveMethod::IgnoreShared), None);
    }

    #[test]
    fn blockers_and_active_migrations_are_named() {
        for over in [json!({}), json!({"status": "none"}), json!({"status": "completed"})] {
            assert_eq!(read_migration(&over), []);
        }
        let blocked =
            json!({"status": "active", "blocked-reasons": ["non-migratable device: nvme"]});
        let found = read_migration(&blocked);
        assert!(found[0].what.contains("active") && found[1].what.contains("nvme"), "{found:?}");
    }
}
