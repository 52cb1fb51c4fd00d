//! Moving memory that was managed.
//!
//! mremap(2) moves or grows one mapping. Memory that was managed is private and unwatched again by
//! then, but it may lie in several mappings: pages that came back from a store have one of their own,
//! which the kernel never joins with its neighbours. So where the kernel will not take the range as a
//! whole (`EFAULT`), its mappings are moved one by one.

use std::ffi::c_void;
use std::io;

use bindery_sys::{mapping, maps};
use bindery_units::HostAddress;
use libc::{MAP_ANONYMOUS, MAP_FIXED, MAP_FIXED_NOREPLACE, MAP_NORESERVE, MAP_PRIVATE};

use crate::answer::Errno;
use crate::kernel;

/// A range of private anonymous memory, and what mremap(2) was asked to make of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Remap {
    pub(crate) old: usize,
    pub(crate) old_bytes: usize,
    pub(crate) new_bytes: usize,
    pub(crate) may_move: bool,
    /// Where to, for `MREMAP_FIXED`.
    pub(crate) target: Option<usize>,
}

impl Remap {
    /// Does it mapping by mapping, and returns where the memory is then.
    ///
    /// # Errors
    /// As mremap(2); what was moved until then is moved back.
    ///
    /// # Safety
    /// As mremap(2), for whole pages.
    pub(crate) unsafe fn piecewise(self) -> Result<usize, Errno> {
        if self.target.is_none() && self.new_bytes > self.old_bytes {
            // SAFETY: the caller's contract; nothing is replaced.
            let grown = unsafe { self.grow_in_place() };
            if grown || !self.may_move {
                return grown.then_some(self.old).ok_or(Errno(libc::ENOMEM));
            }
        }
        let pieces = self.pieces()?;
        let target = self.reserve()?;
        // SAFETY: the caller's contract for the old range; the new one was just reserved, or is the
        // caller's to replace.
        unsafe {
            if let Err(errno) = self.move_pieces(&pieces, target) {
                // Nobody knows of the reserve but us.
                mapping::unmap(HostAddress(target), self.new_bytes)?;
                return Err(errno);
            }
            if self.new_bytes > self.old_bytes {
                let (start, bytes) = (target + self.old_bytes, self.new_bytes - self.old_bytes);
                mapping::replace_with_anonymous(HostAddress(start), bytes)?;
            } else if self.new_bytes < self.old_bytes {
                let (start, bytes) = (self.old + self.new_bytes, self.old_bytes - self.new_bytes);
                mapping::unmap(HostAddress(start), bytes)?;
            }
        }
        Ok(target)
    }

    /// Adds memory behind the range. False if there is no room.
    unsafe fn grow_in_place(self) -> bool {
        let end = self.old + self.old_bytes;
        let bytes = self.new_bytes - self.old_bytes;
        map(end, bytes, libc::PROT_READ | libc::PROT_WRITE, MAP_FIXED_NOREPLACE).is_ok()
    }

    /// The mappings that are to be moved: each a start and a length, together the whole range. All
    /// private, anonymous and writable, as what was managed is.
    fn pieces(self) -> Result<Vec<(usize, usize)>, Errno> {
        let end = self.old + self.old_bytes.min(self.new_bytes);
        let maps = maps::of_self()?;
        let (mut at, mut pieces) = (self.old, Vec::new());
        for line in maps::lines(&maps).filter(|line| line.start < end && self.old < line.end) {
            let (from, to) = (line.start.max(self.old), line.end.min(end));
            if from != at || line.permissions != "rw-p" || line.inode != 0 {
                return Err(Errno(libc::EFAULT));
            }
            pieces.push((from, to - from));
            at = to;
        }
        if at == end { Ok(pieces) } else { Err(Errno(libc::EFAULT)) }
    }

    /// Takes room for the new range.
    fn reserve(self) -> io::Result<usize> {
        match self.target {
            Some(target) => map(target, self.new_bytes, libc::PROT_NONE, MAP_FIXED),
            None => map(0, self.new_bytes, libc::PROT_NONE, 0),
        }
    }

    /// Moves the pieces, all or none.
    unsafe fn move_pieces(self, pieces: &[(usize, usize)], target: usize) -> Result<(), Errno> {
        for (at, &(start, bytes)) in pieces.iter().enumerate() {
            let new = HostAddress(target + (start - self.old));
            // SAFETY: the caller's contract: the piece is the VMM's, the place is reserved.
            let Err(error) = (unsafe { mapping::remap_over(HostAddress(start), new, bytes) })
            else {
                continue;
            };
            for &(start, bytes) in &pieces[..at] {
                let new = HostAddress(target + (start - self.old));
                // SAFETY: as above; the old places were left empty.
                let back = unsafe { mapping::remap_over(new, HostAddress(start), bytes) };
                assert!(back.is_ok(), "a mapping moves back to the place that it left: {back:?}");
            }
            return Err(error.into());
        }
        Ok(())
    }
}

fn map(address: usize, bytes: usize, protection: i32, flags: i32) -> io::Result<usize> {
    let flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | flags;
    // SAFETY: without MAP_FIXED nothing is replaced; with it, what mremap(2) was told to replace.
    let mapped = unsafe { kernel::mmap(address as *mut c_void, bytes, protection, flags, -1, 0) };
    if mapped == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(mapped as usize) }
}
