//! Whether a file that was lent to another process is in use there.
//!
//! Each borrower is given an open file description of its own, by which one byte of the file is locked
//! (fcntl(2), `F_OFD_SETLK`). The kernel drops the lock with the description's last user. Its users are
//! descriptors and mappings, in whichever process: also a child of fork that has closed all descriptors.
//!
//! A borrower can drop the lock, and can lock bytes that stand for others. So this is for what harms the
//! borrower alone if it is taken to be out of use, and nobody much if it is taken to be in use.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use super::range::{description, fcntl};
use crate::memfd;

/// A file that was lent once.
#[derive(Debug)]
pub struct Lent {
    file: File,
    byte: u64,
}

impl Lent {
    /// Lends a file that this process's user owns, for reading: what to give away, and how it is told
    /// what becomes of it. Give it away whole: a copy that stays here is a use. `number` tells the
    /// borrower from others of the file.
    ///
    /// # Errors
    /// As [`memfd::reopen_read_only`], and as fcntl(2) when memory is short; `EAGAIN` if somebody has
    /// locked the file for themselves.
    pub fn lend(file: impl AsFd, number: u32) -> io::Result<(Self, OwnedFd)> {
        let byte = u64::from(number);
        let borrowed = memfd::reopen_read_only(&file)?;
        let mut lock = description(&(byte..byte + 1), libc::F_RDLCK);
        fcntl(&borrowed, libc::F_OFD_SETLK, &mut lock)?;
        let file = File::from(file.as_fd().try_clone_to_owned()?);
        Ok((Self { file, byte }, borrowed.into()))
    }

    /// Whether any process has a descriptor or a mapping of what was given away. One system call, never
    /// blocks.
    ///
    /// # Errors
    /// As fcntl(2).
    pub fn is_in_use(&self) -> io::Result<bool> {
        let mut lock = description(&(self.byte..self.byte + 1), libc::F_WRLCK);
        fcntl(&self.file, libc::F_OFD_GETLK, &mut lock)?;
        Ok(libc::c_int::from(lock.l_type) != libc::F_UNLCK)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mapping::Mapping;

    #[test]
    fn a_file_is_in_use_while_a_descriptor_or_a_mapping_is_left() {
        let file = memfd::create("test", 1 << 20).unwrap();
        let [(one, first), (other, second)] =
            [1, 2].map(|number| Lent::lend(&file, number).unwrap());
        let mapping = Mapping::shared(first.as_fd(), 1 << 20, false).unwrap();
        let copy = first.try_clone().unwrap();
        drop(second);
        let are_in_use = || [&one, &other].map(|lent| lent.is_in_use().unwrap());
        assert_eq!(are_in_use(), [true, false]);
        drop(first);
        drop(mapping);
        assert_eq!(are_in_use(), [true, false]);
        let mapping = Mapping::shared(copy.as_fd(), 1 << 20, false).unwrap();
        drop(copy);
        assert_eq!(are_in_use(), [true, false]);
        drop(mapping);
        assert_eq!(are_in_use(), [false, false]);
    }
}
