//! Times as flags and settings have them: a whole number and a unit.

use std::ops::RangeInclusive;
use std::time::Duration;

/// Times that make sense anywhere.
const TIMES: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(24 * 3600);

/// Returns a number and a unit as a time.
pub(crate) fn time(text: &str) -> Option<Duration> {
    let digits = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at(digits);
    let unit_ms: u64 = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(unit_ms).map(Duration::from_millis)
}

/// Returns a time from a thousandth of a second to a day.
///
/// # Errors
/// Says how a time is written, or what its bounds are.
pub(crate) fn parse_time(text: &str) -> Result<Duration, String> {
    let time = time(text).ok_or("a time is a number and a unit: 500ms, 1s, 2m")?;
    TIMES.contains(&time).then_some(time).ok_or_else(|| too_far(&TIMES))
}

/// Returns a time within a range.
///
/// # Errors
/// As for [`parse_time`].
pub(crate) fn parse_within(
    text: &str,
    range: &RangeInclusive<Duration>,
) -> Result<Duration, String> {
    parse_time(text).and_then(|time| range.contains(&time).then_some(time).ok_or(too_far(range)))
}

fn too_far(range: &RangeInclusive<Duration>) -> String {
    format!("a time from {:?} to {:?}, please", range.start(), range.end())
}

#[cfg(test)]
mod tests {
    /// Modules that the command line is built from: none imports it, but in its own tests.
    const BENEATH_ARGS: [(&str, &str); 6] = [
        ("times.rs", include_str!("times.rs")),
        ("setting_names.rs", include_str!("setting_names.rs")),
        ("target_scan_time.rs", include_str!("target_scan_time.rs")),
        ("config.rs", include_str!("config.rs")),
        ("ksm/args.rs", include_str!("ksm/args.rs")),
        ("advisor/mod.rs", include_str!("advisor/mod.rs")),
    ];

    #[test]
    fn nothing_beneath_the_command_line_imports_it() {
        for (name, source) in BENEATH_ARGS {
            let shipped = source.split("#[cfg(test)]").next().unwrap();
            let needs = shipped.lines().find(|line| line.contains("crate::args"));
            assert_eq!(needs, None, "{name} needs the module that is made of it");
        }
    }
}
