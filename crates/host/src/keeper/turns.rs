//! Turns of guests that are filled from one checkpoint.
//!
//! Pages that a guest touches are sent at once. The rest, which it might never touch, takes as much memory as a guest until
//! merging has found that others have it, too. So guests of one checkpoint get their rest one after the other: the next
//! one's turn comes once merging has looked at the memory of the one before, or after [`SETTLING_MAX`], and not while
//! memory is short. A guest that is alone with its checkpoint has its turn at once, and keeps it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bindery_checkpoint::CheckpointId;

/// Longest time that merging is waited for: it may be paced, or paused.
const SETTLING_MAX: Duration = Duration::from_secs(10);

/// Time after which a guest that takes nothing, as one that is stopped, holds up others no longer.
const STALLED: Duration = Duration::from_secs(5);

/// Pool and checkpoint that guests are filled from.
pub(super) type Origin = (u128, CheckpointId);

/// Turns of all guests that are filled.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    /// Number of the last guest that was entered.
    last: u64,
    queues: BTreeMap<Origin, Queue>,
    is_short: bool,
}

/// Guests of one checkpoint, in the order in which they came.
#[derive(Debug, Default)]
struct Queue {
    entries: BTreeMap<u64, Entry>,
    /// Guest whose memory was filled last, and when.
    settling: Option<(u32, Instant)>,
}

#[derive(Debug)]
struct Entry {
    guest: u32,
    /// True if it was alone when it came: memory that is short does not hold it up.
    is_alone: bool,
    /// True once its turn has come.
    is_filled: bool,
    may_push: Arc<AtomicBool>,
    progress: Progress,
}

/// Looks at how many pages a guest lacks.
struct Progress {
    unsent: Box<dyn Fn() -> u64 + Send>,
    last: u64,
    at: Instant,
}

/// Turn of one guest, given up when this is dropped.
#[derive(Debug)]
pub(super) struct Turn {
    turns: Arc<Turns>,
    origin: Origin,
    number: u64,
    may_push: Arc<AtomicBool>,
    /// Set if the guest has all of its memory.
    is_whole: AtomicBool,
}

impl Turns {
    fn lock(&self) -> MutexGuard<'_, Table> {
        // Each change is one insertion, removal or assignment: a panic elsewhere leaves the table whole.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters a guest that is about to be filled. `unsent` returns the number of pages that it was not sent yet.
    pub(super) fn enter(
        self: &Arc<Self>,
        origin: Origin,
        guest: u32,
        unsent: impl Fn() -> u64 + Send + 'static,
    ) -> Turn {
        let mut table = self.lock();
        table.last += 1;
        let number = table.last;
        let queue = table.queues.entry(origin).or_default();
        let is_alone = queue.entries.is_empty() && queue.settling.is_none();
        let may_push = Arc::new(AtomicBool::new(is_alone));
        let progress = Progress { last: unsent(), unsent: Box::new(unsent), at: Instant::now() };
        let entry = Entry {
            guest,
            is_alone,
            is_filled: is_alone,
            may_push: Arc::clone(&may_push),
            progress,
        };
        queue.entries.insert(number, entry);
        drop(table);
        let turns = Arc::clone(self);
        Turn { turns, origin, number, may_push, is_whole: AtomicBool::new(false) }
    }

    /// Gives a guest its turn at once: somebody waits for all of its memory.
    pub(super) fn hurry(&self, guest: u32) {
        let mut table = self.lock();
        let entries = table.queues.values_mut().flat_map(|queue| queue.entries.values_mut());
        for entry in entries.filter(|entry| entry.guest == guest) {
            (entry.is_alone, entry.is_filled) = (true, true);
            entry.may_push.store(true, Ordering::Relaxed);
        }
    }

    /// Returns true if nobody waits for a turn.
    pub(crate) fn is_idle(&self) -> bool {
        self.lock().queues.is_empty()
    }

    /// Notes if memory is short.
    pub(crate) fn set_short(&self, is_short: bool) {
        let mut table = self.lock();
        if table.is_short != is_short && table.queues.values().any(|queue| queue.entries.len() > 1)
        {
            let words = if is_short { "wait until memory is not short" } else { "get it" };
            tracing::info!("guests that lack memory that they have not touched {words}");
        }
        table.is_short = is_short;
    }

    /// Gives turns to those that may have them now. `has_looked` returns true of a guest whose memory merging has
    /// looked at, or that is gone. To be called several times a second.
    pub(crate) fn advance(&self, now: Instant, has_looked: impl Fn(u32) -> bool) {
        let mut table = self.lock();
        let is_short = table.is_short;
        table.queues.retain(|_, queue| {
            queue.advance(now, is_short, &has_looked);
            !queue.entries.is_empty() || queue.settling.is_some()
        });
    }
}

impl Queue {
    fn advance(&mut self, now: Instant, is_short: bool, has_looked: &impl Fn(u32) -> bool) {
        let is_settled = |(guest, since): (u32, Instant)| {
            now.saturating_duration_since(since) > SETTLING_MAX || has_looked(guest)
        };
        self.settling = self.settling.filter(|settling| !is_settled(*settling));
        let mut is_taken = self.settling.is_some();
        for entry in self.entries.values_mut().filter(|entry| entry.is_filled) {
            let may_push = entry.is_alone || !is_short;
            entry.may_push.store(may_push, Ordering::Relaxed);
            is_taken |= !entry.progress.is_stalled(now) || !may_push;
        }
        if is_taken || is_short {
            return;
        }
        if let Some(next) = self.entries.values_mut().find(|entry| !entry.is_filled) {
            next.is_filled = true;
            next.progress.at = now;
            next.may_push.store(true, Ordering::Relaxed);
        }
    }
}

impl Progress {
    /// Returns true if nothing was sent for a while.
    fn is_stalled(&mut self, now: Instant) -> bool {
        let unsent = (self.unsent)();
        if unsent != self.last {
            (self.last, self.at) = (unsent, now);
        }
        now.saturating_duration_since(self.at) > STALLED
    }
}

impl Turn {
    /// Returns true while the guest may be sent what it has not touched. Costs no more than reading a flag.
    pub(super) fn may_push(&self) -> bool {
        // Relaxed: nothing else is published by it.
        self.may_push.load(Ordering::Relaxed)
    }

    /// Notes that the guest has all of its memory.
    pub(super) fn set_whole(&self) {
        self.is_whole.store(true, Ordering::Relaxed);
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut table = self.turns.lock();
        let Some(queue) = table.queues.get_mut(&self.origin) else { return };
        let Some(entry) = queue.entries.remove(&self.number) else { return };
        if self.is_whole.load(Ordering::Relaxed) {
            queue.settling = Some((entry.guest, Instant::now()));
        }
    }
}

impl fmt::Debug for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Progress").field("last", &self.last).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;

    const ORIGIN: Origin = (1, CheckpointId(1));

    fn enter(turns: &Arc<Turns>, guest: u32) -> Turn {
        // Each look finds that something was sent.
        let sent = AtomicU64::new(u64::MAX);
        turns.enter(ORIGIN, guest, move || sent.fetch_sub(1, Ordering::Relaxed))
    }

    fn pushing(turns: &[Turn]) -> Vec<bool> {
        turns.iter().map(Turn::may_push).collect()
    }

    #[test]
    fn guests_of_one_checkpoint_are_filled_one_after_the_other() {
        let turns = Arc::<Turns>::default();
        let mut guests: Vec<Turn> = (0..3).map(|guest| enter(&turns, guest)).collect();
        let other = turns.enter((1, CheckpointId(2)), 9, || 1);
        assert!(other.may_push(), "it is alone with its checkpoint");
        let now = Instant::now();
        turns.advance(now, |_| true);
        assert_eq!(pushing(&guests), [true, false, false]);
        guests[0].set_whole();
        drop(guests.remove(0));
        turns.advance(now, |guest| guest != 0);
        assert_eq!(pushing(&guests), [false, false], "merging has not looked");
        turns.advance(now, |_| true);
        assert_eq!(pushing(&guests), [true, false]);
        // One that is gone is not waited for.
        drop(guests.remove(0));
        turns.advance(now, |_| false);
        assert_eq!(pushing(&guests), [true]);
        guests[0].set_whole();
        drop((guests, other));
        turns.advance(now, |_| false);
        assert!(!turns.is_idle());
        turns.advance(now + 2 * SETTLING_MAX, |_| false);
        assert!(turns.is_idle());
    }

    #[test]
    fn no_turn_comes_while_memory_is_short() {
        let turns = Arc::<Turns>::default();
        let first = enter(&turns, 0);
        let second = enter(&turns, 1);
        let third = enter(&turns, 2);
        turns.set_short(true);
        let now = Instant::now();
        turns.advance(now, |_| true);
        assert!(first.may_push(), "it was alone");
        drop(first);
        turns.advance(now, |_| true);
        assert!(!second.may_push());
        turns.set_short(false);
        turns.advance(now, |_| true);
        assert!(second.may_push() && !third.may_push());
        turns.set_short(true);
        turns.advance(now, |_| true);
        assert!(!second.may_push(), "it waits where it is");
        turns.hurry(2);
        assert!(third.may_push());
        turns.advance(now, |_| true);
        assert!(third.may_push());
    }

    #[test]
    fn a_guest_that_takes_nothing_holds_up_nobody() {
        let turns = Arc::<Turns>::default();
        let _stopped = turns.enter(ORIGIN, 0, || 7);
        let next = enter(&turns, 1);
        turns.advance(Instant::now(), |_| true);
        assert!(!next.may_push());
        turns.advance(Instant::now() + 2 * STALLED, |_| true);
        assert!(next.may_push());
    }
}
