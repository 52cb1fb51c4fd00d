//! A guest's view of a canonical store: its segments, mapped read-only, and mapped into guests page by
//! page.
//!
//! A store is cut into *segments* of so many slots, each a file of its own that comes with the requests
//! that name slots of it. None is kept: what a guest maps holds the file. The *view* of a segment is a
//! mapping of all of it, in which pages are compared and read when they come back. It stays as long as a
//! page is merged with the segment, and about a period longer; children of fork do not get it. So the
//! kernel frees a file that the daemon has closed when the last page that is mapped from it goes, in
//! whichever process.
//!
//! A slot's bytes never change while any process maps it, which is the daemon's promise. What rests on
//! it is that guest's own content only: a daemon that breaks it could as well read the guest's
//! memory, being of the same user.

use std::{
    collections::BTreeMap,
    io,
    mem::ManuallyDrop,
    os::fd::{AsFd, OwnedFd},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
};

use bindery_sys::{
    mapping::{self, Mapping},
    memfd::{self, MemoryFile},
    table,
};
use bindery_units::{HostAddress, PAGE_BYTES, PAGE_SHIFT, Slot};
use zerocopy::FromZeros;

use bindery_wire::control::StoreId;

use crate::{
    Core,
    budget::Budget,
    descriptors::StoreFile,
    space_entry::{Kind, SpaceEntry},
};

#[derive(Debug)]
pub(crate) struct StoreView {
    pub(crate) id: StoreId,
    /// Addresses for the views of all segments, side by side.
    room: ManuallyDrop<Mapping>,
    /// Somebody else may have mapped something in the room, where a call that failed left a hole: no view is
    /// made any more, and what is there is not ours to unmap.
    has_hole: AtomicBool,
    slots: u32,
    segment_slots: u32,
    /// The segments that have a view.
    views: Mutex<BTreeMap<u32, View>>,
    /// Whether any view was read since the store last came to [`rest`](Self::rest).
    was_read: AtomicBool,
    /// Whether there are page tables of what was read before that.
    has_tables: AtomicBool,
    /// Pages of this process whose entry is `Merged` or `Unprotected` with this store.
    pages_mapped: AtomicU32,
    /// The same for each segment: untouched memory where no page ever was.
    pages_of: Vec<AtomicU32>,
}

/// The view of one segment.
#[derive(Debug)]
struct View {
    /// Device and inode of its file.
    identity: (u64, u64),
    /// Requests at work that name it.
    pins: u32,
    /// Whether a request has named it since the store last came to
    /// [`unmap_unused`](StoreView::unmap_unused).
    was_named: bool,
}

/// Why a request's segments cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PinError {
    /// There is no such store or segment, one is named twice or out of order, or its file is none, or is
    /// another one than pages are merged with.
    #[error("segments that make no sense")]
    Nonsense,
    /// They cannot be mapped.
    #[error("the segments of a store cannot be mapped: {0}")]
    Map(#[source] io::Error),
}

/// Segments of a store that pages can be merged with for as long as this lives.
#[derive(Debug)]
pub struct Segments {
    pub(crate) view: Arc<StoreView>,
    /// Ascending by number.
    files: Vec<SegmentFile>,
}

#[derive(Debug)]
struct SegmentFile {
    number: u32,
    file: StoreFile,
    /// Slots that the file is long enough for.
    slots: u32,
}

impl StoreView {
    pub(crate) fn new(id: StoreId, slots: u32, segment_slots: u32) -> io::Result<Self> {
        let segments = slots.div_ceil(segment_slots) as usize;
        let room = Mapping::reserved((segments * segment_slots as usize) << PAGE_SHIFT)?;
        // It shows what others have merged.
        keep_to_itself(room.address(), room.bytes())?;
        let pages_of =
            AtomicU32::new_vec_zeroed(segments).map_err(|_| io::ErrorKind::OutOfMemory)?;
        Ok(Self {
            id,
            room: ManuallyDrop::new(room),
            has_hole: AtomicBool::new(false),
            slots,
            segment_slots,
            views: Mutex::default(),
            was_read: AtomicBool::new(false),
            has_tables: AtomicBool::new(false),
            pages_mapped: AtomicU32::new(0),
            pages_of,
        })
    }

    fn views(&self) -> MutexGuard<'_, BTreeMap<u32, View>> {
        // Each change is whole before anything can panic.
        self.views.lock().unwrap_or_else(PoisonError::into_inner)
    }

    const fn segment_of(&self, slot: Slot) -> u32 {
        slot.0 / self.segment_slots
    }

    const fn segment_bytes(&self) -> usize {
        (self.segment_slots as usize) << PAGE_SHIFT
    }

    fn segment_address(&self, number: u32) -> HostAddress {
        self.room.address().plus(number as usize * self.segment_bytes())
    }

    /// The slot's bytes: 4096, page-aligned, readable and unchanging while a page is merged with it or a
    /// request that names its segment is at work.
    pub(crate) fn page(&self, slot: Slot) -> *const u8 {
        assert!(slot.0 < self.slots, "a slot is within its store");
        // Relaxed: whoever misses it rests the views the next time. Written once, or lanes that
        // compare would take the cache line from each other.
        if !self.was_read.load(Ordering::Relaxed) {
            self.was_read.store(true, Ordering::Relaxed);
        }
        self.room.as_ptr().wrapping_add(slot.at() << PAGE_SHIFT)
    }

    /// Gives back the page tables of what was read of it, a fifth of a percent of the store in each
    /// guest: not while it is being read, which would only have the next comparison make them again.
    fn rest(&self) {
        if self.was_read.swap(false, Ordering::Relaxed) {
            self.has_tables.store(true, Ordering::Relaxed);
        } else if self.has_tables.swap(false, Ordering::Relaxed) {
            let _no_new_hole = self.views();
            if !self.has_hole() {
                // SAFETY: the views are shared mappings, and nothing else is mapped in the room; whoever
                // reads on meanwhile finds the same bytes again.
                unsafe { self.room.forget_tables() };
            }
        }
    }

    /// Unmaps the views that no page is merged with and no request has named since this was called last:
    /// their files are held for as long as anybody maps them.
    fn unmap_unused(&self) {
        self.views().retain(|number, view| {
            let is_used = view.pins > 0 || self.maps(*number) || view.was_named;
            view.was_named = false;
            // Where there is no memory for it, it stays until the next time.
            // SAFETY: only who pins the view or holds a page that is merged with it reads it.
            is_used || !unsafe { self.unmap(*number) }
        });
    }

    /// Unmaps the view of a segment. False if it is there still.
    ///
    /// # Safety
    /// Nobody may read it.
    unsafe fn unmap(&self, number: u32) -> bool {
        let (start, bytes) = (self.segment_address(number), self.segment_bytes());
        // SAFETY: the caller's contract; the view is ours.
        let is_gone = unsafe { mapping::reserve_again(start, bytes) }.is_ok();
        if !is_gone && mapping::is_mapped(start, bytes) {
            return false;
        }
        if is_gone {
            // As its neighbours are, so that the kernel joins them.
            let _ = keep_to_itself(start, bytes);
        } else {
            self.close_hole(start, bytes);
        }
        true
    }

    fn close_hole(&self, start: HostAddress, bytes: usize) {
        if mapping::reserve_hole(start, bytes).is_err() {
            self.has_hole.store(true, Ordering::Relaxed);
        }
    }

    fn has_hole(&self) -> bool {
        // Relaxed: written and read under the views' lock.
        self.has_hole.load(Ordering::Relaxed)
    }

    /// Has a view of a segment as `file` shows it, and keeps it until it is unpinned.
    fn pin(&self, budget: &Budget, number: u32, file: OwnedFd) -> Result<SegmentFile, PinError> {
        let file = table::adopt(file).map_err(PinError::Map)?;
        let MemoryFile { identity, bytes } = file
            .with(|file| memfd::look_at(file))
            .map_err(PinError::Map)?
            .filter(|seen| seen.bytes <= self.segment_bytes() as u64)
            .ok_or(PinError::Nonsense)?;
        let mut views = self.views();
        match views.get_mut(&number) {
            Some(view) if view.identity == identity => {
                view.pins += 1;
                view.was_named = true;
            }
            Some(view) if view.pins > 0 || self.maps(number) => return Err(PinError::Nonsense),
            _ => {
                // A view that is replaced goes even if there is no other.
                views.remove(&number);
                self.map(budget, number, &file)?;
                views.insert(number, View { identity, pins: 1, was_named: true });
            }
        }
        drop(views);
        Ok(SegmentFile { number, file, slots: (bytes >> PAGE_SHIFT) as u32 })
    }

    fn map(&self, budget: &Budget, number: u32, file: &StoreFile) -> Result<(), PinError> {
        // A view may cut the room in two.
        const MAPPINGS: u32 = 2;
        if self.has_hole() || !budget.allows(MAPPINGS) {
            return Err(PinError::Map(io::Error::from_raw_os_error(libc::ENOMEM)));
        }
        budget.made(MAPPINGS);
        let (start, bytes) = (self.segment_address(number), self.segment_bytes());
        // SAFETY: nobody reads there: no page is merged with the segment, and no request names it.
        let mapped =
            file.with(|file| unsafe { mapping::replace_with_view(start, bytes, file.as_fd()) });
        if let Err(error) = mapped {
            if !mapping::is_mapped(start, bytes) {
                self.close_hole(start, bytes);
            }
            return Err(PinError::Map(error));
        }
        keep_to_itself(start, bytes).map_err(|error| {
            // SAFETY: as above. If it stays, it holds the file for nothing.
            unsafe { self.unmap(number) };
            PinError::Map(error)
        })
    }

    fn unpin(&self, number: u32) {
        let mut views = self.views();
        let view = views.get_mut(&number).expect("a view stays while it is pinned");
        view.pins -= 1;
    }

    /// Whether any page is merged with it.
    pub(crate) fn is_mapped(&self) -> bool {
        self.pages_mapped.load(Ordering::Relaxed) > 0
    }

    /// Whether any page is merged with a segment.
    fn maps(&self, number: u32) -> bool {
        // Acquire, with the Release of `remove_mapped`: who was the last to read the view is done with it.
        self.pages_of[number as usize].load(Ordering::Acquire) > 0
    }

    pub(crate) fn add_mapped(&self, slot: Slot) {
        self.pages_mapped.fetch_add(1, Ordering::Relaxed);
        self.pages_of[self.segment_of(slot) as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts pages out that were merged with so many consecutive slots.
    pub(crate) fn remove_mapped(&self, first: Slot, pages: u32) {
        for (at, count) in self.parts(first, pages) {
            let segment = &self.pages_of[self.segment_of(first.plus(at)) as usize];
            let before = segment.fetch_sub(count, Ordering::Release);
            assert!(before >= count, "no more pages leave a segment than were mapped from it");
        }
        self.pages_mapped.fetch_sub(pages, Ordering::Relaxed);
    }

    /// `count` slots from `first` on, cut where a segment ends, as (offset, count).
    fn parts(&self, first: Slot, count: u32) -> impl Iterator<Item = (u32, u32)> + use<> {
        let (segment_slots, mut at) = (self.segment_slots, 0);
        std::iter::from_fn(move || {
            let left = count - at;
            let part = (segment_slots - (first.0 + at) % segment_slots).min(left);
            at += part;
            (part > 0).then_some((at - part, part))
        })
    }

    /// The slots from `first` on, cut where they are not consecutive or a segment ends, as (first, count).
    pub(crate) fn runs_of(
        &self,
        slots: &[Slot],
        first: u32,
        count: u32,
    ) -> impl Iterator<Item = (u32, u32)> {
        let is_one =
            |a: &Slot, b: &Slot| a.plus(1) == *b && self.segment_of(*a) == self.segment_of(*b);
        let runs = slots[first as usize..][..count as usize].chunk_by(is_one);
        runs.scan(first, |next, run| {
            let at = *next;
            *next += run.len() as u32;
            Some((at, run.len() as u32))
        })
    }
}

impl Drop for StoreView {
    fn drop(&mut self) {
        if !self.has_hole() {
            // SAFETY: dropped once, here.
            unsafe { ManuallyDrop::drop(&mut self.room) };
        }
    }
}

/// Keeps a range of a room from children of fork, and out of core dumps.
fn keep_to_itself(start: HostAddress, bytes: usize) -> io::Result<()> {
    // SAFETY: rooms are ours, and this changes no content.
    unsafe { mapping::keep_to_itself(start, bytes) }
}

impl Segments {
    /// Maps views of segments of a store, each given by its number and its file, ascending.
    ///
    /// # Errors
    /// [`PinError`]; nothing has changed but that there may be views.
    pub(crate) fn pin(
        view: Arc<StoreView>,
        budget: &Budget,
        files: impl IntoIterator<Item = (u32, OwnedFd)>,
    ) -> Result<Self, PinError> {
        let mut segments = Self { view, files: Vec::new() };
        for (number, file) in files {
            let is_next = segments.files.last().is_none_or(|last| last.number < number);
            if !is_next || number as usize >= segments.view.pages_of.len() {
                return Err(PinError::Nonsense);
            }
            let pinned = segments.view.pin(budget, number, file)?;
            segments.files.push(pinned);
        }
        Ok(segments)
    }

    fn file(&self, number: u32) -> Option<&SegmentFile> {
        let at = self.files.binary_search_by_key(&number, |file| file.number).ok()?;
        Some(&self.files[at])
    }

    /// Whether the slots are within these segments, and their files.
    #[must_use]
    pub fn have(&self, first: Slot, count: u32) -> bool {
        let view = &self.view;
        let is_within = first.0.checked_add(count).is_some_and(|end| end <= view.slots);
        is_within
            && view.parts(first, count).all(|(at, count)| {
                let slot = first.plus(at);
                let end = slot.0 % view.segment_slots + count;
                self.file(view.segment_of(slot)).is_some_and(|file| end <= file.slots)
            })
    }

    /// The file that has a slot of these segments, and where it begins there, in bytes.
    pub(crate) fn place_of(&self, slot: Slot) -> (&StoreFile, u64) {
        let file = self.file(self.view.segment_of(slot));
        let file = file.expect("whoever maps a slot has seen that its segment is here");
        let offset = u64::from(slot.0 % self.view.segment_slots) * PAGE_BYTES as u64;
        (&file.file, offset)
    }
}

impl Drop for Segments {
    fn drop(&mut self) {
        self.files.iter().for_each(|file| self.view.unpin(file.number));
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

    /// Has the stores' views take no more memory than they must, until they are read again, and hold no
    /// segment that nobody uses.
    pub(crate) fn rest_stores(&self) {
        let stores = self.stores.read().unwrap_or_else(PoisonError::into_inner);
        for store in stores.iter().flatten() {
            store.rest();
            store.unmap_unused();
        }
    }

    pub(crate) fn store(&self, id: StoreId) -> Option<Arc<StoreView>> {
        let stores = self.stores.read().unwrap_or_else(PoisonError::into_inner);
        stores.get(id.0 as usize)?.clone()
    }

    /// The store of a page that is merged.
    pub(crate) fn store_of(&self, entry: SpaceEntry) -> Arc<StoreView> {
        self.store(entry.store()).expect("a store stays while pages are merged with it")
    }

    /// Counts a page out of the store that its entry, which was just replaced, had it merged with.
    pub(crate) fn leave_store(&self, before: SpaceEntry) {
        if matches!(before.kind(), Kind::Merged | Kind::Unprotected) {
            self.store_of(before).remove_mapped(before.slot(), 1);
        }
    }
}

#[cfg(test)]
mod tests;
