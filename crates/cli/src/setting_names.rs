//! Settings by name, as `bindery set`, `bindery daemon --set` and the configuration file take them.

use std::str::FromStr;
use std::time::Duration;

use bindery_host::PERIODS;
use bindery_host::daemon_settings::{
    Change, DaemonSettings, allowed, allowed_numbers, is_truth_value,
};
use serde_json::{Map, Value};

use crate::times::time;

/// What can be set, one a line, for help and manual.
pub(crate) const SETTINGS: &str = "\
Settings:
  workers=N                      workers that merge: 1 to 256
  period=TIME                    length of a merge period: 10ms to 10m
  advisor_mode=MODE              how scans are paced: steady; scan-time, the kernel's law; none
  advisor_target_scan_time=TIME  how long it may take to look at memory that has come to rest
  advisor_max_cpu=PERCENT        most CPU time of all workers together, in percent of one CPU
  spare_cpu=true|false           true: as much CPU time as all CPUs have left, in place of that
  advisor_min_pages_to_scan=N    fewest pages looked at between two rests of 20 ms
  advisor_max_pages_to_scan=N    most pages looked at between two rests
  pages_to_scan=N                pages looked at in 20 ms with advisor_mode=none; 0: no limit
  run_when=WHEN                  always; pressure: merge only while memory is short
  pressure_available_low=PERCENT   memory is short when less of it is available
  pressure_available_high=PERCENT  and not short any more when as much is
  pressure_stall_high=PERCENT      memory is short when tasks wait for it for longer (PSI)
  pressure_stall_low=PERCENT       and not short any more when they wait for no longer
  pressure_hold=TIME               how long it must not be short before merging pauses
  huge_pages=HOW                 keep; auto: split where enough is gained; break: for one page, as KSM
  huge_pages_gain=PAGES            what a split has to gain, of 512 pages, while memory is plentiful
  huge_pages_gain_low=PAGES        while less is available than pressure_available_high
  huge_pages_gain_short=PAGES      while memory is short
  huge_pages_hot=PAGES             more written in a period: kept whole, unless memory is short
  huge_pages_thin=PAGES            fewer merged: made whole again
  huge_pages_patience=PERIODS      for how long it has to be so, or hot, before it is
  across_nodes=true|false          false: merge within NUMA nodes; changed while no guest is managed";

/// A setting and what it is to be.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Setting {
    /// As the daemon calls it.
    pub(crate) name: String,
    pub(crate) value: Value,
}

impl Setting {
    /// What `text` says that `name` is to be.
    ///
    /// # Errors
    /// If there is no such setting, or it cannot be that: with what it may be.
    pub(crate) fn parse(name: &str, text: &str) -> Result<Self, String> {
        let number = || text.parse().ok();
        let (field, value) = match name {
            "period" => {
                let period = time(text).filter(|period| PERIODS.contains(period));
                ("period_ms", period.map(|period| period.as_millis() as u64))
            }
            "advisor_target_scan_time" | "pressure_hold" => {
                let whole = |time: Duration| (time.subsec_nanos() == 0).then_some(time.as_secs());
                (name, number().or_else(|| time(text).and_then(whole)))
            }
            _ => (name, number()),
        };
        let is_so = text.parse().ok().filter(|_| is_truth_value(name));
        let value = value.map(Value::from).or_else(|| is_so.map(Value::Bool));
        let value = value.unwrap_or_else(|| Value::String(text.into()));
        let setting = Self { name: field.into(), value };
        match change(std::slice::from_ref(&setting)) {
            Ok(_) => Ok(setting),
            Err(_) => Err(refusal(name, &format!("{text:?}"))),
        }
    }
}

/// Reads a flag's number, which is for the setting called `name`.
pub(crate) fn number_of(
    name: &'static str,
) -> impl Fn(&str) -> Result<u64, String> + Clone + Send + Sync + 'static {
    move |text| {
        let range = allowed_numbers(name).expect("only settings that are numbers are read so");
        let number = text.parse().ok().filter(|number| range.contains(number));
        number.ok_or_else(|| refusal(name, &format!("{text:?}")))
    }
}

/// Why `name` cannot be what was `given`.
pub(crate) fn refusal(name: &str, given: &str) -> String {
    match may_be(name) {
        Some(range) => format!("{name} is {range}, not {given}"),
        None => {
            let names = SETTINGS.lines().skip(1).filter_map(|line| line.trim().split('=').next());
            let names: Vec<_> = names.collect();
            format!("there is no setting {name}; there are {}", names.join(", "))
        }
    }
}

/// What a setting may be, as operators write it.
fn may_be(name: &str) -> Option<String> {
    match name {
        "period" => {
            let (least, most) = (PERIODS.start(), PERIODS.end());
            Some(format!("{least:?} to {}m, as in 500ms, 1s or 2m", most.as_secs() / 60))
        }
        "advisor_target_scan_time" | "pressure_hold" => {
            allowed(name).map(|range| format!("{range} whole seconds, as in 30, 30s or 5m"))
        }
        _ => allowed(name),
    }
}

impl FromStr for Setting {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, value) =
            text.split_once('=').ok_or("a setting is a name and a value: workers=2")?;
        Self::parse(name, value)
    }
}

/// All of them as one change; of two of one name the last counts.
pub(crate) fn change(settings: &[Setting]) -> Result<Change, String> {
    let pairs = settings.iter().map(|setting| (setting.name.clone(), setting.value.clone()));
    let object = Value::Object(Map::from_iter(pairs));
    serde_json::from_value(object).map_err(|error| error.to_string())
}

/// All settings, one a line, as they can be given again.
pub(crate) fn lines(settings: &DaemonSettings) -> Vec<String> {
    let Ok(Value::Object(object)) = serde_json::to_value(settings) else {
        unreachable!("settings are an object");
    };
    let is_paced = settings.advisor.mode != bindery_advisor::Mode::None;
    let given = object.into_iter().filter(|(name, _)| !(is_paced && name == "pages_to_scan"));
    given
        .map(|(name, value)| match (name.as_str(), value) {
            ("period_ms", value) => format!("period={value}ms"),
            (name, Value::String(value)) => format!("{name}={value}"),
            (name, value) => format!("{name}={value}"),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use bindery_advisor::Mode;

    fn parsed(text: &str) -> Change {
        change(&[text.parse().unwrap()]).unwrap()
    }

    #[test]
    fn settings_are_known_ones() {
        assert_eq!(parsed("workers=2").workers, Some(2));
        assert_eq!(parsed("period=2s").period_ms, Some(2000));
        assert_eq!(parsed("advisor_mode=scan-time").advisor_mode, Some(Mode::ScanTime));
        assert_eq!(parsed("advisor_target_scan_time=2m").advisor_target_scan_time, Some(120));
        assert_eq!(parsed("advisor_target_scan_time=7").advisor_target_scan_time, Some(7));
        assert_eq!(parsed("pressure_hold=0s").pressure_hold, Some(0));
        assert_eq!(parsed("across_nodes=false").across_nodes, Some(false));
        assert_eq!(parsed("spare_cpu=true").spare_cpu, Some(true));
        for wrong in [
            "workers=",
            "worker=2",
            "period=5",
            "workers",
            "workers=-1",
            "workers=many",
            "advisor_mode=fast",
            "advisor_target_scan_time=1500ms",
            "run_when=never",
            "run_when=true",
            "across_nodes=0",
            "=",
            "",
        ] {
            assert!(wrong.parse::<Setting>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_is_shown_can_be_given_and_is_listed() {
        let unpaced = Change { advisor_mode: Some(Mode::None), ..Change::default() };
        for before in [
            DaemonSettings::with_workers(3),
            unpaced.apply(&DaemonSettings::with_workers(3)).unwrap(),
        ] {
            let given: Vec<Setting> =
                lines(&before).iter().map(|line| line.parse().unwrap()).collect();
            let after = change(&given).unwrap().apply(&DaemonSettings::with_workers(1)).unwrap();
            assert_eq!(after, before);
            for line in lines(&before) {
                let name = line.split('=').next().unwrap();
                assert!(SETTINGS.contains(&format!("  {name}=")), "{name} is not in the help");
            }
        }
    }

    #[test]
    fn what_cannot_be_is_told_with_what_can() {
        for (text, told) in [
            ("workers=-1", "workers is 1 to 256, not \"-1\""),
            ("workers=4294967296", "workers is 1 to 256, not \"4294967296\""),
            ("workers=", "workers is 1 to 256, not \"\""),
            ("period=9ms", "period is 10ms to 10m, as in 500ms, 1s or 2m, not \"9ms\""),
            ("period=5", "period is 10ms to 10m"),
            ("period=99999999999999999999m", "period is 10ms to 10m"),
            ("advisor_mode=3", "advisor_mode is none, scan-time or steady, not \"3\""),
            ("advisor_target_scan_time=1500ms", "advisor_target_scan_time is 1 to 86400 whole"),
            ("advisor_max_cpu=half", "advisor_max_cpu is 1 to 25600, not \"half\""),
            ("run_when=never", "run_when is always or pressure, not \"never\""),
            ("across_nodes=no", "across_nodes is true or false, not \"no\""),
            ("pressure_hold=2d", "pressure_hold is 0 to 86400 whole seconds"),
            ("worker=1", "there is no setting worker; there are workers, period, advisor_mode,"),
            ("workers", "a name and a value"),
        ] {
            let refusal = text.parse::<Setting>().unwrap_err();
            assert!(refusal.contains(told), "{text}: {refusal}");
        }
    }

    #[test]
    fn every_setting_in_the_list_is_one_and_all_are_in_it() {
        let names = SETTINGS.lines().skip(1).filter_map(|line| line.trim().split('=').next());
        let mut listed: Vec<&str> = names.collect();
        assert!(listed.iter().all(|name| may_be(name).is_some()));
        let settings = serde_json::to_value(DaemonSettings::with_workers(2)).unwrap();
        let mut all: Vec<&str> = settings.as_object().unwrap().keys().map(String::as_str).collect();
        listed.iter_mut().filter(|name| **name == "period").for_each(|name| *name = "period_ms");
        listed.sort_unstable();
        all.sort_unstable();
        assert_eq!(listed, all);
    }
}
