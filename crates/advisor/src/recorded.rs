//! Recordings of the kernel's own KSM, as `cargo xtask record-advisor` writes them to `traces/`.

use serde::{Deserialize, Serialize};

use crate::AdvisorSettings;
use crate::kernel::Event;

/// What the kernel's advisor did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recording {
    /// The kernel's release.
    pub kernel: String,
    /// Each from when the advisor was switched on.
    pub segments: Vec<Segment>,
}

/// A run of the kernel's advisor under one set of settings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Segment {
    /// What was done meanwhile.
    pub name: String,
    /// The knobs.
    #[serde(flatten)]
    pub settings: AdvisorSettings,
    /// What its trace event told, one for each full scan.
    pub events: Vec<Event>,
}

/// How candidates came and went while programs started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartUp {
    /// The kernel's release.
    pub kernel: String,
    /// In order of time.
    pub points: Vec<StartUpPoint>,
}

/// What held from one moment until the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartUpPoint {
    /// Since the start, in milliseconds.
    pub time_ms: u64,
    /// Pages that KSM might look at.
    pub candidates: u64,
    /// What a page cost ksmd, in nanoseconds.
    pub page_ns: u64,
}
