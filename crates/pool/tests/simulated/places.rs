//! Places of logs on simulated devices.

use std::sync::Arc;

use bindery_pool::device::Device;
use bindery_pool::log::LogCopy;
use bindery_pool::{BLOCK_BYTES, DeviceIndex, Extent};

use super::{Machine, Simulated};

/// So many blocks of a device.
pub(crate) fn place(device: &Arc<Simulated>, index: u16, first: u64, blocks: u64) -> LogCopy {
    let bytes = |blocks: u64| blocks * BLOCK_BYTES as u64;
    let extent =
        Extent { device: DeviceIndex(index), offset_bytes: bytes(first), bytes: bytes(blocks) };
    LogCopy { device: Arc::clone(device) as Arc<dyn Device>, extent }
}

/// Places of a log in so many copies, each on a device of its own, one block behind its start.
pub(crate) fn places(machine: &mut Machine, copies: u16, blocks: u64) -> Vec<LogCopy> {
    (0..copies)
        .map(|index| {
            let device = machine.device((blocks + 2) * BLOCK_BYTES as u64);
            place(&device, index, 1, blocks)
        })
        .collect()
}
