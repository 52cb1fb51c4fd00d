//! Settings by name, as `bindery set`, `bindery daemon --set` and the configuration file take them.

use std::str::FromStr;
use std::time::Duration;

use bindery_host::settings::{Change, Settings};
use serde_json::{Map, Value};

use crate::args::parse_time;

/// What can be set, one a line, for help and manual.
pub(crate) const SETTINGS: &str = "\
Settings:
  workers=N                      workers that merge: 1 to 256
  period=TIME                    length of a merge period: 10ms to 10m
  advisor_mode=MODE              how scans are paced: steady; scan-time, the kernel's law; none
  advisor_target_scan_time=TIME  how long it may take to look at memory that has come to rest
  advisor_max_cpu=PERCENT        most CPU time of all workers together, in percent of one CPU
  advisor_min_pages_to_scan=N    fewest pages looked at between two rests of 20 ms
  advisor_max_pages_to_scan=N    most pages looked at between two rests
  pages_to_scan=N                pages looked at in 20 ms with advisor_mode=none; 0: no limit
  run_when=WHEN                  always; pressure: merge only while memory is short
  pressure_available_low=PERCENT   memory is short when less of it is available
  pressure_available_high=PERCENT  and not short any more when as much is
  pressure_stall_high=PERCENT      memory is short when tasks wait for it for longer (PSI)
  pressure_stall_low=PERCENT       and not short any more when they wait for no longer
  pressure_hold=TIME               how long it must not be short before merging pauses";

/// A setting and what it is to be.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Setting {
    /// As the daemon calls it.
    pub(crate) name: String,
    pub(crate) value: Value,
}

impl Setting {
    /// What `text` says that `name` is to be.
    pub(crate) fn parse(name: &str, text: &str) -> Result<Self, String> {
        let time = || parse_time(text).map_err(|message| format!("{name}: {message}"));
        let seconds = |time: Duration| match time.subsec_nanos() {
            0 => Ok(time.as_secs()),
            _ => Err(format!("{name} is in whole seconds")),
        };
        let (name, value) = match name {
            "period" => ("period_ms", time()?.as_millis() as u64),
            "advisor_target_scan_time" | "pressure_hold" if text.parse::<u64>().is_err() => {
                (name, time().and_then(seconds)?)
            }
            _ => match text.parse() {
                Ok(number) => (name, number),
                Err(_) => return Self::of(name, Value::String(text.into())),
            },
        };
        Self::of(name, value.into())
    }

    /// # Errors
    /// If there is no such setting, or it is of another kind.
    fn of(name: &str, value: Value) -> Result<Self, String> {
        let setting = Self { name: name.into(), value };
        change(std::slice::from_ref(&setting)).map(|_| setting)
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
    serde_json::from_value(object).map_err(|error| match settings {
        [Setting { name, value }] => format!("{name}={value}: {error}"),
        _ => error.to_string(),
    })
}

/// All settings, one a line, as they can be given again.
pub(crate) fn lines(settings: &Settings) -> Vec<String> {
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
            "=",
            "",
        ] {
            assert!(wrong.parse::<Setting>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_is_shown_can_be_given_and_is_listed() {
        let unpaced = Change { advisor_mode: Some(Mode::None), ..Change::default() };
        for before in
            [Settings::with_workers(3), unpaced.apply(&Settings::with_workers(3)).unwrap()]
        {
            let given: Vec<Setting> =
                lines(&before).iter().map(|line| line.parse().unwrap()).collect();
            let after = change(&given).unwrap().apply(&Settings::with_workers(1)).unwrap();
            assert_eq!(after, before);
            for line in lines(&before) {
                let name = line.split('=').next().unwrap();
                assert!(SETTINGS.contains(&format!("  {name}=")), "{name} is not in the help");
            }
        }
    }
}
