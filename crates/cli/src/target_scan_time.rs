//! `--target-scan-time`: whole seconds, within what the advisor takes.

use std::fmt;
use std::str::FromStr;

use bindery_advisor::TARGET_SCAN_TIME_S;

use crate::times::parse_time;

/// How long a scan should take, in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TargetScanTime(pub(crate) u64);

impl fmt::Display for TargetScanTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}s", self.0)
    }
}

impl FromStr for TargetScanTime {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let time = parse_time(text).ok().filter(|time| time.subsec_nanos() == 0);
        let seconds = time.map(|time| time.as_secs()).filter(|s| TARGET_SCAN_TIME_S.contains(s));
        seconds.map(Self).ok_or_else(|| {
            let (least, most) = (TARGET_SCAN_TIME_S.start(), TARGET_SCAN_TIME_S.end());
            format!("advisor_target_scan_time is {least} to {most} whole seconds: 60s, 5m")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_whole_seconds() {
        let parse = str::parse::<TargetScanTime>;
        assert_eq!(parse("60s"), Ok(TargetScanTime(60)));
        assert_eq!(parse("5m"), Ok(TargetScanTime(300)));
        assert_eq!(parse(&TargetScanTime(300).to_string()), Ok(TargetScanTime(300)));
        for wrong in ["", "60", "0s", "1500ms", "1441m", "-1s"] {
            let why = parse(wrong).unwrap_err();
            assert!(why.contains("advisor_target_scan_time is 1 to 86400"), "{wrong}: {why}");
        }
    }
}
