//! Where managed memory is, for whoever may neither wait nor allocate.
//!
//! Every `madvise` and `munmap` of the VMM asks, also those that an allocator makes from within
//! itself while it holds its own locks, and also those that it makes while *we* allocate under the
//! lock of the regions. So the bounds of all regions stand here once more, under a sequence lock
//! (Boehm, "Can seqlocks get along with programming language memory models?", MSPC 2012): readers
//! write nothing and wait only for the few stores of a change.

use std::hint;
use std::sync::atomic::{AtomicUsize, Ordering, fence};

use bindery_units::HostAddress;

/// Number of ranges that are told apart. A VMM has some dozens of regions; where there are more,
/// neighbours share a range with whatever lies between them.
const EXTENTS_MAX: usize = 256;

/// The bounds of all regions.
#[derive(Debug)]
pub(crate) struct Extents {
    /// Odd while they change.
    version: AtomicUsize,
    count: AtomicUsize,
    /// Changes since all of them were made anew.
    changes: AtomicUsize,
    /// The first `count`: from the first byte to behind the last.
    extents: [[AtomicUsize; 2]; EXTENTS_MAX],
}

impl Default for Extents {
    fn default() -> Self {
        let extents = [const { [AtomicUsize::new(0), AtomicUsize::new(0)] }; EXTENTS_MAX];
        let [version, count, changes] = [const { AtomicUsize::new(0) }; 3];
        Self { version, count, changes, extents }
    }
}

impl Extents {
    /// Whether any managed byte may lie between two addresses. False is exact; true is exact while
    /// there are at most [`EXTENTS_MAX`] regions. Some nanoseconds for each range.
    pub(crate) fn may_overlap(&self, start: HostAddress, end: HostAddress) -> bool {
        loop {
            // Acquire: pairs with the Release that ends `replace`.
            let version = self.version.load(Ordering::Acquire);
            let found = self.find(start.0, end.0);
            // With the Release fence in `replace`: whoever read a bound of a change that is under
            // way reads its odd version here.
            fence(Ordering::Acquire);
            if version.is_multiple_of(2) && self.version.load(Ordering::Relaxed) == version {
                return found;
            }
            hint::spin_loop();
        }
    }

    fn find(&self, start: usize, end: usize) -> bool {
        let count = self.count.load(Ordering::Relaxed).min(EXTENTS_MAX);
        self.extents[..count].iter().any(|[from, to]| {
            from.load(Ordering::Relaxed) < end && start < to.load(Ordering::Relaxed)
        })
    }

    /// Brings the bounds up to date after a change: exactly where there is room for all, otherwise so
    /// that none is left out, and anew once a quarter of them has changed. `bounds` are all that there
    /// are, ascending; `grown` is one that is new, if any is. One caller at a time, as for
    /// [`replace`](Self::replace).
    pub(crate) fn follow(
        &self,
        bounds: impl ExactSizeIterator<Item = (HostAddress, HostAddress)>,
        grown: Option<(HostAddress, HostAddress)>,
    ) {
        let changes = self.changes.fetch_add(1, Ordering::Relaxed) + 1;
        if bounds.len() <= EXTENTS_MAX || changes > bounds.len() / 4 {
            self.changes.store(0, Ordering::Relaxed);
            self.replace(bounds);
        } else if let Some((start, end)) = grown {
            self.widen(start, end);
        }
    }

    /// Puts other bounds, ascending, in place of all. One caller at a time: the regions' lock sees to
    /// that. `bounds` may not allocate, and so must be ready when it is given.
    fn replace(&self, bounds: impl ExactSizeIterator<Item = (HostAddress, HostAddress)>) {
        self.change(|extents| {
            let shared = bounds.len().div_ceil(EXTENTS_MAX).max(1);
            extents.count.store(bounds.len().div_ceil(shared), Ordering::Relaxed);
            for (at, (start, end)) in bounds.enumerate() {
                let [from, to] = &extents.extents[at / shared];
                if at.is_multiple_of(shared) {
                    from.store(start.0, Ordering::Relaxed);
                }
                to.store(end.0, Ordering::Relaxed);
            }
        });
    }

    /// Widens the range that has least to grow so that it takes in one more. One caller at a time, as
    /// for [`replace`](Self::replace), and not before there is any range.
    fn widen(&self, start: HostAddress, end: HostAddress) {
        self.change(|extents| {
            let count = extents.count.load(Ordering::Relaxed);
            let growth = |[from, to]: &&[AtomicUsize; 2]| {
                let (from, to) = (from.load(Ordering::Relaxed), to.load(Ordering::Relaxed));
                from.saturating_sub(start.0) + end.0.saturating_sub(to)
            };
            let nearest = extents.extents[..count].iter().min_by_key(growth);
            let [from, to] = nearest.expect("ranges are widened once there are some");
            from.fetch_min(start.0, Ordering::Relaxed);
            to.fetch_max(end.0, Ordering::Relaxed);
        });
    }

    fn change(&self, change: impl FnOnce(&Self)) {
        let version = self.version.load(Ordering::Relaxed);
        assert!(version.is_multiple_of(2), "one change at a time");
        self.version.store(version + 1, Ordering::Relaxed);
        // Release: pairs with the Acquire fence in `may_overlap`.
        fence(Ordering::Release);
        change(self);
        // Release: pairs with the Acquire that begins `may_overlap`.
        self.version.store(version + 2, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::thread;

    use super::*;

    fn extent(index: usize) -> (HostAddress, HostAddress) {
        (HostAddress(index * 100), HostAddress(index * 100 + 10))
    }

    fn overlaps(extents: &Extents, start: usize, end: usize) -> bool {
        extents.may_overlap(HostAddress(start), HostAddress(end))
    }

    #[test]
    fn bytes_between_regions_are_nobodys() {
        let extents = Extents::default();
        assert!(!overlaps(&extents, 0, usize::MAX));
        extents.replace([extent(1), extent(5)].into_iter());
        for (start, end, expected) in
            [(0, 100, false), (0, 101, true), (110, 500, false), (109, 110, true), (509, 900, true)]
        {
            assert_eq!(overlaps(&extents, start, end), expected, "{start}..{end}");
        }
    }

    #[test]
    fn what_does_not_fit_is_still_found() {
        let extents = Extents::default();
        extents.replace((0..1000).map(extent));
        assert!((0..1000).all(|index| overlaps(&extents, index * 100 + 9, index * 100 + 10)));
        assert!(!overlaps(&extents, 99_911, usize::MAX), "behind the last");
        extents.widen(HostAddress(200_000), HostAddress(200_001));
        assert!((0..1000).all(|index| overlaps(&extents, index * 100 + 9, index * 100 + 10)));
        assert!(overlaps(&extents, 200_000, 200_001) && !overlaps(&extents, 200_001, usize::MAX));
        extents.replace((0..2).map(extent));
        assert!(!overlaps(&extents, 200, usize::MAX));
    }

    /// A region that stays is found at every moment, whatever comes and goes beside it.
    #[test]
    fn a_region_that_stays_is_always_found() {
        let (extents, done) = (Extents::default(), AtomicBool::new(false));
        extents.replace([extent(7)].into_iter());
        thread::scope(|scope| {
            scope.spawn(|| {
                for round in 0..200_000_usize {
                    let others = (0..round % 3).map(|index| extent(20 + index + round % 5));
                    let all: Vec<_> = others.chain([extent(7)]).collect();
                    extents.replace(all.into_iter());
                }
                done.store(true, Ordering::Relaxed);
            });
            while !done.load(Ordering::Relaxed) {
                assert!(overlaps(&extents, 705, 706));
                assert!(!overlaps(&extents, 0, 700), "a mixture of two states");
            }
        });
    }
}
