//! Moving memory that was managed.
//!
//! mremap(2) moves or grows one mapping. Memory that was managed is private and unwatched again by
//! then, but it may lie in several mappings: pages that came back from a store have one of their own,
//! which the kernel never joins with its neighbours. So where the kernel will not take the range as a
//! whole (`EFAULT`), its mappings are moved one by one.

use std::ffi::c_void;
use std::io;

use bindery_sys::mapping;
use bindery_sys::maps::{self, Advised, AdvisedMappings};
use bindery_units::{HostAddress, PAGE_BYTES};
use libc::{MAP_ANONYMOUS, MAP_FIXED, MAP_FIXED_NOREPLACE, MAP_NORESERVE, MAP_PRIVATE};

use crate::answer::{Errno, aside};
use crate::child::advise;
use crate::{kept, kernel, managed};

/// What mremap(2) is asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) old: usize,
    pub(crate) old_bytes: usize,
    pub(crate) new_bytes: usize,
    pub(crate) flags: i32,
    pub(crate) target: usize,
}

impl Request {
    /// True if the kernel refuses it by its arguments alone, and changes nothing.
    pub(crate) fn is_refused(self) -> bool {
        let known = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
        let has = |flag| self.flags & flag != 0;
        let is_page = |address: usize| address.is_multiple_of(PAGE_BYTES);
        let whole = |bytes: usize| bytes.checked_next_multiple_of(PAGE_BYTES);
        let (Some(old_bytes), Some(new_bytes)) = (whole(self.old_bytes), whole(self.new_bytes))
        else {
            return true;
        };
        let moves = has(libc::MREMAP_FIXED) || has(libc::MREMAP_DONTUNMAP);
        let (Some(old_end), Some(new_end)) =
            (self.old.checked_add(old_bytes), self.target.checked_add(new_bytes))
        else {
            return true;
        };
        let overlaps = self.target < old_end && self.old < new_end;
        self.flags & !known != 0
            || !is_page(self.old)
            || new_bytes == 0
            || (moves && !has(libc::MREMAP_MAYMOVE))
            || (has(libc::MREMAP_DONTUNMAP) && old_bytes != new_bytes)
            || (moves && (!is_page(self.target) || overlaps))
    }

    /// After the kernel refused it, with the reason in `errno`: does it if the only reason is that the
    /// range lies in several mappings, as memory does that was managed. Answers as mremap(2).
    ///
    /// # Safety
    /// As mremap(2), with these arguments.
    pub(crate) unsafe fn piecewise(self) -> *mut c_void {
        let whole =
            |bytes: usize| bytes.checked_next_multiple_of(PAGE_BYTES).filter(|&all| all > 0);
        let may_be_ours = (managed::get().is_some() || managed::is_copy())
            && Errno::last() == Errno(libc::EFAULT);
        let (true, Some(old_bytes), Some(new_bytes)) =
            (may_be_ours, whole(self.old_bytes), whole(self.new_bytes))
        else {
            return libc::MAP_FAILED;
        };
        let has = |flag| self.flags & flag != 0;
        let remap = Remap {
            old: self.old,
            old_bytes,
            new_bytes,
            may_move: has(libc::MREMAP_MAYMOVE),
            stays_mapped: has(libc::MREMAP_DONTUNMAP),
            target: has(libc::MREMAP_FIXED).then_some(self.target),
            hint: self.target,
        };
        // SAFETY: the caller's contract.
        match aside(|| unsafe { remap.piecewise() }) {
            Ok(new) => new as *mut c_void,
            Err(errno) => {
                errno.set();
                libc::MAP_FAILED
            }
        }
    }
}

/// A range of private anonymous memory, and what mremap(2) was asked to make of it.
#[derive(Clone, Copy, Debug)]
struct Remap {
    old: usize,
    old_bytes: usize,
    new_bytes: usize,
    may_move: bool,
    /// The old range stays mapped, and is empty: `MREMAP_DONTUNMAP`.
    stays_mapped: bool,
    /// Where to, for `MREMAP_FIXED`.
    target: Option<usize>,
    /// Where to if there is room, else.
    hint: usize,
}

impl Remap {
    /// Does it mapping by mapping, and returns where the memory is then.
    ///
    /// # Errors
    /// As mremap(2); what was moved until then is moved back.
    ///
    /// # Safety
    /// As mremap(2), for whole pages.
    unsafe fn piecewise(self) -> Result<usize, Errno> {
        let advised = self.advised_at_the_end()?;
        if self.target.is_none() && self.new_bytes > self.old_bytes {
            // SAFETY: the caller's contract; nothing is replaced.
            let grown = unsafe { self.grow_in_place(advised) };
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
                advise(advised, start, bytes)?;
            } else if self.new_bytes < self.old_bytes {
                let (start, bytes) = (self.old + self.new_bytes, self.old_bytes - self.new_bytes);
                mapping::unmap(HostAddress(start), bytes)?;
            }
        }
        Ok(target)
    }

    /// Returns the advice of the range's last page, which the kernel gives to what the range grows by, too.
    fn advised_at_the_end(self) -> io::Result<Advised> {
        if self.new_bytes <= self.old_bytes || !kept::may_keep(self.old, self.old_bytes) {
            return Ok(Advised::default());
        }
        let advised = managed::with_own_table(AdvisedMappings::of_self)?;
        Ok(advised.at(HostAddress(self.old + self.old_bytes - PAGE_BYTES)))
    }

    /// Adds memory behind the range. False if there is no room.
    unsafe fn grow_in_place(self, advised: Advised) -> bool {
        let end = self.old + self.old_bytes;
        let bytes = self.new_bytes - self.old_bytes;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        if map(end, bytes, protection, MAP_FIXED_NOREPLACE).is_err() {
            return false;
        }
        let is_advised = advise(advised, end, bytes).is_ok();
        if !is_advised {
            // SAFETY: it was just mapped, and nobody knows of it.
            let _ = unsafe { mapping::unmap(HostAddress(end), bytes) };
        }
        is_advised
    }

    /// The mappings that are to be moved: each a start and a length, together the whole range. All
    /// private, anonymous and writable, as what was managed is.
    fn pieces(self) -> Result<Vec<(usize, usize)>, Errno> {
        let end = self.old + self.old_bytes.min(self.new_bytes);
        let (mut at, mut pieces) = (self.old, Vec::new());
        let areas =
            managed::with_own_table(|| maps::between(HostAddress(self.old), HostAddress(end)))?;
        for area in areas {
            if area.start.0 != at || area.permissions() != "rw-p" || area.inode != 0 {
                return Err(Errno(libc::EFAULT));
            }
            pieces.push((at, area.end.0 - at));
            at = area.end.0;
        }
        if at == end { Ok(pieces) } else { Err(Errno(libc::EFAULT)) }
    }

    /// Takes room for the new range.
    fn reserve(self) -> io::Result<usize> {
        match self.target {
            Some(target) => map(target, self.new_bytes, libc::PROT_NONE, MAP_FIXED),
            None => map(self.hint, self.new_bytes, libc::PROT_NONE, 0),
        }
    }

    /// Moves the pieces, all or none.
    unsafe fn move_pieces(self, pieces: &[(usize, usize)], target: usize) -> Result<(), Errno> {
        for (at, &(start, bytes)) in pieces.iter().enumerate() {
            let new = HostAddress(target + (start - self.old));
            // SAFETY: the caller's contract: the piece is the VMM's, the place is reserved.
            let moved = unsafe {
                if self.stays_mapped {
                    mapping::move_over(HostAddress(start), new, bytes)
                } else {
                    mapping::remap_over(HostAddress(start), new, bytes)
                }
            };
            let Err(error) = moved else { continue };
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

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: usize = PAGE_BYTES;
    const MOVE: i32 = libc::MREMAP_MAYMOVE;
    const FIXED: i32 = MOVE | libc::MREMAP_FIXED;
    const STAY: i32 = MOVE | libc::MREMAP_DONTUNMAP;

    /// The kernel itself is asked, about memory of ours.
    #[test]
    fn what_is_refused_is_what_the_kernel_refuses() {
        let memory = mapping::Mapping::anonymous(64 * PAGE).expect("memory");
        let base = memory.address().0;
        let (source, target) = (base + 16 * PAGE, base + 48 * PAGE);
        for (old, old_bytes, new_bytes, flags, target) in [
            (source + 1, PAGE, PAGE, MOVE, 0),
            (source, PAGE, 0, MOVE, 0),
            (source, PAGE, PAGE, 64, 0),
            (source, PAGE, PAGE, libc::MREMAP_FIXED, target),
            (source, PAGE, PAGE, libc::MREMAP_DONTUNMAP, 0),
            (source, PAGE, 2 * PAGE, STAY, 0),
            (source, PAGE, PAGE, FIXED, target + 1),
            (source, 4 * PAGE, 4 * PAGE, FIXED, source + PAGE),
            (source, 4 * PAGE, 4 * PAGE, FIXED, source - PAGE),
            (source, PAGE, PAGE, STAY, target + 1),
            (source, 4 * PAGE, 4 * PAGE, STAY, source + PAGE),
            (source, usize::MAX, PAGE, MOVE, 0),
            (source, PAGE, PAGE, 0, 0),
            (source, PAGE - 1, PAGE, FIXED, target),
            (source, PAGE, PAGE / 2, FIXED, target),
        ] {
            let request = Request { old, old_bytes, new_bytes, flags, target };
            // SAFETY: what is moved or replaced is ours, and holds nothing.
            let result = unsafe {
                kernel::mremap(
                    old as *mut c_void,
                    old_bytes,
                    new_bytes,
                    flags,
                    target as *mut c_void,
                )
            };
            let refused = result == libc::MAP_FAILED && Errno::last() == Errno(libc::EINVAL);
            assert_eq!(request.is_refused(), refused, "{request:?}");
            if !refused {
                // SAFETY: as above.
                unsafe { mapping::replace_with_anonymous(HostAddress(source), PAGE) }
                    .expect("memory");
            }
        }
    }
}
