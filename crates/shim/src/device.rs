//! Memory that a device may only read (VFIO and iommufd behind a virtual IOMMU).
//!
//! What a device may write is pinned for writing, which a merged page waits for as for any write. To be
//! pinned for reading, the kernel copies it inside the store's mapping and tells nobody
//! (`FAULT_FLAG_UNSHARE`), and the device would keep that copy when the page comes back elsewhere: so it
//! comes back first.

use std::ffi::c_void;

use crate::managed;

/// `IOMMU_IOAS_MAP`, see linux/iommufd.h.
const IOMMU_IOAS_MAP: u32 = 0x3b85;
/// `VFIO_IOMMU_MAP_DMA`, see linux/vfio.h.
const VFIO_IOMMU_MAP_DMA: u32 = 0x3b71;

/// "The device may write it", in the flags of both.
const WRITEABLE: u32 = 1 << 1;

const READ_ONLY: &str = "give a device memory that it only reads";

/// The beginning of `struct iommu_ioas_map`.
#[repr(C)]
struct IommuMap {
    size: u32,
    flags: u32,
    address_space: u32,
    reserved: u32,
    start: u64,
    bytes: u64,
}

/// The beginning of `struct vfio_iommu_type1_dma_map`.
#[repr(C)]
struct VfioMap {
    size: u32,
    flags: u32,
    start: u64,
    device_address: u64,
    bytes: u64,
}

/// True if a request may give memory away.
pub(crate) const fn is_concerned(request: u32) -> bool {
    matches!(request, IOMMU_IOAS_MAP | VFIO_IOMMU_MAP_DMA)
}

/// Before memory is given away by a request that [is concerned](is_concerned).
///
/// # Safety
/// `argument` is what the VMM gives to that request.
pub(crate) unsafe fn before_given(request: u32, argument: *const c_void) {
    if managed::get().is_none() || argument.is_null() {
        return;
    }
    // SAFETY: the caller's contract: the structure of the request.
    let (flags, start, bytes) = unsafe {
        if request == IOMMU_IOAS_MAP {
            let map = argument.cast::<IommuMap>().read_unaligned();
            (map.flags, map.start, map.bytes)
        } else {
            let map = argument.cast::<VfioMap>().read_unaligned();
            (map.flags, map.start, map.bytes)
        }
    };
    let (start, bytes) = (start as usize, bytes as usize);
    if flags & WRITEABLE == 0
        && let Some(managed) = managed::overlapping(start, bytes)
    {
        managed.step_aside(start, bytes, READ_ONLY);
    }
}
