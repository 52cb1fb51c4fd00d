//! Lock files: at most one process at a time, and the name of the one that is there. Locks on ranges of
//! a file, which are shared or exclude others.
//!
//! A lock file's lock is flock(2)'s on a file that stays where it is: a lock file that is removed on
//! the way out lets two processes hold "the" lock, one on the removed file and one on its successor.
//! The kernel drops the lock when its holder ends, however it ends, so there is no stale lock.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use rustix::io::Errno;

use crate::process::Origin;

mod holders;
mod range;

pub use self::range::{RangeLock, RangeLocks};

/// Locks one file for as long as it lives.
#[derive(Debug)]
pub struct FileLock {
    file: File,
    origin: Origin,
}

/// What became of asking for a lock.
#[derive(Debug)]
pub enum Claim {
    /// It is ours.
    Taken(FileLock),
    /// Another process has it; its id, if it has written it down already.
    HeldBy(Option<u32>),
}

impl FileLock {
    /// Takes the lock at `path` if nobody has it, and writes this process's id into the file if
    /// there is room. The file is made, for its owner's eyes alone, if it is not there. Never blocks.
    ///
    /// # Errors
    /// As open(2); `ELOOP` if `path` is a symbolic link, which somebody else may have laid there.
    pub fn claim(path: &Path) -> io::Result<Claim> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let mut file = File::from(open(path, flags, Mode::RUSR | Mode::WUSR)?);
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Ok(Claim::HeldBy(holder(&mut file))),
            Err(error) => return Err(error.into()),
        }
        // The id is for messages: a full disk keeps nobody from the lock.
        let _ = file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id()));
        Ok(Claim::Taken(Self { file, origin: Origin::here() }))
    }
}

impl Drop for FileLock {
    fn drop(&mut self) {
        // A child that another thread starts at this moment has the file open as well until it
        // executes, and would keep the lock. The child itself has no lock to give up.
        if self.origin.is_here() {
            let _ = flock(&self.file, FlockOperation::Unlock);
        }
    }
}

fn holder(file: &mut File) -> Option<u32> {
    let mut text = String::new();
    file.take(32).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_held_once_and_names_its_holder() {
        let path = std::env::temp_dir().join(format!("bindery-lock-{}", std::process::id()));
        let Claim::Taken(first) = FileLock::claim(&path).unwrap() else {
            panic!("nobody else has the lock")
        };
        let Claim::HeldBy(pid) = FileLock::claim(&path).unwrap() else {
            panic!("the lock was given out twice")
        };
        assert_eq!(pid, Some(std::process::id()));
        // As a child would have it that is being started.
        let copy = first.file.try_clone().unwrap();
        drop(first);
        assert!(matches!(FileLock::claim(&path).unwrap(), Claim::Taken(_)));
        drop(copy);
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_link_in_place_of_the_lock_is_refused() {
        let directory = std::env::temp_dir();
        let path = directory.join(format!("bindery-lock-link-{}", std::process::id()));
        let target = directory.join(format!("bindery-lock-target-{}", std::process::id()));
        std::os::unix::fs::symlink(&target, &path).unwrap();
        assert_eq!(FileLock::claim(&path).unwrap_err().raw_os_error(), Some(libc::ELOOP));
        assert!(!target.exists());
        std::fs::remove_file(path).unwrap();
    }
}
