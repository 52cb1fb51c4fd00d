//! Which pages of a tree, and what they are called in a list.

use bindery_units::PageRange;

/// A range of pages, named by their distance from `base`.
///
/// Lists hold 32-bit [`PageIndex`](bindery_units::PageIndex)es: half the memory, and enough for
/// 16 TiB. A larger tree is read window by window, each with a base of its own
/// ([`Tree::windows`](crate::Tree::windows)). Everywhere else the base is 0 and a [`PageRange`] is a
/// window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// The page that is called 0.
    pub base: u64,
    /// The pages, counted from `base`.
    pub range: PageRange,
}

impl Window {
    /// The first page, counted from the tree's start.
    #[must_use]
    pub const fn start(self) -> u64 {
        self.base + self.range.first.0 as u64
    }

    /// The first page after the window, counted from the tree's start.
    #[must_use]
    pub const fn end(self) -> u64 {
        self.start() + self.range.count as u64
    }
}

impl From<PageRange> for Window {
    fn from(range: PageRange) -> Self {
        Self { base: 0, range }
    }
}
