//! Processes: which of their pages may be read, and reading them.
//!
//! Nothing is faulted in: pages that are not present are never touched, for a read of a hole would
//! put a zero page there, and wait where a userfaultfd serves the hole. (A page that is discarded
//! between the look and the read is the one exception, and then reads as zeros.)
//!
//! Only private anonymous mappings are read, and what was written of a store's: what merging is about. Where the kernel shows frame
//! numbers (to root), the frame's flags tell which pages KSM or the zero page share already;
//! elsewhere `PAGEMAP_SCAN` tells the zero page, and KSM's pages are counted as if they were not.

use std::fs;
use std::io;

use bindery_host::printable;
use bindery_sys::pagemap::{Extent, Pagemap, Query, category};
use bindery_sys::process::{FrameTable, MemorySpan, PageEntry, PageTable, read_memory};
use bindery_units::{HostAddress, PAGE_BYTES};
use bindery_wire::control::is_store;

use super::{BATCH_PAGES, CHUNK_PAGES, Chunk, Findings};
use crate::exit::{Failure, Reason};

/// A process that is looked at.
pub(super) struct ProcessMemory {
    pid: i32,
    command: String,
    uid: u32,
    /// When it started, in clock ticks since boot: tells it from a successor with its number.
    started: u64,
    maps: Maps,
    table: PageTable,
    known: Sharing,
}

/// What the kernel lets us know of pages that are shared already.
enum Sharing {
    /// All: flags of frames.
    Frames(FrameTable),
    /// The zero page.
    ZeroPage(Pagemap),
    /// Nothing.
    Unknown,
}

/// What `/proc/PID/maps` says.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Maps {
    /// Readable private anonymous mappings: start and length in bytes.
    pub(super) anonymous: Vec<(u64, u64)>,
    /// Private mappings of a bindery store: start and length in bytes. Their pages are merged already,
    /// but for those that were written.
    pub(super) store: Vec<(u64, u64)>,
    /// Shared memory (memfd, /dev/shm), in bytes: not read.
    pub(super) shared_memory_bytes: u64,
}

impl ProcessMemory {
    /// Opens the process `pid`.
    pub(super) fn open(pid: i32) -> Result<Self, Failure> {
        let fail = |error: io::Error| of_process(pid, &error);
        let started = start_time(pid).map_err(fail)?;
        let table = PageTable::open(pid).map_err(fail)?;
        let maps = Maps::parse(&fs::read_to_string(format!("/proc/{pid}/maps")).map_err(fail)?);
        let command = fs::read_to_string(format!("/proc/{pid}/comm")).map_err(fail)?;
        let uid = fs::metadata(format!("/proc/{pid}")).map_err(fail)?;
        let uid = std::os::unix::fs::MetadataExt::uid(&uid);
        let known = Sharing::of(pid, &table, &maps);
        Ok(Self { pid, command: printable(command.trim()), uid, started, maps, table, known })
    }

    pub(super) fn pid(&self) -> i32 {
        self.pid
    }

    /// Its command, as `ps` shows it.
    pub(super) fn command(&self) -> &str {
        &self.command
    }

    /// Whose it is.
    pub(super) fn uid(&self) -> u32 {
        self.uid
    }

    /// Its mappings when it was opened.
    pub(super) fn maps(&self) -> &Maps {
        &self.maps
    }

    /// Pages of it that KSM shares, if they are counted all the same.
    pub(super) fn uncounted_ksm_pages(&self) -> u64 {
        match self.known {
            Sharing::Frames(_) => 0,
            _ => ksm_merging_pages(self.pid),
        }
    }

    pub(super) fn ranges(&self) -> Vec<(u64, u64)> {
        [&self.maps.anonymous[..], &self.maps.store].concat()
    }

    /// Fails if the process has ended: then what was read is a part of it at best.
    pub(super) fn check_alive(&self) -> Result<(), Failure> {
        match start_time(self.pid) {
            Ok(started) if started == self.started => Ok(()),
            _ => Err(of_process(self.pid, &io::ErrorKind::NotFound.into())),
        }
    }

    /// Reads and digests the pages of a chunk that are there and not shared yet.
    pub(super) fn examine(&self, chunk: Chunk, findings: &mut Findings<'_>) -> Result<(), Failure> {
        let first = HostAddress(chunk.start as usize);
        let mut entries = [PageEntry::default(); CHUNK_PAGES];
        let entries = &mut entries[..chunk.pages];
        let filled = self.table.read(first, entries);
        let filled = filled.map_err(|error| of_process(self.pid, &error))?;
        if filled == 0 {
            return self.check_alive();
        }
        let zero = self.zero_pages(first, chunk.pages);
        let mut wanted = Vec::with_capacity(chunk.pages);
        let counts = findings.counts(chunk.input);
        let is_of_store = self.maps.is_of_store(chunk.start);
        for (at, entry) in entries[..filled].iter().enumerate() {
            if entry.is_swapped() {
                counts.swapped_pages += 1;
                continue;
            }
            // A page of a store is shared whether it was read here or not.
            let is_unread = is_of_store && !entry.is_present();
            if !entry.is_present() && !is_unread {
                continue;
            }
            counts.pages += 1;
            if entry.is_file() || is_unread {
                // Nothing else that is scanned has a file, unless it was merged since.
                counts.store_pages += 1;
                continue;
            }
            let flags = self.known.flags(*entry);
            if zero[at] || flags.is_zero_page() {
                counts.zero_page_mapped_pages += 1;
            } else if flags.is_ksm() {
                counts.ksm_pages += 1;
            } else {
                wanted.push(first.plus(at * PAGE_BYTES));
            }
        }
        self.read(&wanted, chunk.input, findings)
    }

    /// Reads pages, in batches; passes over those that went away meanwhile.
    fn read(
        &self,
        wanted: &[HostAddress],
        input: u32,
        findings: &mut Findings<'_>,
    ) -> Result<(), Failure> {
        let mut rest = wanted;
        while !rest.is_empty() {
            let batch = &rest[..BATCH_PAGES.min(rest.len())];
            let read = match read_memory(self.pid, &spans(batch), &mut findings.bytes) {
                Ok(bytes) => bytes / PAGE_BYTES,
                Err(error) if is_unmapped(&error) => 0,
                Err(error) => return Err(of_process(self.pid, &error)),
            };
            findings.take_in(input, read);
            let vanished = usize::from(read < batch.len());
            let counts = findings.counts(input);
            counts.vanished_pages += vanished as u64;
            counts.pages -= vanished as u64;
            rest = &rest[read + vanished..];
        }
        Ok(())
    }

    /// Which of `pages` pages are the kernel's zero page, where that is known this way.
    fn zero_pages(&self, first: HostAddress, pages: usize) -> [bool; CHUNK_PAGES] {
        let mut zero = [false; CHUNK_PAGES];
        let Sharing::ZeroPage(pagemap) = &self.known else { return zero };
        let query = Query { require: category::ZERO, report: category::ZERO, ..Query::default() };
        let mut extents = [Extent::default(); CHUNK_PAGES / 2];
        let (mut at, end) = (first, first.plus(pages * PAGE_BYTES));
        // An error means that the range is gone: then nothing of it will be read either.
        while let Ok(scanned) = pagemap.scan(at, end.0 - at.0, query, &mut extents) {
            for extent in &extents[..scanned.extents] {
                let offset = (extent.start as usize - first.0) / PAGE_BYTES;
                zero[offset..offset + extent.pages()].fill(true);
            }
            if scanned.resume_at >= end {
                break;
            }
            at = scanned.resume_at;
        }
        zero
    }
}

impl Sharing {
    /// The best that can be had for this process.
    fn of(pid: i32, table: &PageTable, maps: &Maps) -> Self {
        if let Ok(frames) = FrameTable::open()
            && shows_frames(table, maps)
        {
            return Self::Frames(frames);
        }
        let Ok(pagemap) = Pagemap::of(pid) else { return Self::Unknown };
        let start = maps.anonymous.first().map_or(0, |(start, _)| *start as usize);
        // Before Linux 6.7 the kernel does not know the request.
        match pagemap.scan(
            HostAddress(start),
            PAGE_BYTES,
            Query::default(),
            &mut [Extent::default()],
        ) {
            Ok(_) => Self::ZeroPage(pagemap),
            Err(_) => Self::Unknown,
        }
    }

    fn flags(&self, entry: PageEntry) -> bindery_sys::process::FrameFlags {
        match (self, entry.frame()) {
            // A frame that is gone again has no flags: the page is then read, or found vanished.
            (Self::Frames(frames), Some(frame)) => frames.flags(frame).unwrap_or_default(),
            _ => bindery_sys::process::FrameFlags::default(),
        }
    }
}

/// Whether the kernel shows us the frames of this process: some present page has one.
fn shows_frames(table: &PageTable, maps: &Maps) -> bool {
    let mut entries = [PageEntry::default(); 64];
    maps.anonymous.iter().take(64).any(|(start, bytes)| {
        let pages = entries.len().min((bytes / PAGE_BYTES as u64) as usize);
        let read = table.read(HostAddress(*start as usize), &mut entries[..pages]);
        read.is_ok_and(|filled| entries[..filled].iter().any(|entry| entry.frame().is_some()))
    })
}

/// Neighbours joined.
fn spans(pages: &[HostAddress]) -> Vec<MemorySpan> {
    let mut spans: Vec<MemorySpan> = Vec::with_capacity(pages.len());
    for &address in pages {
        match spans.last_mut() {
            Some(last) if last.address.plus(last.bytes) == address => last.bytes += PAGE_BYTES,
            _ => spans.push(MemorySpan { address, bytes: PAGE_BYTES }),
        }
    }
    spans
}

impl Maps {
    /// Reads the lines of `/proc/PID/maps` (proc_pid_maps(5)); passes over what it does not know.
    fn parse(text: &str) -> Self {
        let mut maps = Self::default();
        for line in text.lines() {
            let mut fields = line.split_ascii_whitespace();
            let (Some(range), Some(permissions)) = (fields.next(), fields.next()) else { continue };
            let Some((start, end)) = parse_range(range) else { continue };
            let inode = fields.nth(2).unwrap_or("0");
            let name = fields.next().unwrap_or_default();
            let private = permissions.ends_with('p');
            if is_store(name) {
                // The shim's own view of the whole store is a shared mapping.
                maps.store.extend(private.then_some((start, end - start)));
            } else if !private && (name.starts_with("/memfd:") || name.starts_with("/dev/shm/")) {
                maps.shared_memory_bytes += end - start;
            } else if private && inode == "0" && permissions.starts_with('r') && is_memory(name) {
                maps.anonymous.push((start, end - start));
            }
        }
        maps
    }
}

impl Maps {
    /// Returns true if the byte at an address is in a mapping of a store.
    fn is_of_store(&self, address: u64) -> bool {
        let behind = self.store.partition_point(|(start, _)| *start <= address);
        self.store[..behind].last().is_some_and(|(start, bytes)| address < start + bytes)
    }
}

/// Whether a mapping without a file is memory, and not the kernel's own (`[vdso]`, `[vvar]`, …).
fn is_memory(name: &str) -> bool {
    matches!(name, "" | "[heap]" | "[stack]") || name.starts_with("[anon:")
}

fn parse_range(range: &str) -> Option<(u64, u64)> {
    let (start, end) = range.split_once('-')?;
    let range = (u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?);
    (range.0 < range.1).then_some(range)
}

/// Field 22 of `/proc/PID/stat` (proc_pid_stat(5)). The command, field 2, may hold anything.
fn start_time(pid: i32) -> io::Result<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let after_command = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let field = after_command.split_ascii_whitespace().nth(19);
    field.and_then(|text| text.parse().ok()).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

fn ksm_merging_pages(pid: i32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/ksm_stat")).unwrap_or_default();
    let line = stat.lines().find_map(|line| line.strip_prefix("ksm_merging_pages "));
    line.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
}

fn is_unmapped(error: &io::Error) -> bool {
    /// `EFAULT`.
    const BAD_ADDRESS: i32 = 14;
    error.raw_os_error() == Some(BAD_ADDRESS)
}

fn of_process(pid: i32, error: &io::Error) -> Failure {
    /// `ESRCH`.
    const NO_SUCH_PROCESS: i32 = 3;
    if error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(NO_SUCH_PROCESS) {
        return Failure::new(
            Reason::NotFound,
            format!("there is no process {pid} (any more); a file of that name is ./{pid}"),
        );
    }
    if error.kind() == io::ErrorKind::PermissionDenied || error.raw_os_error() == Some(1) {
        let message = format!(
            "process {pid} is not yours to read: run as its user or as root (and see \
             kernel.yama.ptrace_scope)"
        );
        return Failure::new(Reason::Refused, message);
    }
    Failure::of_io(format_args!("cannot read process {pid}"), error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_anonymous_mappings_are_told_from_all_others() {
        let maps = Maps::parse(
            "55d0c0a00000-55d0c0a21000 r-xp 00002000 fe:00 1234   /usr/bin/qemu (deleted)\n\
             55d0c1000000-55d0c1021000 rw-p 00000000 00:00 0      [heap]\n\
             7f0000000000-7f0040000000 rw-p 00000000 00:00 0 \n\
             7f0050000000-7f0050001000 ---p 00000000 00:00 0 \n\
             7f0060000000-7f0060002000 rw-p 00000000 00:00 0      [anon:guest ram]\n\
             7f0070000000-7f0070003000 r--p 00005000 00:01 77     /memfd:bindery-store (deleted)\n\
             7f0074000000-7f0074002000 r--p 00005000 00:2f 2      /bindery-store (deleted)\n\
             7f0078000000-7f4078000000 r--s 00000000 00:01 77     /memfd:bindery-store (deleted)\n\
             7f4080000000-7f8080000000 r--s 00000000 00:2f 2      /bindery-store (deleted)\n\
             7f0080000000-7f0080004000 rw-s 00000000 00:01 78     /memfd:memory-backend-memfd (deleted)\n\
             7f0090000000-7f0090004000 rw-s 00000000 00:01 79     /dev/zero (deleted)\n\
             7ffd00000000-7ffd00004000 r--p 00000000 00:00 0      [vvar]\n\
             7ffd00004000-7ffd00006000 r-xp 00000000 00:00 0      [vdso]\n\
             nonsense\n",
        );
        assert_eq!(
            maps,
            Maps {
                anonymous: vec![
                    (0x55d0_c100_0000, 0x21000),
                    (0x7f00_0000_0000, 0x4000_0000),
                    (0x7f00_6000_0000, 0x2000),
                ],
                store: vec![(0x7f00_7000_0000, 0x3000), (0x7f00_7400_0000, 0x2000)],
                shared_memory_bytes: 0x4000,
            }
        );
    }

    #[test]
    fn neighbours_are_read_together() {
        let page = |at: usize| HostAddress(at * PAGE_BYTES);
        let span = |at, pages| MemorySpan { address: page(at), bytes: pages * PAGE_BYTES };
        let joined = spans(&[page(3), page(4), page(5), page(9), page(11)]);
        assert_eq!(joined, [span(3, 3), span(9, 1), span(11, 1)]);
    }

    #[test]
    fn a_process_is_told_from_its_successor() {
        let own = std::process::id().cast_signed();
        assert_eq!(start_time(own).unwrap(), start_time(own).unwrap());
        assert!(start_time(own).unwrap() >= start_time(1).unwrap());
        assert_eq!(start_time(i32::MAX).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
