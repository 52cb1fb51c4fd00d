//! Jobs as operators see them: work that goes on while nobody waits for it.

use serde::{Deserialize, Serialize};

use super::Failure;
use super::checkpoint::{CheckpointInfo, CheckpointName, Created, Restored, Verified};

/// Kinds of jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[expect(missing_docs, reason = "each is the request of its name")]
pub enum JobKind {
    CheckpointCreate,
    CheckpointRestore,
    CheckpointVerify,
    CheckpointDelete,
    CheckpointExport,
    CheckpointImport,
    CheckpointDeviceState,
    Fork,
}

/// Unit in which a job's progress is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[expect(missing_docs, reason = "name and type say all")]
pub enum JobUnit {
    Bytes,
    Pages,
    Checkpoints,
}

/// State of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobStatus {
    /// Number of the job, never given twice by one daemon.
    pub job: u64,
    /// Request that began it.
    pub kind: JobKind,
    /// Checkpoint or guest that it is about, in words.
    pub subject: String,
    /// Doing of the moment, in a word or two.
    pub phase: String,
    /// Unit of `done` and `total`.
    pub unit: JobUnit,
    /// Part that is done.
    pub done: u64,
    /// All that there is to do, where it is known.
    pub total: Option<u64>,
    /// Time since it began or, once it has ended, that it took.
    pub elapsed_ms: u64,
    /// True once it was asked to end.
    pub is_cancelled: bool,
    /// End of the job; none while it goes on.
    pub outcome: Option<JobOutcome>,
}

/// End of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum JobOutcome {
    /// All was done.
    Done(Box<JobResult>),
    /// The job failed, or was cancelled.
    Failed(Failure),
}

/// Result of a job that was done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum JobResult {
    /// Of `checkpoint-create`.
    Created(Box<Created>),
    /// Of `checkpoint-restore`.
    Restored(Restored),
    /// Of `checkpoint-verify`: each checkpoint, damaged or not.
    Verified(Vec<Verified>),
    /// Of `checkpoint-delete`.
    Deleted {
        /// Checkpoints that are gone.
        checkpoints: Vec<CheckpointName>,
        /// Bytes that are free again.
        bytes: u64,
        /// True if packs were kept that nothing names, because a checkpoint is being written or a manifest
        /// cannot be read. They go with a later deletion.
        has_kept_packs: bool,
        /// Layers of disks that were merged into the ones below.
        #[serde(default)]
        merged_layers: u64,
        /// Reason why layers that nothing needs are left, if some may be. They go with a later deletion.
        #[serde(default)]
        layers_left: Option<String>,
    },
    /// Of `checkpoint-export`.
    Exported {
        /// Number of pages that are not zero.
        pages: u64,
        /// Length of the stream.
        bytes: u64,
    },
    /// Of `checkpoint-device-state`.
    DeviceState {
        /// Length of the device state.
        bytes: u64,
    },
    /// Of `checkpoint-import`.
    Imported(CheckpointInfo),
    /// Of `fork`: children are restored from it.
    Forked {
        /// Checkpoint that it is.
        created: Box<Created>,
        /// Path of the pool in memory that the checkpoint is in.
        pool: String,
    },
}
