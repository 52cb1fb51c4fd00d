//! Waking a thread that waits on descriptors: an eventfd.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};

/// Readable once somebody notified it, until it is cleared. Any number of threads may do either.
#[derive(Debug)]
pub struct Event(OwnedFd);

impl Event {
    /// An event that nobody has notified.
    ///
    /// # Errors
    /// The kernel's, when descriptors are short.
    pub fn new() -> io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// Makes it readable. Never blocks, and leaves what was written before visible to whoever
    /// clears it.
    pub fn notify(&self) {
        // A full counter is readable already. Any other error means that the program that we live in
        // has closed our descriptor: then nobody waits for it any more.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Makes it unreadable until the next notification. Clear it first and look for work then.
    pub fn clear(&self) {
        // As for `notify`; an event that nobody has notified is clear.
        let _ = rustix::io::read(&self.0, &mut [0u8; 8]);
    }
}

impl From<Event> for OwnedFd {
    fn from(event: Event) -> Self {
        event.0
    }
}

impl AsFd for Event {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::socket::wait_readable;
    use std::time::Duration;

    #[test]
    fn notifications_add_up_to_one_wake() {
        let event = Event::new().unwrap();
        let is_readable = || wait_readable(&event, Duration::ZERO).unwrap();
        assert!(!is_readable());
        event.notify();
        event.notify();
        assert!(is_readable());
        event.clear();
        assert!(!is_readable());
        event.clear();
    }
}
