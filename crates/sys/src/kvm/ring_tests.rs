//! The harvester's side of a ring, against a kernel's side made up here.

use std::{sync::atomic::AtomicBool, thread};

use super::*;

/// What the kernel does (virt/kvm/dirty_ring.c): pushes at one index, resets at another.
struct Kernel<'a> {
    entries: &'a [Entry],
    dirty: u32,
    reset: u32,
}

impl<'a> Kernel<'a> {
    fn new(entries: &'a [Entry]) -> Self {
        Self { entries, dirty: 0, reset: 0 }
    }

    fn entry(&self, index: u32) -> &'a Entry {
        &self.entries[index as usize & (self.entries.len() - 1)]
    }

    fn is_full(&self) -> bool {
        self.dirty.wrapping_sub(self.reset) as usize == self.entries.len()
    }

    fn push(&mut self, offset: u64) {
        assert!(!self.is_full());
        let entry = self.entry(self.dirty);
        entry.slot.store(offset as u32 ^ 0x1_0000, Ordering::Relaxed);
        entry.offset.store(offset, Ordering::Relaxed);
        entry.flags.store(DIRTY, Ordering::Release);
        self.dirty = self.dirty.wrapping_add(1);
    }

    fn reset(&mut self) -> u32 {
        let before = self.reset;
        // A whole ring of harvested entries is reset once, not round and round.
        while self.entry(self.reset).flags.load(Ordering::Acquire) & HARVESTED != 0 {
            self.entry(self.reset).flags.store(0, Ordering::Release);
            self.reset = self.reset.wrapping_add(1);
        }
        self.reset.wrapping_sub(before)
    }
}

fn ring(size: usize) -> Vec<Entry> {
    (0..size).map(|_| Entry::default()).collect()
}

fn harvest(cursor: &mut Cursor, entries: &[Entry]) -> Vec<u64> {
    let mut offsets = Vec::new();
    while let Some(DirtyGfn { slot, offset }) = cursor.peek(entries).unwrap() {
        assert_eq!(slot, offset as u32 ^ 0x1_0000);
        cursor.advance(entries);
        offsets.push(offset);
    }
    offsets
}

#[test]
fn entries_come_in_order_and_again_after_a_reset() {
    let entries = ring(8);
    let (mut kernel, mut cursor) = (Kernel::new(&entries), Cursor::new(8));
    let mut offset = 0;
    for count in [0, 3, 8, 1, 7, 8, 8, 5] {
        let pushed: Vec<u64> = (offset..offset + count).collect();
        offset += count;
        pushed.iter().for_each(|offset| kernel.push(*offset));
        assert_eq!(harvest(&mut cursor, &entries), pushed);
        cursor.check(&entries, 8).unwrap();
        assert_eq!(cursor.harvested, count as u32);
        assert_eq!(kernel.reset(), cursor.harvested);
        cursor.harvested = 0;
    }
}

#[test]
fn a_whole_ring_that_was_harvested_is_not_harvested_again() {
    let entries = ring(4);
    let (mut kernel, mut cursor) = (Kernel::new(&entries), Cursor::new(4));
    (0..4).for_each(|offset| kernel.push(offset));
    assert_eq!(harvest(&mut cursor, &entries).len(), 4);
    assert_eq!(cursor.peek(&entries), Ok(None));
}

#[test]
fn the_index_wraps() {
    let entries = ring(4);
    let mut kernel = Kernel { entries: &entries, dirty: u32::MAX - 1, reset: u32::MAX - 1 };
    let mut cursor = Cursor { size: 4, next: u32::MAX - 1, harvested: 0 };
    (0..4).for_each(|offset| kernel.push(offset));
    assert_eq!(harvest(&mut cursor, &entries), [0, 1, 2, 3]);
    cursor.check(&entries, 4).unwrap();
    assert_eq!(kernel.reset(), 4);
}

#[test]
fn an_entry_that_somebody_else_harvested_is_refused() {
    let entries = ring(8);
    let (mut kernel, cursor) = (Kernel::new(&entries), Cursor::new(8));
    kernel.push(1);
    let mut other = Cursor::new(8);
    harvest(&mut other, &entries);
    let refusal = OutOfStep { position: 0, flags: HARVESTED, harvested: 0 };
    assert_eq!(cursor.peek(&entries), Err(refusal));
    assert!(refusal.to_string().contains("entry 0") && refusal.to_string().contains("0x2"));
}

#[test]
fn a_ring_that_was_harvested_and_reset_elsewhere_is_noticed_ahead() {
    let entries = ring(8);
    let (mut kernel, cursor) = (Kernel::new(&entries), Cursor::new(8));
    kernel.push(1);
    kernel.push(2);
    harvest(&mut Cursor::new(8), &entries);
    kernel.reset();
    // Nothing to be seen until the vCPU writes again.
    assert_eq!((cursor.peek(&entries), cursor.check(&entries, 8)), (Ok(None), Ok(())));
    kernel.push(3);
    assert_eq!(cursor.peek(&entries), Ok(None));
    let refusal = OutOfStep { position: 2, flags: DIRTY, harvested: 0 };
    assert_eq!(cursor.check(&entries, 8), Err(refusal));
}

#[test]
fn a_reset_elsewhere_of_what_was_harvested_here_is_noticed() {
    let entries = ring(8);
    let (mut kernel, mut cursor) = (Kernel::new(&entries), Cursor::new(8));
    kernel.push(1);
    harvest(&mut cursor, &entries);
    kernel.reset();
    let refusal = OutOfStep { position: 0, flags: 0, harvested: 1 };
    assert_eq!(cursor.check(&entries, 8), Err(refusal));
}

/// One thread pushes, another harvests and looks ahead; the reset is the harvester's, as by ioctl.
#[test]
fn nothing_is_lost_between_threads() {
    const PUSHES: u64 = if cfg!(miri) { 200 } else { 200_000 };
    let entries = ring(64);
    let (reset, done) = (AtomicU32::new(0), AtomicBool::new(false));
    let mut harvested = Vec::new();
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut kernel = Kernel::new(&entries);
            for offset in 0..PUSHES {
                while kernel.is_full() {
                    kernel.reset = reset.load(Ordering::Acquire);
                    thread::yield_now();
                }
                kernel.push(offset);
            }
            done.store(true, Ordering::Release);
        });
        let mut kernel = Kernel::new(&entries);
        let mut cursor = Cursor::new(64);
        loop {
            let last = done.load(Ordering::Acquire);
            harvested.extend(harvest(&mut cursor, &entries));
            cursor.check(&entries, 64).unwrap();
            assert_eq!(kernel.reset(), cursor.harvested);
            cursor.harvested = 0;
            // Release: the flags of all entries up to here are free.
            reset.store(kernel.reset, Ordering::Release);
            if last {
                break;
            }
        }
    });
    assert!(harvested.into_iter().eq(0..PUSHES));
}
