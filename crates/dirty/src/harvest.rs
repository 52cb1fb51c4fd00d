//! Harvesting: from the top downwards.
//!
//! A walk takes the bits of a summary's word, then goes to what they stand for. Where a harvest
//! clears, it clears a bit before it goes below it, so that a marker that comes later sets the bit
//! again (`mark` has the argument). Bits that lead both into the window and out of it are only looked
//! at: they stay, and may lead nowhere afterwards. Words of the first summary are where work is done:
//! the up to 64 words of the bitmap below one are gathered, so that the atomic operations follow
//! each other, and then turned into page indices together.
//!
//! Where the list is full, what was taken beyond it is put back as a marker would: the bitmap first,
//! then every level above.

use bindery_units::{PageIndex, PageRange};

use crate::decode::{Decoder, Gathered, SLACK};
use crate::error::OutOfRange;
use crate::geometry::{MAX_LEVELS, WORD_BITS, WORD_SHIFT};
use crate::output::{Buffer, NODE_ROOM, Output};
use crate::primitive::{Ordering, fence, prefetch};
use crate::take::{Look, Store, Swap, Take};
use crate::tree::Tree;
use crate::window::Window;

/// How a harvest into a buffer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Harvest {
    /// Pages in the buffer, from its start. What the buffer holds behind them is unspecified.
    pub pages: usize,
    /// What is still to be harvested because the buffer was full.
    pub rest: Option<Window>,
}

impl Tree {
    /// Appends the dirty pages of a window to `pages`, in order, and clears them. Others may mark
    /// meanwhile: each of their marks is in this list or left for the next.
    ///
    /// Does not block. Costs an atomic operation for every word of the bitmap in which a page is
    /// dirty, and one for every word of the summaries on the way there; nothing for what is clean.
    ///
    /// # Errors
    /// If the tree does not have all pages of the window; then nothing is cleared.
    ///
    /// # Panics
    /// If `pages` cannot grow: it grows by more than 4096 pages at a time, before they are taken.
    pub fn harvest_into(
        &self,
        window: impl Into<Window>,
        pages: &mut Vec<PageIndex>,
    ) -> Result<(), OutOfRange> {
        self.walk::<Swap, _>(window.into(), pages).map(drop)
    }

    /// As [`harvest_into`](Self::harvest_into), into a buffer that does not grow: nothing is
    /// allocated, and at most as many pages are taken as it has room for.
    ///
    /// # Errors
    /// If the tree does not have all pages of the window; then nothing is cleared.
    pub fn harvest_some(
        &self,
        window: impl Into<Window>,
        buffer: &mut [PageIndex],
    ) -> Result<Harvest, OutOfRange> {
        let mut output = Buffer::new(buffer);
        let rest = self.walk::<Swap, _>(window.into(), &mut output)?;
        Ok(Harvest { pages: output.len(), rest })
    }

    /// As [`harvest_into`](Self::harvest_into), for whoever has the tree alone, as when all vCPUs
    /// are stopped: without atomic operations.
    ///
    /// # Errors
    /// If the tree does not have all pages of the window; then nothing is cleared.
    pub fn harvest_alone(
        &mut self,
        window: impl Into<Window>,
        pages: &mut Vec<PageIndex>,
    ) -> Result<(), OutOfRange> {
        self.walk::<Store, _>(window.into(), pages).map(drop)
    }

    /// Clears every page, as a harvest does whose list is thrown away.
    pub fn clear(&self) {
        let mut pages = Vec::new();
        for window in self.windows() {
            let mut rest = Some(window);
            pages.resize(NODE_ROOM, PageIndex(0));
            while let Some(window) = rest {
                let harvest = self.harvest_some(window, &mut pages);
                rest = harvest.expect("a tree has its own pages").rest;
            }
        }
    }

    /// Appends the dirty pages of a window to `pages`, in order, and leaves them dirty.
    ///
    /// # Errors
    /// If the tree does not have all pages of the window.
    pub fn list_into(
        &self,
        window: impl Into<Window>,
        pages: &mut Vec<PageIndex>,
    ) -> Result<(), OutOfRange> {
        self.walk::<Look, _>(window.into(), pages).map(drop)
    }

    fn walk<T: Take, O: Output>(
        &self,
        window: Window,
        output: &mut O,
    ) -> Result<Option<Window>, OutOfRange> {
        let count = u64::from(window.range.count);
        self.check(window.base.saturating_add(window.range.first.into()), count)?;
        if count == 0 {
            return Ok(None);
        }
        let stopped_at = if count == self.pages() {
            Walk::<T, O, true>::new(self, window, output).run()
        } else {
            Walk::<T, O, false>::new(self, window, output).run()
        };
        if T::CLEARS && T::SHARES {
            // Pairs with the fence of a mark that found its bit set (`mark`).
            fence(Ordering::SeqCst);
        }
        Ok(stopped_at.map(|page| rest_of(window, page)))
    }
}

/// The window from a page of it on.
fn rest_of(window: Window, page: u64) -> Window {
    let first = (page - window.base) as u32;
    let count = window.range.end().0 - first;
    Window { base: window.base, range: PageRange::new(PageIndex(first), count) }
}

/// The bits of one level, numbered through, whose subtrees lie in a window.
#[derive(Clone, Copy, Default)]
struct Cover {
    /// Those that lie in it as a whole.
    inner: (u64, u64),
    /// Those of which a part does, the inner ones included.
    touched: (u64, u64),
}

impl Cover {
    /// The bits of word `word` of the level.
    #[inline]
    fn bits(self, word: usize) -> (u64, u64) {
        (bits_between(self.inner, word), bits_between(self.touched, word))
    }
}

#[inline]
fn bits_between((first, end): (u64, u64), word: usize) -> u64 {
    let start = word as u64 * WORD_BITS;
    let first = first.saturating_sub(start).min(WORD_BITS);
    let end = end.saturating_sub(start).min(WORD_BITS);
    if first >= end { 0 } else { !0 << first & !0 >> (WORD_BITS - end) }
}

/// Words of the first summary that are gone through together: their cache lines, and then those of
/// the bitmap, are fetched side by side.
const BATCH: usize = 16;

/// A walk over a window; with `WHOLE`, over the whole tree.
struct Walk<'t, T, O, const WHOLE: bool> {
    tree: &'t Tree,
    output: &'t mut O,
    /// The page that is called 0.
    base: u64,
    covers: [Cover; MAX_LEVELS],
    decoder: &'static Decoder,
    gathered: Gathered,
    /// Words of the first summary that were named and not yet taken, in order.
    nodes: [Node; BATCH],
    named: usize,
    /// The first page that the list had no room for.
    stopped_at: Option<u64>,
    take: std::marker::PhantomData<T>,
}

/// A word of the first summary.
#[derive(Clone, Copy, Default)]
struct Node {
    word: usize,
    /// Bits that were taken from it, and all that are to be gone through.
    taken: u64,
    bits: u64,
}

impl<'t, T: Take, O: Output, const WHOLE: bool> Walk<'t, T, O, WHOLE> {
    fn new(tree: &'t Tree, window: Window, output: &'t mut O) -> Self {
        let whole = [Cover::default(); MAX_LEVELS];
        Self {
            tree,
            output,
            base: window.base,
            covers: if WHOLE { whole } else { covers(tree, window.start(), window.end()) },
            decoder: Decoder::active(),
            gathered: Gathered::default(),
            nodes: [Node::default(); BATCH],
            named: 0,
            stopped_at: None,
            take: std::marker::PhantomData,
        }
    }

    /// The first page that the list had no room for, if there is one.
    fn run(&mut self) -> Option<u64> {
        match self.tree.geometry.top() {
            0 => self.only_leaf(),
            1 => _ = self.name(0) && self.go_through(),
            top => _ = self.visit(top, 0) && self.go_through(),
        }
        self.stopped_at
    }

    /// Everything below a word of a summary above the first. False once the list is full.
    fn visit(&mut self, level: usize, word: usize) -> bool {
        let (taken, mut bits) = self.take(level, word);
        while bits != 0 {
            let child = word << WORD_SHIFT | bits.trailing_zeros() as usize;
            let goes_on = if level == 2 { self.name(child) } else { self.visit(level - 1, child) };
            if !goes_on {
                self.put_back(level, word, taken & bits);
                return false;
            }
            bits &= bits - 1;
        }
        true
    }

    /// A word of the first summary is to be gone through. False once the list is full.
    #[inline]
    fn name(&mut self, word: usize) -> bool {
        prefetch(self.tree.word(1, word));
        self.nodes[self.named].word = word;
        self.named += 1;
        self.named < BATCH || self.go_through()
    }

    /// Goes through the words that were named. False once the list is full.
    fn go_through(&mut self) -> bool {
        let named = std::mem::take(&mut self.named);
        for at in 0..named {
            let word = self.nodes[at].word;
            let (taken, bits) = self.take(1, word);
            self.nodes[at] = Node { word, taken, bits };
            self.prefetch_leaves(self.nodes[at]);
        }
        for at in 0..named {
            if !self.node(self.nodes[at]) {
                let rest = &self.nodes[at + 1..named];
                rest.iter().for_each(|node| self.put_back(1, node.word, node.taken));
                return false;
            }
        }
        true
    }

    #[inline]
    fn prefetch_leaves(&self, node: Node) {
        let mut rest = node.bits;
        while rest != 0 {
            let place = rest.trailing_zeros();
            prefetch(self.tree.word(0, node.word << WORD_SHIFT | place as usize));
            // One for each line, which eight words share.
            rest &= !(0xff << (place & !7));
        }
    }

    /// The bits of a summary's word that lead into the window: those that were taken, and all.
    #[inline]
    fn take(&self, level: usize, word: usize) -> (u64, u64) {
        if WHOLE {
            let taken = T::take(self.tree.word(level, word), !0);
            return (taken, taken);
        }
        let (inner, touched) = self.covers[level].bits(word);
        let summary = self.tree.word(level, word);
        let taken = if inner == 0 { 0 } else { T::take(summary, inner) };
        let edges = touched & !inner;
        let looked_at = if edges == 0 { 0 } else { Look::take(summary, edges) };
        (taken, taken | looked_at)
    }

    /// Lists the words of the bitmap below a word of the first summary. False once the list is full.
    #[inline]
    fn node(&mut self, node: Node) -> bool {
        let Node { word, taken, bits } = node;
        let room = self.output.prepare();
        if room < NODE_ROOM {
            return self.some_of(word, taken, bits, room);
        }
        if WHOLE && are_few(bits) {
            self.list_few(word, bits);
            return true;
        }
        if WHOLE || taken == bits {
            self.gather(word, bits);
        } else {
            self.gather_edges(word, bits);
        }
        self.emit(word);
        true
    }

    /// Takes and lists leaves one by one.
    #[inline]
    fn list_few(&mut self, word: usize, mut bits: u64) {
        let (end, mut count) = (self.output.end(), 0);
        while bits != 0 {
            let leaf = word << WORD_SHIFT | bits.trailing_zeros() as usize;
            bits &= bits - 1;
            let mut pages = T::take(self.tree.word(0, leaf), !0);
            let base = ((leaf as u64) << WORD_SHIFT).wrapping_sub(self.base) as u32;
            while pages != 0 {
                // SAFETY: there is room for all pages of a node.
                unsafe { end.add(count).write(base.wrapping_add(pages.trailing_zeros())) };
                count += 1;
                pages &= pages - 1;
            }
        }
        // SAFETY: written above.
        unsafe { self.output.advance(count) };
    }

    /// Takes the leaves that `bits` name. All pages of them are in the window.
    #[inline]
    fn gather(&mut self, word: usize, mut bits: u64) {
        self.gathered.clear();
        let leaves = &self.tree.leaves()[word << WORD_SHIFT..];
        if bits == !0 {
            for (place, leaf) in leaves[..WORD_BITS as usize].iter().enumerate() {
                self.gathered.push(place as u32, T::take(leaf, !0));
            }
            return;
        }
        while bits != 0 {
            let place = bits.trailing_zeros();
            self.gathered.push(place, T::take(&leaves[place as usize], !0));
            bits &= bits - 1;
        }
    }

    /// As `gather`, where a leaf may lie in the window in part.
    #[cold]
    fn gather_edges(&mut self, word: usize, mut bits: u64) {
        self.gathered.clear();
        while bits != 0 {
            let place = bits.trailing_zeros();
            self.gathered.push(place, self.take_leaf(word << WORD_SHIFT | place as usize));
            bits &= bits - 1;
        }
    }

    /// The pages of the window that a leaf has.
    fn take_leaf(&self, leaf: usize) -> u64 {
        let pages = if WHOLE { !0 } else { self.covers[0].bits(leaf).0 };
        T::take(self.tree.word(0, leaf), pages)
    }

    /// Lists what was gathered. There is room for all of it.
    #[inline]
    fn emit(&mut self, word: usize) {
        let first = (word as u64) << (2 * WORD_SHIFT);
        // Wraps around where the window's base lies within the node: what is listed does not.
        let base = first.wrapping_sub(self.base) as u32;
        let (end, len) = (self.output.end(), self.output.len());
        // SAFETY: the callers have room for all pages and the decoder's slack, and nothing is listed
        // but what was decoded.
        unsafe {
            let count = self.decoder.decode(&self.gathered, base, end, len);
            self.output.advance(count);
        }
    }

    /// As much of a node as there is room for.
    fn some_of(&mut self, word: usize, taken: u64, mut bits: u64, room: usize) -> bool {
        self.gathered.clear();
        let mut left = room;
        while bits != 0 {
            let place = bits.trailing_zeros();
            let leaf = word << WORD_SHIFT | place as usize;
            let pages = self.take_leaf(leaf);
            let fitting = lowest(pages, left);
            self.gathered.push(place, fitting);
            left -= fitting.count_ones() as usize;
            if fitting != pages {
                let too_many = pages & !fitting;
                self.put_back(0, leaf, too_many);
                self.put_back(1, word, taken & bits);
                let first = (leaf as u64) << WORD_SHIFT;
                self.stopped_at = Some(first + u64::from(too_many.trailing_zeros()));
                break;
            }
            bits &= bits - 1;
        }
        if left >= SLACK {
            self.emit(word);
        } else {
            self.emit_exactly(word);
        }
        self.stopped_at.is_none()
    }

    /// As `emit`, without writing behind the last page.
    fn emit_exactly(&mut self, word: usize) {
        let first = (word as u64) << (2 * WORD_SHIFT);
        let base = first.wrapping_sub(self.base) as u32;
        let end = self.output.end();
        let mut count = 0;
        for page in self.gathered.pages(base) {
            // SAFETY: no more was gathered than there is room for.
            unsafe { end.add(count).write(page) };
            count += 1;
        }
        // SAFETY: written above.
        unsafe { self.output.advance(count) };
    }

    /// A tree of one word.
    fn only_leaf(&mut self) {
        let room = self.output.prepare();
        self.some_of(0, 0, 1, room);
    }

    /// Sets bits that were taken and not dealt with, and what leads to them.
    #[cold]
    fn put_back(&self, level: usize, word: usize, bits: u64) {
        if T::CLEARS && bits != 0 {
            // As a mark does: see `set` in `mark`.
            self.tree.word(level, word).fetch_or(bits, Ordering::SeqCst);
            self.tree.lead_to(level, word);
        }
    }
}

/// Whether a node has at most two leaves, which are not worth being gathered. Not by a count: the
/// instruction for it is not on every machine.
#[inline]
fn are_few(bits: u64) -> bool {
    let rest = bits & bits.wrapping_sub(1);
    rest & rest.wrapping_sub(1) == 0
}

/// The lowest `count` bits of those that are set.
fn lowest(bits: u64, count: usize) -> u64 {
    let mut rest = bits;
    for _ in 0..count.min(bits.count_ones() as usize) {
        rest &= rest - 1;
    }
    bits & !rest
}

/// What a window of pages is at each level.
fn covers(tree: &Tree, start: u64, end: u64) -> [Cover; MAX_LEVELS] {
    let mut covers = [Cover::default(); MAX_LEVELS];
    // The last word of a level may have bits that stand for nothing: with the tree's end, they are
    // inside.
    let mut inner = (start, if end == tree.pages() { u64::MAX } else { end });
    let mut touched = (start, end);
    for cover in &mut covers[..tree.geometry.levels] {
        *cover = Cover { inner, touched: (touched.0, touched.1.max(inner.1)) };
        inner = (inner.0.div_ceil(WORD_BITS), inner.1 / WORD_BITS);
        if inner.1 == u64::MAX / WORD_BITS {
            inner.1 = u64::MAX;
        }
        touched = (touched.0 / WORD_BITS, touched.1.div_ceil(WORD_BITS));
    }
    covers
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn covers_say_what_is_whole_and_what_is_in_part() {
        let tree = Tree::new(100_000).unwrap();
        let covers = covers(&tree, 10, 9000);
        assert_eq!(covers[0].inner, (10, 9000));
        assert_eq!((covers[1].inner, covers[1].touched), ((1, 140), (0, 141)));
        assert_eq!((covers[2].inner, covers[2].touched), ((1, 2), (0, 3)));
    }

    #[test]
    fn the_end_of_the_tree_leaves_nothing_in_part() {
        let tree = Tree::new(100_001).unwrap();
        for cover in covers(&tree, 0, 100_001).iter().take(3) {
            assert_eq!(cover.bits(0), (!0, !0));
        }
    }

    #[test]
    fn the_lowest_bits_are_those_of_the_first_pages() {
        assert_eq!(lowest(0b1011_0100, 2), 0b0001_0100);
        assert_eq!(lowest(!0, 64), !0);
        assert_eq!(lowest(0b101, 5), 0b101);
        assert_eq!(lowest(0b101, 0), 0);
    }
}
