//! A bounded list in front of a tree, for one marker: a vCPU's own.
//!
//! Where an epoch is small, its pages are read from here without a look at the tree. When the list
//! is full, further pages go to the tree and a flag says so: its reader then harvests the tree, too.
//! No page is lost, and none waits for room.

use std::sync::Arc;

use bindery_units::PageIndex;
use crossbeam_utils::CachePadded;

use crate::error::OutOfRange;
use crate::primitive::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use crate::tree::Tree;

struct Shared {
    pages: Box<[AtomicU32]>,
    /// Pages that were ever pushed; written by the marker alone.
    pushed: CachePadded<AtomicU64>,
    /// Pages that were ever drained; written by the reader alone.
    drained: CachePadded<AtomicU64>,
    /// Whether the tree has pages that found no room.
    overflowed: AtomicBool,
}

impl Shared {
    fn slot(&self, number: u64) -> &AtomicU32 {
        &self.pages[(number % self.pages.len() as u64) as usize]
    }
}

/// The marker's end of a ring: one thread's.
pub struct RingMarker {
    shared: Arc<Shared>,
    tree: Arc<Tree>,
    /// `drained` as it was last seen: pushing reads it only when the ring seems full.
    drained: u64,
}

/// The reader's end of a ring.
pub struct RingReader {
    shared: Arc<Shared>,
}

/// What a [`RingReader::drain`] leaves to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "pages that found no room are in the tree"]
pub enum Drained {
    /// Every page that was pushed has been listed.
    All,
    /// Some found no room and are in the tree, to be harvested there.
    RestInTree,
}

/// A ring of `room` pages in front of `tree`.
///
/// # Panics
/// If there is no room at all, or the tree has more pages than a [`PageIndex`] reaches.
#[must_use]
pub fn ring(tree: &Arc<Tree>, room: usize) -> (RingMarker, RingReader) {
    assert!(room > 0, "a ring has room for a page");
    assert!(tree.pages() <= 1 << 32, "a ring's pages have 32 bits");
    let shared = Arc::new(Shared {
        pages: (0..room).map(|_| AtomicU32::new(0)).collect(),
        pushed: CachePadded::new(AtomicU64::new(0)),
        drained: CachePadded::new(AtomicU64::new(0)),
        overflowed: AtomicBool::new(false),
    });
    let marker = RingMarker { shared: Arc::clone(&shared), tree: Arc::clone(tree), drained: 0 };
    (marker, RingReader { shared })
}

impl RingMarker {
    /// Lists a page, or marks it in the tree if the ring is full. Pages are listed as often as they
    /// are pushed: whether the reader has seen what was written after the last time, only it knows.
    ///
    /// # Errors
    /// If the tree does not have the page.
    pub fn push(&mut self, page: PageIndex) -> Result<(), OutOfRange> {
        if u64::from(page) >= self.tree.pages() {
            return Err(self.tree.out_of_range(page.into()));
        }
        // Relaxed: this end's own.
        let pushed = self.shared.pushed.load(Ordering::Relaxed);
        if !self.has_room(pushed) {
            self.tree.mark(page)?;
            // Release: whoever sees the flag finds the mark.
            self.shared.overflowed.swap(true, Ordering::Release);
            return Ok(());
        }
        self.shared.slot(pushed).store(page.0, Ordering::Relaxed);
        // Release: the reader sees the slot, and what was written to the page.
        self.shared.pushed.store(pushed + 1, Ordering::Release);
        Ok(())
    }

    fn has_room(&mut self, pushed: u64) -> bool {
        let room = self.shared.pages.len() as u64;
        if pushed - self.drained == room {
            // Acquire: pairs with the Release of `drain`: its slots have been read.
            self.drained = self.shared.drained.load(Ordering::Acquire);
        }
        pushed - self.drained < room
    }
}

impl RingReader {
    /// Appends the pages that were pushed to `pages`, in the order in which they were, some perhaps
    /// more than once.
    pub fn drain(&mut self, pages: &mut Vec<PageIndex>) -> Drained {
        // Acquire: pairs with the Release of `push`, for the tree's marks. Before the list is read:
        // a page that finds no room after that sets it again.
        let overflowed = self.shared.overflowed.swap(false, Ordering::Acquire);
        // Relaxed: this end's own.
        let drained = self.shared.drained.load(Ordering::Relaxed);
        // Acquire: pairs with the Release of `push`, for the slots.
        let pushed = self.shared.pushed.load(Ordering::Acquire);
        let slots = (drained..pushed).map(|number| self.shared.slot(number));
        pages.extend(slots.map(|slot| PageIndex(slot.load(Ordering::Relaxed))));
        // Release: the slots may be written again.
        self.shared.drained.store(pushed, Ordering::Release);
        if overflowed { Drained::RestInTree } else { Drained::All }
    }
}
