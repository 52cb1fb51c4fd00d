//! How much memory is left: for huge pages, which are split for less as it gets short, and for merging, which
//! waits until it is where settings say so.

use std::time::{Duration, Instant};

use bindery_advisor::{Pressure, Readings};
use bindery_merge::{MemoryLevel, Troubles};
use bindery_sys::cgroup;
use bindery_sys::memory::{self, MachineMemory};
use bindery_units::PAGE_BYTES;

use super::Shared;
use crate::daemon_settings::{DaemonSettings, RunWhen};

/// How often memory is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Interval at which guests that wait to be filled are looked at.
const GLANCE: Duration = Duration::from_millis(100);

/// Memory that a limit has to leave for guests to be filled with what they have not touched, in bytes.
const LIMIT_BYTES: u64 = 64 << 20;

/// Tells merging how much memory is left, until the daemon ends. Blocks.
pub(super) fn watch_memory(shared: &Shared) {
    let mut pressure = Pressure::new(shared.engine.settings().pressure_marks());
    let start = Instant::now();
    while !shared.stopping.is_set() {
        let settings = shared.engine.settings();
        pressure.set_marks(settings.pressure_marks());
        let level = look(&mut pressure, &settings, start.elapsed(), shared.engine.troubles());
        shared.engine.set_memory(level.unwrap_or_default());
        // Better to merge without need than not to when there is.
        let is_short = level.is_none_or(|level| level == MemoryLevel::Short);
        shared.engine.set_idle(settings.run_when == RunWhen::Pressure && !is_short);
        shared.trackers.expire();
        shared.memory_pools.expire(|pid| shared.is_whole(pid));
        shared.sources.turns().set_short(shared.has_no_room(&settings));
        shared.rest(LOOK_EVERY);
    }
}

impl Shared {
    /// Sleeps, and gives turns meanwhile to guests that wait to be filled.
    fn rest(&self, time: Duration) {
        let end = Instant::now() + time;
        loop {
            self.sources.turns().advance(Instant::now(), |id| self.has_looked_at(id));
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() || self.stopping.is_set() {
                return;
            }
            let is_idle = self.sources.turns().is_idle();
            self.stopping.sleep(if is_idle { left } else { left.min(GLANCE) });
        }
    }

    /// Returns true if merging has looked at nearly all of a guest's memory, or the guest is gone.
    fn has_looked_at(&self, id: u32) -> bool {
        let Some(guest) = self.engine.guest(id) else { return true };
        let offered: u64 =
            guest.offered().iter().map(|range| range.bytes / PAGE_BYTES as u64).sum();
        self.engine.counts(id).is_some_and(|counts| {
            let waiting = counts.pages_pending + counts.pages_volatile;
            counts.pages_managed * 10 >= offered * 9 && waiting * 10 <= counts.pages_managed
        })
    }

    /// Returns true if guests that wait are not to be filled with what they have not touched: less memory is available
    /// than `pressure_available_low`, or the limits of the daemon's cgroups leave less than [`LIMIT_BYTES`]. Tasks that
    /// wait for memory do not count, since guests that are filled make some wait.
    fn has_no_room(&self, settings: &DaemonSettings) -> bool {
        if self.sources.turns().is_idle() {
            return false;
        }
        let low = settings.pressure_available_low;
        let is_low = MachineMemory::read().is_ok_and(|memory| memory.available_percent() < low);
        let left = cgroup::memory_left(std::process::id().cast_signed());
        is_low || left.is_some_and(|left| left.bytes < LIMIT_BYTES)
    }

    /// Returns true if the guest of a process is connected and lacks no page, as far as it is known.
    fn is_whole(&self, pid: i32) -> bool {
        let guest = self.engine.guest_of(pid);
        guest.is_some_and(|guest| self.sources.missing_pages(&guest).is_none())
    }
}

/// Returns how much memory is left, and logs when it gets short or is so no more. `None` if it cannot be read.
fn look(
    pressure: &mut Pressure,
    settings: &DaemonSettings,
    now: Duration,
    troubles: &Troubles,
) -> Option<MemoryLevel> {
    const SUBJECT: &str = "reading how much memory there is";
    let memory = match MachineMemory::read() {
        Ok(memory) => memory,
        Err(error) => {
            if troubles.note(SUBJECT, &error) {
                tracing::warn!("it cannot be told whether memory is short: {error}");
            }
            return None;
        }
    };
    if troubles.is_over(SUBJECT) {
        tracing::info!("how much memory there is can be read again");
    }
    let was_short = pressure.is_short();
    let available_percent = memory.available_percent();
    let readings = Readings { available_percent, stall: memory::stall() };
    let is_short = pressure.update(now.as_secs(), readings);
    if is_short != was_short {
        log_change(is_short, settings.run_when);
    }
    Some(level(is_short, available_percent, settings.pressure_available_high))
}

/// Returns the level at which so much memory is available. `plenty_percent` is what has to be for plenty.
const fn level(is_short: bool, available_percent: u64, plenty_percent: u64) -> MemoryLevel {
    match (is_short, available_percent < plenty_percent) {
        (true, _) => MemoryLevel::Short,
        (false, true) => MemoryLevel::Low,
        (false, false) => MemoryLevel::Plenty,
    }
}

fn log_change(is_short: bool, run_when: RunWhen) {
    let now = match (is_short, run_when) {
        (true, RunWhen::Pressure) => "is short: merging",
        (false, RunWhen::Pressure) => "is not short: merging pauses",
        (true, RunWhen::Always) => "is short: huge pages are split for less",
        (false, RunWhen::Always) => "is not short any more",
    };
    tracing::info!("memory {now}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_low_between_the_marks() {
        assert_eq!(level(false, 30, 30), MemoryLevel::Plenty);
        assert_eq!(level(false, 29, 30), MemoryLevel::Low);
        // Tasks wait for it, or it was short a moment ago.
        assert_eq!(level(true, 90, 30), MemoryLevel::Short);
    }
}
