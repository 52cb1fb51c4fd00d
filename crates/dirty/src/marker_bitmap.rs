//! A bitmap of one marker in front of a tree, marked by plain stores.
//!
//! An atomic read-modify-write takes as long as several plain stores, and no processor goes on to the next
//! one before it is through. Where one thread marks, it needs none: nobody else sets bits, and whoever clears
//! them does so by a read-modify-write of its own.
//!
//! **Why no mark is lost.** The marker loads a word of its bitmap and stores it with the page's bit. A reader
//! that takes the word in between takes bits that the store brings back: they are drained once more the next
//! time, and nothing is missing. Then the marker sets the flag of the word's block by a Release, whether it is
//! set or not. The reader clears a flag by an Acquire swap before it looks at the block. If the swap comes
//! before the store, the flag is set for the next time. If it comes after, it reads the store or a later one of
//! the same marker, and sees all that the marker stored before: the word, and what was written to the page;
//! unless another reader has cleared the flag in between, which then sees it. There is no third way, and no
//! fence in either.

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use bindery_units::ByteCount;

use crate::error::{OutOfRange, SizeError};
use crate::geometry::{Geometry, WORD_BITS, WORD_SHIFT};
use crate::marks::{Drain, Marks};
use crate::primitive::{AtomicU8, AtomicU64, Ordering};
use crate::storage::{Words, Zeroed};

/// log2 of the words of a block. The models' blocks are short, so that few pages make several.
const BLOCK_SHIFT: u32 = if cfg!(loom) { 1 } else { 6 };

/// Words that a flag stands for: 4096 pages, as a word of a tree's first summary.
const BLOCK_WORDS: usize = 1 << BLOCK_SHIFT;

struct Shared {
    pages: u64,
    words: Words,
    /// A byte a block: so that it can be set without a look at its neighbours.
    flags: Zeroed<AtomicU8>,
}

/// The marker's end of a bitmap: one thread's, a vCPU's or a device's.
pub struct BitmapMarker {
    // What marks need of `shared`, which does not change, where a loop of them keeps it in registers.
    pages: u64,
    words: NonNull<AtomicU64>,
    flags: NonNull<AtomicU8>,
    shared: Arc<Shared>,
}

// SAFETY: the pointers are into what `shared` keeps, which any thread may use.
unsafe impl Send for BitmapMarker {}
// SAFETY: as above; and a marker that is only borrowed marks nothing.
unsafe impl Sync for BitmapMarker {}

/// The reader's end of a bitmap, which is drained into a [`Tree`](crate::Tree) or a [`Feed`](crate::Feed).
pub struct BitmapReader {
    shared: Arc<Shared>,
}

/// A bitmap of `pages` pages, none of them dirty. It takes a bit a page and 1/512 more, backed where it is
/// touched: it is never full, unlike a [`ring`](crate::ring()).
///
/// # Errors
/// As [`Tree::new`](crate::Tree::new).
pub fn bitmap(pages: u64) -> Result<(BitmapMarker, BitmapReader), SizeError> {
    let leaves = Geometry::new(pages)?.leaves();
    let blocks = leaves.div_ceil(BLOCK_WORDS);
    let no_room = |source| SizeError::NoRoom {
        pages,
        bytes: (leaves as u64).saturating_mul(WORD_BITS / 8) + blocks as u64,
        source,
    };
    let words = Words::new(leaves).map_err(no_room)?;
    let flags = Zeroed::new(blocks).map_err(no_room)?;
    let shared = Arc::new(Shared { pages, words, flags });
    let marker = BitmapMarker {
        pages,
        words: NonNull::from(&*shared.words).cast(),
        flags: NonNull::from(&*shared.flags).cast(),
        shared: Arc::clone(&shared),
    };
    Ok((marker, BitmapReader { shared }))
}

impl BitmapMarker {
    /// Number of pages of the bitmap, dirty or not.
    #[must_use]
    pub fn pages(&self) -> u64 {
        self.pages
    }

    /// Marks a page. Does not block; a load and two stores.
    ///
    /// # Errors
    /// If the bitmap does not have the page.
    #[inline]
    pub fn mark(&mut self, page: impl Into<u64>) -> Result<(), OutOfRange> {
        let page = page.into();
        if page >= self.pages {
            return Err(OutOfRange { page, pages: self.pages });
        }
        let word = (page >> WORD_SHIFT) as usize;
        // SAFETY: `shared` keeps a word for every 64 of `pages`, and a flag for every block of them.
        let (leaf, flag) = unsafe {
            (self.words.add(word).as_ref(), self.flags.add(word >> BLOCK_SHIFT).as_ref())
        };
        add(leaf, 1 << (page % WORD_BITS));
        raise(flag);
        Ok(())
    }

    /// Marks `count` pages from `first` on: a load and a store for every 64 of them.
    ///
    /// # Errors
    /// If the bitmap does not have all of them; then none is marked.
    pub fn mark_range(&mut self, first: impl Into<u64>, count: u64) -> Result<(), OutOfRange> {
        let (first, shared) = (first.into(), &*self.shared);
        OutOfRange::check(first, count, shared.pages)?;
        let end = first + count;
        let mut at = first;
        while at < end {
            let word = (at >> WORD_SHIFT) as usize;
            let next = ((word as u64 + 1) << WORD_SHIFT).min(end);
            add(&shared.words[word], !0 >> (WORD_BITS - (next - at)) << (at % WORD_BITS));
            if next == end || (word + 1).is_multiple_of(BLOCK_WORDS) {
                raise(&shared.flags[word >> BLOCK_SHIFT]);
            }
            at = next;
        }
        Ok(())
    }
}

#[inline]
fn add(word: &AtomicU64, bits: u64) {
    // Relaxed: this thread's own marks, but for those that were drained.
    let marked = word.load(Ordering::Relaxed) | bits;
    // Release: whoever takes the word sees what was written to the pages. Stored even where nothing changes: a
    // reader may have taken the word since, and read the page before it was written.
    #[cfg(not(loom))]
    word.store(marked, Ordering::Release);
    // Loom does not put a store and a read-modify-write that race in one order: a later one may then miss the
    // store. The stress tests run with stores.
    #[cfg(loom)]
    word.swap(marked, Ordering::Release);
}

#[inline]
fn raise(flag: &AtomicU8) {
    // Release: pairs with the swap of `drain`.
    #[cfg(not(loom))]
    flag.store(1, Ordering::Release);
    #[cfg(loom)]
    flag.swap(1, Ordering::Release);
}

impl BitmapReader {
    /// Number of pages of the bitmap, dirty or not.
    #[must_use]
    pub fn pages(&self) -> u64 {
        self.shared.pages
    }

    /// Memory that the bitmap may take, in bytes.
    #[must_use]
    pub fn reserved_bytes(&self) -> ByteCount {
        let shared = &*self.shared;
        ByteCount((size_of_val(&*shared.words) + size_of_val(&*shared.flags)) as u64)
    }

    /// Takes the words of a block that are not empty out and marks them. Gives how many pages that were.
    fn drain_block(&self, block: usize, into: &dyn Marks) -> u64 {
        let first = block << BLOCK_SHIFT;
        let words = &self.shared.words[first..(first + BLOCK_WORDS).min(self.shared.words.len())];
        // Relaxed: a word that seems to be empty was so when the flag was cleared, or will have it raised.
        let is_dirty = |word: &AtomicU64| u64::from(word.load(Ordering::Relaxed) != 0);
        let dirty =
            words.iter().enumerate().fold(0, |dirty, (at, word)| dirty | is_dirty(word) << at);
        if dirty == 0 {
            return 0;
        }
        let (lowest, highest) = (dirty.trailing_zeros() as usize, dirty.ilog2() as usize);
        let mut taken = [0; BLOCK_WORDS];
        let (mut pages, mut rest) = (0, dirty);
        while rest != 0 {
            let at = rest.trailing_zeros() as usize;
            rest &= rest - 1;
            // Acquire: pairs with the Release of `add`.
            let word = words[at].swap(0, Ordering::Acquire);
            taken[at] = word.to_le();
            pages += u64::from(word.count_ones());
        }
        into.mark_words(first + lowest, &taken[lowest..=highest]);
        pages
    }
}

impl Drain for BitmapReader {
    /// Several may drain at once; each mark goes to one of them, and one that began later may then return
    /// before the other has marked what it took. A page whose neighbour is marked at the moment
    /// at which it is taken may be given away once more the next time.
    ///
    /// A byte is looked at for every 4096 pages of the bitmap; where there are dirty ones among them, their
    /// words are taken and marked together.
    fn drain(&self, into: &dyn Marks) -> u64 {
        let mut drained = 0;
        for (block, flag) in self.shared.flags.iter().enumerate() {
            // Not swapped where it is clear: that would take the line away from the marker. Acquire: pairs with
            // the Release of `raise`.
            if flag.load(Ordering::Relaxed) == 0 || flag.swap(0, Ordering::Acquire) == 0 {
                continue;
            }
            drained += self.drain_block(block, into);
        }
        drained
    }
}

impl fmt::Debug for BitmapMarker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BitmapMarker").field("pages", &self.pages()).finish_non_exhaustive()
    }
}

impl fmt::Debug for BitmapReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BitmapReader").field("pages", &self.pages()).finish_non_exhaustive()
    }
}
