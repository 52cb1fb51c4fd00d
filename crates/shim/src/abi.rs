//! The functions of `include/bindery.h`, for VMMs that link the library.
//!
//! What they do is described there. All return 0, or -1 and leave a text that says what happened and
//! what to do, for the calling thread alone.

use std::cell::RefCell;
use std::ffi::{CString, c_char, c_void};

use bindery_units::HostAddress;
use libc::{c_int, size_t};

use crate::advice::whole_pages;
use crate::answer::{Errno, aside};
use crate::managed::{self, Managed};
use crate::split::pieces;
use crate::{hooks, lock};

thread_local! {
    static LAST_ERROR: RefCell<CString> = RefCell::default();
}

/// Runs `work`, keeps its error's text, and answers as C expects.
fn report(work: impl FnOnce() -> Result<(), String>) -> c_int {
    let Err(text) = aside(work) else { return 0 };
    let text = CString::new(text.replace('\0', " ")).expect("a text without zero bytes");
    LAST_ERROR.with(|last| *last.borrow_mut() = text);
    -1
}

fn managed_here() -> Result<&'static Managed, String> {
    if lock::is_everything_locked() {
        return Err("all memory of this process is locked (mlockall), which defeats merging".into());
    }
    let managed = managed::start()
        .ok_or("memory cannot be managed in this process; the log says why (BINDERY_LOG_FILE)")?;
    if managed.agent.has_ended() {
        return Err("the daemon has refused or released this process; the log says why".into());
    }
    Ok(managed)
}

/// Takes a range under management. See `bindery.h`.
///
/// # Safety
/// The range is the caller's memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bindery_manage(address: *mut c_void, bytes: size_t) -> c_int {
    report(|| {
        let whole = whole_pages(address as usize, bytes)
            .ok_or("a range begins at a page and is not empty")?;
        let managed = managed_here()?;
        let pieces = pieces(managed.regions_in(address as usize, whole), address as usize, whole);
        let result = pieces.into_iter().filter(|piece| !piece.is_managed).try_for_each(|piece| {
            let taken = managed.space.manage(HostAddress(piece.address), piece.bytes);
            taken.map(drop).map_err(|error| error.to_string())
        });
        managed.agent.regions_changed();
        result
    })
}

/// Gives back every region that a range touches. See `bindery.h`.
///
/// # Safety
/// The range is the caller's memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bindery_release(address: *mut c_void, bytes: size_t) -> c_int {
    report(|| {
        let Some(managed) = managed::overlapping(address as usize, bytes) else { return Ok(()) };
        let released = managed.space.release_range(HostAddress(address as usize), bytes);
        managed.agent.regions_changed();
        released.map(drop).map_err(|error| error.to_string())
    })
}

/// Throws a range's content away. See `bindery.h`.
///
/// # Safety
/// The range is the caller's memory, and nobody needs its content.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bindery_discard(address: *mut c_void, bytes: size_t) -> c_int {
    report(|| {
        // SAFETY: the caller's contract.
        let result = unsafe { hooks::madvise(address, bytes, libc::MADV_DONTNEED) };
        if result == 0 {
            return Ok(());
        }
        let error = std::io::Error::from_raw_os_error(Errno::last().0);
        Err(format!("{bytes} bytes at {address:p} cannot be discarded: {error}"))
    })
}

/// Forgets a range that is about to be unmapped or replaced. See `bindery.h`.
///
/// # Safety
/// The range is the caller's memory, and it unmaps or replaces it next.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bindery_forget(address: *mut c_void, bytes: size_t) -> c_int {
    report(|| {
        let Some(managed) = managed::overlapping(address as usize, bytes) else { return Ok(()) };
        managed.space.forget(HostAddress(address as usize), bytes);
        managed.agent.regions_changed();
        Ok(())
    })
}

/// What the last failed call of this thread has to say. See `bindery.h`.
#[unsafe(no_mangle)]
pub extern "C" fn bindery_last_error() -> *const c_char {
    // The text stays where it is until the next failed call of this thread replaces it.
    LAST_ERROR.with(|last| last.borrow().as_ptr())
}
