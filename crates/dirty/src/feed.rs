//! One source of marks, several readers, each with a tree of its own.
//!
//! A reader's harvest clears its own tree alone, so that merging, checkpoints and migration may each
//! ask at their own pace, and none hides a page from another.
//!
//! Seats are few and fixed. A seat's tree is allocated when it is first taken, and kept for whoever
//! takes it next: a marker may still be at it when its reader leaves, so it is freed with the feed.

use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use bindery_units::PageIndex;
use thiserror::Error;

use crate::error::{OutOfRange, SizeError};
use crate::primitive::{AtomicU64, Ordering, fence};
use crate::tree::Tree;

/// The most readers that a feed has at once.
pub const MOST_READERS: usize = 16;

/// What a reader's tree holds when it joins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Joining {
    /// Nothing: the reader knows all pages as they are.
    Clean,
    /// Every page: the reader has seen none.
    AllMarked,
}

/// A reader could not join.
#[derive(Debug, Error)]
pub enum JoinError {
    /// Every seat is taken.
    #[error("a feed has at most {MOST_READERS} readers, and has them")]
    Full,
    /// There is no room for its tree.
    #[error(transparent)]
    Size(#[from] SizeError),
}

/// Marks go in here, and to every reader.
#[derive(Debug)]
pub struct Feed {
    pages: u64,
    seats: [OnceLock<Tree>; MOST_READERS],
    /// Seats that somebody has.
    claimed: AtomicU64,
    /// Seats that get marks, a part of those that are claimed.
    listening: AtomicU64,
}

impl Feed {
    /// A feed of `pages` pages that nobody reads yet.
    ///
    /// # Errors
    /// If there is no tree of that size.
    pub fn new(pages: u64) -> Result<Self, SizeError> {
        crate::geometry::Geometry::new(pages)?;
        Ok(Self {
            pages,
            seats: [const { OnceLock::new() }; MOST_READERS],
            claimed: AtomicU64::new(0),
            listening: AtomicU64::new(0),
        })
    }

    /// How many pages the feed has.
    #[must_use]
    pub const fn pages(&self) -> u64 {
        self.pages
    }

    /// Adds a reader. It gets every mark that begins after this returns; and whatever was written to
    /// a page before a mark that it does not get, it sees when it reads the page now.
    ///
    /// # Errors
    /// If there are [`MOST_READERS`], or no room for a tree.
    pub fn join(self: &Arc<Self>, joining: Joining) -> Result<Reader, JoinError> {
        let seat = self.claim().ok_or(JoinError::Full)?;
        let tree = match self.tree_of(seat) {
            Ok(tree) => tree,
            Err(error) => {
                self.claimed.fetch_and(!(1 << seat), Ordering::Release);
                return Err(error.into());
            }
        };
        // What late marks of the last reader's time have left.
        tree.clear();
        // Before marks come: whoever harvests must not find all of them again.
        if joining == Joining::AllMarked {
            tree.mark_all();
        }
        self.listening.fetch_or(1 << seat, Ordering::SeqCst);
        // Pairs with the fence of `to_all`: a marker that does not see the reader has written its
        // page before, where the reader sees it.
        fence(Ordering::SeqCst);
        Ok(Reader { feed: Arc::clone(self), seat })
    }

    /// Marks a page for every reader.
    ///
    /// # Errors
    /// If the feed does not have the page.
    pub fn mark(&self, page: impl Into<u64>) -> Result<(), OutOfRange> {
        let page = page.into();
        self.check(page, 1)?;
        self.to_all(|tree| tree.mark(page))
    }

    /// Marks `count` pages from `first` on for every reader.
    ///
    /// # Errors
    /// If the feed does not have all of them; then none is marked.
    pub fn mark_range(&self, first: impl Into<u64>, count: u64) -> Result<(), OutOfRange> {
        let first = first.into();
        self.check(first, count)?;
        self.to_all(|tree| tree.mark_range(first, count))
    }

    /// As [`Tree::mark_words`], for every reader.
    ///
    /// # Errors
    /// If a bit is set of a page that the feed does not have. Without readers, nobody looks.
    pub fn mark_words(&self, first_word: usize, words: &[u64]) -> Result<(), OutOfRange> {
        self.to_all(|tree| tree.mark_words(first_word, words))
    }

    /// As [`Tree::mark_pages`], for every reader.
    ///
    /// # Errors
    /// At the first page that the feed does not have. Without readers, nobody looks.
    pub fn mark_pages(&self, base: u64, pages: &[PageIndex]) -> Result<(), OutOfRange> {
        self.to_all(|tree| tree.mark_pages(base, pages))
    }

    /// How many readers there are.
    #[must_use]
    pub fn readers(&self) -> usize {
        self.listening.load(Ordering::Relaxed).count_ones() as usize
    }

    fn to_all(&self, mark: impl Fn(&Tree) -> Result<(), OutOfRange>) -> Result<(), OutOfRange> {
        // Pairs with the fence of `join`: see there.
        fence(Ordering::SeqCst);
        let mut seats = self.listening.load(Ordering::SeqCst);
        while seats != 0 {
            let tree = self.seats[seats.trailing_zeros() as usize].get();
            mark(tree.expect("a seat that listens has a tree"))?;
            seats &= seats - 1;
        }
        Ok(())
    }

    fn check(&self, first: u64, count: u64) -> Result<(), OutOfRange> {
        OutOfRange::check(first, count, self.pages)
    }

    /// Takes the first free seat.
    fn claim(&self) -> Option<usize> {
        let free = |claimed: u64| {
            let seat = claimed.trailing_ones();
            (seat < MOST_READERS as u32).then(|| claimed | 1 << seat)
        };
        // Acquire: pairs with the Release of the reader that had the seat before.
        let claim = self.claimed.fetch_update(Ordering::Acquire, Ordering::Relaxed, free);
        claim.ok().map(|claimed| claimed.trailing_ones() as usize)
    }

    fn tree_of(&self, seat: usize) -> Result<&Tree, SizeError> {
        if let Some(tree) = self.seats[seat].get() {
            return Ok(tree);
        }
        let tree = Tree::new(self.pages)?;
        // The seat is claimed: nobody else makes its tree.
        Ok(self.seats[seat].get_or_init(|| tree))
    }
}

/// A reader of a [`Feed`]: a tree that the feed marks. It leaves when it is dropped.
#[derive(Debug)]
pub struct Reader {
    feed: Arc<Feed>,
    seat: usize,
}

impl Deref for Reader {
    type Target = Tree;

    fn deref(&self) -> &Tree {
        self.feed.seats[self.seat].get().expect("a reader's seat has a tree")
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.feed.listening.fetch_and(!(1 << self.seat), Ordering::Relaxed);
        // Release: whoever claims the seat next comes after all that this reader did.
        self.feed.claimed.fetch_and(!(1 << self.seat), Ordering::Release);
    }
}
