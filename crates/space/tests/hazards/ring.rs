//! As much of io_uring as it takes to have the kernel pin a page and write to it (io_uring(7)).

use std::{
    io,
    os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd},
    sync::atomic::{AtomicU32, Ordering},
};

use bindery_units::HostAddress;

const ENTRIES: u32 = 4;
/// `IORING_OFF_SQES`.
const OFFSET_OF_ENTRIES: i64 = 0x1000_0000;
const ENTER_GETEVENTS: u32 = 1;
const REGISTER_BUFFERS: u32 = 0;
const OP_READ_FIXED: u8 = 4;
const RING_BYTES: usize = 4096;

/// Words of `struct io_uring_params` that say where things are.
const SUBMIT_TAIL: usize = 11;
const SUBMIT_MASK: usize = 12;
const SUBMIT_ARRAY: usize = 16;
const COMPLETE_HEAD: usize = 20;
const COMPLETE_MASK: usize = 22;
const COMPLETE_ENTRIES: usize = 25;

pub(crate) struct Ring {
    file: OwnedFd,
    parameters: [u32; 30],
    rings: *mut u8,
    entries: *mut u8,
}

impl Ring {
    pub(crate) fn new() -> io::Result<Self> {
        let mut parameters = [0u32; 30];
        // SAFETY: the structure has 120 bytes.
        let file =
            unsafe { libc::syscall(libc::SYS_io_uring_setup, ENTRIES, parameters.as_mut_ptr()) };
        if file < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: just opened, nobody else has it.
        let file = unsafe { OwnedFd::from_raw_fd(file as i32) };
        let map = |offset| {
            let (protection, flags) =
                (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_POPULATE);
            // SAFETY: a new mapping where the kernel likes. It stays until the process ends.
            let mapped = unsafe {
                libc::mmap(
                    std::ptr::null_mut(),
                    RING_BYTES,
                    protection,
                    flags,
                    file.as_raw_fd(),
                    offset,
                )
            };
            assert_ne!(mapped, libc::MAP_FAILED, "a ring can be mapped");
            mapped.cast::<u8>()
        };
        let (rings, entries) = (map(0), map(OFFSET_OF_ENTRIES));
        Ok(Self { file, parameters, rings, entries })
    }

    /// Pins a range for as long as the ring is open.
    pub(crate) fn register(&self, start: HostAddress, bytes: usize) -> io::Result<()> {
        let buffer = libc::iovec { iov_base: start.0 as *mut _, iov_len: bytes };
        // SAFETY: one vector, which the kernel reads.
        let result = unsafe {
            libc::syscall(
                libc::SYS_io_uring_register,
                self.file.as_raw_fd(),
                REGISTER_BUFFERS,
                &raw const buffer,
                1,
            )
        };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    fn word(&self, parameter: usize) -> &AtomicU32 {
        // SAFETY: the kernel says where the word is in the rings, which stay mapped.
        unsafe { &*self.rings.add(self.parameters[parameter] as usize).cast::<AtomicU32>() }
    }

    /// Reads into the pinned range, through the pin. How many bytes, or a negative errno.
    pub(crate) fn read_fixed(&self, from: impl AsFd, to: HostAddress, bytes: usize) -> i32 {
        let tail = self.word(SUBMIT_TAIL).load(Ordering::Acquire);
        let slot = tail & self.word(SUBMIT_MASK).load(Ordering::Relaxed);
        let mut entry = [0u64; 8];
        entry[0] = u64::from(OP_READ_FIXED) | (from.as_fd().as_raw_fd() as u64) << 32;
        entry[1] = u64::MAX;
        entry[2] = to.0 as u64;
        entry[3] = bytes as u64;
        // SAFETY: entries of 64 bytes and an array of words, each with a place for the slot.
        unsafe {
            self.entries.cast::<[u64; 8]>().add(slot as usize).write_volatile(entry);
            let array = self.rings.add(self.parameters[SUBMIT_ARRAY] as usize).cast::<u32>();
            array.add(slot as usize).write_volatile(slot);
        }
        self.word(SUBMIT_TAIL).store(tail + 1, Ordering::Release);
        // SAFETY: one entry was prepared, and is waited for.
        let entered = unsafe {
            libc::syscall(
                libc::SYS_io_uring_enter,
                self.file.as_raw_fd(),
                1,
                1,
                ENTER_GETEVENTS,
                std::ptr::null::<u8>(),
                0,
            )
        };
        assert_eq!(entered, 1, "{}", io::Error::last_os_error());
        let head = self.word(COMPLETE_HEAD).load(Ordering::Acquire);
        let slot = head & self.word(COMPLETE_MASK).load(Ordering::Relaxed);
        // SAFETY: completions of 16 bytes: user data, result, flags.
        let result = unsafe {
            let first = self.rings.add(self.parameters[COMPLETE_ENTRIES] as usize);
            first.add(slot as usize * 16 + 8).cast::<i32>().read_volatile()
        };
        self.word(COMPLETE_HEAD).store(head + 1, Ordering::Release);
        result
    }
}
