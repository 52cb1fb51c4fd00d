//! Held pages: ranges whose backing somebody is changing.
//!
//! Whoever moves pages away, maps others in their place or throws them away first holds their
//! range; nobody else does the same to them meanwhile. A guest's thread that faults on a held page
//! is left waiting until the holder lets go, so the time that a range is held is the longest that a
//! guest waits for it: keep it short and bounded.
//!
//! # Who wakes whom
//! The fault handlers never wait for a holder. They look here under the lock, do their (short)
//! zero-fill under the lock, and leave alone what is held. Leaving a fault alone is noted in the
//! range, in the same step as seeing that it is held; whoever lets go takes the note out together
//! with the range and wakes. So no fault is left alone by both, and nobody is woken for nothing. A
//! fault that no handler has read yet needs no note: its handler will find the page free.
//!
//! # Forks
//! A child of fork must not find pages gone. [`Held::pause`] waits for those who move pages away
//! and keeps them out. Breaks go on: each is one step for all to see, a child's copy included, and
//! the forking thread itself may need one.

use std::{
    process,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    thread,
};

use bindery_units::{HostAddress, PAGE_BYTES};

use crate::Core;

/// The most ranges held at once: lanes, handlers and calls of the VMM's threads together.
const HELD_MAX: usize = 256;

#[derive(Debug)]
pub(crate) struct Held {
    table: Mutex<Table>,
    let_go: Condvar,
}

#[derive(Clone, Copy, Debug)]
struct Range {
    start: HostAddress,
    end: HostAddress,
    /// Pages may be absent that are not zero.
    moves_away: bool,
    /// A handler left a fault in the range alone.
    waited_for: bool,
    /// Which number of hold it is.
    number: u64,
}

impl Range {
    fn overlaps(&self, start: HostAddress, end: HostAddress) -> bool {
        self.start < end && start < self.end
    }
}

/// The ranges held now. Fixed size: the handlers allocate nothing.
#[derive(Debug)]
pub(crate) struct Table {
    ranges: [Range; HELD_MAX],
    count: usize,
    paused: bool,
    /// Threads that wait for the table to change.
    waiting: u32,
    /// Holds so far.
    holds: u64,
}

/// A range held, until it is dropped. Then those are woken that waited for a page of it.
#[derive(Debug)]
pub(crate) struct Hold<'a> {
    core: &'a Core,
    start: HostAddress,
    end: HostAddress,
}

/// What became of a try to hold a page.
#[derive(Debug)]
pub(crate) enum Tried<'a> {
    /// It is held now.
    Held(Hold<'a>),
    /// Somebody else has it, and wakes those that wait for it.
    Others,
    /// No range can be held at all: nobody wakes those that wait.
    Full,
}

impl Held {
    pub(crate) const fn new() -> Self {
        let nothing = Range {
            start: HostAddress(0),
            end: HostAddress(0),
            moves_away: false,
            waited_for: false,
            number: 0,
        };
        let ranges = [nothing; HELD_MAX];
        let table = Table { ranges, count: 0, paused: false, waiting: 0, holds: 0 };
        Self { table: Mutex::new(table), let_go: Condvar::new() }
    }

    /// The table, locked. Keep it for microseconds.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, mut table: MutexGuard<'a, Table>) -> MutexGuard<'a, Table> {
        table.waiting += 1;
        let mut table = self.let_go.wait(table).unwrap_or_else(PoisonError::into_inner);
        table.waiting -= 1;
        table
    }

    /// Adds a range that moves pages away, after waiting for those that overlap it.
    fn add(&self, start: HostAddress, end: HostAddress) {
        let mut table = self.lock();
        while table.paused || table.is_full() || table.overlaps(start, end) {
            table = self.wait(table);
        }
        table.add(start, end, true);
    }

    /// Waits until none of the holds that there are now, and that overlap the range, is left.
    fn settle(&self, start: HostAddress, end: HostAddress) {
        let mut table = self.lock();
        let holds = table.holds;
        let is_older = |range: &Range| range.number < holds && range.overlaps(start, end);
        while table.held().iter().any(is_older) {
            table = self.wait(table);
        }
    }

    /// Takes a range out. Whether a fault in it was left alone.
    fn remove(&self, start: HostAddress, end: HostAddress) -> bool {
        let mut table = self.lock();
        let waited_for = table.remove(start, end);
        let anybody = table.waiting > 0;
        drop(table);
        if anybody {
            self.let_go.notify_all();
        }
        waited_for
    }

    /// Waits until no page is moved away and lets nobody move any until [`resume`](Self::resume).
    pub(crate) fn pause(&self) {
        let mut table = self.lock();
        while table.paused {
            table = self.wait(table);
        }
        table.paused = true;
        while table.held().iter().any(|range| range.moves_away) {
            table = self.wait(table);
        }
    }

    pub(crate) fn resume(&self) {
        self.lock().paused = false;
        self.let_go.notify_all();
    }
}

impl Table {
    fn held(&self) -> &[Range] {
        &self.ranges[..self.count]
    }

    const fn is_full(&self) -> bool {
        self.count == HELD_MAX
    }

    const fn add(&mut self, start: HostAddress, end: HostAddress, moves_away: bool) {
        let number = self.holds;
        self.ranges[self.count] = Range { start, end, moves_away, waited_for: false, number };
        self.count += 1;
        self.holds += 1;
    }

    fn remove(&mut self, start: HostAddress, end: HostAddress) -> bool {
        let same = |range: &Range| (range.start, range.end) == (start, end);
        let at = self.held().iter().position(same).expect("a hold is listed");
        let waited_for = self.ranges[at].waited_for;
        self.count -= 1;
        self.ranges[at] = self.ranges[self.count];
        waited_for
    }

    fn overlaps(&self, start: HostAddress, end: HostAddress) -> bool {
        self.held().iter().any(|range| range.overlaps(start, end))
    }

    /// Whether the byte at `address` is held. If so, its holder wakes whoever waits for it: the
    /// caller leaves the fault alone.
    pub(crate) fn leave_to_holder(&mut self, address: HostAddress) -> bool {
        let holder = self.ranges[..self.count]
            .iter_mut()
            .find(|range| range.start <= address && address < range.end);
        holder.map(|range| range.waited_for = true).is_some()
    }

    /// The largest end not beyond `end` such that nothing from `start` to it is held, given that
    /// `start` is not.
    pub(crate) fn free_until(&self, start: HostAddress, end: HostAddress) -> HostAddress {
        let starts = self.held().iter().map(|range| range.start);
        starts.filter(|&low| low > start).fold(end, HostAddress::min)
    }

    /// The smallest start not before `start` such that nothing from it to `end` is held, given that
    /// what is right before `end` is not.
    fn free_from(&self, start: HostAddress, end: HostAddress) -> HostAddress {
        let ends = self.held().iter().map(|range| range.end);
        ends.filter(|&high| high < end).fold(start, HostAddress::max)
    }
}

impl Core {
    /// Holds a range, after waiting for those that overlap it. For work that may move pages away:
    /// never while the process forks.
    pub(crate) fn hold(&self, start: HostAddress, end: HostAddress) -> Hold<'_> {
        self.held.add(start, end);
        Hold { core: self, start, end }
    }

    /// Waits for those who hold pages of a range now: what they did is there to be seen then. A page
    /// that is brought back is not watched before its holder lets go, and one that is in transit is
    /// elsewhere.
    pub(crate) fn settle(&self, start: HostAddress, end: HostAddress) {
        self.held.settle(start, end);
    }

    /// Holds the page at `address` and as many around it, from `start` to `end`, as are free, without
    /// waiting. For work that never leaves a page absent.
    pub(crate) fn try_hold(
        &self,
        address: HostAddress,
        start: HostAddress,
        end: HostAddress,
    ) -> Tried<'_> {
        let mut table = self.held.lock();
        if table.leave_to_holder(address) {
            return Tried::Others;
        }
        if table.is_full() {
            return Tried::Full;
        }
        let start = table.free_from(start, address.plus(PAGE_BYTES));
        let end = table.free_until(address, end);
        table.add(start, end, false);
        Tried::Held(Hold { core: self, start, end })
    }
}

impl Hold<'_> {
    /// Where the range starts.
    pub(crate) const fn start(&self) -> HostAddress {
        self.start
    }

    /// Where it ends.
    pub(crate) const fn end(&self) -> HostAddress {
        self.end
    }

    /// How many pages are held.
    const fn pages(&self) -> u32 {
        ((self.end.0 - self.start.0) / PAGE_BYTES) as u32
    }
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            // Pages of the range may be moved away: whoever touched one would read zeros, and never
            // know. There is nothing left but to stop.
            process::abort();
        }
        if self.core.held.remove(self.start, self.end) {
            self.core.wake(self.start, self.pages());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicBool, Ordering},
        time::{Duration, Instant},
    };

    use super::*;

    fn at(page: usize) -> HostAddress {
        HostAddress(page * 4096)
    }

    /// Whoever waits has looked at the table, and found what it waits for.
    fn until_somebody_waits(held: &Held) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while held.lock().waiting == 0 {
            assert!(Instant::now() < deadline, "nobody waits");
            thread::yield_now();
        }
    }

    #[test]
    fn a_fault_that_is_left_alone_is_remembered_by_the_range_that_it_is_in() {
        let held = Held::new();
        held.add(at(4), at(8));
        held.add(at(8), at(9));
        assert!(held.lock().leave_to_holder(at(7)));
        assert!(!held.lock().leave_to_holder(at(9)));
        assert_eq!(held.lock().free_until(at(0), at(100)), at(4));
        assert_eq!(held.lock().free_from(at(0), at(20)), at(9));
        assert_eq!(held.lock().free_from(at(12), at(20)), at(12));
        assert_eq!(held.lock().free_from(at(0), at(3)), at(0));
        assert!(!held.remove(at(8), at(9)));
        assert!(held.remove(at(4), at(8)));
        assert_eq!(held.lock().free_until(at(0), at(100)), at(100));
    }

    #[test]
    fn an_overlapping_range_waits_for_the_first() {
        let held = Held::new();
        held.add(at(0), at(4));
        let second = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                held.add(at(3), at(6));
                second.store(true, Ordering::SeqCst);
            });
            until_somebody_waits(&held);
            assert!(!second.load(Ordering::SeqCst));
            held.remove(at(0), at(4));
        });
        assert!(held.lock().overlaps(at(5), at(6)) && !held.lock().overlaps(at(0), at(3)));
    }

    #[test]
    fn settling_waits_for_those_who_were_first_and_for_no_other() {
        let held = Held::new();
        held.add(at(0), at(4));
        held.add(at(8), at(9));
        let settled = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                held.settle(at(2), at(6));
                settled.store(true, Ordering::SeqCst);
            });
            until_somebody_waits(&held);
            assert!(!settled.load(Ordering::SeqCst));
            held.add(at(5), at(6));
            held.remove(at(0), at(4));
        });
        assert!(settled.load(Ordering::SeqCst));
    }

    #[test]
    fn a_pause_waits_for_those_who_move_pages_and_keeps_only_them_out() {
        let held = Held::new();
        held.add(at(0), at(1));
        held.lock().add(at(10), at(11), false);
        let (paused, added) = (AtomicBool::new(false), AtomicBool::new(false));
        thread::scope(|scope| {
            scope.spawn(|| {
                held.pause();
                paused.store(true, Ordering::SeqCst);
            });
            until_somebody_waits(&held);
            assert!(!paused.load(Ordering::SeqCst));
            held.remove(at(0), at(1));
        });
        assert!(paused.load(Ordering::SeqCst), "a break under way is not waited for");
        thread::scope(|scope| {
            scope.spawn(|| {
                held.add(at(5), at(6));
                added.store(true, Ordering::SeqCst);
            });
            until_somebody_waits(&held);
            assert!(!added.load(Ordering::SeqCst));
            held.resume();
        });
        assert!(added.load(Ordering::SeqCst));
    }
}
