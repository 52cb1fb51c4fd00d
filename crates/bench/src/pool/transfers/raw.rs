//! The rival: a file opened with O_DIRECT, and io_uring, with nothing in between.

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use bindery_sys::direct::Buffer;
use io_uring::{IoUring, opcode, squeue, types};

use super::contender::{Contender, folded, pattern};
use super::{READ_BYTES, WRITE_BYTES};

pub(super) struct Raw {
    ring: IoUring,
    file: File,
    bytes: u64,
    depth: usize,
    pattern: Buffer,
    read: Vec<Buffer>,
}

impl Raw {
    pub(super) fn create(path: &Path, bytes: u64, depth: usize) -> Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .custom_flags(libc::O_DIRECT)
            .open(path)
            .context("the bare file has no direct I/O")?;
        file.set_len(bytes)?;
        let ring = IoUring::new(depth as u32).context("io_uring is refused")?;
        let read = (0..depth).map(|_| Buffer::zeroed(READ_BYTES)).collect();
        Ok(Self { ring, file, bytes, depth, pattern: pattern(WRITE_BYTES), read })
    }

    /// Has `depth` of so many operations under way until all are done. `entry` makes one, of an
    /// operation in a slot; `done` hears of a slot whose operation is done.
    ///
    /// # Safety
    /// The memory of an operation stays, and is used for nothing else until the operation is done.
    unsafe fn run(
        &mut self,
        operations: usize,
        bytes: usize,
        mut entry: impl FnMut(&mut Self, usize, usize) -> squeue::Entry,
        mut done: impl FnMut(&mut Self, usize),
    ) -> Result<()> {
        let mut free: Vec<usize> = (0..self.depth).collect();
        let (mut begun, mut ended) = (0, 0);
        while ended < operations {
            while begun < operations
                && let Some(slot) = free.pop()
            {
                let entry = entry(self, begun, slot).user_data(slot as u64);
                // SAFETY: the caller keeps the memory, and `self` the file.
                unsafe { self.ring.submission().push(&entry) }.expect("as many slots as entries");
                begun += 1;
            }
            self.ring.submit_and_wait(1).expect("memory is with the kernel");
            loop {
                let Some(completion) = self.ring.completion().next() else { break };
                assert_eq!(completion.result(), bytes as i32, "memory is with the kernel");
                let slot = completion.user_data() as usize;
                done(self, slot);
                free.push(slot);
                ended += 1;
            }
        }
        Ok(())
    }
}

impl Contender for Raw {
    fn name(&self) -> String {
        format!("bare file, {} at once", self.depth)
    }

    fn empty(&mut self) -> Result<()> {
        self.file.set_len(0)?;
        self.file.set_len(self.bytes)?;
        Ok(self.file.sync_data()?)
    }

    fn write(&mut self) -> Result<()> {
        ensure!(self.bytes.is_multiple_of(WRITE_BYTES as u64), "writes are whole");
        let operations = self.bytes as usize / WRITE_BYTES;
        let entry = |raw: &mut Self, at: usize, _: usize| {
            opcode::Write::new(
                types::Fd(raw.file.as_raw_fd()),
                raw.pattern.as_ptr(),
                WRITE_BYTES as u32,
            )
            .offset((at * WRITE_BYTES) as u64)
            .build()
        };
        // SAFETY: the pattern is written to by nobody, and ends with `self`.
        unsafe { self.run(operations, WRITE_BYTES, entry, |_, _| ()) }?;
        Ok(self.file.sync_data()?)
    }

    fn read(&mut self, offsets: &[u64]) -> Result<u64> {
        let mut check = 0u64;
        let entry = |raw: &mut Self, at: usize, slot: usize| {
            let into = raw.read[slot].as_mut_ptr();
            opcode::Read::new(types::Fd(raw.file.as_raw_fd()), into, READ_BYTES as u32)
                .offset(offsets[at])
                .build()
        };
        let done =
            |raw: &mut Self, slot: usize| check = check.wrapping_add(folded(&raw.read[slot]));
        // SAFETY: each slot has a buffer of its own, which ends with `self`, and is looked at only when
        // its read is done.
        unsafe { self.run(offsets.len(), READ_BYTES, entry, done) }?;
        Ok(check)
    }
}
