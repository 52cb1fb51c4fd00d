//! Which ways of tracking there are, and choosing one.

use std::{ffi::c_ulong, io};

use kvm_bindings::{
    KVM_CAP_DIRTY_LOG_RING, KVM_CAP_DIRTY_LOG_RING_ACQ_REL, KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2,
    KVM_DIRTY_LOG_INITIALLY_SET, KVM_DIRTY_LOG_MANUAL_PROTECT_ENABLE, kvm_dirty_gfn,
    kvm_enable_cap,
};
use kvm_ioctls::VmFd;

/// What a machine's kernel offers beside the plain bitmap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DirtyTracking {
    /// `KVM_CLEAR_DIRTY_LOG` (`KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2`, Linux 5.0).
    pub manual_protect: bool,
    /// All pages may count as dirty at first (`KVM_DIRTY_LOG_INITIALLY_SET`, Linux 5.7).
    pub initially_set: bool,
    /// The most entries of a vCPU's ring (`KVM_CAP_DIRTY_LOG_RING`, Linux 5.11); none without rings.
    pub ring_entries_max: u32,
}

/// The size of each dirty ring of a machine that has them: a power of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingEntries(u32);

impl RingEntries {
    /// How many entries a ring has.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// How long a ring is, in bytes.
    #[must_use]
    pub const fn bytes(self) -> usize {
        self.0 as usize * size_of::<kvm_dirty_gfn>()
    }
}

/// Asks a machine what it offers (`KVM_CHECK_EXTENSION`).
#[must_use]
pub fn dirty_tracking(vm: &VmFd) -> DirtyTracking {
    let manual = extension(vm, KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2);
    DirtyTracking {
        manual_protect: manual & KVM_DIRTY_LOG_MANUAL_PROTECT_ENABLE != 0,
        initially_set: manual & KVM_DIRTY_LOG_INITIALLY_SET != 0,
        ring_entries_max: ring_capability(vm).1 / size_of::<kvm_dirty_gfn>() as u32,
    }
}

/// Has `KVM_GET_DIRTY_LOG` read only, and [`clear_dirty_log`](super::clear_dirty_log) protect again
/// (`KVM_ENABLE_CAP` of `KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2`). With `initially_set` every page of a
/// slot that comes to be tracked counts as dirty, and is not protected before it is cleared: making
/// the slot is quick, and its first harvest is all of it.
///
/// # Errors
/// `EINVAL` before Linux 5.0, or before 5.7 with `initially_set`.
pub fn enable_manual_protect(vm: &VmFd, initially_set: bool) -> io::Result<()> {
    let initially = if initially_set { KVM_DIRTY_LOG_INITIALLY_SET } else { 0 };
    let flags = KVM_DIRTY_LOG_MANUAL_PROTECT_ENABLE | initially;
    enable(vm, KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2, flags.into())
}

/// Gives each vCPU a dirty ring of so many entries (`KVM_ENABLE_CAP` of
/// `KVM_CAP_DIRTY_LOG_RING_ACQ_REL`, or of `KVM_CAP_DIRTY_LOG_RING` before Linux 6.1, which only
/// processors with total store order have). A vCPU leaves for good while its ring has fewer free
/// entries than the kernel reserves: 64, and 512 more where the processor logs pages itself.
///
/// # Errors
/// `EINVAL` if `entries` is no power of two or too small (a ring is a page at least, and more than
/// what is reserved), if the machine has a vCPU or rings already, or without the capability; `E2BIG`
/// above [`DirtyTracking::ring_entries_max`].
pub fn enable_dirty_rings(vm: &VmFd, entries: u32) -> io::Result<RingEntries> {
    let size = RingEntries(entries);
    enable(vm, ring_capability(vm).0, size.bytes() as u64)?;
    Ok(size)
}

/// The capability to enable for rings, and the longest ring in bytes.
fn ring_capability(vm: &VmFd) -> (u32, u32) {
    match extension(vm, KVM_CAP_DIRTY_LOG_RING_ACQ_REL) {
        0 => (KVM_CAP_DIRTY_LOG_RING, extension(vm, KVM_CAP_DIRTY_LOG_RING)),
        bytes => (KVM_CAP_DIRTY_LOG_RING_ACQ_REL, bytes),
    }
}

fn extension(vm: &VmFd, capability: u32) -> u32 {
    u32::try_from(vm.check_extension_raw(c_ulong::from(capability))).unwrap_or(0)
}

fn enable(vm: &VmFd, cap: u32, argument: u64) -> io::Result<()> {
    let request = kvm_enable_cap { cap, args: [argument, 0, 0, 0], ..kvm_enable_cap::default() };
    vm.enable_cap(&request).map_err(|error| io::Error::from_raw_os_error(error.errno()))
}
