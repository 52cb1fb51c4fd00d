//! A page that the kernel has pinned for io_uring, and may write to through the pin.

use std::{
    io,
    os::fd::{AsFd, AsRawFd},
};

use bindery_units::HostAddress;
use io_uring::{IoUring, opcode, types};

pub(crate) struct Ring(IoUring);

impl Ring {
    pub(crate) fn new() -> io::Result<Self> {
        IoUring::new(4).map(Self)
    }

    /// Pins a range for as long as the ring is open.
    pub(crate) fn register(&self, start: HostAddress, bytes: usize) -> io::Result<()> {
        let buffer = libc::iovec { iov_base: start.0 as *mut _, iov_len: bytes };
        // SAFETY: the tests that pin memory keep it mapped for longer than the ring is open.
        unsafe { self.0.submitter().register_buffers(&[buffer]) }
    }

    /// Reads into the pinned range, through the pin. How many bytes, or a negative errno.
    pub(crate) fn read_fixed(&mut self, from: impl AsFd, to: HostAddress, bytes: u32) -> i32 {
        let from = types::Fd(from.as_fd().as_raw_fd());
        let read = opcode::ReadFixed::new(from, to.0 as *mut u8, bytes, 0).offset(u64::MAX).build();
        // SAFETY: the descriptor is open and the memory mapped until the answer is there.
        unsafe { self.0.submission().push(&read) }.expect("room for one");
        self.0.submit_and_wait(1).expect("one was submitted");
        self.0.completion().next().expect("one was waited for").result()
    }
}
