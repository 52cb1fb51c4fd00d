//! What can go wrong, with the numbers.

use std::io;

use thiserror::Error;

use crate::geometry::MAX_PAGES_SHIFT;

/// A tree could not be made.
#[derive(Debug, Error)]
pub enum SizeError {
    /// No tree has so many pages.
    #[error("a dirty set has from 1 to 2^{MAX_PAGES_SHIFT} pages, not {pages}")]
    Unsupported {
        /// What was asked for.
        pages: u64,
    },
    /// The address space or the memory has no room for it.
    #[error("no room for a dirty set of {pages} pages ({bytes} bytes): {source}")]
    NoRoom {
        /// What was asked for.
        pages: u64,
        /// What that takes.
        bytes: u64,
        /// What the kernel said.
        source: io::Error,
    },
}

impl PartialEq for SizeError {
    /// By the numbers; what the kernel said is for people.
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Unsupported { pages: a }, Self::Unsupported { pages: b }) => a == b,
            (Self::NoRoom { pages: a, .. }, Self::NoRoom { pages: b, .. }) => a == b,
            _ => false,
        }
    }
}

/// Pages that a tree does not have. Nothing was marked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("page {page} is out of range: the dirty set has {pages} pages")]
pub struct OutOfRange {
    /// The page, or the last one of the range.
    pub page: u64,
    /// Pages of the tree.
    pub pages: u64,
}

impl OutOfRange {
    /// The error if not all of `count` pages from `first` on are below `pages`.
    #[inline]
    pub(crate) fn check(first: u64, count: u64, pages: u64) -> Result<(), Self> {
        match first.checked_add(count) {
            Some(end) if end <= pages => Ok(()),
            end => Err(Self { page: end.map_or(u64::MAX, |end| end - 1), pages }),
        }
    }
}

/// A bitmap or a tree of another size. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum MismatchError {
    /// A legacy bitmap has not one bit a page.
    #[error("a bitmap of {pages} pages has {expected} words of 64 bits, not {found}")]
    Words {
        /// Pages of the tree.
        pages: u64,
        /// Words that its bitmap has.
        expected: usize,
        /// Words of the bitmap that was given.
        found: usize,
    },
    /// The other tree has another size.
    #[error("a dirty tree of {pages} pages goes with one of as many, not of {found}")]
    Pages {
        /// Pages of the tree.
        pages: u64,
        /// Pages of the other one.
        found: u64,
    },
    /// A bit beyond the last page is set.
    #[error(transparent)]
    OutOfRange(#[from] OutOfRange),
}
