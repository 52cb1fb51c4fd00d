//! Overlays of disks, as the catalogue knows them.

use crate::fields::{Fields, put_counted};
use crate::format_error::FormatError;
use crate::manifest::take_name;
use crate::name::Name;

/// Purpose of an overlay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OverlayUse {
    /// Made in the pause of a checkpoint: what is below stays as of it.
    Captured,
    /// Made for a guest that was restored: what is below is the checkpoint's.
    Restored,
    /// Made for a checkpoint, and about to go: the layer below takes what it has.
    Merging,
}

/// Overlay over a disk's image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskOverlay {
    /// Name of the domain.
    pub domain: Name,
    /// Name of the guest that writes to it, or wrote.
    pub guest: Name,
    /// Purpose.
    pub purpose: OverlayUse,
    /// Path of the overlay.
    pub path: Vec<u8>,
    /// Path of the image that it was put over.
    pub below: Vec<u8>,
}

pub(super) fn put_overlay(into: &mut Vec<u8>, overlay: &DiskOverlay) {
    put_counted(into, overlay.guest.as_str().as_bytes());
    into.push(match overlay.purpose {
        OverlayUse::Captured => 1,
        OverlayUse::Restored => 2,
        OverlayUse::Merging => 3,
    });
    put_counted(into, &overlay.path);
    put_counted(into, &overlay.below);
}

pub(super) fn take_overlay(
    fields: &mut Fields<'_>,
    what: &'static str,
    domain: Name,
) -> Result<DiskOverlay, FormatError> {
    let guest = take_name(fields)?;
    let purpose = match fields.u8()? {
        1 => OverlayUse::Captured,
        2 => OverlayUse::Restored,
        3 => OverlayUse::Merging,
        _ => return Err(FormatError::impossible(what, "an unknown purpose of an overlay")),
    };
    let (path, below) = (fields.counted()?.to_vec(), fields.counted()?.to_vec());
    Ok(DiskOverlay { domain, guest, purpose, path, below })
}
