//! Children that are copies of this process: no page may be in transit when one is made, or the child
//! would find it gone.
//!
//! `fork` tells of itself (pthread_atfork(3)), and so do the C library's functions that use it. `_Fork`,
//! `clone` and system calls made through [`syscall`](crate::direct) do not: they are stood in for. A
//! child that shares our memory (vfork, posix_spawn, `CLONE_VM`) is none of these. What a copy may do with
//! its memory needs no preparation: see `managed`.

use std::cell::Cell;
use std::ffi::{CStr, c_void};
use std::mem::transmute;

use libc::{c_int, pid_t};

use crate::answer::{Errno, aside};
use crate::managed;

thread_local! {
    /// This thread is on its way through a fork already: a function of ours may be within another.
    static IS_FORKING: Cell<bool> = const { Cell::new(false) };
}

/// Has the C library tell us of forks. Called once.
pub(crate) fn register() {
    // SAFETY: the two functions live as long as this library, which is never unloaded: its
    // threads serve the process to its end.
    let result = unsafe { libc::pthread_atfork(Some(prepare), Some(parent), None) };
    assert!(result == 0, "registering fork handlers takes a few bytes of memory");
}

extern "C" fn prepare() {
    if let Some(managed) = managed::get()
        && !IS_FORKING.replace(true)
    {
        managed.agent.before_fork();
    }
}

extern "C" fn parent() {
    if let Some(managed) = managed::get()
        && IS_FORKING.replace(false)
    {
        managed.agent.after_fork_in_parent();
    }
}

/// Calls `make`, which makes a copy of this process and returns 0 in it, while no page is in transit.
pub(crate) fn while_nothing_moves<T: PartialEq + Default>(make: impl FnOnce() -> T) -> T {
    if IS_FORKING.get() {
        return make();
    }
    aside(|| prepare());
    let child = make();
    if child != T::default() {
        aside(|| parent());
    }
    child
}

/// Stands in for _Fork(3).
///
/// # Safety
/// As _Fork(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _Fork() -> pid_t {
    let Some(next) = next(c"_Fork") else { return unknown() };
    // SAFETY: what the C library has under this name is such a function.
    let next: unsafe extern "C" fn() -> pid_t = unsafe { transmute(next) };
    // SAFETY: the caller's contract.
    while_nothing_moves(|| unsafe { next() })
}

/// What a child made by clone(2) begins with.
type Entry = Option<unsafe extern "C" fn(*mut c_void) -> c_int>;

/// Stands in for clone(2), written with all the arguments that it may have.
///
/// # Safety
/// As clone(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clone(
    entry: Entry,
    stack: *mut c_void,
    flags: c_int,
    argument: *mut c_void,
    parent_tid: *mut pid_t,
    tls: *mut c_void,
    child_tid: *mut pid_t,
) -> c_int {
    type Clone = unsafe extern "C" fn(
        Entry,
        *mut c_void,
        c_int,
        *mut c_void,
        *mut pid_t,
        *mut c_void,
        *mut pid_t,
    ) -> c_int;
    let Some(next) = next(c"clone") else { return unknown() };
    // SAFETY: what the C library has under this name is such a function: variadic arguments travel where
    // named ones do.
    let next: Clone = unsafe { transmute(next) };
    // The child begins with `entry`, on a stack of its own.
    // SAFETY: the caller's contract.
    let make = || unsafe { next(entry, stack, flags, argument, parent_tid, tls, child_tid) };
    if flags & libc::CLONE_VM != 0 { make() } else { while_nothing_moves(make) }
}

/// The function behind ours that has this name, if any.
fn next(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: the name is a C string.
    let function = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    (!function.is_null()).then_some(function)
}

fn unknown() -> c_int {
    Errno(libc::ENOSYS).set();
    -1
}
