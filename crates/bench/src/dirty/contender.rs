//! The sets that are compared, as their users see them.

use std::num::NonZeroUsize;

use bindery_dirty::marks::Drain;
use bindery_dirty::{BitmapMarker, BitmapReader, OutOfRange, SizeError, Tree, bitmap};
use bindery_units::{PageIndex, PageRange};
use hi_sparse_bitset::{BitSet, config};
use roaring::RoaringBitmap;
use vm_memory::bitmap::AtomicBitmap;

use super::seed::RadixTree;

const PAGE_BYTES: usize = 4096;

/// Where pages are listed: all kinds, touched before anything is measured.
pub(super) struct Lists {
    pub(super) wide: Vec<u64>,
    pub(super) narrow: Vec<PageIndex>,
    pub(super) runs: Vec<PageRange>,
}

impl Lists {
    /// Room for so many pages, and for what a harvest asks for beyond.
    pub(super) fn new(pages: usize) -> Self {
        let room = pages + 8192;
        let run = PageRange::new(PageIndex(1), 1);
        let mut lists =
            Self { wide: vec![1; room], narrow: vec![PageIndex(1); room], runs: vec![run; room] };
        lists.clear();
        lists
    }

    pub(super) fn clear(&mut self) {
        self.wide.clear();
        self.narrow.clear();
        self.runs.clear();
    }

    /// A value that depends on which pages were listed, not on their order or on how often.
    pub(super) fn digest(&self) -> u64 {
        let narrow = self.narrow.iter().map(|page| u64::from(page.0));
        let of_run = |run: &PageRange| u64::from(run.first.0)..u64::from(run.end().0);
        let listed = self.wide.iter().copied().chain(narrow);
        let mut pages: Vec<u64> = listed.chain(self.runs.iter().flat_map(of_run)).collect();
        pages.sort_unstable();
        pages.dedup();
        pages.iter().fold(pages.len() as u64, |digest, page| {
            (digest ^ page).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23)
        })
    }
}

/// A set of dirty pages. Everything but `settle` is timed.
pub(super) trait Contender {
    /// Marks the pages, one after the other.
    fn mark(&mut self, pages: &[u32]);

    /// Lists all of them. What can be emptied while it is listed is.
    fn harvest(&mut self, lists: &mut Lists);

    /// Empties what `harvest` has not; `pages` are those that were marked.
    fn settle(&mut self, _pages: &[u32]) {}

    /// Memory that the set takes, in bytes.
    fn bytes(&self) -> u64;
}

/// The seed's list, copied.
#[derive(Default)]
pub(super) struct List(Vec<u64>);

impl List {
    pub(super) fn new(pages: usize) -> Self {
        let mut list = vec![1; pages];
        list.clear();
        Self(list)
    }
}

impl Contender for List {
    fn mark(&mut self, pages: &[u32]) {
        for page in pages {
            self.0.push(u64::from(*page));
        }
    }

    fn harvest(&mut self, lists: &mut Lists) {
        lists.wide.extend_from_slice(&self.0);
    }

    fn settle(&mut self, _pages: &[u32]) {
        self.0.clear();
    }

    fn bytes(&self) -> u64 {
        size_of_val(self.0.as_slice()) as u64
    }
}

/// The seed's tree, listed as the seed lists it: nothing is emptied meanwhile.
pub(super) struct SeedTree(pub(super) RadixTree);

impl Contender for SeedTree {
    fn mark(&mut self, pages: &[u32]) {
        pages.iter().for_each(|page| self.0.insert(u64::from(*page)));
    }

    fn harvest(&mut self, lists: &mut Lists) {
        self.0.for_each(|page| lists.wide.push(page));
    }

    fn settle(&mut self, pages: &[u32]) {
        pages.iter().for_each(|page| self.0.remove(u64::from(*page)));
    }

    fn bytes(&self) -> u64 {
        self.0.bytes()
    }
}

/// The lowest level of the seed's tree, scanned as the seed scans it.
pub(super) struct SeedBitmap(pub(super) RadixTree);

impl Contender for SeedBitmap {
    fn mark(&mut self, pages: &[u32]) {
        pages.iter().for_each(|page| self.0.insert(u64::from(*page)));
    }

    fn harvest(&mut self, lists: &mut Lists) {
        self.0.for_each_bit(|page| lists.wide.push(page));
    }

    fn settle(&mut self, pages: &[u32]) {
        pages.iter().for_each(|page| self.0.remove(u64::from(*page)));
    }

    fn bytes(&self) -> u64 {
        self.0.bytes()
    }
}

/// Words of 64 bits without atomics, emptied as they are scanned.
pub(super) struct Flat(Vec<u64>);

impl Flat {
    pub(super) fn new(pages: usize) -> Self {
        Self(vec![0; pages.div_ceil(64)])
    }
}

impl Contender for Flat {
    fn mark(&mut self, pages: &[u32]) {
        for page in pages {
            self.0[(page >> 6) as usize] |= 1 << (page & 63);
        }
    }

    fn harvest(&mut self, lists: &mut Lists) {
        for (at, word) in self.0.iter_mut().enumerate() {
            let mut bits = *word;
            if bits != 0 {
                *word = 0;
                list_bits(at, &mut bits, &mut lists.narrow);
            }
        }
    }

    fn bytes(&self) -> u64 {
        size_of_val(self.0.as_slice()) as u64
    }
}

/// The loop that everybody writes, without checks of the list's length for each page.
#[inline(always)]
fn list_bits(at: usize, bits: &mut u64, list: &mut Vec<PageIndex>) {
    list.reserve(64);
    let (first, len) = ((at * 64) as u32, list.len());
    let end = list.spare_capacity_mut();
    let mut count = 0;
    while *bits != 0 {
        // SAFETY: 64 pages were reserved, and a word has no more bits.
        unsafe { end.get_unchecked_mut(count) }.write(PageIndex(first + bits.trailing_zeros()));
        count += 1;
        *bits &= *bits - 1;
    }
    // SAFETY: so many were written.
    unsafe { list.set_len(len + count) };
}

/// A way to harvest the pages of a range.
type Harvest = fn(&mut Tree, PageRange, &mut Lists) -> Result<(), OutOfRange>;

/// This project's tree.
pub(super) struct Own {
    tree: Tree,
    harvest: Harvest,
}

impl Own {
    /// Harvested as if others marked.
    pub(super) const SHARED: Harvest =
        |tree, pages, lists| tree.harvest_into(pages, &mut lists.narrow);

    /// Harvested by whoever has it alone.
    pub(super) const ALONE: Harvest =
        |tree, pages, lists| tree.harvest_alone(pages, &mut lists.narrow);

    /// As runs of pages, as if others marked.
    pub(super) const RUNS: Harvest =
        |tree, pages, lists| tree.harvest_runs_into(pages, &mut lists.runs);

    /// As runs of pages, by whoever has it alone.
    pub(super) const RUNS_ALONE: Harvest =
        |tree, pages, lists| tree.harvest_runs_alone(pages, &mut lists.runs);

    pub(super) fn new(pages: u64, harvest: Harvest) -> Result<Self, SizeError> {
        Ok(Self { tree: Tree::new(pages)?, harvest })
    }
}

impl Contender for Own {
    fn mark(&mut self, pages: &[u32]) {
        pages.iter().for_each(|page| self.tree.mark(*page).expect("the page is the tree's"));
    }

    fn harvest(&mut self, lists: &mut Lists) {
        let whole = PageRange::new(PageIndex(0), self.tree.pages() as u32);
        (self.harvest)(&mut self.tree, whole, lists).expect("the pages are the tree's");
    }

    fn bytes(&self) -> u64 {
        self.tree.reserved_bytes().0
    }
}

/// This project's tree, with a bitmap of one marker in front.
pub(super) struct OwnBitmap {
    pub(super) marker: BitmapMarker,
    pub(super) reader: BitmapReader,
    tree: Tree,
}

impl OwnBitmap {
    pub(super) fn new(pages: u64) -> Result<Self, SizeError> {
        let (marker, reader) = bitmap(pages)?;
        Ok(Self { marker, reader, tree: Tree::new(pages)? })
    }
}

impl Contender for OwnBitmap {
    fn mark(&mut self, pages: &[u32]) {
        mark_bitmap(&mut self.marker, pages);
    }

    fn harvest(&mut self, lists: &mut Lists) {
        self.reader.drain(&self.tree);
        let whole = PageRange::new(PageIndex(0), self.tree.pages() as u32);
        self.tree.harvest_into(whole, &mut lists.narrow).expect("the pages are the tree's");
    }

    fn bytes(&self) -> u64 {
        self.tree.reserved_bytes().0 + self.reader.reserved_bytes().0
    }
}

pub(super) fn mark_bitmap(marker: &mut BitmapMarker, pages: &[u32]) {
    pages.iter().for_each(|page| marker.mark(*page).expect("the page is the bitmap's"));
}

/// `vm-memory`'s bitmap: taken as a vector of words, which is its interface.
pub(super) struct VmMemory {
    pub(super) bitmap: AtomicBitmap,
    pages: usize,
}

impl VmMemory {
    pub(super) fn new(pages: usize) -> Self {
        let page_bytes = NonZeroUsize::new(PAGE_BYTES).expect("pages have bytes");
        Self { bitmap: AtomicBitmap::new(pages * PAGE_BYTES, page_bytes), pages }
    }
}

impl Contender for VmMemory {
    fn mark(&mut self, pages: &[u32]) {
        pages.iter().for_each(|page| self.bitmap.set_bit(*page as usize));
    }

    fn harvest(&mut self, lists: &mut Lists) {
        for (at, mut bits) in self.bitmap.get_and_reset().into_iter().enumerate() {
            if bits != 0 {
                list_bits(at, &mut bits, &mut lists.narrow);
            }
        }
    }

    fn bytes(&self) -> u64 {
        (self.pages / 64 + 1) as u64 * 8
    }
}

/// Roaring bitmaps: arrays, runs or bitmaps of 2^16 pages each.
#[derive(Default)]
pub(super) struct Roaring(RoaringBitmap);

impl Contender for Roaring {
    fn mark(&mut self, pages: &[u32]) {
        pages.iter().for_each(|page| _ = self.0.insert(*page));
    }

    fn harvest(&mut self, lists: &mut Lists) {
        self.0.iter().for_each(|page| lists.narrow.push(PageIndex(page)));
        self.0.clear();
    }

    fn bytes(&self) -> u64 {
        let statistics = self.0.statistics();
        statistics.n_bytes_array_containers
            + statistics.n_bytes_run_containers
            + statistics.n_bytes_bitset_containers
    }
}

/// A hierarchical bitset that allocates what it needs.
#[derive(Default)]
pub(super) struct HiSparse(BitSet<config::_256bit>);

impl HiSparse {
    /// The most pages that it can hold.
    pub(super) const MOST_PAGES: u64 = 256 * 256 * 256;
}

impl Contender for HiSparse {
    fn mark(&mut self, pages: &[u32]) {
        pages.iter().for_each(|page| self.0.insert(*page as usize));
    }

    fn harvest(&mut self, lists: &mut Lists) {
        self.0.iter().for_each(|page| lists.narrow.push(PageIndex(page as u32)));
        self.0 = BitSet::new();
    }

    fn bytes(&self) -> u64 {
        self.0.mem_info().mem_usage() as u64
    }
}
