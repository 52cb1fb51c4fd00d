//! Files mapped to be read, and looking at memory that others may change.

use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::os::fd::BorrowedFd;

use bindery_units::{HostAddress, PAGE_BYTES};

use crate::mapping::{self, Mapping};
use crate::pagemap::{EXTENTS_PER_CALL_MAX, Extent, Pagemap, Query, category};
use crate::userfault::{Userfault, feature, mode};

/// A file mapped shared and read-only, where the kernel can use huge pages for what it caches of it.
///
/// To touch what is behind the file's end, or what its device cannot read, is `SIGBUS`.
#[derive(Debug)]
pub struct MappedFile(Mapping);

impl MappedFile {
    /// Maps `bytes` of the file from its beginning, beyond its end too: the file may grow into it.
    ///
    /// # Errors
    /// As mmap(2).
    pub fn map(file: BorrowedFd<'_>, bytes: usize) -> io::Result<Self> {
        Mapping::shared_aligned(file, bytes).map(Self)
    }

    /// Tells the kernel that the file is read here and there, so that a fault reads no more than it must.
    ///
    /// # Errors
    /// As madvise(2).
    pub fn advise_random(&self) -> io::Result<()> {
        self.0.advise_random()
    }

    /// Takes whole pages out of the page tables. The file has their content: touching them again is a
    /// fault and nothing else.
    ///
    /// # Errors
    /// As madvise(2).
    ///
    /// # Panics
    /// If the range leaves the mapping.
    pub fn forget(&self, offset_bytes: usize, bytes: usize) -> io::Result<()> {
        let start = self.range(offset_bytes, bytes);
        // SAFETY: needs content that is kept elsewhere: the mapping is shared and read-only, so the file
        // has all of it.
        unsafe { mapping::advise(start, bytes, libc::MADV_DONTNEED) }
    }

    /// Takes whole pages of many ranges out of the page tables, as [`forget`](Self::forget), at once: see
    /// [`mapping::advise_all`]. A range is its offset and its length, in bytes.
    ///
    /// # Errors
    /// As madvise(2).
    ///
    /// # Panics
    /// If a range leaves the mapping.
    pub fn forget_all(&self, ranges: &[(usize, usize)]) -> io::Result<()> {
        let range =
            |&(offset_bytes, bytes): &(usize, usize)| (self.range(offset_bytes, bytes), bytes);
        let ranges: Vec<_> = ranges.iter().map(range).collect();
        // SAFETY: as in `forget`.
        unsafe { mapping::advise_all(&ranges, libc::MADV_DONTNEED) }
    }

    /// Has pages read and put into the page tables, and waits for it.
    ///
    /// # Errors
    /// `EFAULT` if they cannot be read.
    ///
    /// # Panics
    /// If the range leaves the mapping.
    pub fn populate(&self, offset_bytes: usize, bytes: usize) -> io::Result<()> {
        let start = self.range(offset_bytes, bytes);
        // SAFETY: this advice changes no content.
        unsafe { mapping::advise(start, bytes, libc::MADV_POPULATE_READ) }
    }

    /// Tells of each run of pages of a range that is in the page tables: its first page, counted from
    /// the range's beginning, and how many. Neighbours may be told of one by one.
    ///
    /// # Errors
    /// As [`Pagemap::scan`].
    ///
    /// # Panics
    /// If the range leaves the mapping.
    pub fn runs_mapped(
        &self,
        pagemap: &Pagemap,
        offset_bytes: usize,
        bytes: usize,
        found: &mut dyn FnMut(u64, u64),
    ) -> io::Result<()> {
        runs_mapped(pagemap, self.range(offset_bytes, bytes), bytes, found)
    }

    /// Has each fault map the page that was touched, and not those around it that are cached, while the
    /// result lives. What is in the page tables after [`forget`](Self::forget) was then touched, page by
    /// page; to touch many pages costs more.
    ///
    /// It is a side effect: of a mapping that is registered for write protection the kernel maps no
    /// neighbours (`uffd_disable_fault_around`). Nothing is ever protected.
    ///
    /// # Errors
    /// `EINVAL` before Linux 6.7; `EPERM` if the file was not opened for writing; as
    /// [`Userfault::open_for_user_mode`].
    pub fn fault_singly(&self) -> io::Result<Userfault> {
        let userfault = Userfault::open_for_user_mode(feature::WP_ASYNC)?;
        // SAFETY: needs somebody who serves the faults: with WP_ASYNC the kernel does, and reports none.
        unsafe { userfault.register(self.address(), self.bytes(), mode::WP)? };
        Ok(userfault)
    }

    /// A part of it.
    ///
    /// # Panics
    /// If the range leaves the mapping.
    #[must_use]
    pub fn view(&self, offset_bytes: usize, bytes: usize) -> View<'_> {
        View::of(&self.0, offset_bytes, bytes)
    }

    /// Where it begins.
    #[must_use]
    pub const fn address(&self) -> HostAddress {
        self.0.address()
    }

    /// How long it is, in bytes.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.0.bytes()
    }

    fn range(&self, offset_bytes: usize, bytes: usize) -> HostAddress {
        self.view(offset_bytes, bytes).address()
    }
}

/// Calls `found` with each run of pages of a range that is in the page tables: its first page, counted
/// from `start`, and its number of pages. Runs come in order; neighbours may come one by one.
///
/// `pagemap` is that of the process whose addresses these are. One system call for each
/// [`EXTENTS_PER_CALL_MAX`] runs.
///
/// # Errors
/// As [`Pagemap::scan`]; `EINVAL` if `start` is in the middle of a page.
pub fn runs_mapped(
    pagemap: &Pagemap,
    start: HostAddress,
    bytes: usize,
    found: &mut dyn FnMut(u64, u64),
) -> io::Result<()> {
    // What the kernel is migrating at the moment (compaction does) has an entry like that of a page in swap,
    // which a shared page of a file never has for another reason.
    let there = category::PRESENT | category::SWAPPED;
    let query = Query { any_of: there, report: there, ..Query::default() };
    let mut extents = [Extent::default(); EXTENTS_PER_CALL_MAX];
    let mut at = start;
    let end = start.plus(bytes);
    while at < end {
        let scanned = pagemap.scan(at, end.0 - at.0, query, &mut extents)?;
        for extent in &extents[..scanned.extents] {
            let first_page = (extent.start - start.0 as u64) / PAGE_BYTES as u64;
            found(first_page, extent.pages() as u64);
        }
        at = scanned.resume_at;
    }
    Ok(())
}

/// Pages that mincore(2) is asked about at once.
const PAGES_PER_LOOK: usize = 4096;

/// Readable bytes that this program may not write, while others may: the kernel, when it evicts pages
/// and reads them again, and other processes. Nothing is claimed of them but that they can be read.
#[derive(Clone, Copy)]
pub struct View<'a> {
    start: *const u8,
    bytes: usize,
    mapping: PhantomData<&'a Mapping>,
}

// SAFETY: reading memory that lives for 'a; how others change it does not depend on the thread.
unsafe impl Send for View<'_> {}
// SAFETY: the same.
unsafe impl Sync for View<'_> {}

impl<'a> View<'a> {
    /// A part of a mapping.
    ///
    /// # Panics
    /// If the range leaves the mapping.
    #[must_use]
    pub fn of(mapping: &'a Mapping, offset_bytes: usize, bytes: usize) -> Self {
        let whole = Self { start: mapping.as_ptr(), bytes: mapping.bytes(), mapping: PhantomData };
        whole.part(offset_bytes, bytes)
    }

    /// A part of it.
    ///
    /// # Panics
    /// If it has no such part.
    #[must_use]
    pub fn part(self, offset_bytes: usize, bytes: usize) -> Self {
        let end = offset_bytes.checked_add(bytes);
        assert!(
            end.is_some_and(|end| end <= self.bytes),
            "there are {} bytes, and no {bytes} at {offset_bytes}",
            self.bytes
        );
        Self { start: self.start.wrapping_add(offset_bytes), bytes, mapping: PhantomData }
    }

    /// Copies all of it. A byte that changes meanwhile is either the old or the new one, and stays what
    /// it was found to be. A fault here is as for any other access.
    ///
    /// # Panics
    /// If `into` has another length.
    pub fn copy_to(self, into: &mut [u8]) {
        assert_eq!(into.len(), self.bytes, "all of a view is copied");
        // SAFETY: `start` is readable for so many bytes by what `of` and `part` assert, and `into` is
        // writable for as many and no part of them, being borrowed exclusively.
        unsafe { mapping::copy_changing(self.start, into.as_mut_ptr(), self.bytes) };
    }

    /// A copy of all of it.
    #[must_use]
    pub fn to_vec(self) -> Vec<u8> {
        let mut bytes = vec![0; self.bytes];
        self.copy_to(&mut bytes);
        bytes
    }

    /// One byte. Touches its page whatever the compiler thinks of it.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn byte(self, offset_bytes: usize) -> u8 {
        let byte = self.part(offset_bytes, 1).start;
        // SAFETY: readable, by what `part` asserts.
        unsafe { byte.read_volatile() }
    }

    /// It as a slice.
    ///
    /// # Safety
    /// Nobody may change a byte of it while the slice lives; what its mapping is of says who could.
    #[must_use]
    pub unsafe fn as_slice(self) -> &'a [u8] {
        // SAFETY: readable for 'a, and unchanging by the caller's word.
        unsafe { std::slice::from_raw_parts(self.start, self.bytes) }
    }

    /// Where it begins.
    #[must_use]
    pub const fn as_ptr(self) -> *const u8 {
        self.start
    }

    /// Where it begins.
    #[must_use]
    pub fn address(self) -> HostAddress {
        HostAddress(self.start.addr())
    }

    /// How long it is, in bytes.
    #[must_use]
    pub const fn len(self) -> usize {
        self.bytes
    }

    /// Whether it has no bytes.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.bytes == 0
    }

    /// Calls `found` with each run of its pages that is in memory, in the page tables or not: the first,
    /// counted from its beginning, and how many. Neighbours may come one by one. Costs some nanoseconds a page
    /// (mincore(2)).
    ///
    /// Of a file that this process may not write and does not own, the kernel says that all pages are in
    /// memory.
    ///
    /// # Errors
    /// `EINVAL` if it begins in the middle of a page.
    pub fn runs_cached(self, found: &mut dyn FnMut(usize, usize)) -> io::Result<()> {
        let mut states = [0_u8; PAGES_PER_LOOK];
        let pages = self.bytes.div_ceil(PAGE_BYTES);
        for first in (0..pages).step_by(PAGES_PER_LOOK) {
            let states = &mut states[..PAGES_PER_LOOK.min(pages - first)];
            let start = self.start.wrapping_add(first * PAGE_BYTES);
            let bytes = states.len() * PAGE_BYTES;
            // SAFETY: `states` is writable for a byte a page of the range, which is mapped for 'a.
            let looked =
                unsafe { crate::syscall!(libc::SYS_mincore, start, bytes, states.as_mut_ptr()) };
            if looked < 0 {
                return Err(io::Error::last_os_error());
            }
            let mut at = 0;
            for run in states.chunk_by(|a, b| a & 1 == b & 1) {
                if run[0] & 1 != 0 {
                    found(first + at, run.len());
                }
                at += run.len();
            }
        }
        Ok(())
    }

    /// Touches a byte of each of its pages.
    pub fn touch(self) {
        (0..self.bytes).step_by(PAGE_BYTES).for_each(|at| _ = self.byte(at));
    }
}

impl fmt::Debug for View<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "View({} bytes at {:#x})", self.bytes, self.start.addr())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{cache, memfd};
    use std::fs::OpenOptions;
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;
    use std::time::{Duration, Instant};

    fn mapped_pages(mapped: &MappedFile, pagemap: &Pagemap) -> Vec<u64> {
        let mut found = Vec::new();
        let mut keep = |first: u64, pages: u64| found.extend(first..first + pages);
        mapped.runs_mapped(pagemap, 0, 64 * PAGE_BYTES, &mut keep).unwrap();
        found
    }

    #[test]
    fn a_fault_may_map_what_was_touched_alone() {
        let file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        file.write_all_at(&vec![5; 64 * PAGE_BYTES], 0).unwrap();
        let mapped = MappedFile::map(file.as_fd(), 4 << 20).unwrap();
        let pagemap = Pagemap::of_self().unwrap();
        let singly = mapped.fault_singly().unwrap();
        let touched = [3, 4, 40];
        touched.iter().for_each(|page| _ = mapped.view(page * PAGE_BYTES, 1).byte(0));
        assert_eq!(mapped_pages(&mapped, &pagemap), [3, 4, 40]);
        drop(singly);
        mapped.forget(0, 64 * PAGE_BYTES).unwrap();
        assert_eq!(mapped.view(8 * PAGE_BYTES, 1).byte(0), 5);
        assert!(mapped_pages(&mapped, &pagemap).len() > 1);
    }

    #[test]
    fn a_file_is_seen_and_forgotten_and_seen_again() {
        let file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        file.write_all_at(&vec![5; 64 * PAGE_BYTES], 0).unwrap();
        let mapped = MappedFile::map(file.as_fd(), 4 << 20).unwrap();
        assert!(mapped.address().0.is_multiple_of(2 << 20));
        mapped.advise_random().unwrap();
        let pagemap = Pagemap::of_self().unwrap();
        let pages = || mapped_pages(&mapped, &pagemap).len();
        assert_eq!(pages(), 0);
        mapped.populate(0, 64 * PAGE_BYTES).unwrap();
        assert_eq!(pages(), 64);
        mapped.forget(0, 64 * PAGE_BYTES).unwrap();
        assert_eq!(pages(), 0);
        assert_eq!(mapped.view(PAGE_BYTES - 1, 3).to_vec(), [5; 3]);
        assert!(pages() >= 2);
        // The file may grow into the mapping.
        file.write_all_at(&[9], 3 << 20).unwrap();
        assert_eq!(mapped.view(3 << 20, 1).byte(0), 9);
    }

    #[test]
    fn many_ranges_are_forgotten_and_their_pages_stay_in_memory() {
        const PAGES: usize = 4_100;
        let file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        // Page by page, so that no huge page is forgotten as a whole.
        let write = |page: usize| file.write_all_at(&[5; PAGE_BYTES], (page * PAGE_BYTES) as u64);
        (0..PAGES).for_each(|page| write(page).unwrap());
        let mapped = MappedFile::map(file.as_fd(), PAGES * PAGE_BYTES).unwrap();
        let pagemap = Pagemap::of_self().unwrap();
        mapped.populate(0, PAGES * PAGE_BYTES).unwrap();
        // More than the kernel takes at once, and some of two pages.
        let range = |page: usize| (page * PAGE_BYTES, PAGE_BYTES * (1 + page % 2));
        let forgotten: Vec<_> = (0..PAGES).step_by(3).map(range).collect();
        mapped.forget_all(&forgotten).unwrap();
        let mut left = vec![false; PAGES];
        let mut keep = |first: u64, pages: u64| left[first as usize..][..pages as usize].fill(true);
        mapped.runs_mapped(&pagemap, 0, PAGES * PAGE_BYTES, &mut keep).unwrap();
        let is_forgotten = |page: usize| matches!((page % 3, page % 2), (0, _) | (1, 0));
        assert!((0..PAGES).all(|page| left[page] != is_forgotten(page)));
        let mut cached = 0;
        let view = mapped.view(0, PAGES * PAGE_BYTES);
        view.runs_cached(&mut |_, pages| cached += pages).unwrap();
        assert_eq!(cached, PAGES);
        mapped.forget_all(&[]).unwrap();
    }

    #[test]
    fn runs_in_memory_are_told_wherever_they_begin() {
        let memory = memfd::create("runs", 10_000 * PAGE_BYTES as u64).unwrap();
        for page in [0, 1, 5, 4_095, 4_096, 9_999] {
            memory.write_all_at(&[1], page * PAGE_BYTES as u64).unwrap();
        }
        let mapping = Mapping::shared(memory.as_fd(), 10_000 * PAGE_BYTES, false).unwrap();
        let mut found = Vec::new();
        let view = View::of(&mapping, 0, 10_000 * PAGE_BYTES);
        view.runs_cached(&mut |first, pages| found.extend(first..first + pages)).unwrap();
        assert_eq!(found, [0, 1, 5, 4_095, 4_096, 9_999]);
        assert!(View::of(&mapping, 1, 5).runs_cached(&mut |_, _| ()).is_err());
    }

    #[test]
    fn what_was_copied_does_not_change_any_more() {
        let file = memfd::create("copied", PAGE_BYTES as u64).unwrap();
        let [seen, written] =
            [false, true].map(|writes| Mapping::shared(file.as_fd(), PAGE_BYTES, writes).unwrap());
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                for byte in (0_u8..=255).cycle().take_while(|_| !done.load(Ordering::Relaxed)) {
                    // SAFETY: the page is in the mapping, and nobody has a reference to it.
                    unsafe { written.as_ptr().write_bytes(byte, PAGE_BYTES) };
                }
            });
            for _ in 0..20_000 {
                // Without a barrier the compiler makes one copy of the two, from the mapping, and so
                // what is summed is not what is returned.
                let (mut first, mut second) = ([0; PAGE_BYTES], [0; PAGE_BYTES]);
                View::of(&seen, 0, PAGE_BYTES).copy_to(&mut first);
                let sum = |bytes: &[u8]| bytes.iter().map(|byte| u64::from(*byte)).sum::<u64>();
                let checked = sum(&first);
                second.copy_from_slice(&first);
                if checked != sum(std::hint::black_box(&second)) {
                    done.store(true, Ordering::Relaxed);
                    panic!("what was checked is not what was copied");
                }
            }
            done.store(true, Ordering::Relaxed);
        });
    }

    #[test]
    fn a_page_that_the_kernel_migrates_is_in_the_page_tables() {
        const PAGES: usize = 8192;
        let Ok(compact) = OpenOptions::new().write(true).open("/proc/sys/vm/compact_memory") else {
            bindery_testkit::skipped!(
                "a_page_that_the_kernel_migrates_is_in_the_page_tables: not root"
            );
            return;
        };
        let file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        file.write_all_at(&vec![5; PAGES * PAGE_BYTES], 0).unwrap();
        file.sync_all().unwrap();
        let mapped = MappedFile::map(file.as_fd(), PAGES * PAGE_BYTES).unwrap();
        let pagemap = Pagemap::of_self().unwrap();
        mapped.advise_random().unwrap();
        let count = || {
            let mut found = 0;
            let mut add = |_, pages| found += pages;
            mapped.runs_mapped(&pagemap, 0, PAGES * PAGE_BYTES, &mut add).unwrap();
            found
        };
        let deadline = Instant::now() + Duration::from_secs(2);
        while Instant::now() < deadline {
            // Single pages, elsewhere each time: what was compacted stays where it is.
            mapped.forget(0, PAGES * PAGE_BYTES).unwrap();
            cache::evict(file.as_fd(), 0, (PAGES * PAGE_BYTES) as u64).unwrap();
            let left = cache::cached(file.as_fd(), 0, (PAGES * PAGE_BYTES) as u64).unwrap();
            if left.resident_pages > 0 {
                // Perhaps a large folio that was written: the kernel unmaps those to split them.
                continue;
            }
            mapped.populate(0, PAGES * PAGE_BYTES).unwrap();
            thread::scope(|scope| {
                let compaction = scope.spawn(|| compact.write_all_at(b"1", 0).unwrap());
                while !compaction.is_finished() {
                    assert_eq!(count(), PAGES as u64);
                }
            });
        }
    }

    #[test]
    #[should_panic(expected = "no 2 at 4095")]
    fn what_leaves_a_mapping_is_refused() {
        let mapping = Mapping::anonymous(PAGE_BYTES).unwrap();
        let _ = View::of(&mapping, 4095, 2);
    }
}
