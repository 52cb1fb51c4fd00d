//! Children of fork: no page may be in transit when one is made, or the child would find it gone.

use crate::managed;

/// Has the C library tell us of forks. Called once.
pub(crate) fn register() {
    // SAFETY: the two functions live as long as this library, which is never unloaded: its
    // threads serve the process to its end.
    let result = unsafe { libc::pthread_atfork(Some(prepare), Some(parent), None) };
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
