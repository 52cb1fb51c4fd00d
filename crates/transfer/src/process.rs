//! Memory of a guest's process, looked at and read from outside without touching what is absent.

use std::io;

use bindery_guest::{Connection, Guest};
use bindery_sys::maps;
use bindery_sys::pagemap::{EXTENTS_PER_CALL_MAX, Extent, Pagemap, Query, category};
use bindery_sys::process::{MemorySpan, read_memory};
use bindery_units::{HostAddress, PAGE_BYTES, PageIndex, PageRange};

use crate::memory::{BlockPages, MemoryError};
use crate::pieces::Piece;

/// Most bytes of one call of process_vm_readv(2).
const READ_BYTES: usize = 1 << 20;

/// Huge zero pages, which come to absent pages alone. Small ones the kernel maps in place of written zeros as well.
const HUGE_ZEROS: u64 = category::HUGE | category::ZERO;

/// Pages that were written since they were protected and that no scan has protected again.
const WRITTEN: Query = Query {
    require: category::WP_ALLOWED | category::WRITTEN,
    any_of: category::PRESENT | category::SWAPPED,
    invert: 0,
    // Not `WRITTEN` alone: the kernel's short cut for that takes swapped pages for protected ones.
    report: category::WRITTEN | category::PRESENT | HUGE_ZEROS,
    protect: false,
    refuse_unprotectable: false,
};

/// Process of a connected guest.
pub(crate) struct Process<'g> {
    guest: &'g Guest,
    pid: i32,
    pagemap: Pagemap,
}

impl<'g> Process<'g> {
    pub(crate) fn open(guest: &'g Guest) -> Result<Self, MemoryError> {
        let pid = guest.identity().pid;
        let pagemap = Pagemap::of(pid).map_err(failed("opening the page map"))?;
        let process = Self { guest, pid, pagemap };
        // If it lives now, it was its page map that was opened.
        process.check()?;
        Ok(process)
    }

    /// Makes sure that the number is still the process's, and the page map that of its memory.
    fn check(&self) -> Result<(), MemoryError> {
        let is_gone = self.pagemap.is_gone().map_err(failed("reading the page map"))?;
        if is_gone || self.guest.has_ended() { Err(MemoryError::Ended) } else { Ok(()) }
    }

    /// Returns for each piece whether its absent pages are zero, as those of files need not be, after making sure
    /// that pieces are mapped that are not managed. Of managed ones the guest's library knows it; and their
    /// mappings may change while they are looked at.
    pub(crate) fn absent_is_zero(&self, pieces: &[Piece]) -> Result<Vec<bool>, MemoryError> {
        if pieces.iter().all(|piece| piece.managed.is_some()) {
            return Ok(vec![true; pieces.len()]);
        }
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", self.pid));
        let maps = maps.map_err(failed("reading the mappings"))?;
        self.check()?;
        let each = pieces.iter().map(|piece| match piece.managed {
            Some(_) => Ok(true),
            None => is_anonymous(&maps, piece),
        });
        each.collect()
    }

    /// Returns runs of pages with a content, counted from `start`.
    pub(crate) fn content(
        &self,
        start: HostAddress,
        pages: u32,
        runs: &mut Vec<PageRange>,
    ) -> Result<(), MemoryError> {
        self.find(Query::CONTENT, start, pages, runs)
    }

    /// Returns runs of pages that were written and not protected since, counted from `start`.
    pub(crate) fn written(
        &self,
        start: HostAddress,
        pages: u32,
        runs: &mut Vec<PageRange>,
    ) -> Result<(), MemoryError> {
        self.find(WRITTEN, start, pages, runs)
    }

    fn find(
        &self,
        query: Query,
        start: HostAddress,
        pages: u32,
        runs: &mut Vec<PageRange>,
    ) -> Result<(), MemoryError> {
        runs.clear();
        let (mut at, end) = (start, start.plus_pages(pages));
        let mut extents = [Extent::default(); EXTENTS_PER_CALL_MAX];
        while at < end {
            let scanned = self.pagemap.scan(at, end.0 - at.0, query, &mut extents);
            let scanned = scanned.map_err(failed("scanning the page map"))?;
            let is_sought = |extent: &&Extent| extent.categories & HUGE_ZEROS != HUGE_ZEROS;
            for extent in extents[..scanned.extents].iter().filter(is_sought) {
                let first = PageIndex(((extent.start as usize - start.0) / PAGE_BYTES) as u32);
                let run = PageRange::new(first, extent.pages() as u32);
                match runs.last_mut() {
                    Some(last) if last.end() == run.first => last.count += run.count,
                    _ => runs.push(run),
                }
            }
            at = scanned.resume_at;
        }
        if runs.is_empty() { self.check() } else { Ok(()) }
    }

    /// Copies consecutive pages to `into`. Absent ones become zeros and are not touched, unless they may be a
    /// file's.
    pub(crate) fn read(
        &self,
        piece: &Piece,
        absent_is_zero: bool,
        into: &mut [u8],
    ) -> Result<(), MemoryError> {
        let mut runs = vec![PageRange::new(PageIndex(0), piece.of.pages.count)];
        if absent_is_zero {
            self.content(piece.address, piece.of.pages.count, &mut runs)?;
        }
        let mut done = 0;
        for run in runs {
            let (from, bytes) = (run.first.at() * PAGE_BYTES, run.count as usize * PAGE_BYTES);
            into[done..from].fill(0);
            self.read_present(piece, from, &mut into[from..from + bytes])?;
            done = from + bytes;
        }
        into[done..].fill(0);
        self.check()
    }

    /// Copies what is `offset` bytes behind the piece's start.
    fn read_present(
        &self,
        piece: &Piece,
        offset: usize,
        into: &mut [u8],
    ) -> Result<(), MemoryError> {
        let mut done = 0;
        while done < into.len() {
            let bytes = (into.len() - done).min(READ_BYTES);
            let span = MemorySpan { address: piece.address.plus(offset + done), bytes };
            match read_memory(self.pid, &[span], &mut into[done..done + bytes]) {
                Ok(copied) if copied > 0 => done += copied,
                Err(error) if error.raw_os_error() == Some(EFAULT) => {
                    self.check()?;
                    let BlockPages { block, pages } = piece.of;
                    let page = pages.first.plus(((offset + done) / PAGE_BYTES) as u32);
                    return Err(MemoryError::Unreadable { block, page, error });
                }
                Err(error) => {
                    self.check()?;
                    return Err(failed("reading the memory")(error));
                }
                Ok(_) => {
                    let error = io::ErrorKind::UnexpectedEof.into();
                    return Err(failed("reading the memory")(error));
                }
            }
        }
        Ok(())
    }
}

/// Returns true if all of a piece is private memory of no file.
fn is_anonymous(maps: &str, piece: &Piece) -> Result<bool, MemoryError> {
    let bytes = piece.of.pages.count as usize * PAGE_BYTES;
    let areas = maps::areas_in(maps, piece.address, piece.address.plus(bytes));
    let mapped: usize = areas.iter().map(|area| area.end.0 - area.start.0).sum();
    if mapped < bytes {
        return Err(MemoryError::Unmapped { address: piece.address, bytes });
    }
    Ok(areas.iter().all(|area| area.inode == 0 && !area.is_shared()))
}

/// Number of the error for an address that cannot be read, errno(3).
const EFAULT: i32 = 14;

fn failed(doing: &'static str) -> impl Fn(io::Error) -> MemoryError {
    move |error| match error.raw_os_error() {
        // ESRCH, ENOENT: there is no such process.
        Some(3 | 2) => MemoryError::Ended,
        _ => MemoryError::Process { doing, error },
    }
}
