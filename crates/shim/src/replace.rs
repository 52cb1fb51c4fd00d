//! Managed memory that its VMM unmaps, replaces, moves or protects.

use std::ffi::c_void;

use bindery_space::agent::log;
use bindery_units::{HostAddress, PAGE_BYTES};

use crate::answer::{Errno, aside};
use crate::kernel;
use crate::managed::{self, Managed};
use crate::remap::Remap;

/// Managed memory about to go. What the daemon is told of it waits for what the kernel answers.
pub(crate) struct Going {
    managed: &'static Managed,
    address: usize,
    bytes: usize,
}

/// Before a range is unmapped, or replaced by another mapping: waits for work on it and forgets it.
/// `None` if there is none in it, or if the kernel will refuse the range.
pub(crate) fn before_unmap(address: usize, bytes: usize) -> Option<Going> {
    let bytes = bytes.checked_next_multiple_of(PAGE_BYTES)?;
    if !address.is_multiple_of(PAGE_BYTES) {
        return None;
    }
    let managed = managed::overlapping(address, bytes)?;
    aside(|| managed.space.forget(HostAddress(address), bytes));
    Some(Going { managed, address, bytes })
}

impl Going {
    /// After the kernel did it, or did not.
    pub(crate) fn after(self, is_gone: bool) {
        aside(|| {
            if !is_gone {
                // Still mapped, and no longer ours: make copies of what is mapped from the store
                // before the daemon hears that it may take the slots away.
                // SAFETY: populating keeps content.
                unsafe {
                    let address = self.address as *mut c_void;
                    kernel::madvise(address, self.bytes, libc::MADV_POPULATE_WRITE)
                };
            }
            self.managed.agent.regions_changed();
        });
    }
}

/// Whether mmap(2) with these flags replaces what is mapped.
pub(crate) const fn replaces(flags: i32) -> bool {
    flags & libc::MAP_FIXED != 0 && flags & libc::MAP_FIXED_NOREPLACE == 0
}

/// Before a range is made shorter where it is: its end is unmapped.
pub(crate) fn before_shrink(address: usize, old_bytes: usize, new_bytes: usize) -> Option<Going> {
    let [old, new] = [old_bytes, new_bytes].map(|bytes| bytes.checked_next_multiple_of(PAGE_BYTES));
    let (old, new) = (old?, new?);
    // The kernel refuses to leave nothing.
    (0 < new && new < old).then(|| before_unmap(address + new, old - new)).flatten()
}

/// Before a range is moved or grown: the kernel moves ordinary memory only. Whether it may be: a page
/// that stays with us would be looked for where it was.
pub(crate) fn before_move(address: usize, bytes: usize) -> bool {
    let bytes = bytes.max(1);
    let Some(managed) = managed::overlapping(address, bytes) else { return true };
    aside(|| {
        if !managed.step_aside(address, bytes, "move memory (mremap)") {
            return false;
        }
        let is_ordinary = managed::overlapping(address, bytes).is_none();
        if !is_ordinary {
            log::say(format_args!(
                "the memory cannot be moved: some pages lie in mappings of the store until they are discarded"
            ));
        }
        is_ordinary
    })
}

/// After the kernel refused to move a range, with the reason in `errno`: moves it if the only reason
/// is that it lies in several mappings, as memory does that was managed. Answers as mremap(2).
///
/// # Safety
/// As mremap(2), with these arguments.
pub(crate) unsafe fn move_piecewise(
    (old, old_bytes, new_bytes, flags, target): (usize, usize, usize, i32, usize),
) -> *mut c_void {
    let whole = |bytes: usize| bytes.checked_next_multiple_of(PAGE_BYTES).filter(|&all| all > 0);
    let is_plain = managed::get().is_some()
        && Errno::last() == Errno(libc::EFAULT)
        && flags & libc::MREMAP_DONTUNMAP == 0;
    let (true, Some(old_bytes), Some(new_bytes)) = (is_plain, whole(old_bytes), whole(new_bytes))
    else {
        return libc::MAP_FAILED;
    };
    let remap = Remap {
        old,
        old_bytes,
        new_bytes,
        may_move: flags & libc::MREMAP_MAYMOVE != 0,
        target: (flags & libc::MREMAP_FIXED != 0).then_some(target),
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

/// Before the protection of a range is changed to less than reading and writing, which pages that
/// come and go would not keep.
pub(crate) fn before_protect(address: usize, bytes: usize, protection: i32) {
    let both = libc::PROT_READ | libc::PROT_WRITE;
    if protection & both == both {
        return;
    }
    if let Some(managed) = managed::overlapping(address, bytes) {
        aside(|| managed.step_aside(address, bytes, "protect memory (mprotect)"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_fixed_mapping_that_may_replace_does() {
        assert!(replaces(libc::MAP_PRIVATE | libc::MAP_FIXED));
        assert!(!replaces(libc::MAP_PRIVATE));
        assert!(!replaces(libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE));
    }
}
