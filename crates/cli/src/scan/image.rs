//! Memory images: files that are pages, one after the other. Holes read as zeros, and are not read.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use bindery_units::PAGE_BYTES;
use rustix::fs::{OFlags, SeekFrom, seek};
use rustix::io::Errno;

use super::tally::Counts;
use super::{BATCH_PAGES, Chunk, Findings};
use crate::exit::{Failure, Reason};

/// An open image.
pub(super) struct Image {
    path: PathBuf,
    file: File,
    bytes: u64,
    /// Where pages are that are not all in holes: start and length in bytes, ascending.
    data: Vec<(u64, u64)>,
}

impl Image {
    /// Opens the file at `path`.
    pub(super) fn open(path: &Path) -> Result<Self, Failure> {
        let of_io = |error| Failure::of_io(format_args!("cannot open {}", path.display()), &error);
        let bad = |what: &str| Failure::new(Reason::BadInput, format!("{} {what}", path.display()));
        let irregular = || bad("is not a regular file; a memory image is, or name a process id");
        // A FIFO would have it wait for a writer; a terminal would become this process's own.
        let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed();
        let opened = File::options().read(true).custom_flags(flags).open(path);
        let file = opened.map_err(|error| match Errno::from_io_error(&error) {
            // A socket.
            Some(Errno::NXIO) => irregular(),
            _ => of_io(error),
        })?;
        let metadata = file.metadata().map_err(of_io)?;
        if !metadata.is_file() {
            return Err(irregular());
        }
        let bytes = metadata.len();
        if !bytes.is_multiple_of(PAGE_BYTES as u64) {
            return Err(bad(&format!(
                "has {bytes} bytes, which is not a multiple of the page size {PAGE_BYTES}: is it a \
                 raw memory image, and complete?"
            )));
        }
        let data = data(&file, bytes).map_err(of_io)?;
        Ok(Self { path: path.into(), file, bytes, data })
    }

    /// Its path.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Where there may be something else than zeros.
    pub(super) fn data(&self) -> &[(u64, u64)] {
        &self.data
    }

    /// Bytes of its pages that are all hole.
    pub(super) fn hole_bytes(&self) -> u64 {
        self.bytes - self.data.iter().map(|(_, bytes)| bytes).sum::<u64>()
    }

    /// Counts an image's holes as the pages of zeros that they read as.
    pub(super) fn holes(&self) -> Counts {
        let pages = self.hole_bytes() / PAGE_BYTES as u64;
        Counts { pages, zero_pages: pages, ..Counts::default() }
    }

    /// Reads and digests the pages of a chunk.
    pub(super) fn examine(&self, chunk: Chunk, findings: &mut Findings<'_>) -> Result<(), Failure> {
        for first in (0..chunk.pages).step_by(BATCH_PAGES) {
            let pages = BATCH_PAGES.min(chunk.pages - first);
            let at = chunk.start + (first * PAGE_BYTES) as u64;
            let read = self.file.read_exact_at(&mut findings.bytes[..pages * PAGE_BYTES], at);
            read.map_err(|error| {
                Failure::of_io(format_args!("cannot read {}", self.path.display()), &error)
            })?;
            findings.counts(chunk.input).pages += pages as u64;
            findings.take_in(chunk.input, pages);
        }
        Ok(())
    }
}

/// The parts of a file of `bytes` bytes that are not holes (lseek(2), `SEEK_DATA`), rounded out to whole
/// pages. All of it where the file system does not tell.
fn data(file: &File, bytes: u64) -> io::Result<Vec<(u64, u64)>> {
    let page = PAGE_BYTES as u64;
    let mut parts: Vec<(u64, u64)> = Vec::new();
    let mut at = 0;
    while at < bytes {
        let start = match seek(file, SeekFrom::Data(at)) {
            Ok(start) if start < bytes => start,
            Ok(_) | Err(Errno::NXIO) => break,
            Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(vec![(0, bytes)]),
            Err(error) => return Err(error.into()),
        };
        let end = seek(file, SeekFrom::Hole(start))?.min(bytes);
        let (first, end) = (start / page * page, end.next_multiple_of(page));
        match parts.last_mut() {
            Some((start, bytes)) if *start + *bytes >= first => *bytes = end - *start,
            _ => parts.push((first, end - first)),
        }
        at = end;
    }
    Ok(parts)
}
