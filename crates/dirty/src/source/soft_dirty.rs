//! Soft-dirty bits (Documentation/admin-guide/mm/soft-dirty.rst): bit 55 of `/proc/PID/pagemap`,
//! cleared for the whole process by writing 4 to `/proc/PID/clear_refs`.
//!
//! Where the kernel is built without `CONFIG_MEM_SOFT_DIRTY`, that write succeeds and the bit is
//! never set: pages that are written look clean for ever. So a page of our own is asked first.
//!
//! Reading and clearing are two steps. Writers must stand still in between, or what they write is
//! lost; and clearing takes the bits from everybody else who reads them. It is the last resort,
//! for kernels that have nothing better.
//!
//! More than what was written may be reported: a huge page has one bit, and all pages of a mapping that is
//! new, grew, or was joined with a new neighbour count as written, so that memory that was mapped anew is
//! not missed.

use std::{fs::File, io, os::unix::fs::FileExt};

use bindery_sys::mapping::Mapping;
use bindery_units::{PAGE_BYTES, PAGE_SHIFT, PageIndex};

use super::{Abilities, Collected, Region, Source, SourceError};
use crate::marks::Marks;

const WAY: &str = "soft-dirty tracking";

/// Words of the page map that are read at once.
const CHUNK_PAGES: usize = 512;

/// The pages of some regions of this process that have their soft-dirty bit set.
#[derive(Debug)]
pub struct SoftDirty {
    files: Files,
    regions: Vec<Region>,
}

#[derive(Debug)]
struct Files {
    pagemap: File,
    clear_refs: File,
}

impl Files {
    fn open() -> io::Result<Self> {
        Ok(Self {
            pagemap: File::open("/proc/self/pagemap")?,
            clear_refs: File::options().write(true).open("/proc/self/clear_refs")?,
        })
    }

    fn clear(&self) -> io::Result<()> {
        self.clear_refs.write_all_at(b"4", 0)
    }

    /// What the page map says of pages from an address on.
    fn read<'a>(&self, address: usize, bytes: &'a mut [u8]) -> io::Result<&'a [[u8; 8]]> {
        self.pagemap.read_exact_at(bytes, (address >> PAGE_SHIFT) as u64 * 8)?;
        Ok(bytes.as_chunks().0)
    }
}

/// Whether a page of the page map has its soft-dirty bit set.
const fn is_soft_dirty(entry: [u8; 8]) -> bool {
    u64::from_ne_bytes(entry) & 1 << 55 != 0
}

/// Whether the kernel sets soft-dirty bits and clears them, by trying it on a page of our own. Clears
/// the bits of the whole process.
///
/// # Errors
/// [`SourceError::Unsupported`] if it does not; [`SourceError::Kernel`] if it cannot be tried.
pub fn probe_soft_dirty() -> Result<(), SourceError> {
    let failed = |error| SourceError::kernel("a trial", WAY, error);
    let files = Files::open().map_err(failed)?;
    let page = Mapping::anonymous(PAGE_BYTES).map_err(failed)?;
    // SAFETY: the page is ours alone. Volatile: for the fault.
    let write = |byte| unsafe { page.as_ptr().write_volatile(byte) };
    let is_dirty =
        || -> io::Result<bool> { Ok(is_soft_dirty(files.read(page.address().0, &mut [0; 8])?[0])) };
    let tries = || -> io::Result<[bool; 3]> {
        write(1);
        let written = is_dirty()?;
        files.clear()?;
        let cleared = !is_dirty()?;
        write(2);
        Ok([written, cleared, is_dirty()?])
    };
    match tries().map_err(failed)? {
        [true, true, true] => Ok(()),
        [written, cleared, again] => {
            let why = format!(
                "the bit of a page was {} after a write, {} after clearing, {} after a second write: \
                 this kernel has no CONFIG_MEM_SOFT_DIRTY (clearing succeeds all the same)",
                if written { "set" } else { "not set" },
                if cleared { "clear" } else { "still set" },
                if again { "set" } else { "not set" },
            );
            Err(SourceError::Unsupported { way: WAY, why })
        }
    }
}

impl SoftDirty {
    /// Reads the bits of `regions`, and clears those of the whole process: writers must stand still.
    ///
    /// # Errors
    /// As [`probe_soft_dirty`].
    pub fn of_self(regions: Vec<Region>) -> Result<Self, SourceError> {
        probe_soft_dirty()?;
        let files = Files::open().map_err(|error| SourceError::kernel("open", WAY, error))?;
        Ok(Self { files, regions })
    }

    fn read(&self, region: Region, marks: &dyn Marks) -> io::Result<u64> {
        let mut bytes = [0; CHUNK_PAGES * 8];
        let mut pages = 0;
        for piece in region.pages.pieces(CHUNK_PAGES as u32) {
            let offset = (piece.first.0 - region.pages.first.0) as usize * PAGE_BYTES;
            let bytes = &mut bytes[..piece.count as usize * 8];
            let entries = self.files.read(region.start.plus(offset).0, bytes)?;
            pages += mark_dirty(piece.first, entries, marks);
        }
        Ok(pages)
    }
}

fn mark_dirty(first: PageIndex, entries: &[[u8; 8]], marks: &dyn Marks) -> u64 {
    let mut pages = 0;
    for (entry, page) in entries.iter().zip(first.0..) {
        if is_soft_dirty(*entry) {
            marks.mark(PageIndex(page));
            pages += 1;
        }
    }
    pages
}

impl Source for SoftDirty {
    /// About 10 ns for each page of the regions, and clearing takes about as long for all pages of
    /// the process.
    fn collect(&mut self, marks: &dyn Marks) -> Result<Collected, SourceError> {
        let mut collected = Collected::default();
        for region in &self.regions {
            collected.pages += self.read(*region, marks).map_err(|error| {
                let what = format!("memory at {}", region.start);
                SourceError::kernel("a read of /proc/self/pagemap", what, error)
            })?;
        }
        // Last: an error before it leaves all bits for the next collection.
        self.files.clear().map_err(|error| SourceError::kernel("clear_refs", WAY, error))?;
        Ok(collected)
    }

    fn abilities(&self) -> Abilities {
        Abilities {
            vcpu_writes: true,
            process_writes: true,
            first_has_more: true,
            beside_writers: false,
        }
    }
}
