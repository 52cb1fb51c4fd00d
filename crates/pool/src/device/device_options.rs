//! Ways to open a device.

use super::io_engine::IoEngine;

/// What a device is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceAccess {
    /// Reading, beside any number of others and one that writes.
    Read,
    /// Reading and writing, which one at a time may.
    Write,
}

/// How a device is opened.
#[derive(Clone, Copy, Debug)]
pub struct DeviceOptions {
    /// For what.
    pub access: DeviceAccess,
    /// How many transfers are done at once; io_uring if this process may use it, where none is named.
    pub engine: Option<IoEngine>,
    /// How many transfers of one call are under way at most, from 1 to 4096.
    pub depth: usize,
    /// Through the page cache, even where O_DIRECT works.
    pub buffered: bool,
}

impl DeviceOptions {
    /// What serves most: io_uring if it can be, 64 transfers at once, past the page cache.
    #[must_use]
    pub const fn new(access: DeviceAccess) -> Self {
        Self { access, engine: None, depth: 64, buffered: false }
    }
}
