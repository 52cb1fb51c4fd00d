//! The life of another process, held by a descriptor: a number of a process may be given to a new
//! one, a descriptor never changes what it means.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use crate::socket::{wait_any_readable, wait_readable};

/// The process at the other end of a Unix socket, or one that is watched.
#[derive(Debug)]
pub struct PeerProcess {
    /// `None`: it had ended when it was asked for.
    descriptor: Option<OwnedFd>,
}

impl PeerProcess {
    /// The process that connected `socket` (`SO_PEERPIDFD`, Linux 6.5).
    ///
    /// # Errors
    /// The kernel's, when descriptors are short or `socket` is not a connected Unix socket.
    pub fn of(socket: impl AsFd) -> io::Result<Self> {
        let mut descriptor: libc::c_int = -1;
        let mut bytes = size_of::<libc::c_int>() as libc::socklen_t;
        // SAFETY: both pointers are to live locals, and `bytes` is the first one's size.
        let result = unsafe {
            libc::getsockopt(
                socket.as_fd().as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERPIDFD,
                (&raw mut descriptor).cast(),
                &raw mut bytes,
            )
        };
        if result != 0 {
            let error = io::Error::last_os_error();
            // Before Linux 6.16 the kernel has nothing to give for a process that was reaped.
            let reaped = [libc::ESRCH, libc::EINVAL].map(Some).contains(&error.raw_os_error());
            return if reaped { Ok(Self { descriptor: None }) } else { Err(error) };
        }
        // SAFETY: the kernel has just made this descriptor for us (close-on-exec), nobody else
        // knows it.
        Ok(Self { descriptor: Some(unsafe { OwnedFd::from_raw_fd(descriptor) }) })
    }

    /// The process of a number, which must not have been given to another one meanwhile.
    ///
    /// # Errors
    /// As pidfd_open(2); `ESRCH` if there is no such process.
    pub fn of_pid(pid: i32) -> io::Result<Self> {
        // SAFETY: the call takes numbers alone.
        let descriptor = unsafe { crate::syscall!(libc::SYS_pidfd_open, pid, 0) };
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just made this descriptor for us (close-on-exec), nobody else
        // knows it.
        Ok(Self { descriptor: Some(unsafe { OwnedFd::from_raw_fd(descriptor as i32) }) })
    }

    /// Returns the descriptor, unless the process had ended when it was asked for.
    #[must_use]
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.descriptor.as_ref().map(AsFd::as_fd)
    }

    /// Whether all threads of the process have ended: none of its mappings exist any more, but for
    /// those of processes that it forked. One system call, never blocks.
    ///
    /// # Errors
    /// The kernel's, when memory is short.
    pub fn has_ended(&self) -> io::Result<bool> {
        self.wait_ended(Duration::ZERO)
    }

    /// Waits until `socket` has something to read, its end included, or the process has ended, for at most
    /// `patience`. Whether either is so.
    ///
    /// # Errors
    /// The kernel's, when memory is short.
    pub fn wait_readable_or_ended(
        &self,
        socket: impl AsFd,
        patience: Duration,
    ) -> io::Result<(bool, bool)> {
        let Some(descriptor) = &self.descriptor else {
            return Ok((wait_readable(socket, Duration::ZERO)?, true));
        };
        let mut ready = [false; 2];
        wait_any_readable(&[socket.as_fd(), descriptor.as_fd()], &mut ready, Some(patience))?;
        Ok(ready.into())
    }

    /// Waits for the end of the process for at most `patience`. Returns false after `patience`.
    ///
    /// # Errors
    /// The kernel's, when memory is short.
    pub fn wait_ended(&self, patience: Duration) -> io::Result<bool> {
        match &self.descriptor {
            Some(descriptor) => wait_readable(descriptor, patience),
            None => Ok(true),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::socket::stream_pair;

    #[test]
    fn our_own_end_is_alive() {
        let (one, _other) = stream_pair().unwrap();
        assert!(!PeerProcess::of(&one).unwrap().has_ended().unwrap());
    }
}
