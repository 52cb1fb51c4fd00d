//! When to scan at all: only while memory is short, or always.

use serde::{Deserialize, Serialize};

/// From which marks on memory is short, and from which it is not any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PressureMarks {
    /// Memory is short when less than this share of it is available, in percent.
    pub available_low_percent: u64,
    /// It is not short any more when at least this share is, in percent.
    pub available_high_percent: u64,
    /// Memory is short when tasks wait for it for more than this share of ten seconds, in hundredths
    /// of a percent (PSI's `some avg10`).
    pub stall_high: u64,
    /// It is not short any more when they wait for this share at most, in hundredths of a percent.
    pub stall_low: u64,
    /// For how long memory must not be short before scanning ends, in seconds.
    pub hold_s: u64,
}

impl PressureMarks {
    /// What suits a host that does other work.
    pub const DEFAULT: Self = Self {
        available_low_percent: 20,
        available_high_percent: 30,
        stall_high: 500,
        stall_low: 100,
        hold_s: 60,
    };
}

impl Default for PressureMarks {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// How memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Readings {
    /// `MemAvailable` as a share of `MemTotal`, in percent.
    pub available_percent: u64,
    /// PSI's `some avg10` of memory, in hundredths of a percent; `None` where the kernel has no PSI.
    pub stall: Option<u64>,
}

/// Says whether to scan, with hysteresis.
#[derive(Clone, Copy, Debug)]
pub struct Pressure {
    marks: PressureMarks,
    is_short: bool,
    /// Since when memory has been plentiful.
    eased_s: Option<u64>,
}

impl Pressure {
    /// At first, memory is not short.
    #[must_use]
    pub fn new(marks: PressureMarks) -> Self {
        Self { marks, is_short: false, eased_s: None }
    }

    /// Takes up other marks. Memory that is short stays so until they say that it is not.
    pub fn set_marks(&mut self, marks: PressureMarks) {
        self.marks = marks;
    }

    /// Takes in how memory is at `now_s`, in seconds of a clock that does not go backwards, and says
    /// whether to scan.
    pub fn update(&mut self, now_s: u64, readings: Readings) -> bool {
        let Readings { available_percent, stall } = readings;
        let stall = stall.unwrap_or(0);
        if available_percent < self.marks.available_low_percent || stall > self.marks.stall_high {
            self.is_short = true;
            self.eased_s = None;
        } else if available_percent >= self.marks.available_high_percent
            && stall <= self.marks.stall_low
        {
            let since_s = *self.eased_s.get_or_insert(now_s);
            if now_s.saturating_sub(since_s) >= self.marks.hold_s {
                self.is_short = false;
            }
        } else {
            // Between the marks: as it was.
            self.eased_s = None;
        }
        self.is_short
    }

    /// Whether to scan.
    #[must_use]
    pub fn is_short(&self) -> bool {
        self.is_short
    }
}
