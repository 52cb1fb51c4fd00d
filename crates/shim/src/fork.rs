//! Children of fork: they have no managed memory, and the parent is not to move any meanwhile.

use crate::managed;

/// Has the C library tell us of forks. Called once.
pub(crate) fn register() {
    // SAFETY: the three functions live as long as this library, which is never unloaded: its
    // threads serve the process to its end.
    let result = unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) };
    assert!(result == 0, "registering fork handlers takes a few bytes of memory");
}

extern "C" fn prepare() {
    if let Some(managed) = managed::get() {
        managed.agent.before_fork();
    }
}

extern "C" fn parent() {
    if let Some(managed) = managed::get() {
        managed.agent.after_fork_in_parent();
    }
}

extern "C" fn child() {
    managed::give_up_in_child();
}
