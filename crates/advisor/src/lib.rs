//! How fast to scan memory for pages to merge: a target scan time and a CPU ceiling in, pages to
//! scan out.
//!
//! Pure arithmetic: no clock, no files, no threads. Whoever scans tells an [`Advisor`] what each full
//! scan took ([`Scan`]) and is told how many pages to scan in a batch, and how long to rest after one
//! ([`Pace`]). The same laws pace Bindery's own engine and, through its files in `/sys`, the kernel's.
//!
//! - [`Mode::ScanTime`] is the law of the kernel's own advisor ([`kernel`]), integer for integer.
//! - [`Mode::Steady`] reckons with what a page costs ([`steady`]): it is at its target one scan after
//!   the number of pages has changed, goes faster in a scan that proves larger than was said, and is
//!   never above its ceiling.
//! - [`simulate`] runs either against a model of a scanner, second by second.
//! - [`Ceiling`] holds the CPU time of any number of threads below a share of each second, while a
//!   scan runs.
//! - [`Spare`] says how much CPU time all others leave.
//! - [`Pressure`] says when to scan at all, where merging is to wait until memory gets short.
//!
//! Seen first in Stefan Roesch, "mm/ksm: Add ksm advisor" (Linux 6.8, commit 66790e9a735b); knobs have
//! the kernel's names (Documentation/admin-guide/mm/ksm.rst).
#![forbid(unsafe_code)]

mod advisor_settings;
mod ceiling;
pub mod kernel;
mod pressure;
pub mod recorded;
pub mod simulate;
mod spare;

pub mod steady;

pub use advisor_settings::{
    AdvisorSettings, MAX_CPU_PERCENT, Mode, PAGES_TO_SCAN, SettingError, TARGET_SCAN_TIME_S,
    UnknownMode,
};
pub use ceiling::Ceiling;
pub use pressure::{Pressure, PressureMarks, Readings};
pub use spare::{Spare, Usage};

/// What a full scan took: every page that is to be looked at was looked at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scan {
    /// From its start to its end, in microseconds.
    pub time_us: u64,
    /// Of it, the time in which anybody worked, in microseconds; the rest was rests. With one thread
    /// that is its CPU time.
    pub busy_us: u64,
    /// CPU time of all threads that took part, in microseconds.
    pub cpu_us: u64,
    /// Pages that were looked at.
    pub pages: u64,
}

impl Scan {
    /// Both together, one after the other.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            time_us: self.time_us.saturating_add(other.time_us),
            busy_us: self.busy_us.saturating_add(other.busy_us),
            cpu_us: self.cpu_us.saturating_add(other.cpu_us),
            pages: self.pages.saturating_add(other.pages),
        }
    }

    /// CPU time as a share of the scan's, in percent of one CPU.
    #[must_use]
    pub fn cpu_percent(&self) -> u64 {
        self.cpu_us.saturating_mul(100) / self.time_us.max(1)
    }
}

/// How far a scan under way is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Since it began, in microseconds.
    pub time_us: u64,
    /// Pages that it has looked at.
    pub pages: u64,
    /// Pages of it, looked at or not, that are known to be on top of those it was said to have.
    pub new_pages: u64,
}

/// How to scan: batches of so many pages, with a rest after each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Pages of a batch.
    pub pages_to_scan: u64,
    /// The rest after a batch, in microseconds.
    pub rest_us: u64,
}

/// Says how fast to scan, from what the last scan took.
#[derive(Clone, Debug)]
pub struct Advisor {
    settings: AdvisorSettings,
    rest_us: u64,
    law: Law,
}

#[derive(Clone, Debug)]
enum Law {
    Fixed(Pace),
    ScanTime(kernel::ScanTime),
    Steady(steady::Steady),
}

impl Advisor {
    /// An advisor for batches that are `rest_us` microseconds apart (KSM's `sleep_millisecs`). Without
    /// a law ([`Mode::None`]) it advises `pages_to_scan`; with one, it begins with the least that the
    /// settings allow.
    #[must_use]
    pub fn new(settings: AdvisorSettings, pages_to_scan: u64, rest_us: u64) -> Self {
        let law = match settings.mode {
            Mode::None => Law::Fixed(Pace { pages_to_scan, rest_us }),
            Mode::ScanTime => Law::ScanTime(kernel::ScanTime::new(&settings)),
            Mode::Steady => Law::Steady(steady::Steady::new(&settings, rest_us)),
        };
        Self { settings, rest_us, law }
    }

    /// What it was set to.
    #[must_use]
    pub fn settings(&self) -> &AdvisorSettings {
        &self.settings
    }

    /// Takes up other settings, from the next scan on. What was learned is kept while the mode stays.
    pub fn set(&mut self, settings: AdvisorSettings) {
        if settings.mode != self.settings.mode {
            let Pace { pages_to_scan, .. } = self.pace();
            *self = Self::new(settings, pages_to_scan, self.rest_us);
        }
        self.settings = settings;
    }

    /// How to scan now.
    #[must_use]
    pub fn pace(&self) -> Pace {
        match &self.law {
            Law::Fixed(pace) => *pace,
            Law::ScanTime(law) => {
                Pace { pages_to_scan: law.pages_to_scan(), rest_us: self.rest_us }
            }
            Law::Steady(law) => law.pace(),
        }
    }

    /// Takes in what a full scan took and says how to do the next one. `next_pages`: how many pages
    /// that will look at, where it is known; else as many as this one. Nothing is learned from a scan
    /// of no pages.
    pub fn end_scan(&mut self, scan: Scan, next_pages: Option<u64>) -> Pace {
        match &mut self.law {
            Law::Fixed(_) => {}
            Law::ScanTime(law) => {
                law.end_scan(&self.settings, scan);
            }
            Law::Steady(law) => law.end_scan(&self.settings, scan, next_pages),
        }
        self.pace()
    }

    /// Takes in how many pages the scan that is about to begin will look at, where that is known only
    /// now. The kernel's law has no use for it.
    pub fn begin_scan(&mut self, pages: u64) -> Pace {
        if let Law::Steady(law) = &mut self.law {
            law.begin_scan(&self.settings, pages);
        }
        self.pace()
    }

    /// Takes in what was done within a scan since it was last told, or since the scan began, and slows
    /// down at once where pages cost too much for the ceiling. To be called every fifth of a second or
    /// so: the ceiling is as fine as that. Never advises to go faster than the scan began, or than
    /// [`catch_up`](Self::catch_up) said since; the kernel's law does nothing before its end.
    pub fn hold(&mut self, part: Scan) -> Pace {
        if let Law::Steady(law) = &mut self.law {
            law.hold(&self.settings, part);
        }
        self.pace()
    }

    /// Takes in how far the scan under way is, and goes faster for the rest of it, as far as the ceiling
    /// allows, where it has more pages than it was said to have or its target has passed. To be called
    /// after [`hold`](Self::hold), by whoever is not told the pages of a scan when it begins. Never
    /// slows down; the kernel's law has no use for it.
    pub fn catch_up(&mut self, progress: Progress) -> Pace {
        if let Law::Steady(law) = &mut self.law {
            law.catch_up(&self.settings, progress);
        }
        self.pace()
    }
}
