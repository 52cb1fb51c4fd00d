//! Merging only while memory is short, where settings say so.

use std::thread;
use std::time::{Duration, Instant};

use bindery_advisor::{Pressure, Readings};
use bindery_merge::Troubles;
use bindery_sys::memory::{self, MachineMemory};

use super::Shared;
use crate::daemon_settings::RunWhen;

/// How often memory is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// How often it is looked whether the daemon ends.
const STEP: Duration = Duration::from_millis(100);

/// Has merging wait while memory is not short, until the daemon ends. Blocks.
pub(super) fn watch_memory(shared: &Shared) {
    let mut watching: Option<Pressure> = None;
    let start = Instant::now();
    while !shared.stopping.is_set() {
        let settings = shared.engine.settings();
        match settings.run_when {
            RunWhen::Always => {
                watching = None;
                shared.engine.set_idle(false);
            }
            RunWhen::Pressure => {
                let marks = settings.pressure_marks();
                let pressure = watching.get_or_insert_with(|| Pressure::new(marks));
                pressure.set_marks(marks);
                let is_short =
                    is_short(pressure, start.elapsed().as_secs(), shared.engine.troubles());
                shared.engine.set_idle(!is_short);
            }
        }
        let until = Instant::now() + LOOK_EVERY;
        while Instant::now() < until && !shared.stopping.is_set() {
            thread::sleep(STEP);
        }
    }
}

/// Whether memory is short, and says so when that changes.
fn is_short(pressure: &mut Pressure, now_s: u64, troubles: &Troubles) -> bool {
    const SUBJECT: &str = "reading how much memory there is";
    let was_short = pressure.is_short();
    let memory = match MachineMemory::read() {
        Ok(memory) => memory,
        // Better to merge without need than not to when there is.
        Err(error) => {
            if troubles.note(SUBJECT, &error) {
                tracing::warn!("merging as if memory were short: {error}");
            }
            return true;
        }
    };
    if troubles.is_over(SUBJECT) {
        tracing::info!("how much memory there is can be read again");
    }
    let available_percent = memory.available_percent();
    let is_short = pressure.update(now_s, Readings { available_percent, stall: memory::stall() });
    if is_short != was_short {
        let now = if is_short { "is short: merging" } else { "is not short: merging pauses" };
        tracing::info!("memory {now}");
    }
    is_short
}
