//! The devices of an open pool: their space, their syncs, their superblocks.

mod device_syncs;
mod pool_device;
mod space_usage;
pub(crate) mod superblock_copies;

pub use pool_device::AttachedDevice;
pub(crate) use pool_device::PoolDevice;
pub use space_usage::SpaceUsage;
