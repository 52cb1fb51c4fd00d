//! The budget of mappings: how many the process has, and how many merging may make.
//!
//! Every run of merged pages is a mapping of its own and cuts its neighbour in two, and a page that
//! is written leaves its run as another. A process that reaches `vm.max_map_count` can map nothing
//! more, so merging stops well before: a sixteenth of the limit, and at least 1024, is left to the
//! VMM and to pages that come back. Should even that be used up, a written page is left to the
//! kernel's copy-on-write, which needs no mapping (see [`restore`](crate::restore)).

use std::{
    fs,
    sync::atomic::{AtomicI64, AtomicU32, Ordering},
};

/// What merging leaves free, at least.
const RESERVE_MAPPINGS_MIN: u32 = 1024;

/// The count is read again from the kernel after so many changes of our own.
const REFRESH_CHANGES: i64 = 4096;

#[derive(Debug)]
pub(crate) struct Budget {
    counted: AtomicU32,
    /// Mappings made (at worst) since they were counted.
    changes: AtomicI64,
    max: AtomicU32,
}

impl Budget {
    pub(crate) fn new() -> Self {
        let budget =
            Self { counted: AtomicU32::new(0), changes: AtomicI64::new(0), max: AtomicU32::new(0) };
        budget.refresh();
        budget
    }

    /// Counts the process's mappings. About 0.3 µs a mapping.
    pub(crate) fn refresh(&self) {
        let counted = fs::read("/proc/self/maps")
            .map_or(0, |maps| maps.iter().filter(|&&byte| byte == b'\n').count() as u32);
        let limit = fs::read_to_string("/proc/sys/vm/max_map_count")
            .ok()
            .and_then(|limit| limit.trim().parse::<u32>().ok())
            .unwrap_or(65_530);
        self.counted.store(counted, Ordering::Relaxed);
        self.changes.store(0, Ordering::Relaxed);
        self.max.store(limit.saturating_sub(reserve(limit)), Ordering::Relaxed);
    }

    /// Notes mappings made, at worst.
    pub(crate) fn made(&self, mappings: u32) {
        self.changes.fetch_add(i64::from(mappings), Ordering::Relaxed);
    }

    /// Whether so many more may be made. Counts again when the estimate has become vague.
    pub(crate) fn allows(&self, mappings: u32) -> bool {
        if self.fits(mappings) {
            if self.changes.load(Ordering::Relaxed) > REFRESH_CHANGES {
                self.refresh();
            }
            return true;
        }
        if self.changes.load(Ordering::Relaxed) > REFRESH_CHANGES / 16 {
            self.refresh();
        }
        self.fits(mappings)
    }

    fn fits(&self, mappings: u32) -> bool {
        u64::from(self.now()) + u64::from(mappings) <= u64::from(self.max())
    }

    /// Mappings now, at worst.
    pub(crate) fn now(&self) -> u32 {
        let changes = self.changes.load(Ordering::Relaxed).max(0);
        (i64::from(self.counted.load(Ordering::Relaxed)) + changes).try_into().unwrap_or(u32::MAX)
    }

    /// Mappings that merging may fill up to.
    pub(crate) fn max(&self) -> u32 {
        self.max.load(Ordering::Relaxed)
    }
}

fn reserve(limit: u32) -> u32 {
    (limit / 16).max(RESERVE_MAPPINGS_MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_is_the_kernels() {
        let budget = Budget::new();
        let before = budget.now();
        assert!(before > 10 && budget.max() > before);
        budget.made(7);
        assert_eq!(budget.now(), before + 7);
        assert!(!budget.allows(budget.max()));
    }

    #[test]
    fn a_reserve_is_left_at_the_default_limit() {
        assert_eq!(reserve(65_530), 4095);
        assert_eq!(reserve(4000), RESERVE_MAPPINGS_MIN);
    }
}
