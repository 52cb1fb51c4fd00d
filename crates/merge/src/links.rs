//! What each page of a guest is linked to: nothing, a leaf of the index, a slot, or zero.
//!
//! Four bytes a page, in blocks that exist only where a page was ever linked.
//!
//! # Concurrency
//! No two threads work on one page at a time: a phase gives each page to one worker, and what one
//! phase wrote the next one reads after the workers have been joined, which orders it. Only while pages
//! are examined may others read a link (`between`): whoever finds a leaf there finds the leaf's key.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use bindery_units::{PageIndex, PageRange, Slot};

/// Pages of one block.
pub(crate) const BLOCK_PAGES: u32 = 512;

/// Leaf ids and slots in links are below this.
pub(crate) const LINK_LIMIT: u32 = 1 << 30;

/// What a page is linked to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Link {
    /// Nothing is known of it.
    None,
    /// The leaf of the index that names this very page.
    Candidate(u32),
    /// The slot that its guest maps for it; the page holds one reference of the slot.
    Merged(Slot),
    /// The kernel's zero page.
    Zero,
}

const TAG_SHIFT: u32 = 30;
const CANDIDATE: u32 = 1;
const MERGED: u32 = 2;
const ZERO: u32 = 3;

impl Link {
    fn to_bits(self) -> u32 {
        let (tag, id) = match self {
            Self::None => (0, 0),
            Self::Candidate(leaf) => (CANDIDATE, leaf),
            Self::Merged(slot) => (MERGED, slot.0),
            Self::Zero => (ZERO, 0),
        };
        assert!(id < LINK_LIMIT, "leaf {id} does not fit a link");
        tag << TAG_SHIFT | id
    }

    fn from_bits(bits: u32) -> Self {
        let id = bits & (LINK_LIMIT - 1);
        match bits >> TAG_SHIFT {
            0 => Self::None,
            CANDIDATE => Self::Candidate(id),
            MERGED => Self::Merged(Slot(id)),
            _ => Self::Zero,
        }
    }
}

type Block = Box<[AtomicU32; BLOCK_PAGES as usize]>;

/// The links of one guest's pages.
#[derive(Debug, Default)]
pub(crate) struct Links {
    blocks: Vec<OnceLock<Block>>,
}

impl Links {
    /// Makes room for the pages below `end`. Allocates nothing for pages themselves.
    pub(crate) fn grow(&mut self, end: PageIndex) {
        let blocks = end.0.div_ceil(BLOCK_PAGES) as usize;
        if blocks > self.blocks.len() {
            self.blocks.resize_with(blocks, OnceLock::new);
        }
    }

    /// The link of `page`; none for pages that there is no room for.
    pub(crate) fn get(&self, page: PageIndex) -> Link {
        let block = self.blocks.get((page.0 / BLOCK_PAGES) as usize).and_then(OnceLock::get);
        block.map_or(Link::None, |block| {
            // Acquire: pairs with the Release of `set`.
            Link::from_bits(block[(page.0 % BLOCK_PAGES) as usize].load(Ordering::Acquire))
        })
    }

    /// Links `page`, and returns what it was linked to.
    ///
    /// # Panics
    /// If there is no room for the page.
    pub(crate) fn set(&self, page: PageIndex, link: Link) -> Link {
        let lock = &self.blocks[(page.0 / BLOCK_PAGES) as usize];
        if link == Link::None && lock.get().is_none() {
            return Link::None;
        }
        let block = lock.get_or_init(|| Box::new(std::array::from_fn(|_| AtomicU32::new(0))));
        // Release: publishes the leaf that is named to the Acquire of `get`.
        let old = &block[(page.0 % BLOCK_PAGES) as usize];
        Link::from_bits(old.swap(link.to_bits(), Ordering::Release))
    }

    /// Gives the pages of `range` that are linked, block by block; pages of blocks that do not
    /// exist cost nothing.
    pub(crate) fn linked(&self, range: PageRange) -> impl Iterator<Item = (PageIndex, Link)> + '_ {
        let blocks = range.first.0 / BLOCK_PAGES..range.end().0.div_ceil(BLOCK_PAGES);
        let present = blocks.filter(|block| {
            self.blocks.get(*block as usize).is_some_and(|block| block.get().is_some())
        });
        let pages = present.flat_map(move |block| {
            let whole = PageRange::new(PageIndex(block * BLOCK_PAGES), BLOCK_PAGES);
            whole.intersection(range).pages()
        });
        let links = pages.map(|page| (page, self.get(page)));
        links.filter(|(_, link)| *link != Link::None)
    }

    /// All pages that there is room for.
    pub(crate) fn range(&self) -> PageRange {
        PageRange::new(PageIndex(0), self.blocks.len() as u32 * BLOCK_PAGES)
    }

    /// Gives back the memory of blocks that lie in `range` as a whole. Their pages must be linked
    /// to nothing.
    pub(crate) fn trim(&mut self, range: PageRange) {
        let whole = range.first.0.div_ceil(BLOCK_PAGES)..range.end().0 / BLOCK_PAGES;
        for block in whole {
            if let Some(block) = self.blocks.get_mut(block as usize) {
                block.take();
            }
        }
    }

    /// Memory held, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        let present = self.blocks.iter().filter(|block| block.get().is_some()).count();
        self.blocks.capacity() * size_of::<OnceLock<Block>>()
            + present * BLOCK_PAGES as usize * size_of::<AtomicU32>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn link() -> impl Strategy<Value = Link> {
        prop_oneof![
            Just(Link::None),
            Just(Link::Zero),
            (0..LINK_LIMIT).prop_map(Link::Candidate),
            (0..LINK_LIMIT).prop_map(|slot| Link::Merged(Slot(slot))),
        ]
    }

    proptest! {
        #[test]
        fn the_table_is_a_map(
            steps in prop::collection::vec((0u32..3000, link()), 0..200),
            first in 0u32..3000, count in 0u32..3000,
        ) {
            let mut links = Links::default();
            links.grow(PageIndex(3000));
            let mut oracle = BTreeMap::new();
            for (page, link) in steps {
                let old = oracle.insert(page, link).unwrap_or(Link::None);
                prop_assert_eq!(links.set(PageIndex(page), link), old);
            }
            oracle.retain(|_, link| *link != Link::None);
            let range = PageRange::new(PageIndex(first), count);
            let expected: Vec<_> = oracle
                .iter()
                .filter(|(page, _)| range.contains(PageIndex(**page)))
                .map(|(page, link)| (PageIndex(*page), *link))
                .collect();
            prop_assert_eq!(links.linked(range).collect::<Vec<_>>(), expected);
        }
    }

    #[test]
    fn pages_that_were_never_linked_cost_next_to_nothing() {
        let mut links = Links::default();
        links.grow(PageIndex(1 << 20));
        assert_eq!(links.set(PageIndex(77), Link::None), Link::None);
        assert!(links.memory_bytes() <= (1 << 20) / 16);
        links.set(PageIndex(77), Link::Zero);
        links.set(PageIndex(77), Link::None);
        let before = links.memory_bytes();
        links.trim(PageRange::new(PageIndex(0), 1024));
        assert_eq!(links.memory_bytes(), before - 2048);
    }
}
