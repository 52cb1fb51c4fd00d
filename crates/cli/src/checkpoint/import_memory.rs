//! `bindery checkpoint import-memory`: a snapshot of a Firecracker becomes a checkpoint.
//!
//! The files are read here, by the rights of whoever asks, and sent to the daemon as a stream as `export` writes one.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use bindery_checkpoint::{CheckpointError, Description, MemoryBlock, StreamWriter, Vmm};
use bindery_host::protocol::Request;
use bindery_page::is_zero;
use bindery_sys::socket;
use bindery_units::{PAGE_BYTES, PageIndex};
use bindery_vmm::firecracker::{DEVICE_STATE, KIND, MEMORY_BLOCK};
use bindery_wire::control::PAGES_MAX;
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

use super::args::ImportMemoryArgs;
use super::transfer::{STREAM_PATIENCE, send_in};
use crate::args::Global;
use crate::exit::{Failure, Reason};

/// Bytes that are read at once: whole pages.
const PIECE_BYTES: usize = 1 << 20;

/// Longest state that is taken: a description has to fit in 64 MiB.
const STATE_BYTES_MAX: u64 = 48 << 20;

const PAGE: u64 = PAGE_BYTES as u64;

/// Memory file of a snapshot.
struct MemoryFile {
    file: File,
    bytes: u64,
    /// True if what is a hole counts as unchanged, not as zeros.
    is_diff: bool,
}

pub(super) fn run(global: &Global, arguments: &ImportMemoryArgs) -> Result<(), Failure> {
    let ImportMemoryArgs { memory, state, guest, name, on, domain, pool } = arguments;
    let (state, time_ns) = read_state(state)?;
    let memory_file = MemoryFile::open(memory, on.is_some())?;
    let description = Description {
        // What it is to be called goes with the request.
        guest: "guest".parse().expect("a word is a name"),
        name: "name".parse().expect("a word is a name"),
        domain: "domain".parse().expect("a word is a name"),
        time_ns,
        vmm: Vmm { kind: KIND.into(), device_state: DEVICE_STATE.into(), ..Vmm::default() },
        blocks: vec![MemoryBlock { name: MEMORY_BLOCK.into(), bytes: memory_file.bytes }],
        disks: Vec::new(),
        device_state: state,
    };
    let request = Request::CheckpointImport {
        pool: pool.paths()?,
        guest: Some(guest.clone()),
        name: Some(name.clone()),
        domain: domain.clone(),
        key: None,
        bytes: memory_file.allocated(),
        base: on.clone(),
    };
    send_in(global, &request, memory, move |socket| memory_file.send(&description, socket))
}

/// Reads the state file, and when it was written.
fn read_state(path: &Path) -> Result<(Vec<u8>, u64), Failure> {
    let cannot = |error| Failure::of_io(format_args!("cannot read {}", path.display()), &error);
    let found = fs::metadata(path).map_err(cannot)?;
    if !found.is_file() || !(1..=STATE_BYTES_MAX).contains(&found.len()) {
        let message = format!(
            "{} is no file of a microVM's state, which has 1 byte to 48 MiB: name the file of snapshot_path with \
             --state, and that of mem_file_path before it",
            path.display()
        );
        return Err(Failure::new(Reason::BadInput, message));
    }
    let written = found.modified().unwrap_or_else(|_| SystemTime::now());
    let time_ns = written.duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64);
    Ok((fs::read(path).map_err(cannot)?, time_ns))
}

impl MemoryFile {
    fn open(path: &Path, is_diff: bool) -> Result<Self, Failure> {
        let cannot = |error| Failure::of_io(format_args!("cannot read {}", path.display()), &error);
        let file = File::open(path).map_err(cannot)?;
        let found = file.metadata().map_err(cannot)?;
        let bytes = found.len();
        let is_possible = found.is_file()
            && bytes > 0
            && bytes.is_multiple_of(PAGE)
            && bytes / PAGE < u64::from(PAGES_MAX);
        if !is_possible {
            let message = format!(
                "{} is no memory of a microVM: a file of 1 page of 4096 bytes to 4 TiB, whole pages",
                path.display()
            );
            return Err(Failure::new(Reason::BadInput, message));
        }
        if is_diff && found.blksize() > PAGE {
            let message = format!(
                "{} is on a file system with blocks of {} bytes, where unchanged pages of a diff snapshot cannot be \
                 told from zeros: have Firecracker write it where blocks have 4096 bytes",
                path.display(),
                found.blksize()
            );
            return Err(Failure::new(Reason::Unsupported, message));
        }
        Ok(Self { file, bytes, is_diff })
    }

    /// Returns about how many bytes are sent.
    fn allocated(&self) -> Option<u64> {
        let found = self.file.metadata().ok()?;
        Some((found.blocks() * 512).min(self.bytes))
    }

    /// Sends the snapshot. The daemon's going away is no error here: its job says why.
    fn send(&self, description: &Description, socket: &OwnedFd) -> io::Result<()> {
        let mut sink = BufWriter::with_capacity(PIECE_BYTES, Sink(socket));
        match self.stream(description, &mut sink) {
            Ok(()) | Err(CheckpointError::Export(_)) => Ok(()),
            Err(CheckpointError::Memory(error)) => Err(error),
            Err(error) => Err(io::Error::other(error)),
        }
    }

    fn stream(
        &self,
        description: &Description,
        sink: &mut dyn Write,
    ) -> Result<(), CheckpointError> {
        let mut stream = StreamWriter::begin(sink, description, None)?.uncompressed();
        let mut piece = vec![0; PIECE_BYTES];
        let mut at = 0;
        while let Some((start, end)) = self.extent(at).map_err(CheckpointError::Memory)? {
            at = start;
            while at < end {
                let length = (end - at).min(PIECE_BYTES as u64) as usize;
                let piece = &mut piece[..length];
                self.file.read_exact_at(piece, at).map_err(CheckpointError::Memory)?;
                self.put(&mut stream, at, piece)?;
                at += length as u64;
            }
        }
        stream.end().map(drop)
    }

    fn put(
        &self,
        stream: &mut StreamWriter<'_>,
        at: u64,
        piece: &[u8],
    ) -> Result<(), CheckpointError> {
        let page = |at: u64| PageIndex((at / PAGE) as u32);
        if self.is_diff {
            return stream.put(0, page(at), piece);
        }
        let (pages, _) = piece.as_chunks::<PAGE_BYTES>();
        let mut done = 0;
        for run in pages.chunk_by(|one, next| is_zero(one) == is_zero(next)) {
            if !is_zero(&run[0]) {
                stream.put(0, page(at + done), run.as_flattened())?;
            }
            done += (run.len() * PAGE_BYTES) as u64;
        }
        Ok(())
    }

    /// Returns the next stretch from a page on that is no hole, whole pages.
    fn extent(&self, from: u64) -> io::Result<Option<(u64, u64)>> {
        if from >= self.bytes {
            return Ok(None);
        }
        let start = match seek(self.file.as_fd(), SeekFrom::Data(from)) {
            Ok(start) => start - start % PAGE,
            Err(Errno::NXIO) => return Ok(None),
            // The file system knows no holes.
            Err(Errno::INVAL) => return Ok(Some((from, self.bytes))),
            Err(error) => return Err(error.into()),
        };
        let end = seek(self.file.as_fd(), SeekFrom::Hole(start.max(from)))?;
        Ok(Some((start.max(from), end.next_multiple_of(PAGE).min(self.bytes))))
    }
}

/// Socket that a stream is written to.
struct Sink<'a>(&'a OwnedFd);

impl Write for Sink<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        socket::send_all(self.0, bytes, &[], STREAM_PATIENCE).map(|()| bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
