//! Standard error of a process that is not ours.
//!
//! A library inside another program may neither take that program's stdio locks (the program may
//! hold them while it waits for the library) nor trust that descriptor 2 stays what it was: a
//! program that closes it may be given 2 for a disk image. Keeping a duplicate open would make
//! whoever reads the other end wait for ever. So the file is remembered, and written to only while
//! it is still there: by a thread that has a [`table`] of ours through a copy of the program's descriptor
//! that it takes for the one write.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{Stat, fstat};
use rustix::stdio::stderr;

use crate::table;

/// What descriptor 2 was when this was made.
#[derive(Debug)]
pub struct Stderr {
    file: Option<FileIdentity>,
}

type FileIdentity = (u64, u64, u64);

impl Stderr {
    /// Remembers what the program's descriptor 2 is now.
    #[must_use]
    pub fn remember() -> Self {
        Self { file: with_current(identity).ok() }
    }

    /// Writes to descriptor 2, in one call, if it is still what it was. Never takes a lock, and
    /// raises no `SIGPIPE` in the program that we live in.
    ///
    /// # Errors
    /// As write(2), and as [`adopt`](table::adopt); `NotFound` if descriptor 2 is something else by now,
    /// or closed.
    pub fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        with_current(|stderr| {
            if self.file != Some(identity(stderr)?) {
                return Err(io::ErrorKind::NotFound.into());
            }
            without_sigpipe(|| Ok(rustix::io::write(stderr, bytes)?))
        })
    }
}

/// Does `work` with the program's descriptor 2.
fn with_current<T>(work: impl FnOnce(BorrowedFd<'_>) -> io::Result<T>) -> io::Result<T> {
    if table::is_inside() { work(table::take(2)?.as_fd()) } else { work(stderr()) }
}

/// Does `call` so that a pipe without a reader is an error alone, as `MSG_NOSIGNAL` does for
/// sockets: the signal, if the call raised one, is taken off this thread before it is let through.
fn without_sigpipe<T>(call: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    // SAFETY: the sets are plain data and filled before they are used; the calls change nothing but
    // this thread's mask, which is restored, and take a signal only if this thread just raised it.
    unsafe {
        let mut pipe: libc::sigset_t = std::mem::zeroed();
        let (mut before, mut pending): (libc::sigset_t, libc::sigset_t) =
            (std::mem::zeroed(), std::mem::zeroed());
        libc::sigemptyset(&raw mut pipe);
        libc::sigaddset(&raw mut pipe, libc::SIGPIPE);
        libc::sigpending(&raw mut pending);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const pipe, &raw mut before);
        let result = call();
        let broken = result.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::BrokenPipe);
        if broken && libc::sigismember(&raw const pending, libc::SIGPIPE) == 0 {
            let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            libc::sigtimedwait(&raw const pipe, std::ptr::null_mut(), &raw const now);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut());
        result
    }
}

fn identity(file: BorrowedFd<'_>) -> io::Result<FileIdentity> {
    let Stat { st_dev, st_ino, st_rdev, .. } = fstat(file)?;
    Ok((st_dev, st_ino, st_rdev))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broken_pipe_raises_no_signal() {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        // SAFETY: the test's own process; the handler's default would end it.
        let before = unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
        let result = without_sigpipe(|| Ok(rustix::io::write(&writer, b"x")?));
        assert_eq!(result.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        // SAFETY: as above.
        unsafe { libc::signal(libc::SIGPIPE, before) };
    }

    #[test]
    fn what_is_no_longer_standard_error_is_not_written() {
        assert!(Stderr { file: Some((1, 2, 3)) }.write(b"never seen\n").is_err());
        assert!(Stderr { file: None }.write(b"never seen\n").is_err());
        let remembered = Stderr::remember().file;
        assert_eq!(remembered, identity(stderr()).ok());
        table::start().unwrap();
        assert_eq!(table::run(|| Stderr::remember().file), remembered);
    }
}
