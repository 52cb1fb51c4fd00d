//! userfaultfd: faults of a process's own memory, served by the process itself.
//!
//! Only what Bindery needs, including `UFFDIO_MOVE` (Linux 6.8) and `WP_ASYNC` (6.7), which no
//! maintained binding has. See userfaultfd(2), ioctl_userfaultfd(2) and the kernel's
//! `include/uapi/linux/userfaultfd.h`.
//!
//! Every operation on a range is `unsafe`: it changes what memory holds behind the back of whoever
//! uses it. The caller must own the range's content, in the sense of its own protocol.

use std::{
    fs::OpenOptions,
    io,
    mem::MaybeUninit,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
};

use bindery_units::HostAddress;

mod peer;

pub use peer::{PeerEvent, PeerUserfault};

/// Capabilities asked for when a context is opened, `UFFD_FEATURE_*`.
pub mod feature {
    /// Faults on write-protected pages are reported.
    pub const PAGEFAULT_FLAG_WP: u64 = 1 << 0;
    /// Pages that are discarded are reported before they are gone.
    pub const EVENT_REMOVE: u64 = 1 << 3;
    /// Faults on absent pages of files in memory are reported.
    pub const MISSING_SHMEM: u64 = 1 << 5;
    /// Who touches an absent page gets `SIGBUS` instead of waiting, and a system call gets `EFAULT`.
    pub const SIGBUS: u64 = 1 << 7;
    /// Write protection on mappings of files in memory.
    pub const WP_HUGETLBFS_SHMEM: u64 = 1 << 12;
    /// `UFFDIO_POISON` (Linux 6.6).
    pub const POISON: u64 = 1 << 14;
    /// Write protection holds for anonymous pages that are not populated yet.
    pub const WP_UNPOPULATED: u64 = 1 << 13;
    /// Faults on write-protected pages are resolved by the kernel, which remembers them.
    pub const WP_ASYNC: u64 = 1 << 15;
    /// `UFFDIO_MOVE`.
    pub const MOVE: u64 = 1 << 16;

    /// Features of a context for a guest's anonymous memory: writes are tracked by the kernel, and pages
    /// are moved away.
    pub const GUEST_MEMORY: u64 = PAGEFAULT_FLAG_WP | WP_UNPOPULATED | WP_ASYNC | MOVE;

    /// Features of a context for huge pages: writers wait, and nothing is split.
    pub const WHOLE_BLOCKS: u64 = PAGEFAULT_FLAG_WP;

    /// Features of a context for mappings of a canonical store: writers wait.
    pub const STORE_MAPPINGS: u64 = PAGEFAULT_FLAG_WP | WP_HUGETLBFS_SHMEM;
}

/// What a registered range reports, `UFFDIO_REGISTER_MODE_*`.
pub mod mode {
    /// Faults on absent pages.
    pub const MISSING: u64 = 1;
    /// Writes to write-protected pages.
    pub const WP: u64 = 2;
}

const API: u64 = 0xAA;
const EVENT_PAGEFAULT: u8 = 0x12;
const PAGEFAULT_WRITE: u64 = 1;
const PAGEFAULT_WP: u64 = 2;

#[repr(C)]
struct ApiArg {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
struct RangeArg {
    start: u64,
    len: u64,
}

#[repr(C)]
struct RegisterArg {
    range: RangeArg,
    mode: u64,
    ioctls: u64,
}

#[repr(C)]
struct TransferArg {
    destination: u64,
    source: u64,
    len: u64,
    mode: u64,
    done: i64,
}

#[repr(C)]
struct ZeroArg {
    range: RangeArg,
    mode: u64,
    done: i64,
}

#[repr(C)]
struct ProtectArg {
    range: RangeArg,
    mode: u64,
}

/// `struct uffd_msg`, for page faults.
#[repr(C)]
#[derive(Clone, Copy)]
struct Message {
    event: u8,
    reserved: [u8; 7],
    flags: u64,
    address: u64,
    thread: u64,
}

const fn request(direction: u32, number: u32, size: usize) -> libc::c_ulong {
    ((direction << 30) | ((size as u32) << 16) | (0xAA << 8) | number) as libc::c_ulong
}

const READ: u32 = 2;
const READ_WRITE: u32 = 3;
const IOC_NEW: libc::c_ulong = request(0, 0x00, 0);
const IOC_API: libc::c_ulong = request(READ_WRITE, 0x3F, size_of::<ApiArg>());
const IOC_REGISTER: libc::c_ulong = request(READ_WRITE, 0x00, size_of::<RegisterArg>());
const IOC_UNREGISTER: libc::c_ulong = request(READ, 0x01, size_of::<RangeArg>());
const IOC_WAKE: libc::c_ulong = request(READ, 0x02, size_of::<RangeArg>());
const IOC_COPY: libc::c_ulong = request(READ_WRITE, 0x03, size_of::<TransferArg>());
const IOC_ZEROPAGE: libc::c_ulong = request(READ_WRITE, 0x04, size_of::<ZeroArg>());
const IOC_MOVE: libc::c_ulong = request(READ_WRITE, 0x05, size_of::<TransferArg>());
const IOC_WRITEPROTECT: libc::c_ulong = request(READ_WRITE, 0x06, size_of::<ProtectArg>());
const IOC_POISON: libc::c_ulong = request(READ_WRITE, 0x08, size_of::<ZeroArg>());

// The numbers that strace shows for these calls.
const _: () = {
    assert!(IOC_API == 0xc018_aa3f && IOC_REGISTER == 0xc020_aa00);
    assert!(IOC_UNREGISTER == 0x8010_aa01 && IOC_WAKE == 0x8010_aa02);
    assert!(IOC_COPY == 0xc028_aa03 && IOC_ZEROPAGE == 0xc020_aa04);
    assert!(IOC_MOVE == 0xc028_aa05 && IOC_WRITEPROTECT == 0xc018_aa06);
    assert!(IOC_POISON == 0xc020_aa08);
    assert!(size_of::<Message>() == 32);
};

/// A fault that some thread waits in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fault {
    /// The address touched, rounded down to its page.
    pub address: HostAddress,
    /// Whether it was a write.
    pub write: bool,
    /// Whether the page is present and write-protected (otherwise it is absent).
    pub protected: bool,
}

/// How far a transfer got before the kernel stopped it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stopped {
    /// Bytes done. May be short of the truth: see [`Userfault::move_pages`].
    pub done: usize,
    /// The error number, as in errno(3).
    pub errno: i32,
}

/// A userfaultfd context of this process.
#[derive(Debug)]
pub struct Userfault(OwnedFd);

impl Userfault {
    /// Opens a context with `features`, which must all be there. [`read`](Self::read) waits until there is
    /// a fault.
    ///
    /// Takes `/dev/userfaultfd` where the system call is refused (`vm.unprivileged_userfaultfd=0`
    /// and no `CAP_SYS_PTRACE`).
    ///
    /// # Errors
    /// `EPERM` or `EACCES`: neither way is permitted. `EINVAL`: the kernel lacks a feature.
    /// `ENOSYS`, `ENOENT`: it has no userfaultfd.
    pub fn open(features: u64) -> io::Result<Self> {
        Self(open_context()?).begin(features)
    }

    /// Opens a context for faults of the program itself, not for those of the kernel on its behalf
    /// (`UFFD_USER_MODE_ONLY`, Linux 5.11): that needs no permission, and is all that
    /// [`feature::SIGBUS`] can do.
    ///
    /// # Errors
    /// As [`open`](Self::open), but for `EPERM`.
    pub fn open_for_user_mode(features: u64) -> io::Result<Self> {
        const USER_MODE_ONLY: i32 = 1;
        let flags = libc::O_CLOEXEC | USER_MODE_ONLY;
        // SAFETY: the system call takes flags only.
        let descriptor = unsafe { crate::syscall!(libc::SYS_userfaultfd, flags) };
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just opened and nobody else has it.
        Self(unsafe { OwnedFd::from_raw_fd(descriptor as i32) }).begin(features)
    }

    fn begin(self, features: u64) -> io::Result<Self> {
        let mut argument = ApiArg { api: API, features, ioctls: 0 };
        // SAFETY: the descriptor is a userfaultfd and the argument is the structure it expects.
        unsafe { self.call(IOC_API, &raw mut argument)? };
        Ok(self)
    }

    /// Registers a range for the faults in `modes` ([`mode`]).
    ///
    /// # Safety
    /// From now on threads that touch absent or protected pages of the range wait: somebody must
    /// serve them.
    ///
    /// # Errors
    /// `EBUSY`: another context has it. `EINVAL`: not mapped, or mapped in a way that cannot be
    /// registered. `ENOMEM`: out of memory or mappings.
    pub unsafe fn register(&self, start: HostAddress, bytes: usize, modes: u64) -> io::Result<()> {
        let mut argument = RegisterArg { range: range(start, bytes), mode: modes, ioctls: 0 };
        // SAFETY: the structure is the one that the request expects.
        unsafe { self.call(IOC_REGISTER, &raw mut argument) }
    }

    /// Ends the registration of a range and wakes who waits in it.
    ///
    /// # Safety
    /// Absent pages of the range read as zeros from now on: none may be held elsewhere.
    ///
    /// # Errors
    /// As the kernel says; `EINVAL` if the range is not mapped.
    pub unsafe fn unregister(&self, start: HostAddress, bytes: usize) -> io::Result<()> {
        let mut argument = range(start, bytes);
        // SAFETY: the structure is the one that the request expects.
        unsafe { self.call(IOC_UNREGISTER, &raw mut argument) }
    }

    /// Wakes every thread that waits for a page of the range: it tries again.
    ///
    /// # Errors
    /// `EINVAL` for a range that is empty or not page-aligned.
    pub fn wake(&self, start: HostAddress, bytes: usize) -> io::Result<()> {
        let mut argument = range(start, bytes);
        // SAFETY: the structure is the one that the request expects; waking changes no memory.
        unsafe { self.call(IOC_WAKE, &raw mut argument) }
    }

    /// Maps the kernel's zero page at each page of the range and wakes.
    ///
    /// # Safety
    /// Absent pages of the range must be zero as far as their owner knows.
    ///
    /// # Errors
    /// [`Stopped`] at the first page that could not be done: `EEXIST` if there is one already,
    /// `ENOENT` if the range leaves a registered mapping, `EAGAIN` if the mappings are changing.
    pub unsafe fn zero(&self, start: HostAddress, bytes: usize, wake: bool) -> Result<(), Stopped> {
        let mut argument = ZeroArg { range: range(start, bytes), mode: u64::from(!wake), done: 0 };
        // SAFETY: the structure is the one that the request expects.
        let result = unsafe { self.call(IOC_ZEROPAGE, &raw mut argument) };
        stopped(result, argument.done)
    }

    /// Marks absent pages as lost and wakes: whoever touches them from now on gets `SIGBUS`, and a system call
    /// `EFAULT` or `EHWPOISON`, until they are discarded.
    ///
    /// # Safety
    /// The range must be the caller's to change.
    ///
    /// # Errors
    /// As for [`zero`](Self::zero).
    pub unsafe fn poison(&self, start: HostAddress, bytes: usize) -> Result<(), Stopped> {
        let mut argument = ZeroArg { range: range(start, bytes), mode: 0, done: 0 };
        // SAFETY: the structure is the one that the request expects.
        let result = unsafe { self.call(IOC_POISON, &raw mut argument) };
        stopped(result, argument.done)
    }

    /// Lets [`read`](Self::read) return at once where there is no fault, with `WouldBlock`, and poll(2) work: for
    /// who waits for more than faults.
    ///
    /// # Errors
    /// As fcntl(2).
    pub fn set_nonblocking(&self) -> io::Result<()> {
        Ok(rustix::fs::fcntl_setfl(&self.0, rustix::fs::OFlags::NONBLOCK)?)
    }

    /// Fills absent pages from `source` and wakes.
    ///
    /// # Safety
    /// `source` must be readable for `bytes`, and be what the range's owner expects there.
    ///
    /// # Errors
    /// As for [`zero`](Self::zero).
    pub unsafe fn copy(
        &self,
        destination: HostAddress,
        source: HostAddress,
        bytes: usize,
    ) -> Result<(), Stopped> {
        let mut argument = transfer(destination, source, bytes, 0);
        // SAFETY: the structure is the one that the request expects.
        let result = unsafe { self.call(IOC_COPY, &raw mut argument) };
        stopped(result, argument.done)
    }

    /// Moves pages from `source` to absent pages at `destination`, without copying and without
    /// waking: what was there is absent afterwards.
    ///
    /// The count in [`Stopped`] cannot be trusted: Linux 6.18 does not count a page whose move
    /// succeeded on an internal retry, and then reports `EEXIST` for it. Ask the two ranges
    /// ([`pagemap`](crate::pagemap)) what really moved.
    ///
    /// # Safety
    /// Both ranges must be the caller's to change; a thread that touches the source afterwards
    /// waits until it is woken.
    ///
    /// # Errors
    /// `EBUSY`: pinned, shared by fork or merged by KSM. `EINVAL`: a range leaves its mapping, or
    /// only one of the two is locked. `EAGAIN`: try again from where it stopped. `ENOENT`: the
    /// source is absent. `EEXIST`: see above.
    pub unsafe fn move_pages(
        &self,
        destination: HostAddress,
        source: HostAddress,
        bytes: usize,
    ) -> Result<(), Stopped> {
        const DONT_WAKE: u64 = 1;
        let mut argument = transfer(destination, source, bytes, DONT_WAKE);
        // SAFETY: the structure is the one that the request expects.
        let result = unsafe { self.call(IOC_MOVE, &raw mut argument) };
        stopped(result, argument.done)
    }

    /// Write-protects a range, or ends its protection and wakes who waits to write.
    ///
    /// # Errors
    /// `ENOENT` if the range is not registered for it, `EAGAIN` if the mappings are changing.
    pub fn write_protect(&self, start: HostAddress, bytes: usize, protect: bool) -> io::Result<()> {
        let mut argument = ProtectArg { range: range(start, bytes), mode: u64::from(protect) };
        // SAFETY: the structure is the one that the request expects; protection delays writes and
        // changes no content.
        unsafe { self.call(IOC_WRITEPROTECT, &raw mut argument) }
    }

    /// Waits for faults, for as long as there are none, and reads as many into `faults` as there are and
    /// fit. Other events count as none. Allocates nothing. Waiting here, and not in poll(2) before it,
    /// saves a system call between a fault and its handler.
    ///
    /// # Errors
    /// As read(2).
    pub fn read<'a>(&self, faults: &'a mut [Fault; Self::READ_MAX]) -> io::Result<&'a [Fault]> {
        let mut messages = [MaybeUninit::<Message>::uninit(); Self::READ_MAX];
        // SAFETY: the buffer is writable for its size; the kernel writes whole messages.
        let bytes = unsafe {
            libc::read(self.0.as_raw_fd(), messages.as_mut_ptr().cast(), size_of_val(&messages))
        };
        if bytes < 0 {
            return Err(io::Error::last_os_error());
        }
        let mut count = 0;
        for message in &messages[..bytes as usize / size_of::<Message>()] {
            // SAFETY: the kernel filled so many messages; any bit pattern is a message.
            let message = unsafe { message.assume_init() };
            if message.event == EVENT_PAGEFAULT {
                faults[count] = Fault {
                    address: HostAddress(message.address as usize & !0xfff),
                    write: message.flags & PAGEFAULT_WRITE != 0,
                    protected: message.flags & PAGEFAULT_WP != 0,
                };
                count += 1;
            }
        }
        Ok(&faults[..count])
    }

    /// The most faults that one [`read`](Self::read) returns.
    pub const READ_MAX: usize = 16;

    /// # Safety
    /// `argument` must be the structure that `request` expects, and the operation allowed.
    unsafe fn call<T>(&self, request: libc::c_ulong, argument: *mut T) -> io::Result<()> {
        // A raw call: a preload library in this process may interpose `ioctl`, to see who else
        // registers ranges.
        // SAFETY: the descriptor is a userfaultfd; the rest is the caller's contract.
        match unsafe { crate::syscall!(libc::SYS_ioctl, self.0.as_raw_fd(), request, argument) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl AsFd for Userfault {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn open_context() -> io::Result<OwnedFd> {
    let flags = libc::O_CLOEXEC;
    // SAFETY: the system call takes flags only.
    let descriptor = unsafe { crate::syscall!(libc::SYS_userfaultfd, flags) };
    if descriptor >= 0 {
        // SAFETY: the descriptor was just opened and nobody else has it.
        return Ok(unsafe { OwnedFd::from_raw_fd(descriptor as i32) });
    }
    let refused = io::Error::last_os_error();
    if refused.raw_os_error() != Some(libc::EPERM) {
        return Err(refused);
    }
    let device = match OpenOptions::new().read(true).write(true).open("/dev/userfaultfd") {
        // There is no other way, so it is the first one that is to be told of.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(refused),
        opened => opened?,
    };
    // SAFETY: the request takes the flags of the new descriptor.
    let descriptor =
        unsafe { crate::syscall!(libc::SYS_ioctl, device.as_raw_fd(), IOC_NEW, flags) };
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: as above.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor as i32) })
}

fn range(start: HostAddress, bytes: usize) -> RangeArg {
    RangeArg { start: start.0 as u64, len: bytes as u64 }
}

fn transfer(destination: HostAddress, source: HostAddress, bytes: usize, mode: u64) -> TransferArg {
    TransferArg {
        destination: destination.0 as u64,
        source: source.0 as u64,
        len: bytes as u64,
        mode,
        done: 0,
    }
}

/// The kernel leaves the count of bytes done, or a negative error number, in the argument.
fn stopped(result: io::Result<()>, done: i64) -> Result<(), Stopped> {
    result.map_err(|error| Stopped {
        done: usize::try_from(done).unwrap_or(0),
        errno: error.raw_os_error().unwrap_or(libc::EIO),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mapping::Mapping;
    use bindery_units::PAGE_BYTES;
    use std::sync::mpsc;
    use std::time::Duration;

    #[test]
    fn a_read_waits_until_there_is_a_fault() {
        let faults = match Userfault::open_for_user_mode(0) {
            Ok(faults) => faults,
            Err(error) => return bindery_testkit::skipped!("userfaultfd: {error}"),
        };
        let memory = Mapping::anonymous(PAGE_BYTES).unwrap();
        let start = memory.address();
        // SAFETY: the memory is this test's, and the thread below serves its one fault.
        unsafe { faults.register(start, PAGE_BYTES, mode::MISSING) }.unwrap();
        let (say, hear) = mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut buffer = [Fault::default(); Userfault::READ_MAX];
                let read = faults.read(&mut buffer).map(<[Fault]>::to_vec);
                // SAFETY: the page is absent, and its owner knows that it is zero.
                let filled = unsafe { faults.zero(start, PAGE_BYTES, true) };
                say.send((read.unwrap(), filled)).unwrap();
            });
            let early = hear.recv_timeout(Duration::from_millis(200));
            assert!(early.is_err(), "it returned without a fault: {early:?}");
            // SAFETY: the page is in the mapping.
            assert_eq!(unsafe { memory.as_ptr().read_volatile() }, 0);
            let fault = Fault { address: start, write: false, protected: false };
            assert_eq!(hear.recv().unwrap(), (vec![fault], Ok(())));
        });
    }
}
