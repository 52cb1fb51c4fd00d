//! Which pages were written lately, of guests whose map somebody looks at.
//!
//! Nothing is asked of a guest for this: a reader of its own hears what merging, or an operator who
//! watches, finds to be written. It begins when a map is asked for, and ends once nobody has asked for
//! some time. A page is hot that was written in the current window or in the one before, as far as it
//! was found: memory that is written to seldom is asked about in every eighth period only.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bindery_dirty::Reader;
use bindery_merge::Connected;
use bindery_units::PageRange;
use bindery_wire::control::Region;

/// How long a window is.
pub(super) const WINDOW: Duration = Duration::from_secs(5);

/// How long a guest is listened to that nobody looks at.
const FORGET_AFTER: Duration = Duration::from_secs(30);

/// Guests listened to at a time.
const GUESTS_MAX: usize = 64;

/// Bits of one window of one guest at most: 128 KiB. Beyond 4 GiB a bit is for several pages.
const BITS_MAX: u32 = 1 << 20;

/// Runs of pages taken from a reader at a time.
const HARVEST_RUNS: usize = 1 << 12;

/// The guests that are looked at.
#[derive(Default)]
pub(super) struct Heat {
    guests: BTreeMap<u32, Listener>,
}

struct Listener {
    guest: Connected,
    written: Reader,
    windows: Windows,
    begun: Instant,
    turned: Instant,
    asked: Instant,
}

/// What was written in two windows.
#[derive(Clone, Debug, Default)]
pub(super) struct Windows {
    /// Pages of one bit, as a power of two.
    grain_log2: u32,
    now: Vec<u64>,
    before: Vec<u64>,
}

/// What is known of a guest's writes.
#[derive(Debug, Default)]
pub(super) struct Writes {
    /// For how long it is listened to; `None` if it cannot be.
    pub(super) observed: Option<Duration>,
    pub(super) windows: Windows,
}

impl Heat {
    /// What was written to a guest lately; listens to it from now on.
    pub(super) fn of(
        &mut self,
        id: u32,
        guest: &Connected,
        regions: &[Region],
        now: Instant,
    ) -> Writes {
        let pages = regions.last().map_or(0, |region| region.pages.end().0);
        let Some(listener) = self.listen(id, guest, now) else { return Writes::default() };
        listener.asked = now;
        if now.saturating_duration_since(listener.turned) >= WINDOW {
            listener.windows.turn();
            listener.turned = now;
        }
        listener.windows.fit(pages);
        listener.take(regions);
        let observed = now.saturating_duration_since(listener.begun);
        Writes { observed: Some(observed), windows: listener.windows.clone() }
    }

    fn listen(&mut self, id: u32, guest: &Connected, now: Instant) -> Option<&mut Listener> {
        let is_known =
            self.guests.get(&id).is_some_and(|listener| Arc::ptr_eq(&listener.guest, guest));
        if !is_known {
            self.guests.remove(&id);
            if self.guests.len() >= GUESTS_MAX {
                return None;
            }
            // Refused where others have all seats: the map does without.
            let written = guest.written().listen().ok()?;
            let (guest, windows) = (Arc::clone(guest), Windows::default());
            let listener =
                Listener { guest, written, windows, begun: now, turned: now, asked: now };
            self.guests.insert(id, listener);
        }
        self.guests.get_mut(&id)
    }

    /// Lets go of guests that nobody looks at any more.
    pub(super) fn forget(&mut self, now: Instant) {
        let is_looked_at =
            |listener: &Listener| now.saturating_duration_since(listener.asked) < FORGET_AFTER;
        self.guests.retain(|_, listener| is_looked_at(listener));
    }
}

impl Listener {
    fn take(&mut self, regions: &[Region]) {
        let mut buffer = vec![PageRange::default(); HARVEST_RUNS];
        let windows = &mut self.windows;
        for region in regions {
            let taken =
                self.written.harvest_runs(region.pages, &mut buffer, |run| windows.mark(run));
            taken.expect("regions lie within the pages that a guest may have");
        }
    }
}

impl Windows {
    /// Makes room for the pages below `pages`; what was known is forgotten where bits become coarser.
    fn fit(&mut self, pages: u32) {
        let grain_log2 = pages.div_ceil(BITS_MAX).next_power_of_two().ilog2();
        let words = (pages >> grain_log2) as usize / 64 + 1;
        if grain_log2 != self.grain_log2 {
            *self = Self { grain_log2, ..Self::default() };
        }
        for window in [&mut self.now, &mut self.before] {
            if words > window.len() {
                window.resize(words, 0);
            }
        }
    }

    fn turn(&mut self) {
        std::mem::swap(&mut self.now, &mut self.before);
        self.now.fill(0);
    }

    fn mark(&mut self, run: PageRange) {
        let bits = run.first.0 >> self.grain_log2..=(run.end().0 - 1) >> self.grain_log2;
        for bit in bits {
            self.now[bit as usize / 64] |= 1 << (bit % 64);
        }
    }

    /// How many pages of `range` were written lately.
    pub(super) fn hot(&self, range: PageRange) -> u32 {
        let grain = 1 << self.grain_log2;
        let bits = range.first.0 >> self.grain_log2..range.end().0.div_ceil(grain);
        let is_set = |bit: &u32| {
            let (word, mask) = (*bit as usize / 64, 1_u64 << (bit % 64));
            let word = |window: &[u64]| window.get(word).copied().unwrap_or(0);
            (word(&self.now) | word(&self.before)) & mask != 0
        };
        let set = bits.filter(is_set).count() as u32;
        set.saturating_mul(grain).min(range.count)
    }
}

#[cfg(test)]
mod tests {
    use bindery_units::PageIndex;

    use super::*;

    const fn range(first: u32, count: u32) -> PageRange {
        PageRange::new(PageIndex(first), count)
    }

    #[test]
    fn pages_are_hot_for_one_window_after_that_in_which_they_were_written() {
        let mut windows = Windows::default();
        windows.fit(1000);
        windows.mark(range(60, 10));
        assert_eq!((windows.hot(range(0, 1000)), windows.hot(range(64, 16))), (10, 6));
        windows.turn();
        windows.mark(range(60, 1));
        assert_eq!(windows.hot(range(0, 1000)), 10);
        windows.turn();
        assert_eq!(windows.hot(range(0, 1000)), 1);
        windows.turn();
        assert_eq!(windows.hot(range(0, 1000)), 0);
    }

    #[test]
    fn of_large_guests_a_bit_is_for_several_pages_and_memory_is_bounded() {
        let mut windows = Windows::default();
        windows.fit(1 << 28);
        assert_eq!(windows.grain_log2, 8);
        assert!(windows.now.len() <= BITS_MAX as usize / 64 + 1);
        windows.mark(range((1 << 28) - 1, 1));
        assert_eq!(windows.hot(range((1 << 28) - 512, 512)), 256);
        assert_eq!(windows.hot(range(0, 1 << 20)), 0);
    }
}
