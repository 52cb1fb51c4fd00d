//! A run of blocks on a device.

use std::fmt;

use crate::BLOCK_BYTES;
use crate::id::DeviceIndex;

/// A run of blocks on a device, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Extent {
    /// Device of the pool.
    pub device: DeviceIndex,
    /// Start on the device, in bytes.
    pub offset_bytes: u64,
    /// Length, in bytes.
    pub bytes: u64,
}

impl Extent {
    /// Returns the end, in bytes; none where that is no number.
    #[must_use]
    pub const fn end_bytes(&self) -> Option<u64> {
        self.offset_bytes.checked_add(self.bytes)
    }

    /// Returns true if the extent is whole blocks that a device of `device_bytes` has.
    #[must_use]
    pub fn lies_within(&self, device_bytes: u64) -> bool {
        let whole = |bytes: u64| bytes.is_multiple_of(BLOCK_BYTES as u64);
        whole(self.offset_bytes)
            && whole(self.bytes)
            && self.end_bytes().is_some_and(|end| end <= device_bytes)
    }
}

impl fmt::Display for Extent {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { device, offset_bytes, bytes } = self;
        write!(formatter, "{bytes} bytes at {offset_bytes} of device {device}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_blocks_of_the_device_lie_within_it() {
        let within = |offset_bytes, bytes| {
            Extent { device: DeviceIndex(0), offset_bytes, bytes }.lies_within(8 * 4096)
        };
        assert!(within(0, 8 * 4096) && within(4096, 4096) && within(8 * 4096, 0));
        assert!(!within(4096, 8 * 4096) && !within(100, 4096) && !within(0, 100));
        assert!(!within(u64::MAX - 4095, 8192));
    }
}
