//! Ways to open a device.

use super::io_engine::IoEngine;

/// Access that a device is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceAccess {
    /// Reading, beside any number of others and one that writes.
    Read,
    /// Reading and writing, which one at a time may.
    Write,
}

/// Ways to open a device.
#[derive(Clone, Copy, Debug)]
pub struct DeviceOptions {
    /// Access to open the device for.
    pub access: DeviceAccess,
    /// Way to do transfers; none takes io_uring if this process may use it, else threads.
    pub engine: Option<IoEngine>,
    /// Most transfers of one call that are under way, from 1 to 4096.
    pub depth: usize,
    /// Through the page cache, even where O_DIRECT works.
    pub buffered: bool,
}

impl DeviceOptions {
    /// Returns what serves most: io_uring if it can be, 64 transfers at once, past the page cache.
    #[must_use]
    pub const fn new(access: DeviceAccess) -> Self {
        Self { access, engine: None, depth: 64, buffered: false }
    }
}
