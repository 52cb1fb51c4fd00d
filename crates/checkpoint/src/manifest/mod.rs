//! Manifests: what a checkpoint is, and where each of its pages is.

mod description;
mod encode;
mod overlay;
mod page_map;

pub use description::{Description, Disk, MemoryBlock, Vmm};
pub use encode::Manifest;
pub use page_map::{PageMap, PlacedRun};

pub(crate) use description::{DESCRIPTION_BYTES_MAX, take_name};
pub(crate) use encode::{ManifestHead, PACKS_AT};
pub(crate) use overlay::{Overlay, PagePlace};
