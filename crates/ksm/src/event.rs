//! What a pilot tells of what it does.

use std::fmt;

use bindery_advisor::Mode;
use serde::Serialize;

use crate::Found;

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// The pilot begins.
    Started {
        /// Which law.
        advisor_mode: Mode,
        /// What was set before, and will be put back.
        found: Found,
        /// Whether that was saved by a pilot that was killed.
        is_taken_over: bool,
        /// Whether writers are named, or only noticed.
        names_writers: bool,
    },
    /// A full scan has ended. The name and the first three figures are those of the kernel's own
    /// trace event.
    KsmAdvisor {
        /// Of the scan, in microseconds; without the time in which ksmd had nothing to do.
        scan_time_us: u64,
        /// For the next scan.
        pages_to_scan: u64,
        /// ksmd's share of a CPU, in percent.
        cpu_percent: u64,
        /// For the next scan.
        sleep_millisecs: u64,
        /// ksmd's CPU time for the scan, in microseconds.
        cpu_us: u64,
        /// Pages that it looked at.
        pages: u64,
        /// Pages that the next scan is expected to look at.
        next_pages: u64,
        /// How many scans there have been since KSM was started.
        full_scans: u64,
        /// Whether the scan was seen from its beginning to its end, at no pace but the pilot's.
        is_whole: bool,
        /// For how long ksmd pauses first, because the scan passed over nearly everything, in
        /// microseconds.
        pause_us: u64,
        /// When the new value was written.
        timing: Timing,
        /// From the last look before the scan's end to when the new value was written, in
        /// microseconds.
        written_within_us: u64,
        /// CPU time of the pilot itself so far, in microseconds.
        pilot_cpu_us: u64,
    },
    /// The pace was lowered within a scan, because its pages cost more than the ceiling allows, or
    /// raised again, at most to what it was before.
    Held {
        /// ksmd's share of a CPU lately, in percent.
        cpu_percent: u64,
        /// From now on.
        pages_to_scan: u64,
        /// From now on.
        sleep_millisecs: u64,
    },
    /// The pace was raised within a scan, because that has more pages than were known when it began, or
    /// its target has passed.
    Raised {
        /// Pages that it has looked at so far.
        pages: u64,
        /// Pages that KSM has met in it for the first time.
        new_pages: u64,
        /// From now on.
        pages_to_scan: u64,
        /// From now on.
        sleep_millisecs: u64,
    },
    /// Somebody else changed a setting; it is back already.
    ForeignWrite {
        /// The kernel's name of it.
        setting: &'static str,
        /// What they wrote.
        found: String,
        /// What it is again.
        restored: String,
        /// Who, if that is known; of several the last.
        suspect: Option<Suspect>,
        /// How often it was put back: more than once if somebody writes again and again, which is told
        /// of once a second.
        count: u64,
    },
    /// Somebody stopped KSM, which is their right; the pilot waits.
    KsmStopped {
        /// 0, or 2: everything was unmerged.
        run: u64,
        /// Who, if that is known.
        suspect: Option<Suspect>,
    },
    /// KSM runs again.
    KsmRunning,
    /// The pilot has ended, and everything is as it was.
    Ended(Totals),
}

impl Event {
    /// Passes it on to whoever listens to [`tracing`]: the end of a scan as an event called
    /// `ksm_advisor`, as the kernel's own trace event is.
    pub(crate) fn trace(&self) {
        match self {
            Self::KsmAdvisor { scan_time_us, pages_to_scan, cpu_percent, .. } => tracing::info!(
                name: "ksm_advisor",
                scan_time = *scan_time_us as f64 / 1e6,
                pages_to_scan,
                cpu_percent,
                "ksm_advisor"
            ),
            Self::Held { cpu_percent, pages_to_scan, sleep_millisecs } => {
                tracing::info!(cpu_percent, pages_to_scan, sleep_millisecs, "held");
            }
            Self::Raised { pages, new_pages, pages_to_scan, sleep_millisecs } => {
                tracing::info!(pages, new_pages, pages_to_scan, sleep_millisecs, "raised");
            }
            Self::ForeignWrite { setting, found, restored, suspect, count } => {
                let suspect = suspect.as_ref().map(ToString::to_string);
                tracing::warn!(setting, found, restored, suspect, count, "put back");
            }
            Self::KsmStopped { run, suspect } => {
                let suspect = suspect.as_ref().map(ToString::to_string);
                tracing::warn!(run, suspect, "KSM does not run");
            }
            Self::KsmRunning => tracing::info!("KSM runs"),
            Self::Started { .. } | Self::Ended(_) => tracing::debug!("{self:?}"),
        }
    }
}

/// When a new value was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Timing {
    /// There was nothing to change.
    Unchanged,
    /// Between two scans: shown by the time since the last look before the scan's end, which is less
    /// than ksmd's rest, and by ksmd having looked at no page meanwhile.
    BetweenScans,
    /// That cannot be shown: some of the next scan may have gone at the old pace.
    Late,
}

/// Who wrote a setting.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Suspect {
    /// Its process id.
    pub pid: u32,
    /// Its name; `None` if it had ended before it could be read.
    pub command: Option<String>,
}

impl fmt::Display for Suspect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.command {
            Some(command) => write!(f, "{} ({})", self.pid, command.escape_debug()),
            None => write!(f, "{}, which has ended", self.pid),
        }
    }
}

/// What a pilot has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Totals {
    /// Scans that ended.
    pub scans: u64,
    /// New values written after one.
    pub changes: u64,
    /// Of them, those that were late.
    pub late_changes: u64,
    /// Times that the pace was changed within a scan.
    pub holds: u64,
    /// Times that somebody else changed a setting.
    pub foreign_writes: u64,
    /// CPU time of ksmd, in microseconds.
    pub ksmd_cpu_us: u64,
    /// CPU time of the pilot, in microseconds.
    pub pilot_cpu_us: u64,
    /// How long it ran, in microseconds.
    pub time_us: u64,
}
