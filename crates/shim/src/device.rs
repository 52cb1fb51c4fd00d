//! Memory that the VMM gives to a device, or to another driver, by ioctl(2).
//!
//! - A memfd by its descriptor (udmabuf for virtio-gpu's blobs; iommufd). One that was taken over is
//!   empty: its content is put back first, as before it is sent to another process.
//! - Memory that a device may only read (VFIO and iommufd behind a virtual IOMMU). What a device may
//!   write is pinned for writing, which a merged page waits for as for any write. To be pinned for
//!   reading, the kernel copies it inside the store's mapping and tells nobody (`FAULT_FLAG_UNSHARE`),
//!   and the device would keep that copy when the page comes back elsewhere: so it comes back first.

use std::ffi::c_void;

use libc::c_int;

use crate::answer::Errno;
use crate::managed;
use crate::share::before_use;

/// `UDMABUF_CREATE` and `UDMABUF_CREATE_LIST`, see linux/udmabuf.h.
const UDMABUF_CREATE: u32 = 0x4018_7542;
const UDMABUF_CREATE_LIST: u32 = 0x4008_7543;
/// `IOMMU_IOAS_MAP` and `IOMMU_IOAS_MAP_FILE`, see linux/iommufd.h.
const IOMMU_IOAS_MAP: u32 = 0x3b85;
const IOMMU_IOAS_MAP_FILE: u32 = 0x3b8f;
/// `VFIO_IOMMU_MAP_DMA`, see linux/vfio.h.
const VFIO_IOMMU_MAP_DMA: u32 = 0x3b71;

/// "The device may write it", in the flags of the two that map memory.
const WRITEABLE: u32 = 1 << 1;

const FILE: &str = "give guest memory to a driver";
const READ_ONLY: &str = "give a device memory that it only reads";

/// The beginning of `struct udmabuf_create_list`, which its items follow.
#[repr(C)]
struct List {
    flags: u32,
    count: u32,
}

/// `struct udmabuf_create`, and `struct udmabuf_create_item`.
#[repr(C)]
struct Item {
    file: c_int,
    flags: u32,
    offset: u64,
    bytes: u64,
}

/// The beginning of `struct iommu_ioas_map`, and of `struct iommu_ioas_map_file`.
#[repr(C)]
struct IommuMap {
    size: u32,
    flags: u32,
    address_space: u32,
    file: c_int,
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

/// Whether a request may give memory away.
pub(crate) const fn is_concerned(request: u32) -> bool {
    matches!(
        request,
        UDMABUF_CREATE
            | UDMABUF_CREATE_LIST
            | IOMMU_IOAS_MAP
            | IOMMU_IOAS_MAP_FILE
            | VFIO_IOMMU_MAP_DMA
    )
}

/// Before memory is given away by a request that [is concerned](is_concerned).
///
/// # Errors
/// `ENOMEM` if a file cannot be given its content back now.
///
/// # Safety
/// `argument` is what the VMM gives to that request.
pub(crate) unsafe fn before_given(request: u32, argument: *const c_void) -> Result<(), Errno> {
    if managed::get().is_none() || argument.is_null() {
        return Ok(());
    }
    // SAFETY: the caller's contract: the structure of the request.
    unsafe {
        match request {
            UDMABUF_CREATE => before_use(argument.cast::<Item>().read_unaligned().file, FILE),
            UDMABUF_CREATE_LIST => {
                let count = argument.cast::<List>().read_unaligned().count as usize;
                let items = argument.cast::<List>().add(1).cast::<Item>();
                (0..count).try_for_each(|at| before_use(items.add(at).read_unaligned().file, FILE))
            }
            IOMMU_IOAS_MAP_FILE => {
                before_use(argument.cast::<IommuMap>().read_unaligned().file, FILE)
            }
            IOMMU_IOAS_MAP => {
                let map = argument.cast::<IommuMap>().read_unaligned();
                before_mapped(map.flags, map.start, map.bytes);
                Ok(())
            }
            _ => {
                let map = argument.cast::<VfioMap>().read_unaligned();
                before_mapped(map.flags, map.start, map.bytes);
                Ok(())
            }
        }
    }
}

/// Before a device may use a range.
fn before_mapped(flags: u32, start: u64, bytes: u64) {
    let (start, bytes) = (start as usize, bytes as usize);
    if flags & WRITEABLE == 0
        && let Some(managed) = managed::overlapping(start, bytes)
    {
        managed.step_aside(start, bytes, READ_ONLY);
    }
}
