//! What a VMM advises about managed memory.
//!
//! | advice | in managed memory |
//! |---|---|
//! | `MERGEABLE` | offers it for management; the kernel is told only of what cannot be taken |
//! | `UNMERGEABLE` | gives it back |
//! | `DONTNEED`, `DONTNEED_LOCKED`, `FREE`, `REMOVE` | discards, as the memory's first backing would |
//! | `NORMAL`, `RANDOM`, `SEQUENTIAL` | nothing: they would cut mappings |
//! | `DONTFORK`, `DOFORK`, `DONTDUMP`, `DODUMP`, `HUGEPAGE`, `NOHUGEPAGE` | passed on, and remembered for mappings made later |
//! | `DOFORK`, of memory that is bound to a source | waits until its pages are there, then passed on |
//! | `WIPEONFORK`, `KEEPONFORK`, `GUARD_INSTALL`, `GUARD_REMOVE` | gives it back, then passed on |
//! | all others | passed on |

use std::ffi::c_void;

use bindery_space::LastingAdvice;
use bindery_units::{HostAddress, PAGE_BYTES};

use crate::answer::{Errno, checked};
use crate::child::Content;
use crate::managed::{self, Managed};
use crate::split::{Piece, pieces};
use crate::{kept, kernel, lock};

/// `MADV_GUARD_INSTALL` and `MADV_GUARD_REMOVE` (Linux 6.13), which libc does not name yet.
const MADV_GUARD_INSTALL: i32 = 102;
const MADV_GUARD_REMOVE: i32 = 103;
/// `MADV_COLLAPSE` (Linux 6.1).
const MADV_COLLAPSE: i32 = 25;
/// `MADV_DONTNEED_LOCKED` (Linux 5.18).
const MADV_DONTNEED_LOCKED: i32 = 24;

/// A range as madvise(2) takes it: whole pages, the last one rounded up. `None` for one that the
/// kernel refuses or ignores.
pub(crate) fn whole_pages(address: usize, bytes: usize) -> Option<usize> {
    let whole = bytes.checked_next_multiple_of(PAGE_BYTES)?;
    address.checked_add(whole)?;
    (address.is_multiple_of(PAGE_BYTES) && whole > 0).then_some(whole)
}

/// Notes advice that memory keeps for good.
pub(crate) fn note(address: usize, bytes: usize, advice: i32) {
    if LastingAdvice::of(advice).is_some() || advice == libc::MADV_WIPEONFORK {
        kept::note(address, bytes);
    }
}

/// What advice leaves of the content, where memory of a file takes it otherwise than anonymous memory.
pub(crate) const fn content_after(advice: i32) -> Option<Content> {
    match advice {
        libc::MADV_DONTNEED | MADV_DONTNEED_LOCKED | libc::MADV_FREE => Some(Content::Goes),
        libc::MADV_REMOVE
        | libc::MADV_WIPEONFORK
        | libc::MADV_KEEPONFORK
        | MADV_GUARD_INSTALL
        | MADV_GUARD_REMOVE
        | MADV_COLLAPSE => Some(Content::Stays),
        _ => None,
    }
}

/// `MADV_MERGEABLE`: offers what may be managed, and leaves the rest to KSM.
///
/// # Safety
/// As madvise(2).
pub(crate) unsafe fn offer(address: usize, bytes: usize) -> Result<(), Errno> {
    // The lock is looked at first: what we map ourselves would be locked, too.
    let managed = if lock::is_everything_locked() { None } else { managed::start() };
    let Some(managed) = managed.filter(|managed| !managed.agent.has_ended()) else {
        // SAFETY: the caller's contract.
        return unsafe { pass_on(address, bytes, libc::MADV_MERGEABLE) };
    };
    if managed.space.note_offered(HostAddress(address), bytes) {
        managed.agent.offered_ranges_changed();
    }
    let mut result = Ok(());
    let is_plain = !kept::may_keep(address, bytes);
    for piece in pieces(managed.regions_in(address, bytes), address, bytes) {
        if piece.is_managed {
            continue;
        }
        if let Err(error) = managed.space.offer(HostAddress(piece.address), piece.bytes, is_plain) {
            managed.agent.note_refusal(&error);
            // SAFETY: the caller's contract.
            let passed = unsafe { pass_on(piece.address, piece.bytes, libc::MADV_MERGEABLE) };
            result = result.and(passed);
        }
    }
    managed.agent.offered();
    result
}

/// All advice but `MADV_MERGEABLE`, about a range of whole pages of which some are managed.
///
/// # Safety
/// As madvise(2).
pub(crate) unsafe fn advise(
    managed: &Managed,
    address: usize,
    bytes: usize,
    advice: i32,
) -> Result<(), Errno> {
    // SAFETY: for all of these, the caller's contract.
    unsafe {
        match advice {
            libc::MADV_NORMAL | libc::MADV_RANDOM | libc::MADV_SEQUENTIAL => {
                for_each_piece(managed, address, bytes, |piece| {
                    if piece.is_managed {
                        Ok(())
                    } else {
                        pass_on(piece.address, piece.bytes, advice)
                    }
                })
            }
            // What rests is discarded by the kernel, and not taken meanwhile.
            libc::MADV_DONTNEED | MADV_DONTNEED_LOCKED | libc::MADV_FREE => {
                for_each_piece(managed, address, bytes, |piece| {
                    Ok(managed.space.discard(HostAddress(piece.address), piece.bytes, advice)?)
                })
            }
            libc::MADV_REMOVE => for_each_piece(managed, address, bytes, |piece| {
                if piece.is_managed {
                    // As for the anonymous memory that it was.
                    return Err(Errno(libc::EINVAL));
                }
                pass_on(piece.address, piece.bytes, advice)
            }),
            libc::MADV_UNMERGEABLE => {
                managed.step_aside(address, bytes, "keep memory unmerged (MADV_UNMERGEABLE)");
                pass_on(address, bytes, advice)
            }
            libc::MADV_WIPEONFORK
            | libc::MADV_KEEPONFORK
            | MADV_GUARD_INSTALL
            | MADV_GUARD_REMOVE => {
                managed.step_aside(address, bytes, "guard memory, or wipe it on fork");
                if advice == MADV_GUARD_INSTALL {
                    managed.space.discard_bound(HostAddress(address), bytes, advice)?;
                }
                pass_on(address, bytes, advice)
            }
            libc::MADV_DOFORK if !managed.let_go(address, bytes, "give memory to its children") => {
                Err(Errno(libc::ENOMEM))
            }
            _ => {
                if let Some(advice) = LastingAdvice::of(advice) {
                    // Noted first: a mapping made meanwhile gets it either from us or from the kernel.
                    managed.space.note_advice(HostAddress(address), bytes, advice);
                }
                pass_on(address, bytes, advice)
            }
        }
    }
}

/// Calls `act` for each piece that is managed, and each between. Goes on over memory that is not
/// mapped, as the kernel does, and tells of it at the end.
fn for_each_piece(
    managed: &Managed,
    address: usize,
    bytes: usize,
    mut act: impl FnMut(Piece) -> Result<(), Errno>,
) -> Result<(), Errno> {
    let mut result = Ok(());
    for piece in pieces(managed.regions_in(address, bytes), address, bytes) {
        let done = act(piece);
        match done {
            Err(Errno(libc::ENOMEM)) => result = done,
            _ => done?,
        }
    }
    result
}

/// # Safety
/// As madvise(2).
unsafe fn pass_on(address: usize, bytes: usize, advice: i32) -> Result<(), Errno> {
    // SAFETY: the caller's contract.
    checked(unsafe { kernel::madvise(address as *mut c_void, bytes, advice) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_rounded_as_the_kernel_rounds() {
        assert_eq!(whole_pages(4096, 1), Some(4096));
        assert_eq!(whole_pages(8192, 8192), Some(8192));
        for refused in [(1, 4096), (4096, 0), (usize::MAX - 4095, 4096), (4096, usize::MAX)] {
            assert_eq!(whole_pages(refused.0, refused.1), None, "{refused:?}");
        }
    }
}
