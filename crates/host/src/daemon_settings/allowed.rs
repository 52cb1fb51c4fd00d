//! What each setting may be: for those who check, and for those who tell what was wrong.

use std::ops::RangeInclusive;

use bindery_advisor::{MAX_CPU_PERCENT, Mode, PAGES_TO_SCAN, TARGET_SCAN_TIME_S};
use bindery_merge::HugeMode;

use super::RunWhen;
use crate::{PERIODS, WORKERS};

/// Percents, as marks of memory and of stalls are given.
const PERCENTS: RangeInclusive<u64> = 0..=100;

/// Pages of one huge page.
const BLOCK_PAGES: u64 = bindery_wire::lane::BLOCK_PAGES as u64;

/// What `pressure_hold` may be, in seconds.
const HOLDS_S: RangeInclusive<u64> = 0..=86_400;

/// The numbers that a setting may be, in its own unit. `None`: it is no number, or there is no such
/// setting.
#[must_use]
pub fn allowed_numbers(name: &str) -> Option<RangeInclusive<u64>> {
    Some(match name {
        "workers" => u64::from(*WORKERS.start())..=u64::from(*WORKERS.end()),
        "period_ms" => PERIODS.start().as_millis() as u64..=PERIODS.end().as_millis() as u64,
        "pages_to_scan" => 0..=*PAGES_TO_SCAN.end(),
        "advisor_target_scan_time" => TARGET_SCAN_TIME_S,
        "advisor_max_cpu" => MAX_CPU_PERCENT,
        "advisor_min_pages_to_scan" | "advisor_max_pages_to_scan" => PAGES_TO_SCAN,
        "pressure_available_low"
        | "pressure_available_high"
        | "pressure_stall_high"
        | "pressure_stall_low" => PERCENTS,
        "pressure_hold" => HOLDS_S,
        "huge_pages_gain" | "huge_pages_gain_low" | "huge_pages_gain_short" => 1..=BLOCK_PAGES,
        "huge_pages_hot" | "huge_pages_thin" => 0..=BLOCK_PAGES,
        "huge_pages_patience" => 1..=255,
        _ => return None,
    })
}

/// The words that a setting may be, those of a truth value among them; none if it is a number, or there is no such
/// setting.
#[must_use]
pub fn allowed_words(name: &str) -> Vec<&'static str> {
    match name {
        "advisor_mode" => Mode::ALL.map(Mode::name).to_vec(),
        "run_when" => RunWhen::ALL.map(RunWhen::name).to_vec(),
        "huge_pages" => HugeMode::ALL.map(HugeMode::name).to_vec(),
        _ if is_truth_value(name) => vec!["true", "false"],
        _ => Vec::new(),
    }
}

/// Returns true if a setting is `true` or `false`, which are no words in JSON and TOML.
#[must_use]
pub fn is_truth_value(name: &str) -> bool {
    matches!(name, "spare_cpu" | "across_nodes")
}

/// What a setting may be, in words: `1 to 256`; `always or pressure`. `None`: there is no such setting.
#[must_use]
pub fn allowed(name: &str) -> Option<String> {
    if let Some(range) = allowed_numbers(name) {
        return Some(format!("{} to {}", range.start(), range.end()));
    }
    let words = allowed_words(name);
    let (last, others) = words.split_last()?;
    Some(format!("{} or {last}", others.join(", ")))
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::daemon_settings::DaemonSettings;

    #[test]
    fn every_setting_says_what_it_may_be_and_its_default_is_that() {
        let settings = serde_json::to_value(DaemonSettings::with_workers(2)).unwrap();
        for (name, value) in settings.as_object().unwrap() {
            let may_be = allowed(name).unwrap_or_else(|| panic!("{name}"));
            match value {
                Value::Number(number) => {
                    let numbers = allowed_numbers(name).unwrap();
                    assert!(numbers.contains(&number.as_u64().unwrap()), "{name}");
                }
                Value::String(word) => assert!(may_be.contains(word), "{name}: {may_be}"),
                Value::Bool(is_so) => assert!(may_be.contains(&is_so.to_string()), "{name}"),
                _ => panic!("{name} is {value}"),
            }
        }
        assert_eq!(allowed("advisor_mode").unwrap(), "none, scan-time or steady");
        assert_eq!(allowed("across_nodes").unwrap(), "true or false");
        assert_eq!(allowed("worker"), None);
    }

    #[test]
    fn words_are_what_is_taken() {
        for name in ["advisor_mode", "run_when", "huge_pages", "spare_cpu", "across_nodes"] {
            for word in allowed_words(name) {
                let quote = if is_truth_value(name) { "" } else { "\"" };
                let change = format!(r#"{{"{name}":{quote}{word}{quote}}}"#);
                serde_json::from_str::<crate::daemon_settings::Change>(&change).unwrap();
            }
        }
    }
}
