//! Managed memory that its VMM unmaps, replaces or moves.

use bindery_units::{HostAddress, PAGE_BYTES};

use crate::answer::aside;
use crate::managed::{self, Managed};

/// Managed memory about to go. What the daemon is told of it waits for what the kernel answers.
pub(crate) struct Going {
    managed: &'static Managed,
    address: usize,
    bytes: usize,
    /// True if any of the range was managed, and not only offered.
    was_managed: bool,
}

/// Before a range is unmapped, or replaced by another mapping: waits for work on it and forgets it.
/// `None` if there is none in it, or if the kernel will refuse the range.
pub(crate) fn before_unmap(address: usize, bytes: usize) -> Option<Going> {
    let bytes = bytes.checked_next_multiple_of(PAGE_BYTES)?;
    if !address.is_multiple_of(PAGE_BYTES) {
        return None;
    }
    forget_offered(address, bytes);
    let managed = managed::overlapping(address, bytes)?;
    let was_managed = aside(|| {
        if managed.space.would_tear(HostAddress(address), bytes) {
            managed.step_aside(address, bytes, "unmap memory piece by piece");
        }
        !managed.space.forget(HostAddress(address), bytes).is_empty()
    });
    Some(Going { managed, address, bytes, was_managed })
}

/// Before a range is unmapped, replaced or moved: the daemon is to know of no offer there.
fn forget_offered(address: usize, bytes: usize) {
    let Some(managed) = managed::get() else { return };
    if managed.space.withdraw_offered(HostAddress(address), bytes) {
        aside(|| managed.agent.offered_ranges_changed());
    }
}

/// Before other memory is moved to a range, which the kernel may yet refuse for what it finds elsewhere: what
/// is there is private memory by then, and stays so.
pub(crate) fn before_overwrite(address: usize, bytes: usize) -> Option<Going> {
    let whole = bytes.checked_next_multiple_of(PAGE_BYTES)?;
    if let Some(managed) = managed::overlapping(address, whole) {
        aside(|| managed.step_aside(address, whole, "put other memory in its place (mremap)"));
    }
    before_unmap(address, bytes)
}

impl Going {
    /// After the kernel did it, or did not.
    pub(crate) fn after(self, is_gone: bool) {
        if is_gone {
            aside(|| self.managed.space.forget_bound(HostAddress(self.address), self.bytes));
        }
        if !self.was_managed {
            return;
        }
        aside(|| {
            if !is_gone
                && let Err(error) = self.managed.space.leave(HostAddress(self.address), self.bytes)
            {
                self.managed.agent.say_rarely("stays", format_args!(
                    "memory stays mapped that was to go, and what was merged in it cannot be discarded: {error}"
                ));
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

const WHAT: &str = "move memory (mremap)";

/// Before a range is moved or grown: the kernel moves ordinary memory only. Whether it may be: a page
/// that stays with us would be looked for where it was.
pub(crate) fn before_move(address: usize, old_bytes: usize, new_bytes: usize) -> bool {
    let bytes = old_bytes.max(1);
    forget_offered(address, bytes);
    let Some(managed) = managed::overlapping(address, bytes) else { return true };
    aside(|| {
        if !managed.let_go(address, bytes, WHAT) || !managed.step_aside(address, bytes, WHAT) {
            return false;
        }
        let grown = new_bytes.saturating_sub(bytes);
        if grown > 0 && managed::overlapping(address.saturating_add(bytes), grown).is_none() {
            // What grows up to other memory of its kind is joined with it, if nobody watches that either.
            managed.step_aside(address.saturating_add(new_bytes), PAGE_BYTES, WHAT);
        }
        let is_ordinary = managed::overlapping(address, bytes).is_none();
        if !is_ordinary {
            managed.agent.say_rarely(
                "not moved",
                "the memory cannot be moved: some pages lie in mappings of the store until they are discarded",
            );
        }
        is_ordinary
    })
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
