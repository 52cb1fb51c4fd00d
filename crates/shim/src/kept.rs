//! Memory that was given what it keeps for good: advice, a protection key, a seal.
//!
//! The library reads `/proc/self/smaps`, which takes long in a large process, only for offers of memory that was
//! given any. Ranges are never taken out: memory that is mapped where other memory was is looked up for
//! nothing.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Ranges that are told apart; with more, all memory is looked up. A QEMU advises each of some ten blocks of RAM.
const RANGES: usize = 64;

static KEPT: Kept = Kept { used: AtomicUsize::new(0), ranges: [const { Range::empty() }; RANGES] };

/// Notes that a range was given something that it keeps for good. Takes no lock, so that children of fork
/// may call it, whatever their parent's threads were doing.
pub(crate) fn note(address: usize, bytes: usize) {
    KEPT.note(address, address.saturating_add(bytes));
}

/// Notes that a range was moved, with all that it keeps.
pub(crate) fn note_move(old: usize, old_bytes: usize, new: usize, new_bytes: usize) {
    if may_keep(old, old_bytes) {
        note(new, new_bytes);
    }
}

/// Returns true if anything of a range may keep what it was given.
pub(crate) fn may_keep(address: usize, bytes: usize) -> bool {
    KEPT.may_keep(address, address.saturating_add(bytes))
}

struct Kept {
    /// Ranges that were begun: more than there is room for if all memory is to be looked up.
    used: AtomicUsize,
    ranges: [Range; RANGES],
}

/// The first byte of a range, and the first behind it: zero until the range is written.
struct Range {
    start: AtomicUsize,
    end: AtomicUsize,
}

impl Range {
    const fn empty() -> Self {
        Self { start: AtomicUsize::new(0), end: AtomicUsize::new(0) }
    }

    /// `None` while it is written.
    fn get(&self) -> Option<(usize, usize)> {
        // Acquire, with the Release of `note`: who sees the end sees the start.
        let end = self.end.load(Ordering::Acquire);
        (end > 0).then(|| (self.start.load(Ordering::Relaxed), end))
    }
}

impl Kept {
    fn note(&self, start: usize, end: usize) {
        let is_within = |(from, to)| from <= start && end <= to;
        if self.is_full() || start >= end || self.known().flatten().any(is_within) {
            return;
        }
        // Relaxed: the number alone; who reads it finds an end of zero until the range is there.
        let at = self.used.fetch_add(1, Ordering::Relaxed);
        if let Some(range) = self.ranges.get(at) {
            range.start.store(start, Ordering::Relaxed);
            // Release, with the Acquire of `get`.
            range.end.store(end, Ordering::Release);
        }
    }

    fn may_keep(&self, start: usize, end: usize) -> bool {
        let overlaps =
            |range: Option<(usize, usize)>| range.is_none_or(|(from, to)| from < end && start < to);
        self.is_full() || self.known().any(overlaps)
    }

    fn is_full(&self) -> bool {
        self.used.load(Ordering::Relaxed) > RANGES
    }

    fn known(&self) -> impl Iterator<Item = Option<(usize, usize)>> {
        let used = self.used.load(Ordering::Relaxed).min(RANGES);
        self.ranges[..used].iter().map(Range::get)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept() -> Kept {
        Kept { used: AtomicUsize::new(0), ranges: [const { Range::empty() }; RANGES] }
    }

    #[test]
    fn what_was_noted_is_kept_and_nothing_else() {
        let kept = kept();
        kept.note(10, 20);
        kept.note(30, 40);
        for (start, end, wanted) in [(0, 10, false), (0, 11, true), (20, 30, false), (19, 20, true)]
        {
            assert_eq!(kept.may_keep(start, end), wanted, "{start} to {end}");
        }
        (0..9999).for_each(|_| kept.note(12, 20));
        assert!(!kept.may_keep(20, 30), "what is known takes no room");
    }

    #[test]
    fn more_than_there_is_room_for_is_everything() {
        let kept = kept();
        (1..=RANGES).for_each(|at| kept.note(at * 10, at * 10 + 5));
        assert!(!kept.may_keep(0, 10));
        kept.note(5000, 5005);
        assert!(kept.may_keep(0, 10));
    }
}
