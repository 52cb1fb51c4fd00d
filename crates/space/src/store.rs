//! A guest's view of a canonical store: mapped read-only, and mapped into guests page by page.
//!
//! A slot's bytes never change while any guest maps it, which is the daemon's promise. What rests on
//! it is that guest's own content only: a daemon that breaks it could as well read the guest's
//! memory, being of the same user.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    sync::{
        Arc, PoisonError,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
};

use bindery_sys::mapping::Mapping;
use bindery_units::{PAGE_SHIFT, Slot};

use crate::{
    Core,
    descriptors::StoreFile,
    entry::{Entry, Kind},
    wire::control::StoreId,
};

#[derive(Debug)]
pub(crate) struct StoreView {
    pub(crate) id: StoreId,
    file: StoreFile,
    mapping: Mapping,
    slots: u32,
    /// Whether the mapping was read since it last came to [`rest`](Self::rest).
    was_read: AtomicBool,
    /// Whether it has page tables of what was read before that.
    has_tables: AtomicBool,
    /// Pages of this process whose entry is `Merged` or `Bound` with this store.
    pages_mapped: AtomicU32,
}

impl StoreView {
    pub(crate) fn map(id: StoreId, file: StoreFile, slots: u32) -> io::Result<Self> {
        let bytes = (slots as usize) << PAGE_SHIFT;
        let mapping = file.with(|file| Mapping::shared(file.as_fd(), bytes, false))?;
        // It shows what others have merged, and its holes would be filled by who reads them.
        mapping.keep_from_dumps()?;
        let (was_read, has_tables) = (AtomicBool::new(false), AtomicBool::new(false));
        Ok(Self { id, file, mapping, slots, was_read, has_tables, pages_mapped: AtomicU32::new(0) })
    }

    pub(crate) const fn file(&self) -> &StoreFile {
        &self.file
    }

    /// Another descriptor of the file, for the calling thread, which has our table.
    pub(crate) fn clone_file(&self) -> io::Result<OwnedFd> {
        self.file.inside().try_clone()
    }

    pub(crate) fn has(&self, slot: Slot, count: u32) -> bool {
        slot.0 < self.slots && count <= self.slots - slot.0
    }

    /// The slot's bytes: 4096, page-aligned, readable, unchanging while a page is merged with it.
    pub(crate) fn page(&self, slot: Slot) -> *const u8 {
        assert!(slot.0 < self.slots, "a slot is within its store");
        // Relaxed: whoever misses it rests the mapping the next time. Written once, or lanes that
        // compare would take the cache line from each other.
        if !self.was_read.load(Ordering::Relaxed) {
            self.was_read.store(true, Ordering::Relaxed);
        }
        self.mapping.as_ptr().wrapping_add(slot.at() << PAGE_SHIFT)
    }

    /// Gives back the page tables of what was read of it, a fifth of a percent of the store in each
    /// guest: not while it is being read, which would only have the next comparison make them again.
    fn rest(&self) {
        if self.was_read.swap(false, Ordering::Relaxed) {
            self.has_tables.store(true, Ordering::Relaxed);
        } else if self.has_tables.swap(false, Ordering::Relaxed) {
            // SAFETY: the mapping is shared; whoever reads on meanwhile finds the same bytes again.
            unsafe { self.mapping.forget_tables() };
        }
    }

    /// Whether any page is merged with it.
    pub(crate) fn is_mapped(&self) -> bool {
        self.pages_mapped.load(Ordering::Relaxed) > 0
    }

    pub(crate) fn add_mapped(&self, pages: u32) {
        self.pages_mapped.fetch_add(pages, Ordering::Relaxed);
    }

    pub(crate) fn remove_mapped(&self, pages: u32) {
        let before = self.pages_mapped.fetch_sub(pages, Ordering::Relaxed);
        assert!(before >= pages, "no more pages leave a store than were mapped from it");
    }
}

/// Forgets a store that no page is merged with. Whoever maps slots holds the store meanwhile, and got
/// it under the lock that the caller has.
pub(crate) fn forget_unused(place: &mut Option<Arc<StoreView>>) {
    if place.as_ref().is_some_and(is_unused) {
        *place = None;
    }
}

fn is_unused(store: &Arc<StoreView>) -> bool {
    !store.is_mapped() && Arc::strong_count(store) == 1
}

impl Core {
    /// Forgets the stores of daemons that ended, once no page is merged with them: their memory is
    /// held for as long as anybody knows them.
    pub(crate) fn forget_old_stores(&self) {
        // Relaxed: read under the lock that it is written under.
        let is_old = |id: usize| id != usize::from(self.current_store.load(Ordering::Relaxed));
        let stores = self.stores.read().unwrap_or_else(PoisonError::into_inner);
        let places = || stores.iter().enumerate();
        if !places().any(|(id, place)| is_old(id) && place.as_ref().is_some_and(is_unused)) {
            return;
        }
        drop(stores);
        let mut stores = self.stores.write().unwrap_or_else(PoisonError::into_inner);
        let old = stores.iter_mut().enumerate().filter(|(id, _)| is_old(*id));
        old.for_each(|(_, place)| forget_unused(place));
    }

    /// Has the stores' mappings take no more memory than they must, until they are read again.
    pub(crate) fn rest_stores(&self) {
        let stores = self.stores.read().unwrap_or_else(PoisonError::into_inner);
        stores.iter().flatten().for_each(|store| store.rest());
    }

    pub(crate) fn store(&self, id: StoreId) -> Option<Arc<StoreView>> {
        let stores = self.stores.read().unwrap_or_else(PoisonError::into_inner);
        stores.get(id.0 as usize)?.clone()
    }

    /// The store of a page that is merged.
    pub(crate) fn store_of(&self, entry: Entry) -> Arc<StoreView> {
        self.store(entry.store()).expect("a store stays while pages are merged with it")
    }

    /// Counts a page out of the store that its entry, which was just replaced, had it merged with.
    pub(crate) fn leave_store(&self, before: Entry) {
        if matches!(before.kind(), Kind::Merged | Kind::Bound) {
            self.store_of(before).remove_mapped(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt as _;

    use bindery_sys::{memfd, table};
    use bindery_units::PAGE_BYTES;

    use super::*;
    use crate::descriptors::Pagemap;
    use crate::transfer::{HERE, find_pages};

    #[test]
    fn tables_stay_while_slots_are_read_and_go_when_none_was() {
        const SLOTS: u32 = 32;
        let file = memfd::create("store", u64::from(SLOTS) * PAGE_BYTES as u64).unwrap();
        file.write_all_at(&[7; SLOTS as usize * PAGE_BYTES], 0).unwrap();
        table::start().unwrap();
        let file = table::adopt(file.into()).unwrap();
        let store = StoreView::map(StoreId(1), file, SLOTS).unwrap();
        let pagemap = Pagemap::of_self().unwrap();
        let has_tables = || !find_pages(&pagemap, store.mapping.address(), SLOTS, HERE).is_empty();
        // SAFETY: a slot of the store.
        let read = || assert_eq!(unsafe { store.page(Slot(3)).read_volatile() }, 7);
        assert!(!has_tables());
        read();
        store.rest();
        assert!(has_tables(), "the next period may read on");
        read();
        store.rest();
        assert!(has_tables(), "it did");
        store.rest();
        assert!(!has_tables());
        read();
        assert!(has_tables());
    }
}
