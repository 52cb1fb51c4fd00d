//! NUMA nodes.

use serde::{Deserialize, Serialize};

/// Number of a NUMA node, as the kernel counts them: `/sys/devices/system/node/node0` is the first.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[repr(transparent)]
pub struct NumaNode(pub u32);

impl std::fmt::Display for NumaNode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "node {}", self.0)
    }
}
