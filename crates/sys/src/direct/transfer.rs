//! One read or write of whole blocks, gone on with until all of it is done.

use std::io;
use std::marker::PhantomData;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use rustix::io::{Errno, pread, pwrite};

use super::ALIGNMENT;

/// A read into memory, or a write from it, and how far it has come. It borrows the memory for as long
/// as it lives.
#[derive(Debug)]
pub struct Transfer<'a> {
    offset_bytes: u64,
    start: NonNull<u8>,
    bytes: usize,
    done_bytes: usize,
    is_write: bool,
    memory: PhantomData<&'a mut [u8]>,
}

// SAFETY: a transfer is a borrow of plain bytes, exclusive if it reads and shared if it writes; either
// may go to another thread.
unsafe impl Send for Transfer<'_> {}

impl<'a> Transfer<'a> {
    /// Fills `into` from `offset_bytes` of a file on.
    #[must_use]
    pub fn read(offset_bytes: u64, into: &'a mut [u8]) -> Self {
        let bytes = into.len();
        Self::new(offset_bytes, NonNull::from(into).cast(), bytes, false)
    }

    /// Writes `from` at `offset_bytes` of a file.
    #[must_use]
    pub fn write(offset_bytes: u64, from: &'a [u8]) -> Self {
        Self::new(offset_bytes, NonNull::from(from).cast(), from.len(), true)
    }

    fn new(offset_bytes: u64, start: NonNull<u8>, bytes: usize, is_write: bool) -> Self {
        Self { offset_bytes, start, bytes, done_bytes: 0, is_write, memory: PhantomData }
    }

    /// Whether it writes.
    #[must_use]
    pub fn is_write(&self) -> bool {
        self.is_write
    }

    /// Where in the file it goes on: all before has been read or written.
    #[must_use]
    pub fn offset_bytes(&self) -> u64 {
        self.offset_bytes + self.done_bytes as u64
    }

    /// What is left.
    #[must_use]
    pub fn left_bytes(&self) -> usize {
        self.bytes - self.done_bytes
    }

    /// The memory of what is left. It is borrowed by this value, and read only where it is a write.
    pub(crate) fn left_start(&self) -> NonNull<u8> {
        // SAFETY: needs a place within the memory or at its end: `done_bytes` never exceeds `bytes`.
        unsafe { self.start.add(self.done_bytes) }
    }

    /// Does what is left of it on this thread.
    ///
    /// # Errors
    /// As pread(2) and pwrite(2); `UnexpectedEof` and `WriteZero` where the file ends early.
    pub fn run(&mut self, file: BorrowedFd<'_>) -> io::Result<()> {
        while self.left_bytes() > 0 {
            let (start, bytes) = (self.left_start().as_ptr(), self.left_bytes());
            let outcome = if self.is_write {
                // SAFETY: needs initialised bytes that nobody changes: the caller's slice, which is
                // borrowed by this value.
                let from = unsafe { std::slice::from_raw_parts(start, bytes) };
                pwrite(file, from, self.offset_bytes())
            } else {
                // SAFETY: as above, and nobody else reaches them: the slice is borrowed exclusively.
                let into = unsafe { std::slice::from_raw_parts_mut(start, bytes) };
                pread(file, into, self.offset_bytes())
            };
            self.advance(outcome)?;
        }
        Ok(())
    }

    /// Notes what a system call has done of what was left. What was not done is to be tried again.
    ///
    /// Only whole blocks count: O_DIRECT cannot go on inside one. A call that did none, not even part
    /// of a file's last one after others, met the end.
    pub(crate) fn advance(&mut self, outcome: Result<usize, Errno>) -> io::Result<()> {
        let bytes = match outcome {
            Ok(bytes) => bytes,
            Err(Errno::INTR | Errno::AGAIN) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        assert!(bytes <= self.left_bytes(), "the kernel did more than it was asked for");
        if bytes == self.left_bytes() {
            self.done_bytes = self.bytes;
            return Ok(());
        }
        let whole_bytes = bytes - bytes % ALIGNMENT;
        if whole_bytes == 0 {
            let end =
                if self.is_write { io::ErrorKind::WriteZero } else { io::ErrorKind::UnexpectedEof };
            return Err(end.into());
        }
        self.done_bytes += whole_bytes;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::fd::AsFd;

    #[test]
    fn short_calls_are_gone_on_with_from_a_whole_block() {
        let mut memory = vec![0; 4 * ALIGNMENT];
        let mut transfer = Transfer::read(ALIGNMENT as u64, &mut memory);
        transfer.advance(Ok(2 * ALIGNMENT + 512)).unwrap();
        assert_eq!(transfer.offset_bytes(), 3 * ALIGNMENT as u64);
        transfer.advance(Err(Errno::INTR)).unwrap();
        assert_eq!(transfer.left_bytes(), 2 * ALIGNMENT);
        let end = transfer.advance(Ok(512)).unwrap_err();
        assert_eq!(end.kind(), io::ErrorKind::UnexpectedEof);
        transfer.advance(Ok(2 * ALIGNMENT)).unwrap();
        assert_eq!(transfer.left_bytes(), 0);
    }

    #[test]
    fn a_file_that_ends_inside_a_block_ends_there() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&vec![7; ALIGNMENT + 100]).unwrap();
        let mut memory = vec![0; 2 * ALIGNMENT];
        let mut transfer = Transfer::read(0, &mut memory);
        assert_eq!(transfer.run(file.as_fd()).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        assert_eq!(transfer.offset_bytes(), ALIGNMENT as u64);
        assert_eq!(memory[ALIGNMENT - 1], 7);
    }

    #[test]
    fn what_is_written_is_read() {
        let file = tempfile::tempfile().unwrap();
        let written: Vec<u8> = (0..3 * ALIGNMENT).map(|at| at as u8).collect();
        Transfer::write(4096, &written).run(file.as_fd()).unwrap();
        let mut read = vec![0; written.len()];
        Transfer::read(4096, &mut read).run(file.as_fd()).unwrap();
        assert_eq!(read, written);
    }
}
