//! Location of a log.

use std::sync::Arc;

use crate::device::Device;
use crate::extent::Extent;

/// A copy of a log: blocks of a device.
#[derive(Clone, Debug)]
pub struct LogCopy {
    /// The device that `extent` names.
    pub device: Arc<dyn Device>,
    /// The blocks, all of them the log's.
    pub extent: Extent,
}
