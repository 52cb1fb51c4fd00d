//! The canonical store: one memfd that holds the one copy of each content that pages share.
//!
//! The daemon alone writes to it, and only to slots that nobody maps; shims hold a description
//! that cannot write, and every one of them compares a page with the slot before it maps it. A
//! hole is punched only when nobody maps the slot: where somebody did, it would read zeros.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;

use bindery_sys::memfd;
use bindery_units::{PAGE_BYTES, Slot, SlotRange};

/// Why there is no store.
#[derive(Debug, thiserror::Error)]
#[error("cannot make a store of {slots} pages: {error}; is RLIMIT_NOFILE or RLIMIT_FSIZE too low?")]
pub struct StoreError {
    slots: u32,
    #[source]
    error: io::Error,
}

/// The file of a domain's canonical pages.
#[derive(Debug)]
pub(crate) struct Store {
    file: File,
    read_only: File,
}

impl Store {
    /// A store with room for `slots` pages, none of them allocated.
    pub(crate) fn create(slots: u32) -> Result<Self, StoreError> {
        let create = || {
            let file = memfd::create("bindery-store", Slot(slots).offset_bytes())?;
            memfd::forbid_reopening_for_write(&file)?;
            let read_only = memfd::reopen_read_only(&file)?;
            Ok(Self { file, read_only })
        };
        create().map_err(|error| StoreError { slots, error })
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
        self.file.read_exact_at(&mut page, slot.offset_bytes())?;
        self.write(row.first, &page.repeat(row.count as usize))
    }

    /// Gives the memory of slots back, which nobody may map.
    ///
    /// # Errors
    /// The kernel's; the memory is then kept until the slots are written again.
    pub(crate) fn punch(&self, range: SlotRange) -> io::Result<()> {
        memfd::punch(&self.file, range.first.offset_bytes(), Slot(range.count).offset_bytes())
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

    #[test]
    fn a_store_holds_what_was_written_and_nothing_else() {
        let store = Store::create(1 << 20).unwrap();
        assert_eq!(store.allocated_bytes(), 0);
        let pages = [[1_u8; PAGE_BYTES], [2; PAGE_BYTES], [3; PAGE_BYTES]];
        store.write(Slot(70_000), pages.as_flattened()).unwrap();
        let shared = File::from(store.read_only().try_clone_to_owned().unwrap());
        let mut page = [0; PAGE_BYTES];
        for (at, expected) in pages.iter().enumerate() {
            shared.read_exact_at(&mut page, Slot(70_000 + at as u32).offset_bytes()).unwrap();
            assert_eq!(&page, expected);
        }
        assert_eq!(store.allocated_bytes(), 3 * PAGE_BYTES as u64);
        store.punch(SlotRange::new(Slot(70_001), 1)).unwrap();
        assert_eq!(store.allocated_bytes(), 2 * PAGE_BYTES as u64);
        shared.read_exact_at(&mut page, Slot(70_001).offset_bytes()).unwrap();
        assert_eq!(page, [0; PAGE_BYTES]);
        shared.read_exact_at(&mut page, Slot(70_002).offset_bytes()).unwrap();
        assert_eq!(page, [3; PAGE_BYTES]);
    }

    #[test]
    fn what_shims_hold_cannot_write() {
        let store = Store::create(16).unwrap();
        let shared = File::from(store.read_only().try_clone_to_owned().unwrap());
        assert!(shared.write_all_at(b"x", 0).is_err());
        assert!(memfd::punch(&shared, 0, 4096).is_err());
        assert!(shared.set_len(0).is_err());
    }

    #[test]
    fn a_store_beyond_its_end_is_an_error() {
        let store = Store::create(16).unwrap();
        assert!(store.write(Slot(16), &[0; PAGE_BYTES]).is_err());
    }
}
