//! Held pages: ranges whose backing somebody is changing.
//!
//! Whoever moves pages away, maps others in their place or throws them away first holds their
//! range; nobody else does the same to them meanwhile. A guest's thread that faults on a held page
//! is left waiting and is woken by the holder when it lets go, so the time that a range is held is
//! the longest that a guest waits for it: keep it short and bounded.
//!
//! The fault handlers never wait for a holder. They look here under the lock, do their (short)
//! zero-fill under the lock, and leave alone what is held.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use bindery_units::HostAddress;

/// The most ranges held at once: lanes, handlers and calls of the VMM's threads together.
const HELD_MAX: usize = 256;

#[derive(Debug)]
pub(crate) struct Held {
    table: Mutex<Table>,
    let_go: Condvar,
}

/// The ranges held now. Fixed size: the handlers allocate nothing.
#[derive(Debug)]
pub(crate) struct Table {
    ranges: [(HostAddress, HostAddress); HELD_MAX],
    count: usize,
    paused: bool,
}

/// A range held, until it is dropped.
#[derive(Debug)]
pub(crate) struct Hold<'a> {
    held: &'a Held,
    start: HostAddress,
    end: HostAddress,
}

impl Held {
    pub(crate) const fn new() -> Self {
        let nothing = (HostAddress(0), HostAddress(0));
        let table = Table { ranges: [nothing; HELD_MAX], count: 0, paused: false };
        Self { table: Mutex::new(table), let_go: Condvar::new() }
    }

    /// The table, locked. Keep it for microseconds.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Holds a range, after waiting for those that overlap it.
    pub(crate) fn hold(&self, start: HostAddress, end: HostAddress) -> Hold<'_> {
        let mut table = self.lock();
        loop {
            if table.add(start, end) {
                return Hold { held: self, start, end };
            }
            table = self.let_go.wait(table).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Holds a range unless a part of it is held.
    pub(crate) fn try_hold(&self, start: HostAddress, end: HostAddress) -> Option<Hold<'_>> {
        self.lock().add(start, end).then(|| Hold { held: self, start, end })
    }

    /// Waits until nothing is held and lets nobody hold anything until [`resume`](Self::resume).
    pub(crate) fn pause(&self) {
        let mut table = self.lock();
        while table.paused {
            table = self.let_go.wait(table).unwrap_or_else(PoisonError::into_inner);
        }
        table.paused = true;
        while table.count > 0 {
            table = self.let_go.wait(table).unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub(crate) fn resume(&self) {
        self.lock().paused = false;
        self.let_go.notify_all();
    }
}

impl Table {
    fn add(&mut self, start: HostAddress, end: HostAddress) -> bool {
        if self.paused || self.count == HELD_MAX || self.overlaps(start, end) {
            return false;
        }
        self.ranges[self.count] = (start, end);
        self.count += 1;
        true
    }

    fn remove(&mut self, start: HostAddress, end: HostAddress) {
        let ranges = &self.ranges[..self.count];
        let at = ranges.iter().position(|range| *range == (start, end)).expect("a hold is listed");
        self.count -= 1;
        self.ranges[at] = self.ranges[self.count];
    }

    fn overlaps(&self, start: HostAddress, end: HostAddress) -> bool {
        self.ranges[..self.count].iter().any(|&(low, high)| low < end && start < high)
    }

    /// Whether the byte at `address` is held.
    pub(crate) fn covers(&self, address: HostAddress) -> bool {
        self.overlaps(address, address.plus(1))
    }

    /// The largest end not beyond `end` such that nothing from `start` to it is held, given that
    /// `start` is not.
    pub(crate) fn free_until(&self, start: HostAddress, end: HostAddress) -> HostAddress {
        let starts = self.ranges[..self.count].iter().map(|&(low, _)| low);
        starts.filter(|&low| low > start).fold(end, HostAddress::min)
    }
}

impl Hold<'_> {
    /// How many pages are held.
    pub(crate) const fn pages(&self) -> u32 {
        ((self.end.0 - self.start.0) / bindery_units::PAGE_BYTES) as u32
    }
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        self.held.lock().remove(self.start, self.end);
        self.held.let_go.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicBool, Ordering},
        thread,
        time::Duration,
    };

    use super::*;

    fn at(page: usize) -> HostAddress {
        HostAddress(page * 4096)
    }

    #[test]
    fn overlapping_ranges_are_refused_and_touching_ones_are_not() {
        let held = Held::new();
        let middle = held.try_hold(at(4), at(8)).expect("free");
        assert!(held.try_hold(at(7), at(9)).is_none());
        assert!(held.try_hold(at(8), at(9)).is_some());
        assert!(held.lock().covers(at(7)) && !held.lock().covers(at(8)));
        assert_eq!(held.lock().free_until(at(0), at(100)), at(4));
        drop(middle);
        assert_eq!(held.lock().free_until(at(0), at(100)), at(100));
    }

    #[test]
    fn a_pause_waits_for_holders_and_keeps_others_out() {
        let held = Held::new();
        let first = held.hold(at(0), at(1));
        let paused = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                held.pause();
                paused.store(true, Ordering::SeqCst);
            });
            thread::sleep(Duration::from_millis(20));
            assert!(!paused.load(Ordering::SeqCst));
            drop(first);
        });
        assert!(held.try_hold(at(5), at(6)).is_none());
        held.resume();
        assert!(held.try_hold(at(5), at(6)).is_some());
    }
}
