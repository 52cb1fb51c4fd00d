//! Which of KVM's two ways suits a guest, from how much it wrote in the last epoch. Pure.
//!
//! A bitmap costs a pass over the slots, whatever was written; a ring costs each page that was, more
//! than a bit does, and stops the guest when it is full. KVM itself wants the choice when a machine
//! is made: rings are enabled before the first vCPU, and exclude the bitmap from then on. So a VMM
//! asks this where it makes a machine from another one's state (restore, clone, live update), or
//! where it has both in its own hands: a list for each vCPU in front of a tree.

use bindery_units::PageCount;

/// How written pages are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tracking {
    /// By a bit a page.
    Bitmap,
    /// By a list of pages for each vCPU.
    Ring,
}

/// What an epoch costs. Times in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EpochCosts {
    /// The bitmap, a tracked page, dirty or not.
    pub bitmap_tracked_page_ns: f64,
    /// The bitmap, a dirty page.
    pub bitmap_dirty_page_ns: f64,
    /// The ring, a dirty page.
    pub ring_dirty_page_ns: f64,
    /// The ring, each time that it is full: the vCPU leaves, and all wait for the reset.
    pub ring_full_ns: f64,
}

impl Default for EpochCosts {
    /// As measured for pages all over a 16 GiB slot, on a Zen 4 virtual machine (Linux 6.18): the
    /// ring is cheaper below some hundreds of dirty pages, alike around a thousand, and takes one and
    /// a half times as long at 4096 and four times at 65,536. That a full ring costs 10 µs is an
    /// estimate; it depends on how many vCPUs wait.
    fn default() -> Self {
        Self {
            bitmap_tracked_page_ns: 0.008,
            bitmap_dirty_page_ns: 60.0,
            ring_dirty_page_ns: 100.0,
            ring_full_ns: 10_000.0,
        }
    }
}

impl EpochCosts {
    /// What an epoch costs by the bitmap.
    #[must_use]
    pub fn bitmap_ns(&self, tracked: PageCount, dirty: u64) -> f64 {
        self.bitmap_tracked_page_ns * tracked.0 as f64 + self.bitmap_dirty_page_ns * dirty as f64
    }

    /// What an epoch costs by rings of `entries` entries in all.
    #[must_use]
    pub fn ring_ns(&self, entries: u64, dirty: u64) -> f64 {
        let full = (dirty / entries.max(1)) as f64;
        self.ring_dirty_page_ns * dirty as f64 + self.ring_full_ns * full
    }
}

/// Leaves the present way only for one that is cheaper by this factor, so that a guest near the
/// crossover does not go back and forth.
const HYSTERESIS: f64 = 1.2;

/// Chooses for one guest.
#[derive(Clone, Debug)]
pub struct Policy {
    costs: EpochCosts,
    tracked: PageCount,
    ring_entries: u64,
    tracking: Tracking,
}

impl Policy {
    /// For a guest of which so many pages are tracked, and whose rings have so many entries in all.
    /// Begins with the bitmap, which takes everything.
    #[must_use]
    pub const fn new(costs: EpochCosts, tracked: PageCount, ring_entries: u64) -> Self {
        Self { costs, tracked, ring_entries, tracking: Tracking::Bitmap }
    }

    /// What suits the next epoch, if it is like one in which `dirty` pages were written.
    pub fn after_epoch(&mut self, dirty: u64) -> Tracking {
        let bitmap_ns = self.costs.bitmap_ns(self.tracked, dirty);
        let ring_ns = self.costs.ring_ns(self.ring_entries, dirty);
        match self.tracking {
            Tracking::Bitmap if ring_ns * HYSTERESIS < bitmap_ns => self.tracking = Tracking::Ring,
            Tracking::Ring if bitmap_ns * HYSTERESIS < ring_ns => self.tracking = Tracking::Bitmap,
            _ => {}
        }
        self.tracking
    }

    /// What suits the present epoch.
    #[must_use]
    pub const fn tracking(&self) -> Tracking {
        self.tracking
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SIXTEEN_GIB: PageCount = PageCount(4 << 20);

    fn policy() -> Policy {
        Policy::new(EpochCosts::default(), SIXTEEN_GIB, 65_536)
    }

    #[test]
    fn few_pages_of_a_large_guest_suit_the_ring_and_many_the_bitmap() {
        let mut policy = policy();
        assert_eq!(policy.tracking(), Tracking::Bitmap);
        assert_eq!(policy.after_epoch(16), Tracking::Ring);
        assert_eq!(policy.after_epoch(1 << 20), Tracking::Bitmap);
        assert_eq!(policy.after_epoch(0), Tracking::Ring);
    }

    #[test]
    fn near_the_crossover_nothing_changes() {
        let costs = EpochCosts::default();
        let crossover = (0..)
            .find(|dirty| costs.ring_ns(65_536, *dirty) >= costs.bitmap_ns(SIXTEEN_GIB, *dirty));
        let crossover = crossover.unwrap();
        for start in [0, 1 << 20] {
            let mut policy = policy();
            let before = policy.after_epoch(start);
            for dirty in [crossover * 9 / 10, crossover * 11 / 10, crossover].repeat(3) {
                assert_eq!(policy.after_epoch(dirty), before, "{dirty} after {start}");
            }
        }
    }

    #[test]
    fn a_small_ring_that_is_always_full_gives_way() {
        let mut policy = Policy::new(EpochCosts::default(), SIXTEEN_GIB, 16);
        assert_eq!(policy.after_epoch(4), Tracking::Ring);
        assert_eq!(policy.after_epoch(1600), Tracking::Bitmap);
    }

    proptest! {
        /// It never keeps a way that costs more than its hysteresis allows, and changes only for a
        /// cheaper one.
        #[test]
        fn the_choice_is_never_much_worse(
            tracked in 1_u64..1 << 30,
            entries in 1_u64..1 << 20,
            epochs in prop::collection::vec(0_u64..1 << 24, 1..50),
        ) {
            let costs = EpochCosts::default();
            let mut policy = Policy::new(costs, PageCount(tracked), entries);
            for dirty in epochs {
                let before = policy.tracking();
                let bitmap = costs.bitmap_ns(PageCount(tracked), dirty);
                let ring = costs.ring_ns(entries, dirty);
                let (chosen, other) = match policy.after_epoch(dirty) {
                    Tracking::Bitmap => (bitmap, ring),
                    Tracking::Ring => (ring, bitmap),
                };
                prop_assert!(chosen <= other * HYSTERESIS);
                prop_assert!(policy.tracking() == before || chosen < other);
            }
        }

        /// A guest that goes on as it did never makes it change twice.
        #[test]
        fn the_same_again_changes_nothing(first in 0_u64..1 << 24, dirty in 0_u64..1 << 24) {
            let mut policy = policy();
            policy.after_epoch(first);
            let choice = policy.after_epoch(dirty);
            for _ in 0..5 {
                prop_assert_eq!(policy.after_epoch(dirty), choice);
            }
        }
    }
}
