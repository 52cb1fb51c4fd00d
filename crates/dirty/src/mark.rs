//! Marking: from the bitmap upwards.
//!
//! A mark sets the page's bit, then looks at every level above and sets the bit that is missing. It
//! never concludes from one level that the next one is set: that bit may be another marker's, which
//! has stopped half way. What it saves is the write, which takes the cache line away from all
//! others; where pages are marked again and again, the summaries are only read.
//!
//! **Why no mark is lost.** A harvester clears a bit of level `k + 1` first and then what it stands
//! for in level `k` (`harvest`). A marker comes to level `k` first, to write the bit or to see it,
//! and then to the bit of level `k + 1`. All of these accesses are sequentially consistent, so they
//! have one order:
//!
//! - If the marker sees the bit of level `k + 1` *before* a harvester clears it, it was at level `k`
//!   before that too, and that harvester is still on its way there: it takes what it finds, this
//!   mark.
//! - If it looks *after* a harvester cleared it, it finds the bit missing, and sets it, or set again
//!   since.
//!
//! So whenever a marker has finished with a level, either the bit above leads to the mark, or a
//! harvester that took that bit does; by induction from the top, a harvest that begins later finds
//! the mark unless an earlier one has it. A summary may lead nowhere; a mark is never without its
//! summaries once its marker is through.
//!
//! Where whole words of the bitmap are filled by plain stores, the bit above is set whether it is there
//! or not: only ever read and modified in one, it brings what was stored before to whoever takes it
//! from then on; and a harvester that took it before leads there, or leaves what was stored.
//!
//! **Why what was written is seen.** Whoever marks has written to the page; whoever harvests reads
//! it next. Where the mark sets the bit, the harvester acquires from it. Where the bit was set
//! already, nothing would order the write before the look at the bit, and a harvest between the two
//! would read the old content and leave no mark for the new one. Hence the fence before a mark is
//! taken as made by somebody else, and its partner at the end of every harvest. It costs what
//! setting the bit would, and leaves the cache line where it is.

use bindery_units::PageIndex;

use crate::error::OutOfRange;
use crate::geometry::{WORD_BITS, WORD_SHIFT};
use crate::primitive::{AtomicU64, Ordering, fence, prefetch};
use crate::tree::Tree;

impl Tree {
    /// Marks a page. Does not block; a few nanoseconds, an atomic write where the bit is missing.
    ///
    /// # Errors
    /// If the tree does not have the page.
    #[inline]
    pub fn mark(&self, page: impl Into<u64>) -> Result<(), OutOfRange> {
        let page = page.into();
        if page >= self.pages() {
            return Err(self.out_of_range(page));
        }
        self.mark_word((page >> WORD_SHIFT) as usize, 1 << (page % WORD_BITS));
        Ok(())
    }

    /// Marks `count` pages from `first` on: an atomic write for every 64 of them that are not all
    /// marked.
    ///
    /// # Errors
    /// If the tree does not have all of them; then none is marked.
    pub fn mark_range(&self, first: impl Into<u64>, count: u64) -> Result<(), OutOfRange> {
        let first = first.into();
        self.check(first, count)?;
        if count == 0 {
            return Ok(());
        }
        let last = first + count - 1;
        let (mut at, end) = ((first >> WORD_SHIFT) as usize, (last >> WORD_SHIFT) as usize);
        let mut head = !0 << (first % WORD_BITS);
        let tail = !0 >> (WORD_BITS - 1 - last % WORD_BITS);
        loop {
            let last_sibling = (at | (WORD_BITS as usize - 1)).min(end);
            if last_sibling == end {
                self.mark_run(at, end, head, tail);
                return Ok(());
            }
            self.mark_run(at, last_sibling, head, !0);
            (at, head) = (last_sibling + 1, !0);
        }
    }

    /// Marks all pages of words `first` to `last` of the bitmap, which have one word above them, but for
    /// those of the first and of the last word that are not named.
    #[inline]
    fn mark_run(&self, first: usize, last: usize, head: u64, tail: u64) {
        let parent = first >> WORD_SHIFT;
        let has_parent = self.geometry.levels > 1;
        if has_parent {
            // The line would be waited for when those of the bitmap have come.
            prefetch(self.word(1, parent));
        }
        let were_filled = mark_words_of(&self.words()[first..=last], head, tail);
        if has_parent {
            let (first, last) = (first as u64 % WORD_BITS, last as u64 % WORD_BITS);
            let bits = !0 << first & !0 >> (WORD_BITS - 1 - last);
            let summary = self.word(1, parent);
            if were_filled || !has(summary, bits) {
                set(summary, bits);
            }
            self.lead_to(1, parent);
        }
    }

    /// Marks every page.
    pub fn mark_all(&self) {
        let marked = self.mark_range(0_u64, self.pages());
        assert!(marked.is_ok(), "a tree has its own pages");
    }

    /// Marks the pages whose bits are set in `words`, of which the first is the tree's word
    /// `first_word`: bit 0 of it is page `64 * first_word`. Bits are as `KVM_GET_DIRTY_LOG` writes
    /// them, so that a piece of its bitmap is read as it is.
    ///
    /// # Errors
    /// If a bit is set of a page that the tree does not have; then none is marked.
    pub fn mark_words(&self, first_word: usize, words: &[u64]) -> Result<(), OutOfRange> {
        self.check_words(first_word, words)?;
        let mut rest = words;
        let mut at = first_word;
        while !rest.is_empty() {
            // As many as one word above stands for.
            let some = rest.len().min(WORD_BITS as usize - at % WORD_BITS as usize);
            self.mark_siblings(at, &rest[..some]);
            (at, rest) = (at + some, &rest[some..]);
        }
        Ok(())
    }

    /// Marks the pages of a list, as a harvest gave it: what was harvested and could not be dealt
    /// with is dirty again. Pages that follow each other cost as much as one of them.
    ///
    /// # Errors
    /// At the first page that the tree does not have; those before it are marked.
    pub fn mark_pages(&self, base: u64, pages: &[PageIndex]) -> Result<(), OutOfRange> {
        let mut pending = (0, 0);
        for page in pages {
            let page = base.saturating_add(u64::from(page.0));
            let (word, bit) = ((page >> WORD_SHIFT) as usize, 1 << (page % WORD_BITS));
            let is_ours = page < self.pages();
            if pending.1 != 0 && (!is_ours || word != pending.0) {
                self.mark_word(pending.0, pending.1);
                pending.1 = 0;
            }
            if !is_ours {
                return Err(self.out_of_range(page));
            }
            pending = (word, pending.1 | bit);
        }
        if pending.1 != 0 {
            self.mark_word(pending.0, pending.1);
        }
        Ok(())
    }

    /// Marks pages of one word of the bitmap.
    #[inline]
    pub(crate) fn mark_word(&self, word: usize, bits: u64) {
        mark_bits(self.word(0, word), bits);
        self.lead_to(0, word);
    }

    /// Sets the bits above a word that lead to it, where they are missing.
    #[inline]
    pub(crate) fn lead_to(&self, level: usize, word: usize) {
        let mut at = word;
        for level in level + 1..self.geometry.levels {
            let bit = 1 << (at as u64 % WORD_BITS);
            at >>= WORD_SHIFT;
            let summary = self.word(level, at);
            if !has(summary, bit) {
                set(summary, bit);
            }
        }
    }

    /// Marks the pages of words that have one word above them.
    fn mark_siblings(&self, first_word: usize, words: &[u64]) {
        let leaves = self.leaves().get(first_word..).unwrap_or_default();
        let (mut above, mut were_marked) = (0, false);
        let named = words.iter().zip(leaves).enumerate().filter(|(_, (word, _))| **word != 0);
        for (at, (word, leaf)) in named.clone() {
            let bits = u64::from_le(*word);
            above |= 1 << ((first_word + at) as u64 % WORD_BITS);
            if has(leaf, bits) {
                were_marked = true;
            } else {
                set(leaf, bits);
            }
        }
        if were_marked {
            // One for all of them: see the module's documentation.
            fence(Ordering::SeqCst);
            for (_, (word, leaf)) in
                named.filter(|(_, (word, leaf))| !has(leaf, u64::from_le(**word)))
            {
                set(leaf, u64::from_le(*word));
            }
        }
        if above != 0 && self.geometry.levels > 1 {
            let parent = first_word >> WORD_SHIFT;
            if !has(self.word(1, parent), above) {
                set(self.word(1, parent), above);
            }
            self.lead_to(1, parent);
        }
    }

    /// The error if a bit is set that is no page's.
    pub(crate) fn check_words(&self, first_word: usize, words: &[u64]) -> Result<(), OutOfRange> {
        let whole = (self.pages() >> WORD_SHIFT) as usize;
        let beyond = whole.saturating_sub(first_word).min(words.len());
        for (at, word) in words.iter().enumerate().skip(beyond) {
            let first = (first_word.saturating_add(at) as u64).saturating_mul(WORD_BITS);
            let Some(bit) = u64::from_le(*word).checked_ilog2() else { continue };
            let page = first.saturating_add(u64::from(bit));
            if page >= self.pages() {
                return Err(self.out_of_range(page));
            }
        }
        Ok(())
    }
}

/// Marks pages of consecutive words of the bitmap: all, but for those of the first and of the last
/// word that are not named. True if words were filled.
#[inline]
fn mark_words_of(words: &[AtomicU64], head: u64, tail: u64) -> bool {
    if let [only] = words
        && head & tail != !0
    {
        mark_bits(only, head & tail);
        return false;
    }
    let (mut from, mut to) = (0, words.len());
    if head != !0 {
        mark_bits(&words[0], head);
        from += 1;
    }
    if tail != !0 {
        to -= 1;
        mark_bits(&words[to], tail);
    }
    from < to && fill(&words[from..to])
}

#[inline]
fn mark_bits(leaf: &AtomicU64, bits: u64) {
    if !has(leaf, bits) || !is_seen(leaf, bits) {
        set(leaf, bits);
    }
}

/// Marks all pages of some words. True if by plain stores: then the bit above is to be set, whether it
/// is there or not (see the module's documentation).
#[inline]
fn fill(words: &[AtomicU64]) -> bool {
    let are_full = || words.iter().all(|word| has(word, !0));
    if !are_full() {
        // A word that is filled loses nothing that another marker sets meanwhile. Release: what was
        // written to the pages is seen by who takes them. What another marker wrote before it set a
        // bit that is stored over is seen, too, where a store is seen by all others at once (x86,
        // ARMv8, RISC-V), though the language does not promise it.
        words.iter().for_each(fill_word);
        return true;
    }
    // As `is_seen`, once for all of them.
    fence(Ordering::SeqCst);
    if !are_full() {
        words.iter().filter(|word| !has(word, !0)).for_each(|word| set(word, !0));
    }
    false
}

#[inline]
fn fill_word(word: &AtomicU64) {
    #[cfg(not(any(loom, miri)))]
    word.store(!0, Ordering::Release);
    // Loom does not put a store and a read-modify-write that race in one order: a later one may then
    // miss the store. Miri knows what the language promises, and no more (`fill`). The stress tests run
    // with stores.
    #[cfg(any(loom, miri))]
    word.fetch_or(!0, Ordering::Release);
}

#[inline]
fn has(word: &AtomicU64, bits: u64) -> bool {
    // SeqCst: partner of a harvester's `take::Swap`; see the module's documentation.
    word.load(Ordering::SeqCst) & bits == bits
}

#[inline]
fn set(word: &AtomicU64, bits: u64) {
    // SeqCst: as in `has`. Also a Release: whoever takes the bits sees what was written to the pages.
    word.fetch_or(bits, Ordering::SeqCst);
}

/// Whether marks that are set already will be harvested after what this thread wrote to the pages.
#[inline]
fn is_seen(leaf: &AtomicU64, bits: u64) -> bool {
    // Pairs with the fence at the end of a harvest: either this thread sees that the bits were
    // taken, or the harvester's caller sees what it wrote.
    fence(Ordering::SeqCst);
    has(leaf, bits)
}
