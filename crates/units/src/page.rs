//! Pages of a guest: their index, how many, and which run of them.

use std::fmt;

use serde::{Deserialize, Serialize};

/// log2 of the page size.
pub const PAGE_SHIFT: u32 = 12;

/// Bytes in a page. Managed memory is handled in 4 KiB pages where it is merged.
pub const PAGE_BYTES: usize = 1 << PAGE_SHIFT;

/// The number of a page within a guest's space, counted from zero.
///
/// 32 bits reach 16 TiB of guest memory, and halve every table that holds one.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[repr(transparent)]
pub struct PageIndex(pub u32);

/// A number of pages.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[repr(transparent)]
pub struct PageCount(pub u64);

/// A run of consecutive pages: `first`, and `count` of them. May be empty. Eight bytes, in this order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[repr(C)]
pub struct PageRange {
    /// The first page of the run.
    pub first: PageIndex,
    /// How many pages the run has.
    pub count: u32,
}

impl PageIndex {
    /// The index as a position in a table.
    #[must_use]
    pub const fn at(self) -> usize {
        self.0 as usize
    }

    /// The page `pages` further on.
    ///
    /// # Panics
    /// If the sum leaves the 32 bits of a page index.
    #[must_use]
    pub const fn plus(self, pages: u32) -> Self {
        Self(self.0.checked_add(pages).expect("a page index stays within 32 bits"))
    }
}

impl From<PageIndex> for u64 {
    fn from(page: PageIndex) -> Self {
        Self::from(page.0)
    }
}

impl PageCount {
    /// The memory that so many pages hold, in bytes.
    #[must_use]
    pub const fn bytes(self) -> crate::ByteCount {
        crate::ByteCount(self.0 << PAGE_SHIFT)
    }
}

impl PageRange {
    /// The run of `count` pages that starts at `first`.
    ///
    /// # Panics
    /// If the run's end leaves the 32 bits of a page index.
    #[must_use]
    pub const fn new(first: PageIndex, count: u32) -> Self {
        let _ = first.plus(count);
        Self { first, count }
    }

    /// The first page after the run.
    #[must_use]
    pub const fn end(self) -> PageIndex {
        self.first.plus(self.count)
    }

    /// Whether the run has no page.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.count == 0
    }

    /// Whether `page` is in the run.
    #[must_use]
    pub const fn contains(self, page: PageIndex) -> bool {
        self.first.0 <= page.0 && page.0 - self.first.0 < self.count
    }

    /// The pages that both runs have.
    #[must_use]
    pub fn intersection(self, other: Self) -> Self {
        let first = self.first.max(other.first);
        let end = self.end().min(other.end());
        Self { first, count: end.0.saturating_sub(first.0) }
    }

    /// The pages of the run, in order.
    pub fn pages(self) -> impl DoubleEndedIterator<Item = PageIndex> + ExactSizeIterator {
        (self.first.0..self.end().0).map(PageIndex)
    }

    /// The run cut into pieces of at most `pages` pages.
    ///
    /// # Panics
    /// If `pages` is zero.
    pub fn pieces(self, pages: u32) -> impl Iterator<Item = Self> {
        assert!(pages > 0, "a piece has at least one page");
        (0..self.count.div_ceil(pages)).map(move |piece| {
            let offset = piece * pages;
            Self::new(self.first.plus(offset), pages.min(self.count - offset))
        })
    }

    /// Cuts the run into pieces of at most `pages`, each of which ends at a multiple of that, or with the run.
    ///
    /// # Panics
    /// If `pages` is 0.
    pub fn pieces_of_blocks(self, pages: u32) -> impl Iterator<Item = Self> {
        assert!(pages > 0, "a piece has at least one page");
        let mut rest = self;
        std::iter::from_fn(move || {
            let count = rest.count.min(pages - rest.first.0 % pages);
            let piece = Self::new(rest.first, count);
            rest = Self::new(piece.end(), rest.count - count);
            (count > 0).then_some(piece)
        })
    }
}

impl fmt::Display for PageRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pages {}..{}", self.first.0, self.end().0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(first: u32, count: u32) -> PageRange {
        PageRange::new(PageIndex(first), count)
    }

    #[test]
    fn intersections_are_the_shared_pages() {
        assert_eq!(range(2, 5).intersection(range(4, 9)), range(4, 3));
        assert!(range(0, 4).intersection(range(4, 4)).is_empty());
        assert_eq!(range(0, 10).intersection(range(3, 2)), range(3, 2));
    }

    #[test]
    fn pieces_cover_the_run_once() {
        let pieces: Vec<_> = range(7, 130).pieces(64).collect();
        assert_eq!(pieces, [range(7, 64), range(71, 64), range(135, 2)]);
        assert_eq!(range(7, 0).pieces(64).count(), 0);
    }

    #[test]
    fn pieces_of_blocks_end_at_multiples() {
        let pieces: Vec<_> = range(7, 130).pieces_of_blocks(64).collect();
        assert_eq!(pieces, [range(7, 57), range(64, 64), range(128, 9)]);
        assert_eq!(range(64, 64).pieces_of_blocks(64).collect::<Vec<_>>(), [range(64, 64)]);
        assert_eq!(range(7, 0).pieces_of_blocks(64).count(), 0);
    }

    #[test]
    fn containment_excludes_the_end() {
        assert!(range(3, 2).contains(PageIndex(4)));
        assert!(!range(3, 2).contains(PageIndex(5)));
        assert!(!range(3, 2).contains(PageIndex(2)));
    }
}
