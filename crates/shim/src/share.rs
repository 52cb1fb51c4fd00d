//! Files that managed memory was mapped from.
//!
//! A memfd that only the VMM uses (`memory-backend-memfd,share=on`) is taken over: its content lives
//! in managed memory and the file is empty. Before anybody else can look into it (it is sent over a
//! socket, as for vhost-user, mapped again, or given to a driver) we step aside, which puts the content back. A hole
//! punched into the file, by which a VMM gives memory back, is punched into the memory.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};

use bindery_space::wire::control::{Backing, Region};
use bindery_units::{HostAddress, PAGE_BYTES};
use libc::{CMSG_DATA, CMSG_FIRSTHDR, CMSG_LEN, CMSG_NXTHDR, c_int, msghdr};

use crate::answer::Errno;
use crate::managed::{self, Managed};

/// Whether a file was ever taken over: until then these calls are nobody's business.
static TAKEN: AtomicBool = AtomicBool::new(false);

/// Notes that memory backed so came under management.
pub(crate) fn note(backing: Backing) {
    if backing == Backing::SharedMemfd {
        TAKEN.store(true, Ordering::Relaxed);
    }
}

/// The managed memory, if any of it was ever taken from a file. Lock-free.
fn taken() -> Option<&'static Managed> {
    if TAKEN.load(Ordering::Relaxed) { managed::get() } else { None }
}

/// The regions taken from the file that `file` is open on.
fn regions_of(managed: &Managed, file: c_int) -> Vec<(Region, u64)> {
    if file < 0 {
        return Vec::new();
    }
    // SAFETY: the caller is in a call that gives the descriptor to the kernel: it is open, or the
    // kernel says that it is not, here as there.
    let file = unsafe { BorrowedFd::borrow_raw(file) };
    managed.space.regions_of_file(file).unwrap_or_default()
}

/// Before somebody else is given the file.
///
/// # Errors
/// `ENOMEM` if the file cannot be given its content back now: it must not be shown empty.
pub(crate) fn before_use(file: c_int, what: &str) -> Result<(), Errno> {
    let Some(managed) = taken() else { return Ok(()) };
    for (region, _) in regions_of(managed, file) {
        let bytes = region.pages.count as usize * PAGE_BYTES;
        if !managed.step_aside(region.address.0, bytes, what) {
            return Err(Errno(libc::ENOMEM));
        }
    }
    Ok(())
}

/// Before a message is sent: descriptors in it may be of files that were taken over.
///
/// # Errors
/// Those of [`before_use`].
///
/// # Safety
/// `message` is null or what the VMM gives to sendmsg(2).
pub(crate) unsafe fn before_send(message: *const msghdr) -> Result<(), Errno> {
    if taken().is_none() || message.is_null() {
        return Ok(());
    }
    // SAFETY: the caller's contract: a header whose control part, if it has one, is well formed or
    // ends where its length says, which is as far as these macros look.
    unsafe {
        let mut part = CMSG_FIRSTHDR(message);
        while !part.is_null() {
            let header = part.read_unaligned();
            let is_rights =
                header.cmsg_level == libc::SOL_SOCKET && header.cmsg_type == libc::SCM_RIGHTS;
            let data_bytes = header.cmsg_len.saturating_sub(CMSG_LEN(0) as usize);
            if is_rights {
                for at in 0..data_bytes / size_of::<c_int>() {
                    let file = CMSG_DATA(part).cast::<c_int>().add(at).read_unaligned();
                    before_use(file, "share guest memory with another process")?;
                }
            }
            part = CMSG_NXTHDR(message, part);
        }
    }
    Ok(())
}

/// Before a hole is punched into a file: punches it into the memory that was taken from it. Parts of
/// pages become zero, as in the file.
///
/// # Errors
/// The kernel's.
pub(crate) fn before_punch(file: c_int, offset: i64, bytes: i64) -> Result<(), Errno> {
    let Some(managed) = taken() else { return Ok(()) };
    let (Ok(offset), Ok(bytes)) = (u64::try_from(offset), u64::try_from(bytes)) else {
        // The kernel refuses it.
        return Ok(());
    };
    for (region, begins_at) in regions_of(managed, file) {
        let length = u64::from(region.pages.count) * PAGE_BYTES as u64;
        let start = offset.clamp(begins_at, begins_at + length) - begins_at;
        let end = offset.saturating_add(bytes).clamp(begins_at, begins_at + length) - begins_at;
        punch(managed, region.address.0 + start as usize, region.address.0 + end as usize)?;
    }
    Ok(())
}

fn punch(managed: &Managed, start: usize, end: usize) -> Result<(), Errno> {
    let whole_start = start.next_multiple_of(PAGE_BYTES).min(end);
    let whole_end = (end - end % PAGE_BYTES).max(whole_start);
    for (from, to) in [(start, whole_start), (whole_end, end)] {
        // SAFETY: managed memory is mapped and writable, and the VMM wants these bytes to be zero.
        unsafe { std::ptr::write_bytes(from as *mut u8, 0, to - from) };
    }
    if whole_start < whole_end {
        let bytes = whole_end - whole_start;
        managed.space.discard(HostAddress(whole_start), bytes, libc::MADV_DONTNEED)?;
    }
    Ok(())
}
