//! KVM's dirty page tracking, as far as kvm-ioctls has no call for it: the capabilities, the bitmap
//! without an allocation a call, `KVM_CLEAR_DIRTY_LOG`, and the dirty rings.
//!
//! See Documentation/virt/kvm/api.rst and `include/uapi/linux/kvm.h`. A machine is tracked in one of
//! three ways, chosen once, before its first vCPU is made:
//!
//! | way | reading | protecting again |
//! |---|---|---|
//! | bitmap | [`get_dirty_log`] | the same call |
//! | bitmap, [`enable_manual_protect`] | [`get_dirty_log`] | [`clear_dirty_log`] |
//! | rings, [`enable_dirty_rings`] | [`DirtyRing`], one a vCPU | [`reset_dirty_rings`] |
//!
//! With rings `KVM_GET_DIRTY_LOG` answers `ENXIO` (but on arm64, for what no vCPU wrote). None of
//! them sees what the VMM's own process writes, nor what the kernel writes for it (vhost).
//!
//! Functions take the owned descriptors of kvm-ioctls, whose types say that they are KVM's. They
//! would be methods there.

mod capability;
mod log;
mod ring;

use std::{io, os::fd::AsRawFd};

pub use capability::{
    DirtyTracking, RingEntries, dirty_tracking, enable_dirty_rings, enable_manual_protect,
};
pub use log::{DirtyBitmap, clear_dirty_log, get_dirty_log};
pub use ring::{DirtyGfn, DirtyRing, OutOfStep, reset_dirty_rings};

/// `KVM_EXIT_DIRTY_RING_FULL`: a vCPU stops until its ring is harvested and reset. kvm-ioctls gives
/// it as [`Unsupported`](kvm_ioctls::VcpuExit::Unsupported).
pub const EXIT_DIRTY_RING_FULL: u32 = kvm_bindings::KVM_EXIT_DIRTY_RING_FULL;

/// Calls a machine's or a vCPU's descriptor; returns the answer, which is not negative.
///
/// # Safety
/// `argument` must be what `request` expects.
unsafe fn call(
    descriptor: &impl AsRawFd,
    request: libc::c_ulong,
    argument: usize,
) -> io::Result<u32> {
    // A raw call: a preload library in this process may interpose `ioctl`.
    // SAFETY: the caller's contract.
    let answer =
        unsafe { libc::syscall(libc::SYS_ioctl, descriptor.as_raw_fd(), request, argument) };
    u32::try_from(answer).map_err(|_| io::Error::last_os_error())
}
