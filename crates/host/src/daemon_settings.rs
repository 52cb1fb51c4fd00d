//! Settings that can be changed while the daemon runs: names, ranges, defaults, and what goes with what.
//!
//! The knobs of the advisor have the kernel's names and meanings
//! (Documentation/admin-guide/mm/ksm.rst).

mod allowed;
mod huge_pages;

use std::time::Duration;

use bindery_advisor::{AdvisorSettings, Mode, PressureMarks};
use bindery_merge::HugeMode;
use serde::{Deserialize, Serialize};

pub use allowed::{allowed, allowed_numbers, allowed_words, is_truth_value};
pub use huge_pages::HugePages;

/// When to merge at all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RunWhen {
    /// Always.
    #[default]
    Always,
    /// Only while memory is short.
    Pressure,
}

impl RunWhen {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Always, Self::Pressure];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Always => "always",
            Self::Pressure => "pressure",
        }
    }
}

/// Settings that can be changed while the daemon runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DaemonSettings {
    /// Workers that merge.
    pub workers: u32,
    /// Length of a merge period, in milliseconds.
    pub period_ms: u64,
    /// Pages looked at in 20 ms while `advisor_mode` is `none`; 0: as fast as it goes.
    pub pages_to_scan: u64,
    /// Pacing: `advisor_mode`, `advisor_target_scan_time` (seconds), `advisor_max_cpu` (percent of one
    /// CPU, for all workers together), `advisor_min_pages_to_scan`, `advisor_max_pages_to_scan`.
    #[serde(flatten)]
    pub advisor: AdvisorSettings,
    /// True if merging uses as much CPU time as all CPUs have left, in place of `advisor_max_cpu`.
    pub spare_cpu: bool,
    /// When to merge.
    pub run_when: RunWhen,
    /// Memory is short when less than this share of it is available, in percent.
    pub pressure_available_low: u64,
    /// It is not short any more when at least this share is, in percent.
    pub pressure_available_high: u64,
    /// Memory is short when tasks wait for it for more than this share of ten seconds (PSI), in
    /// percent.
    pub pressure_stall_high: u64,
    /// It is not short any more when they wait for this share at most, in percent.
    pub pressure_stall_low: u64,
    /// For how long memory must not be short before merging pauses, in seconds.
    pub pressure_hold: u64,
    /// Treatment of huge pages.
    #[serde(flatten)]
    pub huge: HugePages,
    /// True if pages of guests on different NUMA nodes are merged. Changed only while no guest is managed.
    pub across_nodes: bool,
}

/// Pacing that suits a host which does other work: half a CPU at most, and at most 20 s until memory
/// that has come to rest is looked at, sooner where there is little of it.
const ADVISOR: AdvisorSettings = AdvisorSettings {
    mode: Mode::Steady,
    target_scan_time_s: 20,
    max_cpu_percent: 50,
    min_pages_to_scan: 2_000,
    max_pages_to_scan: 100_000,
};

impl DaemonSettings {
    /// The defaults, with so many workers.
    #[must_use]
    pub const fn with_workers(workers: u32) -> Self {
        Self {
            workers,
            period_ms: 1000,
            pages_to_scan: 0,
            advisor: ADVISOR,
            spare_cpu: false,
            run_when: RunWhen::Always,
            pressure_available_low: PressureMarks::DEFAULT.available_low_percent,
            pressure_available_high: PressureMarks::DEFAULT.available_high_percent,
            pressure_stall_high: PressureMarks::DEFAULT.stall_high / 100,
            pressure_stall_low: PressureMarks::DEFAULT.stall_low / 100,
            pressure_hold: PressureMarks::DEFAULT.hold_s,
            huge: HugePages::DEFAULT,
            across_nodes: true,
        }
    }

    /// The defaults on this machine: two workers, or one where there is one CPU.
    #[must_use]
    pub fn of_machine() -> Self {
        let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self::with_workers(cpus.min(2) as u32)
    }

    /// The length of a merge period.
    #[must_use]
    pub fn period(&self) -> Duration {
        Duration::from_millis(self.period_ms)
    }

    /// Pages looked at in 20 ms while there is no advisor; `None`: as fast as it goes.
    pub(crate) fn rate(&self) -> Option<u64> {
        (self.pages_to_scan > 0).then_some(self.pages_to_scan)
    }

    /// From when on memory is short.
    pub(crate) fn pressure_marks(&self) -> PressureMarks {
        PressureMarks {
            available_low_percent: self.pressure_available_low,
            available_high_percent: self.pressure_available_high,
            stall_high: self.pressure_stall_high * 100,
            stall_low: self.pressure_stall_low * 100,
            hold_s: self.pressure_hold,
        }
    }

    /// Checks each, and what they mean together.
    ///
    /// # Errors
    /// [`Refused`]: the first that cannot be.
    pub fn check(&self) -> Result<(), Refused> {
        within("workers", self.workers.into())?;
        within("period_ms", self.period_ms)?;
        within("pages_to_scan", self.pages_to_scan)?;
        self.advisor.check().map_err(|error| Refused {
            name: error.setting(),
            other: error.other_setting(),
            message: error.to_string(),
        })?;
        within("pressure_available_low", self.pressure_available_low)?;
        within("pressure_available_high", self.pressure_available_high)?;
        within("pressure_stall_high", self.pressure_stall_high)?;
        within("pressure_stall_low", self.pressure_stall_low)?;
        within("pressure_hold", self.pressure_hold)?;
        self.huge.check()?;
        let ordered = |low: (&'static str, u64), high: (&'static str, u64)| match low.1 <= high.1 {
            true => Ok(()),
            false => Err(Refused {
                name: low.0,
                other: Some(high.0),
                message: format!(
                    "{} ({}) is above {} ({}): lower the one or raise the other",
                    low.0, low.1, high.0, high.1
                ),
            }),
        };
        ordered(
            ("pressure_available_low", self.pressure_available_low),
            ("pressure_available_high", self.pressure_available_high),
        )?;
        ordered(
            ("pressure_stall_low", self.pressure_stall_low),
            ("pressure_stall_high", self.pressure_stall_high),
        )
    }
}

/// Whether a setting is a number that it may be.
fn within(name: &'static str, value: u64) -> Result<(), Refused> {
    let range = allowed_numbers(name).expect("only settings that are numbers are checked so");
    if range.contains(&value) {
        return Ok(());
    }
    let message = format!("{name} is {} to {}, not {value}", range.start(), range.end());
    Err(Refused { name, other: None, message })
}

/// A setting that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refused {
    /// The setting.
    pub name: &'static str,
    /// The one that it does not go with.
    pub other: Option<&'static str>,
    /// What it may be, and what to do.
    pub message: String,
}

impl Refused {
    /// Refuses to change `across_nodes` while guests are managed.
    pub(crate) fn across_nodes(value: bool) -> Self {
        let message = format!(
            "across_nodes can be changed only while no guest is managed: restart the daemon with \
             across_nodes = {value} in its configuration file, or with --set across_nodes={value}; guests go \
             on meanwhile, and are taken over"
        );
        Self { name: "across_nodes", other: None, message }
    }
}

/// Settings to be changed; those not named stay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[expect(missing_docs, reason = "each is documented with the setting of its name")]
pub struct Change {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workers: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub period_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pages_to_scan: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advisor_mode: Option<Mode>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advisor_target_scan_time: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advisor_max_cpu: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advisor_min_pages_to_scan: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advisor_max_pages_to_scan: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spare_cpu: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_when: Option<RunWhen>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pressure_available_low: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pressure_available_high: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pressure_stall_high: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pressure_stall_low: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pressure_hold: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub huge_pages: Option<HugeMode>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub huge_pages_gain: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub huge_pages_gain_low: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub huge_pages_gain_short: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub huge_pages_hot: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub huge_pages_thin: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub huge_pages_patience: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub across_nodes: Option<bool>,
}

impl Change {
    /// The settings as they are to be, if all of them can be.
    ///
    /// # Errors
    /// [`Refused`]: the first that cannot be. `pages_to_scan` is the advisor's while there is one, as
    /// in the kernel (`EINVAL`).
    pub fn apply(&self, settings: &DaemonSettings) -> Result<DaemonSettings, Refused> {
        let mut new = *settings;
        let AdvisorSettings {
            mode,
            target_scan_time_s,
            max_cpu_percent,
            min_pages_to_scan,
            max_pages_to_scan,
        } = &mut new.advisor;
        set(&mut new.workers, self.workers);
        set(&mut new.period_ms, self.period_ms);
        set(&mut new.pages_to_scan, self.pages_to_scan);
        set(mode, self.advisor_mode);
        set(target_scan_time_s, self.advisor_target_scan_time);
        set(max_cpu_percent, self.advisor_max_cpu);
        set(min_pages_to_scan, self.advisor_min_pages_to_scan);
        set(max_pages_to_scan, self.advisor_max_pages_to_scan);
        set(&mut new.spare_cpu, self.spare_cpu);
        set(&mut new.run_when, self.run_when);
        set(&mut new.pressure_available_low, self.pressure_available_low);
        set(&mut new.pressure_available_high, self.pressure_available_high);
        set(&mut new.pressure_stall_high, self.pressure_stall_high);
        set(&mut new.pressure_stall_low, self.pressure_stall_low);
        set(&mut new.pressure_hold, self.pressure_hold);
        set(&mut new.huge.huge_pages, self.huge_pages);
        set(&mut new.huge.huge_pages_gain, self.huge_pages_gain);
        set(&mut new.huge.huge_pages_gain_low, self.huge_pages_gain_low);
        set(&mut new.huge.huge_pages_gain_short, self.huge_pages_gain_short);
        set(&mut new.huge.huge_pages_hot, self.huge_pages_hot);
        set(&mut new.huge.huge_pages_thin, self.huge_pages_thin);
        set(&mut new.huge.huge_pages_patience, self.huge_pages_patience);
        set(&mut new.across_nodes, self.across_nodes);
        if self.pages_to_scan.is_some() && new.advisor.mode != Mode::None {
            let message = format!(
                "pages_to_scan is set by the advisor while advisor_mode is {}: set \
                 advisor_mode=none as well, or advisor_max_pages_to_scan instead",
                new.advisor.mode
            );
            return Err(Refused { name: "pages_to_scan", other: Some("advisor_mode"), message });
        }
        new.check().map(|()| new)
    }
}

fn set<T: Copy>(setting: &mut T, value: Option<T>) {
    *setting = value.unwrap_or(*setting);
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTINGS: DaemonSettings = DaemonSettings::with_workers(2);

    #[test]
    fn the_defaults_can_be() {
        SETTINGS.check().unwrap();
    }

    #[test]
    fn each_setting_out_of_range_is_refused_by_its_name() {
        let change = |json: &str| serde_json::from_str::<Change>(json).unwrap();
        for (name, value) in [
            ("workers", 0),
            ("workers", 257),
            ("period_ms", 9),
            ("period_ms", 600_001),
            ("advisor_target_scan_time", 0),
            ("advisor_max_cpu", 0),
            ("advisor_max_cpu", 25_601),
            ("advisor_min_pages_to_scan", 0),
            ("advisor_max_pages_to_scan", 100_000_001),
            ("pressure_available_low", 101),
            ("pressure_available_high", 101),
            ("pressure_stall_high", 101),
            ("pressure_stall_low", 101),
            ("pressure_hold", 86_401),
            ("huge_pages_gain", 513),
            ("huge_pages_gain_low", 0),
            ("huge_pages_gain_short", 0),
            ("huge_pages_hot", 513),
            ("huge_pages_thin", 513),
            ("huge_pages_patience", 0),
        ] {
            let refused = change(&format!(r#"{{"{name}":{value}}}"#)).apply(&SETTINGS).unwrap_err();
            assert_eq!(refused.name, name);
            assert!(refused.message.contains(&value.to_string()), "{refused}");
        }
    }

    #[test]
    fn marks_in_the_wrong_order_are_refused() {
        let change = Change { pressure_available_low: Some(40), ..Change::default() };
        assert_eq!(change.apply(&SETTINGS).unwrap_err().name, "pressure_available_low");
        let both = Change { pressure_available_high: Some(50), ..change };
        assert_eq!(both.apply(&SETTINGS).unwrap().pressure_available_low, 40);
        let crossed = Change { advisor_min_pages_to_scan: Some(200_000), ..Change::default() };
        assert_eq!(crossed.apply(&SETTINGS).unwrap_err().name, "advisor_min_pages_to_scan");
    }

    #[test]
    fn huge_pages_are_not_split_for_less_while_there_is_more_memory() {
        let change = Change { huge_pages_gain_short: Some(17), ..Change::default() };
        assert_eq!(change.apply(&SETTINGS).unwrap_err().other, Some("huge_pages_gain_low"));
        let thin = Change { huge_pages_thin: Some(65), ..Change::default() };
        assert_eq!(thin.apply(&SETTINGS).unwrap_err().other, Some("huge_pages_gain"));
        let both = Change { huge_pages_gain: Some(65), ..thin };
        assert_eq!(both.apply(&SETTINGS).unwrap().huge.settings().gain_pages, [65, 16, 1]);
    }

    #[test]
    fn pages_to_scan_is_the_advisors_while_there_is_one() {
        let by_hand = Change { pages_to_scan: Some(100), ..Change::default() };
        assert!(by_hand.apply(&SETTINGS).unwrap_err().message.contains("advisor_mode=none"));
        let alone = Change { advisor_mode: Some(Mode::None), ..by_hand };
        let settings = alone.apply(&SETTINGS).unwrap();
        assert_eq!((settings.pages_to_scan, settings.rate()), (100, Some(100)));
        by_hand.apply(&settings).unwrap();
        let paced_again = Change { advisor_mode: Some(Mode::Steady), ..Change::default() };
        paced_again.apply(&settings).unwrap();
    }
}
