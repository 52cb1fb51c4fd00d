//! The tree where `vm-memory`'s own bitmap stands.

#![cfg(all(not(loom), feature = "vm-memory"))]
#![allow(clippy::unwrap_used, reason = "what a test does not expect fails it")]

use std::num::NonZeroUsize;

use bindery_dirty::vm_memory::TreeBitmap;
use proptest::prelude::*;
use vm_memory::bitmap::{AtomicBitmap, Bitmap, NewBitmap};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

const BYTES: usize = 100 * 4096 + 100;

fn page_bytes() -> NonZeroUsize {
    NonZeroUsize::new(4096).expect("a page has bytes")
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..<_>::default() })]

    /// A clone and its original go ways of their own, as those of `AtomicBitmap` do.
    #[test]
    fn a_clone_is_a_copy(marks in prop::collection::vec((0..BYTES, 0..3 * 4096_usize), 3..20)) {
        let own = TreeBitmap::new(BYTES, page_bytes()).unwrap();
        let other = AtomicBitmap::new(BYTES, page_bytes());
        let mark = |marks: &[(usize, usize)], own: &TreeBitmap, other: &AtomicBitmap| {
            for &(offset, len) in marks {
                own.mark_dirty(offset, len.min(BYTES - offset));
                other.mark_dirty(offset, len.min(BYTES - offset));
            }
        };
        let (before, after) = marks.split_at(marks.len() / 3);
        let (of_original, of_clone) = after.split_at(after.len() / 2);
        mark(before, &own, &other);
        let (own_clone, other_clone) = (own.clone(), other.clone());
        mark(of_original, &own, &other);
        mark(of_clone, &own_clone, &other_clone);
        prop_assert!(own_clone.tree().unwrap().is_sound());
        prop_assert_eq!(own_clone.page_bytes(), own.page_bytes());
        for offset in (0..BYTES + 9000).step_by(700) {
            prop_assert_eq!(own.dirty_at(offset), other.dirty_at(offset));
            prop_assert_eq!(own_clone.dirty_at(offset), other_clone.dirty_at(offset));
        }
    }

    /// Within the memory, the two cannot be told apart.
    #[test]
    fn it_is_a_drop_in(marks in prop::collection::vec((0..BYTES, 0..3 * 4096_usize, 0..5000_usize), 0..20)) {
        let own = TreeBitmap::new(BYTES, page_bytes()).unwrap();
        let other = AtomicBitmap::new(BYTES, page_bytes());
        for (offset, len, slice) in marks {
            let slice = slice.min(offset);
            let len = len.min(BYTES - offset);
            own.slice_at(slice).mark_dirty(offset - slice, len);
            other.slice_at(slice).mark_dirty(offset - slice, len);
        }
        for offset in (0..BYTES + 9000).step_by(700) {
            prop_assert_eq!(own.dirty_at(offset), other.dirty_at(offset));
            prop_assert_eq!(own.slice_at(64).dirty_at(offset), other.slice_at(64).dirty_at(offset));
        }
    }
}

#[test]
fn guest_memory_marks_what_is_written() {
    let ranges = [(GuestAddress(0), 1 << 20), (GuestAddress(1 << 30), 1 << 20)];
    let memory = GuestMemoryMmap::<TreeBitmap>::from_ranges(&ranges).unwrap();
    // Over the end of a page.
    memory.write_slice(&[1; 16], GuestAddress((1 << 30) + 0x1ff8)).unwrap();
    let dirty = |region: usize| {
        let region: &vm_memory::MmapRegion<TreeBitmap> =
            vm_memory::GuestMemoryBackend::iter(&memory).nth(region).unwrap();
        region.bitmap().tree().unwrap().iter().collect::<Vec<_>>()
    };
    assert_eq!((dirty(0), dirty(1)), (vec![], vec![1, 2]));
    // Beyond the guest's memory, the memory itself refuses.
    assert!(memory.write_slice(&[1; 16], GuestAddress((1 << 20) - 8)).is_err());
}

/// All the ways in which `vm-memory` writes end in the tree.
#[test]
fn every_way_to_write_marks() {
    let memory = GuestMemoryMmap::<TreeBitmap>::from_ranges(&[(GuestAddress(0), 1 << 20)]).unwrap();
    let region = vm_memory::GuestMemoryBackend::iter(&memory).next().unwrap();
    let tree = vm_memory::GuestMemoryRegion::bitmap(region);
    let page = |page: u64| GuestAddress(page * 4096 + 8);
    memory.write_obj(7_u64, page(1)).unwrap();
    memory.store(7_u32, page(2), std::sync::atomic::Ordering::Release).unwrap();
    memory.read_volatile_from(page(3), &mut &[1_u8; 8][..], 8).unwrap();
    let slice = vm_memory::GuestMemoryBackend::get_slice(&memory, page(4), 3 * 4096).unwrap();
    slice.subslice(4096, 4096).unwrap().write_obj(7_u64, 0).unwrap();
    slice.offset(2 * 4096).unwrap().copy_from(&[7_u16; 4]);
    let dirty = tree.slice_at(0);
    let found: Vec<usize> = (0..256).filter(|page| dirty.dirty_at(page * 4096)).collect();
    assert_eq!(found, [1, 2, 3, 5, 6]);
}

#[test]
fn no_memory_has_no_tree() {
    let none = TreeBitmap::default();
    assert!(none.tree().is_none() && !none.dirty_at(0));
    assert!(none.clone().tree().is_none());
    none.mark_dirty(0, 0);
    assert!(TreeBitmap::with_len(0).tree().is_none());
    assert_eq!(TreeBitmap::with_len(1).tree().unwrap().pages(), 1);
}

#[test]
#[should_panic(expected = "bytes 0x1fff + 0x2 are out of range: the memory has 0x2000")]
fn marks_beyond_the_memory_are_refused() {
    TreeBitmap::with_len(0x2000).mark_dirty(0x1fff, 2);
}

#[test]
#[should_panic(expected = "out of range")]
fn marks_beyond_the_address_space_are_refused() {
    TreeBitmap::with_len(0x2000).mark_dirty(usize::MAX, 2);
}

#[test]
#[should_panic(expected = "bytes 0x2000 + 0x1 are out of range: the memory has 0x2000")]
fn marks_beyond_the_memory_are_refused_in_slices() {
    TreeBitmap::with_len(0x2000).slice_at(0x1000).slice_at(0xfff).mark_dirty(1, 1);
}

#[test]
#[should_panic(expected = "out of range")]
fn marks_that_wrap_around_are_refused_in_slices() {
    TreeBitmap::with_len(0x2000).slice_at(usize::MAX).slice_at(usize::MAX).mark_dirty(1, 1);
}

#[test]
#[should_panic(expected = "bytes 0x0 + 0x1 are out of range: the memory has 0x0")]
fn marks_of_no_memory_are_refused() {
    TreeBitmap::default().mark_dirty(0, 1);
}
