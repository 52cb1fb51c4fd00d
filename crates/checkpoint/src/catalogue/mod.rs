//! Catalogue of checkpoints: records in the root, and their sum.

mod contents;
mod overlay;
mod record;

pub(crate) use contents::{Contents, DomainNumber};
pub use overlay::{DiskOverlay, OverlayUse};
pub use record::{Capture, CheckpointId, CheckpointSummary};
pub(crate) use record::{DomainEntry, Protection, Record, encode_change, split_change};
