//! What KSM does for one process.

use std::fs;
use std::io;

use super::ITEM_BYTES;

/// `/proc/PID/ksm_stat` (Linux 6.1), in pages where nothing else is said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessStat {
    /// Pages that KSM keeps an item for.
    pub rmap_items: Option<u64>,
    /// Pages of the process that share a page.
    pub merging_pages: u64,
    /// Pages merged with the kernel's zero page (Linux 6.6).
    pub zero_pages: Option<u64>,
    /// What the process gains, in bytes; negative if its items take more (Linux 6.4).
    pub process_profit: Option<i64>,
    /// Whether all of its memory is offered, by `PR_SET_MEMORY_MERGE` (Linux 6.16).
    pub merge_any: Option<bool>,
    /// Whether some of its memory is offered (Linux 6.16).
    pub mergeable: Option<bool>,
}

impl ProcessStat {
    /// Of process `pid`.
    ///
    /// # Errors
    /// `NotFound` if there is no such process, or the kernel tells nothing (before Linux 5.19);
    /// `PermissionDenied` for another user's.
    pub fn of(pid: u32) -> io::Result<Self> {
        match fs::read_to_string(format!("/proc/{pid}/ksm_stat")) {
            Ok(text) => Ok(Self::parse(&text)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Self::of_older(pid),
            Err(error) => Err(error),
        }
    }

    /// Linux 5.19 and 6.0 tell one number.
    fn of_older(pid: u32) -> io::Result<Self> {
        let text = fs::read_to_string(format!("/proc/{pid}/ksm_merging_pages"))?;
        let merging_pages = text.trim().parse().map_err(|_| io::ErrorKind::InvalidData)?;
        Ok(Self { merging_pages, ..Self::default() })
    }

    fn parse(text: &str) -> Self {
        let field = |name: &str| {
            text.lines().find_map(|line| {
                let rest = line.strip_prefix(name)?;
                // `ksm_mergeable: no` and `ksm_merging_pages 0`.
                rest.strip_prefix([':', ' ']).map(str::trim)
            })
        };
        let number = |name| field(name).and_then(|value| value.parse().ok());
        let flag = |name| field(name).map(|value| value == "yes");
        Self {
            rmap_items: number("ksm_rmap_items"),
            merging_pages: number("ksm_merging_pages").unwrap_or(0),
            zero_pages: number("ksm_zero_pages"),
            process_profit: field("ksm_process_profit").and_then(|value| value.parse().ok()),
            merge_any: flag("ksm_merge_any"),
            mergeable: flag("ksm_mergeable"),
        }
    }

    /// What the process gains, in bytes: the kernel's figure, or the same reckoned where it has
    /// none. `None` where it does not tell how many items there are.
    #[must_use]
    pub fn profit_bytes(&self) -> Option<i64> {
        let reckoned = || {
            let pages = self.merging_pages + self.zero_pages.unwrap_or(0);
            let bytes = (pages * bindery_units::PAGE_BYTES as u64).cast_signed();
            Some(bytes.saturating_sub_unsigned(self.rmap_items? * ITEM_BYTES))
        };
        self.process_profit.or_else(reckoned)
    }

    /// Whether KSM has anything to do with it.
    #[must_use]
    pub fn is_known(&self) -> bool {
        self.rmap_items.unwrap_or(0) > 0
            || self.merging_pages > 0
            || self.zero_pages.unwrap_or(0) > 0
            || self.mergeable == Some(true)
            || self.merge_any == Some(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_age_of_the_file_is_read() {
        let of_6_18 = "ksm_rmap_items 1000\nksm_zero_pages 1\nksm_merging_pages 9\n\
                       ksm_process_profit -23040\nksm_merge_any: no\nksm_mergeable: yes\n";
        let stat = ProcessStat::parse(of_6_18);
        assert_eq!(
            (stat.rmap_items, stat.merging_pages, stat.zero_pages),
            (Some(1000), 9, Some(1))
        );
        assert_eq!(stat.profit_bytes(), Some(-23040));
        assert_eq!((stat.merge_any, stat.mergeable), (Some(false), Some(true)));
        let of_6_1 = ProcessStat::parse("ksm_rmap_items 1000\n");
        assert_eq!(of_6_1.profit_bytes(), Some(-64_000));
        assert_eq!(of_6_1.mergeable, None);
        assert!(of_6_1.is_known());
        assert_eq!(ProcessStat { merging_pages: 3, ..ProcessStat::default() }.profit_bytes(), None);
    }

    #[test]
    fn a_process_that_is_not_there_is_not_found() {
        let error = ProcessStat::of(1 << 23).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
