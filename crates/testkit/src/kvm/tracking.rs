//! How KVM tracks what a guest writes.

use bindery_sys::kvm::{RingEntries, enable_dirty_rings, enable_manual_protect};
use kvm_bindings::KVM_MEM_LOG_DIRTY_PAGES;
use kvm_ioctls::VmFd;

use super::TinyGuestError;

/// How KVM tracks what a guest writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tracking {
    /// Not at all.
    None,
    /// By its bitmap, which reading protects again.
    Bitmap,
    /// By its bitmap, which is protected again by hand.
    ManualBitmap {
        /// Whether all pages count as written at first.
        initially_set: bool,
    },
    /// By a ring of so many entries.
    Ring {
        /// A power of two.
        entries: u32,
    },
}

impl Tracking {
    pub(super) fn enable(self, vm: &VmFd) -> Result<Option<RingEntries>, TinyGuestError> {
        let result = match self {
            Self::None | Self::Bitmap => Ok(None),
            Self::ManualBitmap { initially_set } => {
                enable_manual_protect(vm, initially_set).map(|()| None)
            }
            Self::Ring { entries } => enable_dirty_rings(vm, entries).map(Some),
        };
        result.map_err(|source| TinyGuestError::Tracking { how: format!("{self:?}"), source })
    }

    pub(super) const fn slot_flags(self) -> u32 {
        match self {
            Self::None => 0,
            _ => KVM_MEM_LOG_DIRTY_PAGES,
        }
    }
}
