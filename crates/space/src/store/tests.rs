//! Views of segments: which there are, for how long, and what they show.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

use bindery_sys::memfd;

use super::*;
use crate::{
    descriptors::Pagemap,
    transfer::{HERE, PageSet, find_pages},
};

const SEGMENT_SLOTS: u32 = 16;

fn store(slots: u32) -> Arc<StoreView> {
    table::start().unwrap();
    Arc::new(StoreView::new(StoreId(1), slots, SEGMENT_SLOTS).unwrap())
}

/// A segment that is full of a byte.
fn segment(byte: u8) -> File {
    let file = memfd::create("segment", u64::from(SEGMENT_SLOTS) * PAGE_BYTES as u64).unwrap();
    file.write_all_at(&[byte; SEGMENT_SLOTS as usize * PAGE_BYTES], 0).unwrap();
    file
}

fn pin(store: &Arc<StoreView>, files: &[(u32, &File)]) -> Result<Segments, PinError> {
    let budget = Budget::new().unwrap();
    let files = files.iter().map(|(number, file)| (*number, file.try_clone().unwrap().into()));
    Segments::pin(Arc::clone(store), &budget, files.collect::<Vec<_>>())
}

fn read(store: &StoreView, slot: u32) -> u8 {
    // SAFETY: a slot of a segment that has a view.
    unsafe { store.page(Slot(slot)).read_volatile() }
}

#[test]
fn tables_stay_while_slots_are_read_and_go_when_none_was() {
    let store = store(32);
    let _pinned = pin(&store, &[(0, &segment(7))]).unwrap();
    let pagemap = Pagemap::of_self().unwrap();
    let start = store.room.address();
    let has_tables =
        || find_pages(&pagemap, start, SEGMENT_SLOTS, HERE) != Some(PageSet::default());
    assert!(!has_tables());
    assert_eq!(read(&store, 3), 7);
    store.rest();
    assert!(has_tables(), "the next period may read on");
    assert_eq!(read(&store, 3), 7);
    store.rest();
    assert!(has_tables(), "it did");
    store.rest();
    assert!(!has_tables());
    assert_eq!(read(&store, 3), 7);
    assert!(has_tables());
}

#[test]
fn segments_that_make_no_sense_are_refused() {
    let store = store(40);
    let (one, other) = (segment(1), segment(2));
    let long = memfd::create("segment", 17 * PAGE_BYTES as u64).unwrap();
    let (reader, _writer) = std::io::pipe().unwrap();
    let pipe = File::from(OwnedFd::from(reader));
    let nonsense: [&[(u32, &File)]; 6] = [
        &[(3, &one)],
        &[(u32::MAX, &one)],
        &[(1, &one), (0, &other)],
        &[(1, &one), (1, &one)],
        &[(0, &long)],
        &[(0, &pipe)],
    ];
    for files in nonsense {
        assert!(matches!(pin(&store, files), Err(PinError::Nonsense)), "{files:?}");
    }
    assert!(store.views().values().all(|view| view.pins == 0));
    let pinned = pin(&store, &[(0, &one), (2, &other)]).unwrap();
    assert!(pinned.have(Slot(0), 16) && pinned.have(Slot(39), 1));
    assert!(!pinned.have(Slot(15), 2), "of a segment that did not come");
    assert!(!pinned.have(Slot(39), 2), "beyond the store");
    assert!(!pinned.have(Slot(u32::MAX), 2));
}

#[test]
fn a_file_that_is_too_short_has_no_slots_beyond_its_end() {
    let store = store(16);
    let short = memfd::create("segment", 3 * PAGE_BYTES as u64).unwrap();
    let pinned = pin(&store, &[(0, &short)]).unwrap();
    assert!(pinned.have(Slot(0), 3) && !pinned.have(Slot(0), 4));
}

#[test]
fn a_segment_has_another_file_only_when_nothing_uses_the_old_one() {
    let store = store(32);
    let (old, new) = (segment(1), segment(2));
    let pinned = pin(&store, &[(1, &old)]).unwrap();
    assert!(matches!(pin(&store, &[(1, &new)]), Err(PinError::Nonsense)), "a request uses it");
    store.add_mapped(Slot(20));
    drop(pinned);
    drop(pin(&store, &[(1, &old)]).unwrap());
    assert!(matches!(pin(&store, &[(1, &new)]), Err(PinError::Nonsense)), "a page uses it");
    assert_eq!(read(&store, 20), 1);
    store.remove_mapped(Slot(20), 1);
    drop(pin(&store, &[(1, &new)]).unwrap());
    assert_eq!(read(&store, 20), 2);
}

/// Whether a view holds the file, by what the kernel says of this process's mappings.
fn is_mapped(file: &File) -> bool {
    let inode = memfd::identity(file).unwrap().1.to_string();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().any(|line| line.split_ascii_whitespace().nth(4) == Some(inode.as_str()))
}

#[test]
fn a_view_that_nothing_uses_goes_a_period_later() {
    let store = store(32);
    let file = segment(1);
    let pinned = pin(&store, &[(1, &file)]).unwrap();
    store.add_mapped(Slot(16));
    drop(pinned);
    (0..3).for_each(|_| store.unmap_unused());
    assert!(is_mapped(&file), "a page is merged with it");
    store.remove_mapped(Slot(16), 1);
    let pinned = pin(&store, &[(1, &file)]).unwrap();
    store.unmap_unused();
    drop(pinned);
    assert!(is_mapped(&file), "the next period may need it");
    store.unmap_unused();
    assert!(!is_mapped(&file) && store.views().is_empty());
}

#[test]
fn runs_end_where_segments_do() {
    let store = store(48);
    let slots: Vec<Slot> = [3, 4, 14, 15, 16, 17, 9].map(Slot).into();
    let runs: Vec<_> = store.runs_of(&slots, 1, 6).collect();
    assert_eq!(runs, [(1, 1), (2, 2), (4, 2), (6, 1)]);
    let parts: Vec<_> = store.parts(Slot(14), 20).collect();
    assert_eq!(parts, [(0, 2), (2, 16), (18, 2)]);
}
