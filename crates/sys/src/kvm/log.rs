//! `KVM_GET_DIRTY_LOG` and `KVM_CLEAR_DIRTY_LOG`: a bit a page of a slot.

use std::{io, slice};

use bindery_units::PAGE_BYTES;
use kvm_bindings::{
    kvm_clear_dirty_log, kvm_clear_dirty_log__bindgen_ty_1, kvm_dirty_log,
    kvm_dirty_log__bindgen_ty_1,
};
use kvm_ioctls::VmFd;

use super::call;
use crate::mapping::Mapping;

const IOC_GET: libc::c_ulong = 0x4010_ae42;
const IOC_CLEAR: libc::c_ulong = 0xc018_aec0;
const _: () = assert!(size_of::<kvm_dirty_log>() == 16 && size_of::<kvm_clear_dirty_log>() == 24);

/// Room for the bitmap of a slot: a bit a page, in words of 64 bits, the lowest bit first.
///
/// The kernel writes as many words as the *slot* has, whatever the room. A page that nobody may
/// write lies behind it, so that a slot with more pages is an error and not an overrun.
#[derive(Debug)]
pub struct DirtyBitmap {
    memory: Mapping,
    pages: usize,
}

impl DirtyBitmap {
    /// Room for a slot of so many pages, zero.
    ///
    /// # Errors
    /// As mmap(2) and mprotect(2).
    pub fn new(pages: usize) -> io::Result<Self> {
        let bytes = (pages.div_ceil(64) * 8).next_multiple_of(PAGE_BYTES);
        let memory = Mapping::anonymous(bytes + PAGE_BYTES)?;
        let guard = memory.address().plus(bytes).0;
        // SAFETY: the page is the mapping's own, which nobody else knows yet.
        let result =
            unsafe { libc::syscall(libc::SYS_mprotect, guard, PAGE_BYTES, libc::PROT_NONE) };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { memory, pages })
    }

    /// How many pages it is for.
    #[must_use]
    pub const fn pages(&self) -> usize {
        self.pages
    }

    /// The words, as the kernel left them.
    #[must_use]
    pub const fn words(&self) -> &[u64] {
        // SAFETY: the mapping is longer than so many words, page-aligned, readable and initialized
        // (with zeros or by the kernel); it is written through `&mut self` alone.
        unsafe { slice::from_raw_parts(self.memory.as_ptr().cast(), self.pages.div_ceil(64)) }
    }

    /// The same, for whoever crosses off what is dealt with.
    #[must_use]
    pub const fn words_mut(&mut self) -> &mut [u64] {
        let words = self.pages.div_ceil(64);
        // SAFETY: as above, and writable.
        unsafe { slice::from_raw_parts_mut(self.memory.as_ptr().cast(), words) }
    }
}

/// Reads the bitmap of a slot (`KVM_GET_DIRTY_LOG`): which of its pages were written since they were
/// last protected. Protects them again, unless
/// [`enable_manual_protect`](super::enable_manual_protect) leaves that to [`clear_dirty_log`].
/// `slot` has the address space in its upper 16 bits.
///
/// The kernel copies the whole bitmap: some 1.5 µs a GiB, and longer where it protects.
///
/// # Errors
/// `ENOENT`: there is no such slot, or it is not tracked (`KVM_MEM_LOG_DIRTY_PAGES`). `ENXIO`: the
/// machine has rings. `EIO`: another process's machine, or one that the kernel gave up. `EFAULT`: the
/// slot has more pages than `bitmap`; without manual protection its marks are lost then.
pub fn get_dirty_log(vm: &VmFd, slot: u32, bitmap: &mut DirtyBitmap) -> io::Result<()> {
    let place = kvm_dirty_log__bindgen_ty_1 { dirty_bitmap: bitmap.memory.as_ptr().cast() };
    let request = kvm_dirty_log { slot, padding1: 0, __bindgen_anon_1: place };
    // SAFETY: the structure is the one that the request expects. The kernel writes upwards from the
    // bitmap's start, and stops at the page behind it, which is not writable.
    unsafe { call(vm, IOC_GET, (&raw const request).addr()) }.map(drop)
}

/// Clears marks of a slot and protects their pages again (`KVM_CLEAR_DIRTY_LOG`), for `pages` pages
/// from `first` on: those whose bit is set in `bitmap`, whose lowest bit is `first`'s. To be read
/// before a page's content is, and for no bit that was not seen set.
///
/// # Errors
/// `EINVAL`: `first` is no multiple of 64; `pages` is none, and does not reach to the slot's end; the
/// range leaves the slot; or protection is not manual. Otherwise as [`get_dirty_log`].
///
/// # Panics
/// If `bitmap` has not a bit for each page.
pub fn clear_dirty_log(
    vm: &VmFd,
    slot: u32,
    first: u64,
    pages: u32,
    bitmap: &[u64],
) -> io::Result<()> {
    assert!(pages as usize <= bitmap.len() * 64, "{pages} pages, {} words", bitmap.len());
    // The kernel only reads it.
    let dirty_bitmap = bitmap.as_ptr().cast_mut().cast();
    let request = kvm_clear_dirty_log {
        slot,
        num_pages: pages,
        first_page: first,
        __bindgen_anon_1: kvm_clear_dirty_log__bindgen_ty_1 { dirty_bitmap },
    };
    // SAFETY: the structure is the one that the request expects, and the kernel reads a bit a page,
    // rounded up to whole words.
    unsafe { call(vm, IOC_CLEAR, (&raw const request).addr()) }.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_ends_at_a_page_that_takes_nothing() {
        // As many words as a page holds, and one more.
        for (pages, words) in [(1, 1), (64, 1), (65, 2), (512 * 64, 512), (512 * 64 + 1, 513)] {
            let bitmap = DirtyBitmap::new(pages).unwrap();
            assert_eq!((bitmap.pages(), bitmap.words().len()), (pages, words));
            assert!(bitmap.words().iter().all(|word| *word == 0));
            let room = (words * 8).next_multiple_of(PAGE_BYTES);
            assert_eq!(writable_bytes(&bitmap, room + PAGE_BYTES), room);
        }
    }

    /// How many of the first bytes the kernel can write, by having it read so many zeros.
    fn writable_bytes(bitmap: &DirtyBitmap, bytes: usize) -> usize {
        use std::os::fd::AsRawFd;
        let zeros = std::fs::File::open("/dev/zero").unwrap();
        // SAFETY: the kernel writes the bitmap's own memory, and stops where it may not.
        let read = unsafe { libc::read(zeros.as_raw_fd(), bitmap.memory.as_ptr().cast(), bytes) };
        read.cast_unsigned()
    }
}
