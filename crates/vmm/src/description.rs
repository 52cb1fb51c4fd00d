//! Descriptions of guests, their memory, disks and obstacles.

use std::fmt;
use std::path::PathBuf;

use bindery_units::HostAddress;

/// A guest, as its VMM describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestDescription {
    /// Name given to the VMM, if one was.
    pub name: Option<String>,
    /// Type of machine with its version, such as `pc-i440fx-10.0`. Device state loads into this one only.
    pub machine: String,
    /// The VMM's version.
    pub version: String,
    /// Number of virtual CPUs.
    pub vcpus: usize,
    /// True if its virtual CPUs run.
    pub is_running: bool,
    /// Blocks of guest memory, in the VMM's order, firmware and video memory included.
    pub memory: Vec<MemoryBlock>,
    /// Disks that the guest may write.
    pub disks: Vec<Disk>,
    /// Arguments that the VMM would have been started with, beside its own, had it begun with the memory that was
    /// plugged in since.
    pub plugged_arguments: Vec<String>,
    /// Obstacles to saving it; empty if nothing forbids that.
    pub obstacles: Vec<Obstacle>,
}

/// A block of guest memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryBlock {
    /// The VMM's name of it, such as `pc.ram`; empty for one that no device has.
    pub name: String,
    /// Bytes in use, from its start.
    pub bytes: u64,
    /// Bytes that the VMM has mapped for it, `bytes` at least: the length that it advises the kernel about.
    pub total_bytes: u64,
    /// Address in the VMM's process; `None` where the VMM does not say.
    pub host_address: Option<HostAddress>,
}

/// A disk that the guest may write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disk {
    /// Name of its topmost block node, for [`Overlay::node`].
    pub node: String,
    /// Name of the guest's device.
    pub device: String,
    /// The image as the VMM names it: a path, or a description in JSON.
    pub image: String,
    /// Format of the image, such as `qcow2`.
    pub format: String,
}

/// An overlay to put over a disk: from then on the guest writes there, and what is below stays as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overlay {
    /// Block node to cover: [`Disk::node`].
    pub node: String,
    /// Absolute path of the new qcow2 image; nothing may be there.
    pub path: PathBuf,
    /// Name for the overlay's block node, at most 31 letters and digits.
    pub overlay_node: String,
}

/// Something that forbids saving a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Obstacle {
    /// Names the thing, with why it is one.
    pub what: String,
    /// Says what to do about it.
    pub remedy: String,
}

impl Obstacle {
    /// Makes one of two phrases.
    pub fn new(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { what: what.into(), remedy: remedy.into() }
    }
}

impl fmt::Display for Obstacle {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} ({})", self.what, self.remedy)
    }
}
