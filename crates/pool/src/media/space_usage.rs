//! Space of devices, by what it is used for.

use std::iter::Sum;

use crate::catalogue::Contents;

/// Space of a device, or of all devices of a class, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpaceUsage {
    /// All of it.
    pub total_bytes: u64,
    /// Bytes that new objects can have.
    pub free_bytes: u64,
    /// Bytes of objects that are being written.
    pub held_bytes: u64,
    /// Bytes of deleted objects that are still read by somebody.
    pub limbo_bytes: u64,
    /// Bytes of committed objects, of logs, and of the pool itself.
    pub used_bytes: u64,
}

impl SpaceUsage {
    /// Returns the space of the archive, by the objects' own lengths. Nobody knows what is free there.
    pub(crate) fn of_archived(contents: &Contents) -> Self {
        let used_bytes = contents.archived().map(|entry| entry.length_bytes).sum();
        Self { total_bytes: used_bytes, used_bytes, ..Self::default() }
    }
}

impl Sum for SpaceUsage {
    fn sum<I: Iterator<Item = Self>>(usages: I) -> Self {
        usages.fold(Self::default(), |sum, usage| Self {
            total_bytes: sum.total_bytes + usage.total_bytes,
            free_bytes: sum.free_bytes + usage.free_bytes,
            held_bytes: sum.held_bytes + usage.held_bytes,
            limbo_bytes: sum.limbo_bytes + usage.limbo_bytes,
            used_bytes: sum.used_bytes + usage.used_bytes,
        })
    }
}
