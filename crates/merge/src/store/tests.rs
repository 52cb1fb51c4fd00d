//! Segments: what they hold, who may change them, and that nobody who has one loses it.

use std::io::{PipeReader, Read as _};
use std::os::fd::AsFd as _;

use bindery_sys::mapping::Mapping;
use bindery_sys::numa::Policy;
use bindery_units::NumaNode;

use super::*;
use crate::nodes::MachineNodes;
use crate::slots::Slots;

const SLOTS: u32 = 1 << 20;

/// A store of memfds with so many slots in a segment.
fn small(segment_slots: u32) -> Store {
    Store::of(None, SLOTS, segment_slots)
}

/// One of large folios, if this process may have it.
fn large() -> Option<Store> {
    let skip = |error: &io::Error| bindery_testkit::skipped!("no store of large folios: {error}");
    let tmpfs = PrivateTmpfs::mount(Slot(512).offset_bytes()).inspect_err(skip).ok()?;
    Some(Store::of(Some(tmpfs), SLOTS, 512))
}

fn all() -> impl Iterator<Item = Store> {
    [Some(small(16)), Some(small(512)), large()].into_iter().flatten()
}

fn page(byte: u8) -> [u8; PAGE_BYTES] {
    [byte; PAGE_BYTES]
}

/// What a shim finds in a slot.
fn shown(store: &Store, slot: u32) -> [u8; PAGE_BYTES] {
    let shared = store.share(store.segment_of(Slot(slot))).unwrap();
    let mut bytes = page(0);
    let place = Slot(slot % store.segment_slots());
    shared.read_exact_at(&mut bytes, place.offset_bytes()).unwrap();
    bytes
}

#[test]
fn a_store_holds_what_was_written_and_nothing_else() {
    for store in all() {
        assert_eq!(store.allocated_bytes(), 0);
        let pages = [page(1), page(2), page(3)];
        store.write(Slot(64), &pages[2]).unwrap();
        // Across the end of a segment.
        let first = 70 * 512 - 1;
        store.write(Slot(first), pages.as_flattened()).unwrap();
        let mut two = [0; 2 * PAGE_BYTES];
        store.read(Slot(first), &mut two).unwrap();
        store.write(Slot(first + 3), &two).unwrap();
        store.copy(Slot(first + 4), SlotRange::new(Slot(first + 5), 2)).unwrap();
        for (at, expected) in [1, 2, 3, 1, 2, 2, 2].into_iter().enumerate() {
            assert_eq!(shown(&store, first + at as u32), page(expected), "{at}");
        }
        // A hole that ends with a folio may get all of it.
        let more = if store.tmpfs.is_some() { 511 } else { 0 };
        let holds = |pages: u64| {
            let has = store.allocated_bytes() / PAGE_BYTES as u64;
            assert!((pages..=pages + more).contains(&has), "{has} pages instead of {pages}");
        };
        holds(8);
        let last = SlotRange::new(Slot(70 * 512), store.segment_slots());
        store.drop_segments(last);
        holds(2);
        assert_eq!((shown(&store, 64), shown(&store, first)), (page(3), page(1)));
        // What comes next is in another file.
        store.write(last.first, &pages[2]).unwrap();
        assert_eq!(shown(&store, last.first.0), page(3));
    }
}

#[test]
fn the_size_of_segments_follows_that_of_the_store() {
    // As far as that can be told in tests, where segments are small.
    assert_eq!([1, 16, 1 << 20].map(segment_slots), [16; 3]);
    assert_eq!(Store::create(100, None).segment_slots(), 16);
}

#[test]
#[should_panic(expected = "a slot is written once")]
fn a_slot_is_written_once_in_the_life_of_its_segment() {
    let store = small(16);
    store.write(Slot(3), &page(1)).unwrap();
    store.write(Slot(3), &page(1)).unwrap();
}

#[test]
#[should_panic(expected = "beyond the store's end")]
fn nothing_is_written_beyond_the_end() {
    let _ = Store::of(None, 16, 16).write(Slot(16), &page(1));
}

#[test]
fn what_shims_hold_cannot_write() {
    for store in all() {
        store.write(Slot(0), &page(1)).unwrap();
        let shared = store.share(0).unwrap();
        assert!(shared.write_all_at(b"x", 0).is_err());
        assert!(memfd::punch(&*shared, 0, 4096).is_err());
        assert!(shared.set_len(0).is_err());
        assert!(memfd::reopen_read_only(&*shared).unwrap().write_all_at(b"x", 0).is_err());
    }
}

#[test]
fn a_segment_that_is_finished_has_one_descriptor_and_cannot_be_written_by_anybody() {
    for store in all() {
        let slots = store.segment_slots();
        (0..3).for_each(|number| store.write(Slot(number * slots), &page(7)).unwrap());
        store.finish(|number| number == 1);
        for (number, count) in [(0, 1), (1, 1), (2, 1)] {
            let segment = store.existing(number);
            let state = segment.state();
            let has = u32::from(state.writer.is_some()) + u32::from(state.reader.is_some());
            assert_eq!((has, state.writer.is_none()), (count, number == 1));
        }
        assert_eq!(shown(&store, slots), page(7));
        let mut bytes = page(0);
        store.read(Slot(slots), &mut bytes).unwrap();
        assert_eq!(bytes, page(7));
    }
}

/// A pipe that has the page of a slot in it: who reads a pipe holds pages as direct I/O does.
fn pipe_with(store: &Store, slot: u32) -> PipeReader {
    let (reader, writer) = std::io::pipe().unwrap();
    let shared = store.share(store.segment_of(Slot(slot))).unwrap();
    let mut from = Slot(slot % store.segment_slots()).offset_bytes();
    let flags = rustix::pipe::SpliceFlags::empty();
    let spliced = rustix::pipe::splice(&*shared, Some(&mut from), &writer, None, PAGE_BYTES, flags);
    assert_eq!(spliced.unwrap(), PAGE_BYTES);
    reader
}

/// What the segment rule is for: whoever has a page yet finds what was there, though the slots were freed and
/// have other contents.
#[test]
fn whoever_reads_a_page_yet_finds_what_was_there() {
    for store in all() {
        let segment = store.segment_slots();
        let mut slots = Slots::new(SLOTS, segment);
        let all = slots.allocate(64);
        store.write(Slot(0), &page(7).repeat(64)).unwrap();
        let mut pipe = pipe_with(&store, 5);
        let file = store.share(0).unwrap();
        for slot in 0..64 {
            for freed in slots.free(SlotRange::new(Slot(slot), 1)) {
                store.drop_segments(freed);
                slots.give_back_segments(freed);
            }
        }
        assert_eq!((slots.used(), store.allocated_bytes() > 0), (0, slots.vacant() > 0));
        // The same numbers, where a whole segment went.
        let again = slots.allocate(64);
        for run in &again {
            store.write(run.first, &page(9).repeat(run.count as usize)).unwrap();
        }
        assert!(segment == 512 || again == all, "{again:?}");
        let mut bytes = page(0);
        pipe.read_exact(&mut bytes).unwrap();
        assert!(bytes == page(7), "{segment} slots a segment");
        file.read_exact_at(&mut bytes, Slot(5).offset_bytes()).unwrap();
        assert!(bytes == page(7), "{segment} slots a segment");
    }
}

#[test]
fn errors_of_the_kernel_tell_what_is_short() {
    let error = |errno| StoreError::from(io::Error::from_raw_os_error(errno));
    // EMFILE, ENFILE, ENOSPC.
    assert_eq!(
        [24, 23, 28].map(|errno| error(errno).shortage()),
        [Shortage::Descriptors, Shortage::Descriptors, Shortage::Memory]
    );
    assert!(error(24).to_string().contains("LimitNOFILE"));
}

#[test]
fn a_store_of_a_node_takes_its_memory_there() {
    let policy_of = |store: &Store, slot: u32| {
        store.write(Slot(slot), &page(7)).unwrap();
        let shared = store.share(store.segment_of(Slot(slot))).unwrap();
        let view = Mapping::shared(shared.as_fd(), PAGE_BYTES, false).unwrap();
        Policy::of(view.address()).unwrap()
    };
    for store in all() {
        assert_eq!(policy_of(&store, 1), Policy::default());
        let node = Some(StoreNode { node: NumaNode(0), nodes: Arc::new(MachineNodes) });
        let store = Store { node, ..store };
        let preferred = Policy::preferring(NumaNode(0)).unwrap();
        assert_eq!(policy_of(&store, 3 * 512), preferred, "of each segment made since");
        assert_eq!(policy_of(&store, 9 * 512), preferred);
        assert!(!store.is_unbound.load(Ordering::Relaxed));
        // A node that no machine has: canonical pages are stored all the same.
        let node = Some(StoreNode { node: NumaNode(5000), nodes: Arc::new(MachineNodes) });
        let store = Store { node, ..store };
        assert_eq!(policy_of(&store, 20 * 512), Policy::default());
        assert!(store.is_unbound.load(Ordering::Relaxed));
    }
}
