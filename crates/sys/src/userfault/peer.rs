//! The userfaultfd of another process, received over a socket: its faults are served here.
//!
//! The memory is the other process's. Nothing here changes memory that this process has, unless somebody sends it a
//! context of its own; that is outside of what Rust vouches for, as a write to `/proc/self/mem` is. So all calls are
//! safe.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use bindery_units::HostAddress;

use super::{EVENT_PAGEFAULT, Message, Stopped, Userfault};

const EVENT_FORK: u8 = 0x13;
const EVENT_REMAP: u8 = 0x14;
const EVENT_REMOVE: u8 = 0x15;
const EVENT_UNMAP: u8 = 0x16;

/// Most events of one [`PeerUserfault::read`].
const READ_MAX: usize = 32;

/// Name that the kernel gives a userfaultfd in `/proc/PID/fd`.
const NAME: &str = "anon_inode:[userfaultfd]";

/// Something that happened to the memory of another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerEvent {
    /// A thread waits for the absent page at this address, rounded down to 4 KiB.
    Fault(u64),
    /// Pages from the first address up to the second were discarded or unmapped, or are about to be.
    Removed(u64, u64),
    /// The process moved memory (mremap), which nobody here follows.
    Moved,
    /// The process forked, and nobody serves the child.
    Forked,
}

/// A userfaultfd of another process.
#[derive(Debug)]
pub struct PeerUserfault(Userfault);

impl PeerUserfault {
    /// Takes a descriptor that was received. [`read`](Self::read) never waits from now on, for the other process
    /// neither. `None` if it is another kind of descriptor.
    ///
    /// # Errors
    /// The kernel's; `NotFound` without `/proc`.
    pub fn new(descriptor: OwnedFd) -> io::Result<Option<Self>> {
        // What is asked of it below would mean something else to another kind.
        let name = std::fs::read_link(format!("/proc/self/fd/{}", descriptor.as_raw_fd()))?;
        if name.as_os_str() != NAME {
            return Ok(None);
        }
        let context = Userfault(descriptor);
        context.set_nonblocking()?;
        Ok(Some(Self(context)))
    }

    /// Reads some of the events that there are, and adds them to `events`. Returns false if there was none. A
    /// discarding thread goes on once its event is read, and no page can be filled until then.
    ///
    /// # Errors
    /// As read(2).
    pub fn read(&self, events: &mut Vec<PeerEvent>) -> io::Result<bool> {
        let mut messages = [MaybeUninit::<Message>::uninit(); READ_MAX];
        // SAFETY: the buffer is writable for its size; the kernel writes whole messages.
        let bytes = unsafe {
            libc::read(self.0.0.as_raw_fd(), messages.as_mut_ptr().cast(), size_of_val(&messages))
        };
        if bytes < 0 {
            let error = io::Error::last_os_error();
            let is_none =
                matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted);
            return if is_none { Ok(false) } else { Err(error) };
        }
        let count = bytes as usize / size_of::<Message>();
        for message in &messages[..count] {
            // SAFETY: the kernel filled so many messages; any bit pattern is a message.
            let message = unsafe { message.assume_init() };
            events.extend(event(message));
        }
        Ok(count > 0)
    }

    /// Fills absent pages with `content` and wakes who waits for them.
    ///
    /// # Errors
    /// [`Stopped`] at the first page that could not be done: `EEXIST` if there is one already, `ENOENT` if the
    /// range leaves a registered mapping, `EAGAIN` after some were done, or while an event is unread, `ESRCH` if
    /// the process has ended.
    pub fn copy(&self, address: u64, content: &[u8]) -> Result<(), Stopped> {
        let source = HostAddress(content.as_ptr() as usize);
        // SAFETY: the source is readable for its length, and what is filled is no memory of this process.
        unsafe { self.0.copy(HostAddress(address as usize), source, content.len()) }
    }

    /// Maps the zero page at absent pages and wakes who waits for them.
    ///
    /// # Errors
    /// As for [`copy`](Self::copy); `EINVAL` for huge pages of hugetlbfs.
    pub fn zero(&self, address: u64, bytes: usize) -> Result<(), Stopped> {
        // SAFETY: what is filled is no memory of this process.
        unsafe { self.0.zero(HostAddress(address as usize), bytes, true) }
    }

    /// Marks absent pages as lost: whoever touches them gets `SIGBUS`, until they are discarded.
    ///
    /// # Errors
    /// As for [`copy`](Self::copy); `EINVAL` or `ENOTTY` before Linux 6.6.
    pub fn poison(&self, address: u64, bytes: usize) -> Result<(), Stopped> {
        // SAFETY: what is marked is no memory of this process.
        unsafe { self.0.poison(HostAddress(address as usize), bytes) }
    }

    /// Wakes every thread that waits for a page of the range: it tries again.
    ///
    /// # Errors
    /// `EINVAL` for a range that is empty or not page-aligned.
    pub fn wake(&self, address: u64, bytes: usize) -> io::Result<()> {
        self.0.wake(HostAddress(address as usize), bytes)
    }
}

impl AsFd for PeerUserfault {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Reads a message. In `struct uffd_msg`, the two words of a range lie where a fault has flags and address.
fn event(message: Message) -> Option<PeerEvent> {
    match message.event {
        EVENT_PAGEFAULT => Some(PeerEvent::Fault(message.address & !0xfff)),
        EVENT_REMOVE | EVENT_UNMAP => Some(PeerEvent::Removed(message.flags, message.address)),
        EVENT_REMAP => Some(PeerEvent::Moved),
        EVENT_FORK => {
            // SAFETY: the kernel has just made this descriptor, of the child's context, in this process.
            drop(unsafe { OwnedFd::from_raw_fd(message.flags as u32 as i32) });
            Some(PeerEvent::Forked)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn other_descriptors_are_refused() {
        for path in ["/dev/null", "/proc/self/maps", "/dev/userfaultfd"] {
            let Ok(file) = File::open(path) else { continue };
            assert!(PeerUserfault::new(file.into()).unwrap().is_none(), "{path}");
        }
        let (socket, _other) = crate::socket::stream_pair().unwrap();
        assert!(PeerUserfault::new(socket).unwrap().is_none());
    }

    #[test]
    fn messages_are_read_as_the_kernel_lays_them_out() {
        let of =
            |event, flags, address| Message { event, reserved: [0; 7], flags, address, thread: 0 };
        assert_eq!(event(of(EVENT_PAGEFAULT, 1, 0x7123)), Some(PeerEvent::Fault(0x7000)));
        assert_eq!(event(of(EVENT_REMOVE, 4096, 8192)), Some(PeerEvent::Removed(4096, 8192)));
        assert_eq!(event(of(EVENT_UNMAP, 4096, 8192)), Some(PeerEvent::Removed(4096, 8192)));
        assert_eq!(event(of(0x40, 0, 0)), None);
    }
}
