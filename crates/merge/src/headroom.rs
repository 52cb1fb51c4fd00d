//! How much memory there is to bring pages back into, and for canonical pages.

use bindery_sys::cgroup;
use bindery_sys::memory::MachineMemory;
use bindery_units::PAGE_BYTES;

/// Memory that the store leaves to the daemon itself. The kernel does not refuse what is beyond a
/// cgroup's limit: it ends the process.
const RESERVE_BYTES: u64 = 4 << 20;

/// How many canonical pages there is memory for.
pub(crate) fn pages_to_spare() -> usize {
    let own = std::process::id().cast_signed();
    let bytes = headroom_bytes(own).map_or(u64::MAX, |bytes| bytes.saturating_sub(RESERVE_BYTES));
    usize::try_from(bytes / PAGE_BYTES as u64).unwrap_or(usize::MAX)
}

/// Bytes that process `pid` can be given before the machine or one of its cgroups is short.
/// `None` if the machine does not say; limits of cgroups that cannot be read do not count.
pub(crate) fn headroom_bytes(pid: i32) -> Option<u64> {
    let machine = MachineMemory::read().ok()?.available_bytes;
    Some(cgroup::memory_left(pid).map_or(machine, |left| left.bytes.min(machine)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_says_what_is_available() {
        assert!(headroom_bytes(std::process::id().cast_signed()).is_some_and(|bytes| bytes > 0));
    }
}
