//! Leaves and nodes as they lie in memory, and what each field's readers may assume.

use crate::block::Zeroable;
use crate::pool::Slots;
use crate::primitive::{AtomicU16, AtomicU64};

/// A key and its value: 16 bytes, four to a cache line.
///
/// The head is written before the leaf is published, and again only after every guard that could
/// have seen it is gone. The value changes by compare-and-swap while the leaf is in the tree.
#[cfg_attr(loom, derive(Default))]
#[repr(C, align(16))]
pub(crate) struct Leaf {
    pub(crate) head: AtomicU64,
    pub(crate) value: AtomicU64,
}

/// Nodes in a [`NodeGroup`].
pub(crate) const GROUP_NODES: usize = 6;

/// Six nodes in one cache line: a node's word and its bit position are always read together, and
/// ten bytes do not divide a line otherwise.
///
/// A node's position is written before the node is published, like a leaf's head. Its word changes
/// by compare-and-swap until it is frozen.
#[cfg_attr(loom, derive(Default))]
#[repr(C, align(64))]
pub(crate) struct NodeGroup {
    pub(crate) words: [AtomicU64; GROUP_NODES],
    pub(crate) positions: [AtomicU16; GROUP_NODES],
}

const _: () = assert!(cfg!(loom) || size_of::<Leaf>() == 16);
const _: () = assert!(cfg!(loom) || size_of::<NodeGroup>() == 64);

// SAFETY: zeroes are valid atomics, which have no drop glue.
unsafe impl Zeroable for Leaf {
    #[cfg(loom)]
    fn zeroed() -> Self {
        Self::default()
    }
}

// SAFETY: zeroes are valid atomics, which have no drop glue.
unsafe impl Zeroable for NodeGroup {
    #[cfg(loom)]
    fn zeroed() -> Self {
        Self::default()
    }
}

impl Slots for Leaf {
    const PER_ROW: u32 = 1;
    const SLOT_BITS: u32 = 0;

    fn free_link(&self, _slot: u32) -> &AtomicU64 {
        &self.value
    }
}

impl Slots for NodeGroup {
    const PER_ROW: u32 = GROUP_NODES as u32;
    const SLOT_BITS: u32 = 3;

    fn free_link(&self, slot: u32) -> &AtomicU64 {
        &self.words[slot as usize]
    }
}
