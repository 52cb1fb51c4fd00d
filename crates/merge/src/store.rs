//! The canonical store: the one copy of each content that pages share, in *segments*.
//!
//! A segment is so many slots, and a file of its own, made when its first slot is written. The daemon
//! alone writes to it, each slot at most once in the file's life, and it never punches or cuts it. When none of a
//! segment's slots is in use any more, the daemon closes the file, and the next content of these slots goes to
//! another one. So what a slot holds never changes while any process maps it, known or not, nor while I/O
//! reads it: the kernel frees the file with its last user. See decision 0017.
//!
//! Where the daemon may mount, the files are on a tmpfs of their own, which has its memory in large folios:
//! writing, mapping and reading a slot cost the kernel a fraction of what they do in a memfd. Otherwise
//! they are memfds.
//!
//! Shims get descriptors that cannot write, and every one of them compares a page with the slot before
//! it maps it.
//!
//! # Concurrency
//! Any worker may write, read and share within a phase. Segments are dropped between phases only.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use bindery_sys::memfd;
use bindery_sys::process::{is_out_of_descriptors, open_files_max};
use bindery_sys::tmpfs::PrivateTmpfs;
use bindery_units::{PAGE_BYTES, Slot, SlotRange};

use crate::lock::locked;
use crate::nodes::StoreNode;
use crate::pressure::Shortage;

/// What shows in `/proc/PID/maps`.
const NAME: &str = bindery_wire::control::STORE_NAME;

/// A segment has one slot less than the longest folio has pages, fewer in small stores. Of a file that is long enough
/// khugepaged makes one such folio (`collapse_file`, mm/khugepaged.c), and for that it takes every page of
/// it out of everybody's page tables: each guest that reads a merged page would wait for a fault again.
const SEGMENT_SLOTS_MAX: u32 = 511;
const SEGMENT_SLOTS_MIN: u32 = 16;

/// Segments that a store has at least, where they are not the smallest.
const SEGMENTS_MIN: u32 = 64;

/// The store leaves one in so many of the descriptors that this process may have to the rest of it: guests,
/// their lanes, operators. What moves to empty segments may take half of those.
const DESCRIPTORS_SHARE: u64 = 8;

/// Why nothing was written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StoreError {
    /// This process has no descriptor left for a segment.
    #[error(
        "the store needs a descriptor for every {} KiB, and no more are left: raise the daemon's limit on \
         open files (LimitNOFILE= in its unit, or `ulimit -Hn`)",
        SEGMENT_SLOTS_MAX as usize * PAGE_BYTES / 1024
    )]
    Descriptors,
    /// The machine's memory or the cgroup's is short, or a limit was met.
    #[error("no memory for canonical pages: {0}; free some, or raise the limits of the daemon")]
    Memory(#[source] io::Error),
}

impl From<io::Error> for StoreError {
    fn from(error: io::Error) -> Self {
        if is_out_of_descriptors(&error) { Self::Descriptors } else { Self::Memory(error) }
    }
}

impl StoreError {
    pub(crate) fn shortage(&self) -> Shortage {
        match self {
            Self::Descriptors => Shortage::Descriptors,
            Self::Memory(_) => Shortage::Memory,
        }
    }
}

/// The canonical pages of a domain.
#[derive(Debug)]
pub(crate) struct Store {
    /// Where files come from; memfds if nowhere.
    tmpfs: Option<PrivateTmpfs>,
    /// Where its memory is to come from; from anywhere if `None`.
    node: Option<StoreNode>,
    /// Set once memory of the node could not be asked for.
    is_unbound: AtomicBool,
    slots: u32,
    segment_slots: u32,
    segments: Mutex<Segments>,
    /// Memory of all segments, as of their last writes.
    allocated_bytes: AtomicU64,
    /// For tests of the engine, which share a process: as if there were no descriptors left.
    #[cfg(test)]
    pub(crate) has_no_descriptors: std::sync::atomic::AtomicBool,
}

#[derive(Debug, Default)]
struct Segments {
    all: BTreeMap<u32, Arc<Segment>>,
    /// Those that may be written to.
    open: BTreeSet<u32>,
}

#[derive(Debug)]
struct Segment {
    state: Mutex<SegmentState>,
}

/// A segment is written through one descriptor and given away by another, which is all that is left once no
/// slot of it will be written any more.
#[derive(Debug)]
struct SegmentState {
    writer: Option<Arc<File>>,
    reader: Option<Arc<File>>,
    /// A bit for each slot that was written.
    written: Box<[u64]>,
    allocated_bytes: u64,
}

/// Number of slots of each segment of a store of `slots`.
pub(crate) fn segment_slots(slots: u32) -> u32 {
    // In tests of the engine guests have few pages.
    let most = if cfg!(test) { SEGMENT_SLOTS_MIN } else { SEGMENT_SLOTS_MAX };
    (slots / SEGMENTS_MIN).clamp(SEGMENT_SLOTS_MIN, most)
}

impl Store {
    /// Makes a store with room for `slots` pages, without any segment.
    pub(crate) fn create(slots: u32, node: Option<StoreNode>) -> Self {
        let segment_slots = segment_slots(slots);
        if cfg!(test) {
            return Self { node, ..Self::of(None, slots, segment_slots) };
        }
        let mounted = PrivateTmpfs::mount(Slot(segment_slots).offset_bytes());
        let tmpfs = mounted.inspect_err(|error| {
            tracing::info!(
                %error,
                "the store gets its memory in single pages, which makes merging some 15% dearer: \
                 large folios take Linux 6.14 and CAP_SYS_ADMIN"
            );
        });
        Self { node, ..Self::of(tmpfs.ok(), slots, segment_slots) }
    }

    fn of(tmpfs: Option<PrivateTmpfs>, slots: u32, segment_slots: u32) -> Self {
        Self {
            tmpfs,
            node: None,
            is_unbound: AtomicBool::new(false),
            slots,
            segment_slots,
            segments: Mutex::default(),
            allocated_bytes: AtomicU64::new(0),
            #[cfg(test)]
            has_no_descriptors: false.into(),
        }
    }

    /// Number of slots of each segment. The first one's number is a multiple of it.
    pub(crate) fn segment_slots(&self) -> u32 {
        self.segment_slots
    }

    /// The number of the segment that has `slot`.
    pub(crate) fn segment_of(&self, slot: Slot) -> u32 {
        slot.0 / self.segment_slots
    }

    /// Writes whole pages, the first to `slot`. None of these slots was written before in the life of its
    /// segment. Allocates memory.
    ///
    /// # Errors
    /// [`StoreError`]; some of the pages may have been written, and all may be written again.
    ///
    /// # Panics
    /// If a slot was written already.
    pub(crate) fn write(&self, slot: Slot, pages: &[u8]) -> Result<(), StoreError> {
        self.write_within(DESCRIPTORS_SHARE, slot, pages)
    }

    /// [`write`](Self::write), for what moves to empty other segments: even the last descriptors but for a few
    /// may be taken.
    pub(crate) fn write_moved(&self, slot: Slot, pages: &[u8]) -> Result<(), StoreError> {
        self.write_within(2 * DESCRIPTORS_SHARE, slot, pages)
    }

    fn write_within(&self, share: u64, slot: Slot, pages: &[u8]) -> Result<(), StoreError> {
        assert!(pages.len().is_multiple_of(PAGE_BYTES), "whole pages, not {} bytes", pages.len());
        let mut rest = pages;
        for part in self.parts(SlotRange::new(slot, (pages.len() / PAGE_BYTES) as u32)) {
            let (some, later) = rest.split_at(part.count as usize * PAGE_BYTES);
            self.segment(share, part.first)?.write(
                self.place(part),
                some,
                &self.allocated_bytes,
            )?;
            rest = later;
        }
        Ok(())
    }

    /// Writes what is in `slot` to every slot of `row`, as [`write`](Self::write) does.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub(crate) fn copy(&self, slot: Slot, row: SlotRange) -> Result<(), StoreError> {
        let mut page = [0; PAGE_BYTES];
        self.read(slot, &mut page)?;
        self.write(row.first, &page.repeat(row.count as usize))
    }

    /// Reads whole pages, the first from `slot`. All of them were written.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn read(&self, slot: Slot, pages: &mut [u8]) -> io::Result<()> {
        let mut rest = pages;
        for part in self.parts(SlotRange::new(slot, (rest.len() / PAGE_BYTES) as u32)) {
            let (some, later) = rest.split_at_mut(part.count as usize * PAGE_BYTES);
            let segment = self.existing(self.segment_of(part.first));
            segment.any_file().read_exact_at(some, self.place(part).first.offset_bytes())?;
            rest = later;
        }
        Ok(())
    }

    /// A descriptor of a segment for reading, to be given to shims.
    ///
    /// # Errors
    /// [`StoreError::Descriptors`], mostly.
    ///
    /// # Panics
    /// If no slot of it was written.
    pub(crate) fn share(&self, number: u32) -> Result<Arc<File>, StoreError> {
        self.existing(number).reader()
    }

    /// Closes what segments are written by, of those that no slot is to be written of any more. Between
    /// phases only.
    pub(crate) fn finish(&self, is_done: impl Fn(u32) -> bool) {
        let Segments { all, open } = &mut *locked(&self.segments);
        open.retain(|number| !is_done(*number) || all[number].finish().is_err());
    }

    /// Closes whole segments, of which nobody that the daemon knows maps a slot. Whoever maps one all the same
    /// keeps what it has.
    pub(crate) fn drop_segments(&self, slots: SlotRange) {
        let Segments { all, open } = &mut *locked(&self.segments);
        for part in self.parts(slots) {
            let number = self.segment_of(part.first);
            open.remove(&number);
            if let Some(segment) = all.remove(&number) {
                let bytes = segment.state().allocated_bytes;
                self.allocated_bytes.fetch_sub(bytes, Ordering::Relaxed);
            }
        }
    }

    /// Memory of all segments, in bytes.
    pub(crate) fn allocated_bytes(&self) -> u64 {
        self.allocated_bytes.load(Ordering::Relaxed)
    }

    /// The segment of `slot`; a new one if there is none.
    fn segment(&self, share: u64, slot: Slot) -> Result<Arc<Segment>, StoreError> {
        assert!(slot.0 < self.slots, "{slot:?} is beyond the store's end");
        let number = self.segment_of(slot);
        let mut segments = locked(&self.segments);
        if let Some(segment) = segments.all.get(&number) {
            return Ok(Arc::clone(segment));
        }
        let file = self.create_file(share)?;
        let segment = Arc::new(Segment::of(file, self.segment_slots));
        segments.all.insert(number, Arc::clone(&segment));
        segments.open.insert(number);
        Ok(segment)
    }

    fn existing(&self, number: u32) -> Arc<Segment> {
        let segments = locked(&self.segments);
        let segment = segments.all.get(&number);
        Arc::clone(segment.expect("a slot in use was written, and its segment stays"))
    }

    fn create_file(&self, share: u64) -> Result<File, StoreError> {
        let file = match &self.tmpfs {
            Some(tmpfs) => tmpfs.create(NAME)?,
            None => memfd::create(NAME, Slot(self.segment_slots).offset_bytes())?,
        };
        // The kernel gives the lowest number that is free: so many are in use.
        let in_use = file.as_raw_fd().unsigned_abs();
        if self.open_files_max().is_some_and(|most| u64::from(in_use) >= most - most / share) {
            return Err(StoreError::Descriptors);
        }
        memfd::forbid_reopening_for_write(&file)?;
        self.bind(&file);
        Ok(file)
    }

    /// Makes a segment's memory come from the store's node. Where that cannot be had, the kernel chooses: guests save as
    /// much, and read a little slower.
    fn bind(&self, file: &File) {
        let Some(StoreNode { node, nodes }) = &self.node else { return };
        if let Err(error) = nodes.prefer(file, Slot(self.segment_slots).offset_bytes(), *node)
            // Relaxed: one line too many does no harm.
            && !self.is_unbound.swap(true, Ordering::Relaxed)
        {
            tracing::warn!(
                %error,
                "canonical pages of {node} lie where the kernel puts them: the daemon may use no memory of that \
                 node (cpuset.mems of its cgroup, AllowedMemoryNodes= in its unit)"
            );
        }
    }

    #[cfg_attr(
        not(test),
        expect(clippy::unused_self, reason = "tests have a limit of the store's own")
    )]
    fn open_files_max(&self) -> Option<u64> {
        #[cfg(test)]
        if self.has_no_descriptors.load(Ordering::Relaxed) {
            return Some(0);
        }
        open_files_max()
    }

    /// The parts of `slots` that are in one segment each.
    fn parts(&self, slots: SlotRange) -> impl Iterator<Item = SlotRange> + use<> {
        let (segment_slots, end) = (self.segment_slots, slots.end().0);
        let mut first = slots.first.0;
        std::iter::from_fn(move || {
            let count = (segment_slots - first % segment_slots).min(end - first);
            first += count;
            (count > 0).then(|| SlotRange::new(Slot(first - count), count))
        })
    }

    /// Where slots of one segment are in its file.
    fn place(&self, part: SlotRange) -> SlotRange {
        SlotRange::new(Slot(part.first.0 % self.segment_slots), part.count)
    }
}

impl Segment {
    fn of(file: File, slots: u32) -> Self {
        let state = SegmentState {
            writer: Some(Arc::new(file)),
            reader: None,
            written: vec![0; slots.div_ceil(u64::BITS) as usize].into(),
            allocated_bytes: 0,
        };
        Self { state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, SegmentState> {
        locked(&self.state)
    }

    /// Writes pages to slots that were not written, given as they are in the file, and counts what memory
    /// that took.
    fn write(&self, slots: SlotRange, pages: &[u8], total_bytes: &AtomicU64) -> io::Result<()> {
        let writer = {
            let state = self.state();
            let is_new = slots.slots().all(|slot| !state.is_written(slot));
            assert!(is_new, "a slot is written once in the life of its segment: {slots:?}");
            Arc::clone(state.writer.as_ref().expect("a segment that is finished has no new slots"))
        };
        let result = writer.write_all_at(pages, slots.first.offset_bytes());
        let mut state = self.state();
        if result.is_ok() {
            slots.slots().for_each(|slot| state.note_written(slot));
        }
        // fstat(2) of an open file does not fail; a figure for a table is no reason to stop. What was counted
        // is never more than what is: only writes of this process add to it, and none takes from it.
        let bytes = memfd::allocated_bytes(&writer).unwrap_or(0).max(state.allocated_bytes);
        total_bytes.fetch_add(bytes - state.allocated_bytes, Ordering::Relaxed);
        state.allocated_bytes = bytes;
        result
    }

    fn any_file(&self) -> Arc<File> {
        let state = self.state();
        let file = state.reader.as_ref().or(state.writer.as_ref());
        Arc::clone(file.expect("a segment has one of its descriptors"))
    }

    fn reader(&self) -> Result<Arc<File>, StoreError> {
        let mut state = self.state();
        if let Some(reader) = &state.reader {
            return Ok(Arc::clone(reader));
        }
        let writer = state.writer.as_ref().expect("a segment has one of its descriptors");
        let reader = Arc::new(memfd::reopen_read_only(&**writer)?);
        state.reader = Some(Arc::clone(&reader));
        Ok(reader)
    }

    /// No slot of it will be written any more.
    fn finish(&self) -> Result<(), StoreError> {
        self.reader()?;
        self.state().writer = None;
        Ok(())
    }
}

impl SegmentState {
    fn is_written(&self, slot: Slot) -> bool {
        self.written[slot.at() / 64] >> (slot.at() % 64) & 1 != 0
    }

    fn note_written(&mut self, slot: Slot) {
        self.written[slot.at() / 64] |= 1 << (slot.at() % 64);
    }
}

#[cfg(test)]
mod tests;
