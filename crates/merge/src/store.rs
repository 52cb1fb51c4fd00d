//! The canonical store: one file that holds the one copy of each content that pages share.
//!
//! Where the daemon may mount, the file is on a tmpfs of its own, which has its memory in large folios:
//! writing, mapping and reading a slot cost the kernel a fraction of what they do in a memfd. Otherwise,
//! and where the store is to be small, it is a memfd.
//!
//! The daemon alone writes to it, and only to slots that nobody maps; shims hold a description
//! that cannot write, and every one of them compares a page with the slot before it maps it. A
//! hole is punched only when nobody maps the slot: where somebody did, it would read zeros.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;

use bindery_sys::{memfd, tmpfs};
use bindery_units::{PAGE_BYTES, Slot, SlotRange};

/// Why there is no store.
#[derive(Debug, thiserror::Error)]
#[error("cannot make a store of {slots} pages: {error}; is RLIMIT_NOFILE or RLIMIT_FSIZE too low?")]
pub struct StoreError {
    slots: u32,
    #[source]
    error: io::Error,
}

/// What shows in `/proc/PID/maps`.
const NAME: &str = bindery_space::wire::control::STORE_NAME;

/// As many slots as the longest folio has pages.
const BLOCK_SLOTS: u32 = 512;

/// In tests of the engine, whose guests have few pages, and whose stores are memfds.
const BLOCK_SLOTS_OF_TESTS: u32 = 16;

/// Smaller stores have single pages: blocks would be too much of them.
const LARGE_SLOTS_MIN: u32 = 64 * if cfg!(test) { BLOCK_SLOTS_OF_TESTS } else { BLOCK_SLOTS };

/// The file of a domain's canonical pages.
#[derive(Debug)]
pub(crate) struct Store {
    file: File,
    read_only: File,
    block_slots: u32,
}

impl Store {
    /// A store with room for `slots` pages, none of them allocated.
    pub(crate) fn create(slots: u32) -> Result<Self, StoreError> {
        let store = if slots < LARGE_SLOTS_MIN {
            Self::create_memfd(slots, 1)
        } else if cfg!(test) {
            Self::create_memfd(slots, BLOCK_SLOTS_OF_TESTS)
        } else {
            Self::create_large(slots).or_else(|error| {
                tracing::info!(
                    %error,
                    "the store gets its memory in single pages, which makes merging some 15% dearer: \
                     large folios take Linux 6.14 and CAP_SYS_ADMIN"
                );
                Self::create_memfd(slots, 1)
            })
        };
        store.map_err(|error| StoreError { slots, error })
    }

    fn create_large(slots: u32) -> io::Result<Self> {
        Self::of(tmpfs::create(NAME, Slot(slots).offset_bytes())?, BLOCK_SLOTS)
    }

    fn create_memfd(slots: u32, block_slots: u32) -> io::Result<Self> {
        Self::of(memfd::create(NAME, Slot(slots).offset_bytes())?, block_slots)
    }

    fn of(file: File, block_slots: u32) -> io::Result<Self> {
        memfd::forbid_reopening_for_write(&file)?;
        let read_only = memfd::reopen_read_only(&file)?;
        Ok(Self { file, read_only, block_slots })
    }

    /// How many slots must be given back together, beginning at a multiple of as many.
    pub(crate) fn block_slots(&self) -> u32 {
        self.block_slots
    }

    /// What shims are given.
    pub(crate) fn read_only(&self) -> BorrowedFd<'_> {
        self.read_only.as_fd()
    }

    /// Writes whole pages, the first to `slot`, which nobody may map. Allocates memory.
    ///
    /// # Errors
    /// `StorageFull` or `OutOfMemory` when memory is short (the machine's or the cgroup's).
    pub(crate) fn write(&self, slot: Slot, pages: &[u8]) -> io::Result<()> {
        assert!(pages.len().is_multiple_of(PAGE_BYTES), "whole pages, not {} bytes", pages.len());
        self.file.write_all_at(pages, slot.offset_bytes())
    }

    /// Writes what is in `slot` to every slot of `row`, which nobody may map. Allocates memory.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub(crate) fn copy(&self, slot: Slot, row: SlotRange) -> io::Result<()> {
        let mut page = [0; PAGE_BYTES];
        self.read(slot, &mut page)?;
        self.write(row.first, &page.repeat(row.count as usize))
    }

    /// Reads whole pages, the first from `slot`.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn read(&self, slot: Slot, pages: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(pages, slot.offset_bytes())
    }

    /// Gives the memory of blocks back, which nobody may map. The file stays as long as it is: cutting it
    /// would take the private copies that guests have of pages beyond its end (strays) as well.
    ///
    /// # Errors
    /// The kernel's; the memory is then kept.
    pub(crate) fn punch(&self, blocks: SlotRange) -> io::Result<()> {
        memfd::punch(&self.file, blocks.first.offset_bytes(), Slot(blocks.count).offset_bytes())
    }

    /// Memory that the store holds, in bytes.
    pub(crate) fn allocated_bytes(&self) -> u64 {
        // fstat(2) of an open file does not fail; a figure for a table is no reason to stop.
        memfd::allocated_bytes(&self.file).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;

    /// A store of large folios, if this process may have one.
    fn large() -> Option<Store> {
        let skip = |error| eprintln!("SKIPPED: no store of large folios: {error}");
        Store::create_large(1 << 20).map_err(skip).ok()
    }

    #[test]
    fn a_store_of_single_pages_holds_what_was_written_and_nothing_else() {
        holds_what_was_written_and_nothing_else(&Store::create_memfd(1 << 20, 1).unwrap());
    }

    #[test]
    fn a_store_of_large_folios_holds_what_was_written_and_nothing_else() {
        large().iter().for_each(holds_what_was_written_and_nothing_else);
    }

    fn holds_what_was_written_and_nothing_else(store: &Store) {
        assert_eq!(store.allocated_bytes(), 0);
        let pages = [[1_u8; PAGE_BYTES], [2; PAGE_BYTES], [3; PAGE_BYTES]];
        store.write(Slot(64), &pages[2]).unwrap();
        store.write(Slot(70_000), pages.as_flattened()).unwrap();
        let mut two = [0; 2 * PAGE_BYTES];
        store.read(Slot(70_000), &mut two).unwrap();
        store.write(Slot(70_003), &two).unwrap();
        store.copy(Slot(70_004), SlotRange::new(Slot(70_005), 2)).unwrap();
        let pages = [pages[0], pages[1], pages[2], pages[0], pages[1], pages[1], pages[1]];
        let shared = File::from(store.read_only().try_clone_to_owned().unwrap());
        let mut page = [0; PAGE_BYTES];
        for (at, expected) in pages.iter().enumerate() {
            shared.read_exact_at(&mut page, Slot(70_000 + at as u32).offset_bytes()).unwrap();
            assert_eq!(&page, expected);
        }
        assert_eq!(store.allocated_bytes(), 8 * PAGE_BYTES as u64);
        let block = 70_000 / store.block_slots * store.block_slots;
        store.punch(SlotRange::new(Slot(block), store.block_slots.max(7))).unwrap();
        assert_eq!(store.allocated_bytes(), PAGE_BYTES as u64);
        shared.read_exact_at(&mut page, Slot(70_001).offset_bytes()).unwrap();
        assert_eq!(page, [0; PAGE_BYTES]);
        shared.read_exact_at(&mut page, Slot(64).offset_bytes()).unwrap();
        assert_eq!(page, [3; PAGE_BYTES]);
    }

    /// What the block rule is for: I/O that began before a slot was freed finds what was there.
    #[test]
    fn whoever_reads_a_page_yet_finds_what_was_there() {
        for store in [Some(Store::create_memfd(1 << 20, 1).unwrap()), large()].into_iter().flatten()
        {
            store.write(Slot(0), &[7; 64 * PAGE_BYTES]).unwrap();
            let mut slots = crate::slots::Slots::new(1 << 20, store.block_slots);
            slots.allocate(64);
            // Pages in a pipe are held as those under direct I/O are.
            let (reader, writer) = std::io::pipe().unwrap();
            let mut from = Slot(5).offset_bytes();
            let flags = rustix::pipe::SpliceFlags::empty();
            let spliced = rustix::pipe::splice(
                &store.file,
                Some(&mut from),
                &writer,
                None,
                PAGE_BYTES,
                flags,
            );
            assert_eq!(spliced.unwrap(), PAGE_BYTES);
            for slot in [5, 6, 7] {
                let freed = slots.free(SlotRange::new(Slot(slot), 1));
                freed.into_iter().for_each(|blocks| store.punch(blocks).unwrap());
            }
            let mut page = [0; PAGE_BYTES];
            (&reader).read_exact(&mut page).unwrap();
            assert!(page == [7; PAGE_BYTES], "{} slots a block", store.block_slots);
        }
    }

    #[test]
    fn what_shims_hold_cannot_write() {
        for store in [Some(Store::create_memfd(16, 1).unwrap()), large()].into_iter().flatten() {
            cannot_write(&store);
        }
    }

    fn cannot_write(store: &Store) {
        let shared = File::from(store.read_only().try_clone_to_owned().unwrap());
        assert!(shared.write_all_at(b"x", 0).is_err());
        assert!(memfd::punch(&shared, 0, 4096).is_err());
        assert!(shared.set_len(0).is_err());
        assert!(memfd::reopen_read_only(&store.file).unwrap().write_all_at(b"x", 0).is_err());
    }

    #[test]
    fn a_store_beyond_its_end_is_an_error() {
        let store = Store::create(16).unwrap();
        assert!(store.write(Slot(16), &[0; PAGE_BYTES]).is_err());
    }
}
