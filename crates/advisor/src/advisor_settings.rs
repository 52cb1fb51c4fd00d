//! The knobs, under the kernel's names, and what they may be set to.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// What `advisor_target_scan_time` may be, in seconds.
pub const TARGET_SCAN_TIME_S: RangeInclusive<u64> = 1..=86_400;

/// What `advisor_max_cpu` may be, in percent of one CPU.
pub const MAX_CPU_PERCENT: RangeInclusive<u64> = 1..=25_600;

/// What `pages_to_scan` and its bounds may be.
pub const PAGES_TO_SCAN: RangeInclusive<u64> = 1..=100_000_000;

/// Which law decides how fast to scan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// None: `pages_to_scan` is what it was set to.
    None,
    /// The kernel's.
    ScanTime,
    /// Bindery's own.
    #[default]
    Steady,
}

impl Mode {
    /// All modes.
    pub const ALL: [Self; 3] = [Self::None, Self::ScanTime, Self::Steady];

    /// Its name: those of `/sys/kernel/mm/ksm/advisor_mode`, and `steady`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::ScanTime => "scan-time",
            Self::Steady => "steady",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// No mode has that name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("advisor_mode is none, scan-time or steady, not {0:?}")]
pub struct UnknownMode(pub String);

impl FromStr for Mode {
    type Err = UnknownMode;

    fn from_str(name: &str) -> Result<Self, UnknownMode> {
        let mode = Self::ALL.into_iter().find(|mode| mode.name() == name);
        mode.ok_or_else(|| UnknownMode(name.to_owned()))
    }
}

/// Targets of an advisor, and the bounds that it keeps to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdvisorSettings {
    /// Which law.
    #[serde(rename = "advisor_mode")]
    pub mode: Mode,
    /// How long a scan of all pages should take, in seconds.
    #[serde(rename = "advisor_target_scan_time")]
    pub target_scan_time_s: u64,
    /// The most CPU time that scanning may take, in percent of one CPU.
    #[serde(rename = "advisor_max_cpu")]
    pub max_cpu_percent: u64,
    /// The smallest batch. The kernel's law only begins with it.
    #[serde(rename = "advisor_min_pages_to_scan")]
    pub min_pages_to_scan: u64,
    /// The largest batch.
    #[serde(rename = "advisor_max_pages_to_scan")]
    pub max_pages_to_scan: u64,
}

impl AdvisorSettings {
    /// The kernel's defaults, in this mode.
    #[must_use]
    pub const fn of_kernel(mode: Mode) -> Self {
        Self {
            mode,
            target_scan_time_s: 200,
            max_cpu_percent: 70,
            min_pages_to_scan: 500,
            max_pages_to_scan: 30_000,
        }
    }

    /// Checks each setting.
    ///
    /// # Errors
    /// [`SettingError`]: the first that cannot be.
    pub fn check(&self) -> Result<(), SettingError> {
        let within = |name, value, range: RangeInclusive<u64>| match range.contains(&value) {
            true => Ok(()),
            false => Err(SettingError::OutOfRange { name, value, range }),
        };
        within("advisor_target_scan_time", self.target_scan_time_s, TARGET_SCAN_TIME_S)?;
        within("advisor_max_cpu", self.max_cpu_percent, MAX_CPU_PERCENT)?;
        within("advisor_min_pages_to_scan", self.min_pages_to_scan, PAGES_TO_SCAN)?;
        within("advisor_max_pages_to_scan", self.max_pages_to_scan, PAGES_TO_SCAN)?;
        if self.min_pages_to_scan > self.max_pages_to_scan {
            let (min, max) = (self.min_pages_to_scan, self.max_pages_to_scan);
            return Err(SettingError::Crossed { min, max });
        }
        Ok(())
    }
}

/// A setting that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SettingError {
    /// It is too small or too large.
    #[error("{name} is {} to {}, not {value}", range.start(), range.end())]
    OutOfRange {
        /// The kernel's name of it.
        name: &'static str,
        /// What it was to be.
        value: u64,
        /// What it may be.
        range: RangeInclusive<u64>,
    },
    /// The least is more than the most.
    #[error(
        "advisor_min_pages_to_scan ({min}) is above advisor_max_pages_to_scan ({max}): lower the one \
         or raise the other"
    )]
    Crossed {
        /// The least.
        min: u64,
        /// The most.
        max: u64,
    },
}

impl SettingError {
    /// The kernel's name of the setting to change.
    #[must_use]
    pub fn setting(&self) -> &'static str {
        match self {
            Self::OutOfRange { name, .. } => name,
            Self::Crossed { .. } => "advisor_min_pages_to_scan",
        }
    }

    /// The one that it does not go with, which may be changed instead.
    #[must_use]
    pub fn other_setting(&self) -> Option<&'static str> {
        match self {
            Self::OutOfRange { .. } => None,
            Self::Crossed { .. } => Some("advisor_max_pages_to_scan"),
        }
    }
}
