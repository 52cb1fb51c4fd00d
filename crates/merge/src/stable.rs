//! Which pages are stable: PageONE's two-period rule and its back-off.
//!
//! A page that was written in period *k*, and in neither *k* + 1 nor *k* + 2, is stable in *k* + 2
//! and is taken once. One that has broken *v* times since its guest last discarded it waits *v*
//! periods more, at most [`BACK_OFF_MAX`] (PageONE: *v* + 1 periods, where a new page starts at
//! *v* = 1). A write at any time starts the count anew.
//!
//! ```text
//! period      k-2    k-1     k
//! written      x      .      .     -> stable in k
//! written      x      .      x     -> counts from k
//! broken once  x      .      .     -> waits in k, stable in k+1
//! ```
//!
//! The rule itself is [`Block::step`], pure, on bitmaps of one block; [`Stable`] keeps the blocks of
//! a guest. Half a byte a page where a page was ever written, one byte more where one ever broke.

use bindery_units::{PageIndex, PageRange};
use bindery_wire::lane::BLOCK_PAGES;

const WORDS: usize = BLOCK_PAGES as usize / 64;

/// The most periods that a page waits beyond two.
pub(crate) const BACK_OFF_MAX: u8 = 6;

/// Back-off byte: breaks in the low three bits, periods left to wait in the next three.
const BREAKS_MASK: u8 = 0b111;
const WAIT_SHIFT: u32 = 3;
/// Back-off byte of a page that is never given out.
const NEVER: u8 = u8::MAX;

type Bits = [u64; WORDS];

#[derive(Clone, Debug, Default)]
struct Block {
    /// Written in the period whose number modulo 3 is the index.
    written: [Bits; 3],
    /// Not written for two periods, and not taken yet.
    waiting: Bits,
    /// `None`: all zero.
    back_off: Option<Box<[u8; BLOCK_PAGES as usize]>>,
}

impl Block {
    fn is_quiet(&self) -> bool {
        self.written.as_flattened().iter().chain(&self.waiting).all(|word| *word == 0)
    }

    fn back_off(&self, page: usize) -> u8 {
        self.back_off.as_ref().map_or(0, |bytes| bytes[page])
    }

    fn set_back_off(&mut self, page: usize, value: u8) {
        if value != 0 || self.back_off.is_some() {
            self.back_off.get_or_insert_with(|| Box::new([0; BLOCK_PAGES as usize]))[page] = value;
        }
    }

    /// The rule. `now` is the period's number modulo 3; its written bits are complete.
    fn step(&mut self, now: usize) {
        let [before, first] = [(now + 2) % 3, (now + 1) % 3];
        for word in 0..WORDS {
            let recent = self.written[now][word];
            let arrived = self.written[first][word] & !self.written[before][word] & !recent;
            let waited = self.waiting[word] & !recent & !arrived;
            self.waiting[word] = waited | arrived;
            // What was written in the oldest period is taken or waits: its bits are used up.
            self.written[first][word] = 0;
            if self.back_off.is_some() {
                bits(waited).for_each(|bit| self.count_down(word * 64 + bit, false));
                bits(arrived).for_each(|bit| self.count_down(word * 64 + bit, true));
            }
        }
    }

    /// One period of a page's wait.
    fn count_down(&mut self, page: usize, arrived: bool) {
        let value = self.back_off(page);
        if value == 0 {
            return;
        }
        if value == NEVER {
            self.waiting[page / 64] &= !(1 << (page % 64));
            return;
        }
        let breaks = value & BREAKS_MASK;
        let wait = if arrived { breaks } else { (value >> WAIT_SHIFT).saturating_sub(1) };
        self.set_back_off(page, breaks | wait << WAIT_SHIFT);
    }

    /// Those of a word's waiting pages that have waited long enough.
    fn ready(&self, word: usize) -> u64 {
        let waiting = self.waiting[word];
        let Some(bytes) = &self.back_off else { return waiting };
        let waits = |bit: &usize| {
            let value = bytes[word * 64 + bit];
            value == NEVER || value >> WAIT_SHIFT != 0
        };
        bits(waiting).filter(waits).fold(waiting, |ready, bit| ready & !(1 << bit))
    }

    fn ready_count(&self) -> u64 {
        (0..WORDS).map(|word| u64::from(self.ready(word).count_ones())).sum()
    }

    /// Calls `take` with each page that has waited long enough: it waits no longer.
    fn take(&mut self, mut take: impl FnMut(usize)) {
        for word in 0..WORDS {
            let ready = self.ready(word);
            self.waiting[word] &= !ready;
            bits(ready).for_each(|bit| take(word * 64 + bit));
        }
    }
}

/// The numbers of a word's set bits, ascending.
fn bits(mut word: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let bit = (word != 0).then(|| word.trailing_zeros() as usize);
        word &= word.wrapping_sub(1);
        bit
    })
}

/// What a period leaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Unsettled {
    /// Stable pages, which can be taken.
    pub(crate) ready: u64,
    /// Those, and pages that were written lately or wait.
    pub(crate) pages: u64,
}

/// The stable pages of one guest, period by period.
///
/// A period is [`begin_period`](Self::begin_period), any number of
/// [`note_written`](Self::note_written), [`end_period`](Self::end_period), then any number of
/// [`take`](Self::take).
#[derive(Debug, Default)]
pub(crate) struct Stable {
    blocks: Vec<Option<Box<Block>>>,
    /// The period's number modulo 3.
    now: usize,
    /// The block that is taken next. Goes round, so that pages at the end have their turn.
    next: usize,
    /// Blocks left to be taken in this lap: pages put back wait for the next lap.
    left: usize,
    /// Whether a lap has begun. It takes as many periods as it takes.
    is_in_lap: bool,
}

impl Stable {
    /// Starts the next period.
    pub(crate) fn begin_period(&mut self) {
        self.now = (self.now + 1) % 3;
    }

    /// Takes in that `range` was written in this period.
    pub(crate) fn note_written(&mut self, range: PageRange) {
        let now = self.now;
        self.for_words(range, |block, word, mask| block.written[now][word] |= mask);
    }

    /// Settles which pages are stable, once all that was written in this period is noted.
    pub(crate) fn end_period(&mut self) -> Unsettled {
        let (now, mut unsettled) = (self.now, Unsettled::default());
        for slot in &mut self.blocks {
            let Some(block) = slot else { continue };
            if block.is_quiet() {
                if block.back_off.is_none() {
                    *slot = None;
                }
                continue;
            }
            block.step(now);
            let words = (0..WORDS).map(|word| {
                let written = block.written.iter().fold(0, |all, bits| all | bits[word]);
                (written | block.waiting[word]).count_ones()
            });
            unsettled.pages += u64::from(words.sum::<u32>());
            unsettled.ready += block.ready_count();
        }
        if !self.is_in_lap {
            self.left = self.blocks.len();
        }
        unsettled
    }

    /// Gives about `most` stable pages to `taken`, ascending: more by less than a block, or fewer
    /// where there are no more in this direction. Each block is taken once in a lap; false once the lap is
    /// over.
    pub(crate) fn take(&mut self, most: usize, taken: &mut Vec<u32>) -> bool {
        let start = taken.len();
        self.is_in_lap = true;
        while self.left > 0 && taken.len() - start < most {
            if self.next >= self.blocks.len() {
                self.next = 0;
                if taken.len() > start {
                    return true;
                }
            }
            let first = self.next as u32 * BLOCK_PAGES;
            if let Some(block) = &mut self.blocks[self.next] {
                block.take(|page| taken.push(first + page as u32));
            }
            (self.next, self.left) = (self.next + 1, self.left - 1);
        }
        self.is_in_lap = self.left > 0;
        self.is_in_lap
    }

    /// Takes in that a merged page was written to, or proved not worth the attempt: it waits one
    /// period longer from now on.
    pub(crate) fn note_break(&mut self, page: PageIndex) {
        let (block, at) = self.block_of(page);
        let value = block.back_off(at);
        if value != NEVER {
            let breaks = (value & BREAKS_MASK).min(BACK_OFF_MAX - 1) + 1;
            block.set_back_off(at, value & !BREAKS_MASK | breaks);
        }
    }

    /// Forgets how often `page` broke: what it held is gone.
    pub(crate) fn clear_breaks(&mut self, page: PageIndex) {
        let (block, at) = self.block_of(page);
        if block.back_off(at) != NEVER {
            block.set_back_off(at, 0);
        }
    }

    /// Puts `page` back, to be taken in the next lap, or after `periods` more periods, at most
    /// [`BACK_OFF_MAX`], unless it is written first.
    pub(crate) fn put_back(&mut self, page: PageIndex, periods: u8) {
        let (block, at) = self.block_of(page);
        block.waiting[at / 64] |= 1 << (at % 64);
        let value = block.back_off(at);
        if value != NEVER {
            // The next step takes one off before it looks.
            let wait = if periods == 0 { 0 } else { periods.min(BACK_OFF_MAX) + 1 };
            block.set_back_off(at, value & BREAKS_MASK | wait << WAIT_SHIFT);
        }
    }

    /// Like [`put_back`](Self::put_back), after as many periods as the page has breaks.
    pub(crate) fn put_back_later(&mut self, page: PageIndex) {
        let (block, at) = self.block_of(page);
        let breaks = block.back_off(at) & BREAKS_MASK;
        self.put_back(page, breaks);
    }

    /// Returns how many pages of the block of `page` wait to be taken, or will unless they are written again:
    /// those that were written in this period or the two before. Of those written in all three nothing is
    /// expected. Between scans and [`end_period`](Self::end_period).
    pub(crate) fn waiting(&self, page: PageIndex) -> u32 {
        let block = self.blocks.get((page.0 / BLOCK_PAGES) as usize).and_then(Option::as_ref);
        let in_word = |block: &Block, word: usize| {
            let written = block.written.each_ref().map(|bits| bits[word]);
            let settling = written.iter().fold(0, |any, bits| any | bits)
                & !written.iter().fold(u64::MAX, |all, bits| all & bits);
            (block.waiting[word] | settling).count_ones()
        };
        block.map_or(0, |block| (0..WORDS).map(|word| in_word(block, word)).sum())
    }

    /// Never gives out `page` again.
    pub(crate) fn exclude(&mut self, page: PageIndex) {
        let (block, at) = self.block_of(page);
        block.set_back_off(at, NEVER);
    }

    /// Forgets all about `range`: it is no longer managed.
    pub(crate) fn forget(&mut self, range: PageRange) {
        self.for_words(range, |block, word, mask| {
            for bits in block.written.iter_mut().chain([&mut block.waiting]) {
                bits[word] &= !mask;
            }
            for bit in (0..64).filter(|bit| mask >> bit & 1 == 1) {
                block.set_back_off(word * 64 + bit, 0);
            }
        });
    }

    /// Memory held, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        let of_block = |block: &Block| {
            size_of::<Block>() + block.back_off.as_ref().map_or(0, |_| BLOCK_PAGES as usize)
        };
        self.blocks.capacity() * size_of::<Option<Box<Block>>>()
            + self.blocks.iter().flatten().map(|block| of_block(block)).sum::<usize>()
    }

    fn block(&mut self, at: usize) -> &mut Block {
        if at >= self.blocks.len() {
            self.blocks.resize_with(at + 1, || None);
        }
        self.blocks[at].get_or_insert_default()
    }

    fn block_of(&mut self, page: PageIndex) -> (&mut Block, usize) {
        (self.block((page.0 / BLOCK_PAGES) as usize), (page.0 % BLOCK_PAGES) as usize)
    }

    /// Calls `change` for each word of the bitmaps that `range` touches, with the bits that are in
    /// the range.
    fn for_words(&mut self, range: PageRange, mut change: impl FnMut(&mut Block, usize, u64)) {
        let (mut page, end) = (range.first.0, range.end().0);
        while page < end {
            let bits = (64 - page % 64).min(end - page);
            let mask = (u64::MAX >> (64 - bits)) << (page % 64);
            let word = (page % BLOCK_PAGES / 64) as usize;
            change(self.block((page / BLOCK_PAGES) as usize), word, mask);
            page += bits;
        }
    }
}

#[cfg(test)]
#[path = "stable_tests.rs"]
mod tests;
