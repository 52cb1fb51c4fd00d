//! The dirty bitmap of `vm-memory`'s guest memory: where `AtomicBitmap` stands, this may.
//!
//! Two things differ. What is out of range is refused: `AtomicBitmap` ignores it, and a page that was
//! written and is not marked is a page that a migration leaves behind. `vm-memory` marks what it has
//! written and so never goes beyond; who does it by hand is stopped by a panic that says where, by way of
//! slices, too, whose offsets `RefSlice` wraps around the address space. And a page is [`PAGE_BYTES`] where none is named, whatever the host's page is.

use std::num::NonZeroUsize;
use std::sync::Arc;

use bindery_units::PAGE_BYTES;
use vm_memory::bitmap::{Bitmap, BitmapSlice, NewBitmap, WithBitmapSlice};

use crate::error::SizeError;
use crate::tree::Tree;

/// A dirty [`Tree`] by byte offsets. A clone has a tree of its own, with the pages that are dirty when it
/// is made, as one of `AtomicBitmap` has; what shares the tree is an `Arc` of [`Self::tree`].
#[derive(Debug)]
pub struct TreeBitmap {
    /// None for a region without a byte, as `Default` wants it.
    tree: Option<Arc<Tree>>,
    bytes: usize,
    page_shift: u32,
}

impl TreeBitmap {
    /// The bitmap of `bytes` bytes of memory in pages of `page_bytes`, the last of which may be cut
    /// short.
    ///
    /// # Errors
    /// If there is no room for the tree.
    ///
    /// # Panics
    /// If `page_bytes` is no power of two.
    pub fn new(bytes: usize, page_bytes: NonZeroUsize) -> Result<Self, SizeError> {
        assert!(page_bytes.is_power_of_two(), "a page of {page_bytes} bytes is no power of two");
        let pages = bytes.div_ceil(page_bytes.get()) as u64;
        let tree = if pages == 0 { None } else { Some(Arc::new(Tree::new(pages)?)) };
        Ok(Self { tree, bytes, page_shift: page_bytes.trailing_zeros() })
    }

    /// The tree, to harvest it; none if there is no memory.
    #[must_use]
    pub fn tree(&self) -> Option<&Arc<Tree>> {
        self.tree.as_ref()
    }

    /// Bytes of a page.
    #[must_use]
    pub const fn page_bytes(&self) -> usize {
        1 << self.page_shift
    }
}

impl Clone for TreeBitmap {
    /// # Panics
    /// If there is no room for the tree: the trait has no way to say so.
    fn clone(&self) -> Self {
        let copy = |tree: &Arc<Tree>| {
            let copy = Tree::new(tree.pages()).unwrap_or_else(|error| panic!("{error}"));
            copy.unite(tree).expect("the trees have equally many pages");
            Arc::new(copy)
        };
        Self { tree: self.tree.as_ref().map(copy), bytes: self.bytes, page_shift: self.page_shift }
    }
}

impl Default for TreeBitmap {
    fn default() -> Self {
        Self { tree: None, bytes: 0, page_shift: PAGE_BYTES.trailing_zeros() }
    }
}

impl<'a> WithBitmapSlice<'a> for TreeBitmap {
    type S = TreeSlice<'a>;
}

impl Bitmap for TreeBitmap {
    /// Marks the pages of which `len` bytes from `offset` on have a byte.
    ///
    /// # Panics
    /// If they are not all within the memory, with the numbers.
    fn mark_dirty(&self, offset: usize, len: usize) {
        if len == 0 {
            return;
        }
        let end = offset.checked_add(len).filter(|end| *end <= self.bytes);
        let (Some(end), Some(tree)) = (end, &self.tree) else {
            panic!(
                "bytes {offset:#x} + {len:#x} are out of range: the memory has {:#x}",
                self.bytes
            )
        };
        let (first, last) = (offset >> self.page_shift, (end - 1) >> self.page_shift);
        let marked = if first == last {
            tree.mark(first as u64)
        } else {
            tree.mark_range(first as u64, (last - first + 1) as u64)
        };
        marked.expect("pages of the memory are pages of its tree");
    }

    /// Whether the page of the byte at `offset` is dirty. One beyond the last page is not.
    fn dirty_at(&self, offset: usize) -> bool {
        let is_dirty = |tree: &Arc<Tree>| tree.is_marked((offset >> self.page_shift) as u64);
        self.tree.as_ref().is_some_and(is_dirty)
    }

    fn slice_at(&self, offset: usize) -> TreeSlice<'_> {
        TreeSlice { bitmap: self, start: offset }
    }
}

/// A [`TreeBitmap`] from some byte on.
#[derive(Clone, Copy, Debug)]
pub struct TreeSlice<'a> {
    bitmap: &'a TreeBitmap,
    start: usize,
}

impl TreeSlice<'_> {
    /// The last byte of the address space, which no memory has, stands for all beyond it.
    const fn offset(self, offset: usize) -> usize {
        self.start.saturating_add(offset)
    }
}

impl WithBitmapSlice<'_> for TreeSlice<'_> {
    type S = Self;
}

impl BitmapSlice for TreeSlice<'_> {}

impl Bitmap for TreeSlice<'_> {
    /// # Panics
    /// As [`TreeBitmap`]'s.
    fn mark_dirty(&self, offset: usize, len: usize) {
        self.bitmap.mark_dirty(self.offset(offset), len);
    }

    fn dirty_at(&self, offset: usize) -> bool {
        self.bitmap.dirty_at(self.offset(offset))
    }

    fn slice_at(&self, offset: usize) -> Self {
        Self { start: self.offset(offset), ..*self }
    }
}

impl NewBitmap for TreeBitmap {
    /// # Panics
    /// If there is no room for the tree: the trait has no way to say so.
    fn with_len(len: usize) -> Self {
        let page_bytes = NonZeroUsize::new(PAGE_BYTES).expect("a page has bytes");
        Self::new(len, page_bytes).unwrap_or_else(|error| panic!("{error}"))
    }
}
