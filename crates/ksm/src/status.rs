//! What KSM saves, what it costs, and who says how fast it goes.

use std::time::{Duration, Instant};

use bindery_sys::ksm::{Counters, KernelSettings, Ksmd};
use serde::Serialize;

use crate::{Claim, Holder, PilotError, Processes};

/// Who sets `pages_to_scan`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "by", rename_all = "kebab-case")]
pub enum SetBy {
    /// A pilot.
    Pilot(Holder),
    /// The kernel's own advisor.
    KernelAdvisor,
    /// Whoever wrote it last.
    Hand,
    /// A pilot or whoever wrote it last: to this user the system does not tell.
    Unknown,
}

/// What KSM saves and takes, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Savings {
    /// Memory that merging frees, zero pages included.
    pub saved_bytes: u64,
    /// What KSM keeps for each page that it knows, and for each shared one.
    pub metadata_bytes: u64,
    /// The difference.
    pub net_bytes: i64,
    /// The kernel's figure, which leaves out what it keeps for shared pages; `None` before Linux 6.4.
    pub general_profit: Option<i64>,
}

/// KSM now. Names are the kernel's where it has one.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Status {
    /// 0 stopped, 1 running, 2 stopped with everything unmerged.
    pub run: u64,
    /// Who sets the rate.
    pub set_by: SetBy,
    /// Pages of a batch.
    pub pages_to_scan: u64,
    /// The rest after a batch.
    pub sleep_millisecs: u64,
    /// The kernel's own advisor; `None` before Linux 6.8.
    pub advisor_mode: Option<String>,
    /// Whether pages that never merged are passed over; `None` before Linux 6.7.
    pub smart_scan: Option<bool>,
    /// What is saved.
    #[serde(flatten)]
    pub savings: Savings,
    /// Pages that are shared.
    pub pages_shared: u64,
    /// Pages that are saved by that.
    pub pages_sharing: u64,
    /// Pages that are the only one of their kind.
    pub pages_unshared: u64,
    /// Pages that change too fast.
    pub pages_volatile: u64,
    /// Pages merged with the kernel's zero page; `None` before Linux 6.6.
    pub ksm_zero_pages: Option<u64>,
    /// Full scans since KSM was first started.
    pub full_scans: u64,
    /// Pages looked at, a second; `None` before Linux 6.6.
    pub pages_per_second: Option<u64>,
    /// ksmd's share of a CPU while this was measured, in percent; `None` where ksmd is not seen.
    pub ksmd_cpu_percent: Option<f64>,
    /// ksmd's CPU time since boot, in microseconds.
    pub ksmd_cpu_us: Option<u64>,
    /// For how long rates were measured, in microseconds.
    pub measured_us: u64,
    /// Who gains and who loses.
    pub processes: Processes,
}

impl Status {
    /// Looks at KSM twice, `time` apart, and keeps the `top` processes. Changes nothing. Blocks for
    /// `time`.
    ///
    /// # Errors
    /// [`PilotError::NoKsm`]; [`PilotError::Io`] if `/proc` cannot be read.
    pub fn measure(time: Duration, top: usize) -> Result<Self, PilotError> {
        let ksmd = Ksmd::find().ok();
        let cpu_us = || Some(ksmd.as_ref()?.cpu_time().ok()?.as_micros() as u64);
        let begun = Instant::now();
        let (before, cpu_before) = (Counters::read().ok_or(PilotError::NoKsm)?, cpu_us());
        std::thread::sleep(time);
        let (counters, ksmd_cpu_us) = (Counters::read().ok_or(PilotError::NoKsm)?, cpu_us());
        let measured_us = (begun.elapsed().as_micros() as u64).max(1);
        let scanned = counters.pages_scanned.zip(before.pages_scanned);
        let used_us = ksmd_cpu_us.zip(cpu_before).map(|(to, from)| to.saturating_sub(from));
        let settings = KernelSettings::read();
        Ok(Self {
            run: settings.run.unwrap_or(0),
            set_by: set_by(&settings),
            pages_to_scan: settings.pages_to_scan.unwrap_or(0),
            sleep_millisecs: settings.sleep_millisecs.unwrap_or(0),
            advisor_mode: settings.advisor_mode,
            smart_scan: settings.smart_scan.map(|value| value != 0),
            savings: Savings::of(&counters),
            pages_shared: counters.pages_shared,
            pages_sharing: counters.pages_sharing,
            pages_unshared: counters.pages_unshared,
            pages_volatile: counters.pages_volatile,
            ksm_zero_pages: counters.ksm_zero_pages,
            full_scans: counters.full_scans,
            pages_per_second: scanned
                .map(|(to, from)| to.saturating_sub(from).saturating_mul(1_000_000) / measured_us),
            ksmd_cpu_percent: used_us.map(|used_us| used_us as f64 * 100.0 / measured_us as f64),
            ksmd_cpu_us,
            measured_us,
            processes: Processes::read(top).map_err(PilotError::io("read /proc"))?,
        })
    }
}

impl Savings {
    fn of(counters: &Counters) -> Self {
        Self {
            saved_bytes: counters.saved_bytes(),
            metadata_bytes: counters.metadata_bytes(),
            net_bytes: counters.net_bytes(),
            general_profit: counters.general_profit,
        }
    }
}

fn set_by(settings: &KernelSettings) -> SetBy {
    let is_on = settings.advisor_mode.as_ref().is_some_and(|mode| mode != "none");
    match Claim::holder() {
        Ok(Some(holder)) => SetBy::Pilot(holder),
        // It lets nobody else set the rate.
        _ if is_on => SetBy::KernelAdvisor,
        Ok(None) => SetBy::Hand,
        Err(_) => SetBy::Unknown,
    }
}
