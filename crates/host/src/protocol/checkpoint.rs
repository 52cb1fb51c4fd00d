//! Checkpoints as operators see them.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Names of one checkpoint. `domain` and `uid` are needed only where several guests had that name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CheckpointName {
    /// Name of the guest.
    pub guest: String,
    /// Name of the checkpoint among those of the guest.
    pub name: String,
    /// Name of the guest's domain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    /// User whose guest it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
}

impl fmt::Display for CheckpointName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.guest, self.name)
    }
}

/// Key of an export: 64 hexadecimal digits. Prints nothing of itself.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ExportKey(pub String);

impl fmt::Debug for ExportKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ExportKey")
    }
}

/// Checkpoints that a request is about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Selection {
    /// Checkpoints with these names.
    Named(Vec<CheckpointName>),
    /// All that the operator may see.
    All {},
    /// All checkpoints of a guest but the last `keep`.
    Older {
        /// Name of the guest.
        guest: String,
        /// Number of checkpoints to keep.
        keep: u64,
        /// Name of the guest's domain.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        domain: Option<String>,
        /// User whose guest it was.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        uid: Option<u32>,
    },
}

/// A checkpoint in a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointInfo {
    /// Name of the guest.
    pub guest: String,
    /// Name of the checkpoint among those of the guest.
    pub name: String,
    /// Name of the guest's domain.
    pub domain: String,
    /// User whose guest it was; none if the domain is not one of this daemon's.
    pub uid: Option<u32>,
    /// Time of the pause, in nanoseconds since 1970-01-01 UTC.
    pub time_ns: u64,
    /// Time from STOP to RESUME in microseconds; none of a guest that was paused before, of an import, and where
    /// the record is older than pauses are kept.
    #[serde(default)]
    pub pause_us: Option<u64>,
    /// Number of rounds before the pause, where it is known.
    #[serde(default)]
    pub rounds: Option<u32>,
    /// Size of all memory blocks.
    pub memory_bytes: u64,
    /// Size of the pages that are not zero.
    pub stored_bytes: u64,
    /// Size of those pages that no earlier checkpoint had.
    pub own_bytes: u64,
    /// Size of those pages that an earlier checkpoint had.
    pub shared_bytes: u64,
    /// Bytes that were written to the pool for it, compressed as they are.
    pub written_bytes: u64,
}

/// All about a checkpoint but its pages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointDetail {
    /// As in a list.
    #[serde(flatten)]
    pub info: CheckpointInfo,
    /// Kind of VMM, such as `qemu`.
    pub vmm: String,
    /// Version of the VMM.
    pub vmm_version: String,
    /// Type of machine; empty where the VMM has none.
    pub machine: String,
    /// Arguments that the VMM was started with; bytes that are no text are shown as `�`.
    pub arguments: Vec<String>,
    /// Memory blocks.
    pub blocks: Vec<BlockInfo>,
    /// Writable disks.
    pub disks: Vec<DiskInfo>,
    /// Size of the device state.
    pub device_state_bytes: u64,
    /// Number of packs that have its pages.
    pub packs: u64,
    /// True if pages that a restore touched are recorded, so that the next one fetches them first.
    pub is_restored: bool,
}

/// A memory block of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "name and type say all")]
pub struct BlockInfo {
    pub name: String,
    pub memory_bytes: u64,
    /// Size of its pages that are not zero.
    pub stored_bytes: u64,
}

/// A writable disk of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "name and type say all")]
pub struct DiskInfo {
    pub device: String,
    /// File that holds its content as of the checkpoint.
    pub path: String,
    pub format: String,
}

/// Disks of a guest of which a checkpoint is made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum DiskPolicy {
    /// Writable disks get overlays in the pause, so that their images stay as of the checkpoint.
    Overlays {
        /// Directory of the overlays, an absolute path; beside each image without.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        directory: Option<String>,
    },
    /// Disks are left out: they have nothing of value, or are kept by other means.
    Without,
}

/// Result of `checkpoint-create`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Created {
    /// The checkpoint.
    pub checkpoint: CheckpointInfo,
    /// Time from STOP to RESUME by the VMM's clock; none if the guest was paused before.
    pub pause_us: Option<u64>,
    /// Part of the pause in which device state was saved.
    pub device_state_us: u64,
    /// Part of the pause in which disks got their overlays.
    pub disks_us: u64,
    /// Part of the pause in which changed pages were found and read.
    pub memory_us: u64,
    /// Number of shorter pauses before.
    pub rounds: u32,
    /// Number of pages that were read in the pause.
    pub pages_in_pause: u64,
    /// Overlays that the guest's disks write to from now on.
    pub overlays: Vec<String>,
}

/// Result of `checkpoint-restore`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restored {
    /// Name of the guest.
    pub guest: String,
    /// Process of its VMM.
    pub pid: i32,
    /// Checkpoint that it goes on from.
    pub checkpoint: CheckpointName,
    /// Number of pages of its memory.
    pub pages: u64,
    /// Time until its memory was bound to the checkpoint.
    pub binding_us: u64,
    /// Time in which the VMM loaded device state.
    pub loading_us: u64,
    /// Time from the request until it ran, or could.
    pub total_us: u64,
}

/// Result of the verification of one checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verified {
    /// Names of the checkpoint.
    pub checkpoint: CheckpointName,
    /// Number of pages that were read and are right.
    pub pages: u64,
    /// Number of pages that cannot be read.
    pub damaged_pages: u64,
    /// The first [`DAMAGE_MAX`] runs of them.
    pub damaged: Vec<DamageInfo>,
    /// Error of the manifest, without which nothing can be read.
    pub unreadable: Option<String>,
    /// Error of the record of touched pages, without which the checkpoint is whole all the same.
    pub touched: Option<String>,
}

impl Verified {
    /// Returns true if all of the checkpoint can be read.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.damaged_pages == 0 && self.unreadable.is_none()
    }
}

/// Most runs of damaged pages that are listed of one checkpoint.
pub const DAMAGE_MAX: usize = 256;

/// Pages that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DamageInfo {
    /// Name of the memory block.
    pub block: String,
    /// First page of the run.
    pub first_page: u32,
    /// Number of pages.
    pub pages: u32,
    /// Error of the first of them.
    pub why: String,
}
