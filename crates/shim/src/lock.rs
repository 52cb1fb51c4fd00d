//! Memory that the VMM locks (`mlock`, QEMU's `-overcommit mem-lock=on`).
//!
//! Locked memory is all private by its owner's wish, so it cannot be merged: it steps aside. While
//! all future memory is locked too (`MCL_FUTURE`) nothing is managed at all, as the kernel would
//! copy each page of the store that is mapped then.

use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use bindery_space::agent::log;

use crate::managed;

static FUTURE_LOCKED: AtomicBool = AtomicBool::new(false);

/// Whether whatever is mapped from now on is locked. Says once, then, what that means.
pub(crate) fn is_everything_locked() -> bool {
    static SAID: Once = Once::new();
    let locked = FUTURE_LOCKED.load(Ordering::Relaxed);
    if locked {
        SAID.call_once(|| {
            log::say(format_args!(
                "the VMM locks its memory (mlockall), which defeats merging: start it without \
                 (QEMU: -overcommit mem-lock=off)"
            ));
        });
    }
    locked
}

/// Before some memory is locked.
pub(crate) fn before_range(address: usize, bytes: usize) {
    if let Some(managed) = managed::overlapping(address, bytes) {
        managed.step_aside(address, bytes, "lock memory (mlock), which defeats merging");
    }
}

/// Before all memory is locked.
pub(crate) fn before_all(flags: i32) {
    if flags & (libc::MCL_CURRENT | libc::MCL_FUTURE) != 0 {
        before_range(0, usize::MAX);
    }
}

/// After the kernel agreed to lock (or unlock) everything.
pub(crate) fn note_all(flags: i32) {
    FUTURE_LOCKED.store(flags & libc::MCL_FUTURE != 0, Ordering::Relaxed);
}
