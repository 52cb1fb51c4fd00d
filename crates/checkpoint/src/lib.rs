//! Checkpoints of guests: memory, device state and a description, kept in a pool and read back.
//!
//! A **checkpoint** is a *manifest* and the *packs* that it names. A **pack** is an immutable object of
//! the pool that holds pages in the order in which they were put, each in a *group* with a checksum or a
//! tag of its own. A **manifest** is flat: it says of every page of every memory block where it is, so
//! that a restore reads one manifest however many checkpoints there were before. Pages of zeros are not
//! stored, and neither are pages that an earlier checkpoint of the same **domain** has.
//!
//! ```text
//!  root MDC of the pool ── domains, checkpoints, live packs
//!        │
//!        ▼
//!  manifest ── guest, name, VMM, disks, device state, runs of pages
//!        │
//!        ▼
//!  packs ── groups of pages, their checks, their digests
//! ```
//!
//! [`Store`] is the catalogue; [`CheckpointWriter`] makes a checkpoint of bytes, [`CheckpointReader`] makes
//! bytes of a checkpoint. [`Store::export`] and [`Store::import`] carry one to another host as a stream,
//! [`Remote`] by way of an object store.
//! Nothing here knows how memory is read, how a VMM is stopped or who asks. The formats stand in
//! `docs/formats/checkpoint.md`, the choices in `docs/decisions/0026-what-a-checkpoint-stores.md`.
//!
//! # What holds
//!
//! - A checkpoint that was reported is whole and durable; after a crash at any write it is there or it is not.
//! - A pack is deleted when no manifest names it. What a crash leaves over is deleted at the next opening.
//! - Two domains share no page, and neither digests nor keys.
//! - Damage is named by block and page, and only those who read such a page get an error.
//!
//! # Concurrency
//!
//! A [`Store`] may be used from any number of threads: several checkpoints may be written, read and deleted
//! at once. One process at a time has a pool open for writing.
#![forbid(unsafe_code)]

mod catalogue;
mod checksum;
mod domain_keys;
mod error;
mod fields;
mod format_error;
mod known;
mod manifest;
mod name;
mod object;
mod pack;
mod page_digest;
mod reader;
mod remote;
mod root;
mod seal;
mod store;
mod stream;
mod touched;

pub use catalogue::{Capture, CheckpointId, CheckpointSummary, DiskOverlay, OverlayUse};
pub use error::CheckpointError;
pub use format_error::FormatError;
pub use manifest::{Description, Disk, Manifest, MemoryBlock, PageMap, PlacedRun, Vmm};
pub use name::{BadName, LONGEST_NAME, Name};
pub use pack::PageEncoding;
pub use reader::{CheckpointReader, MappableRun};
pub use remote::{
    Pushed, PushedObject, Remote, RemoteCheckpoint, RemoteDeleted, RemoteError, RemoteListing,
};
pub use seal::{KeyError, SecretKey};
pub use store::{
    CheckpointWriter, DamagedRun, Deleted, NewCheckpoint, Store, StoreOptions, VerifyReport,
};
pub use stream::{
    ChunkHead, ChunkKind, ExportOptions, Exported, ImportOptions, StreamHead, StreamWriter,
};
pub use touched::{TouchedRun, decode_touched, encode_touched};
