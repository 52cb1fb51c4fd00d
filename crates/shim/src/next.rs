//! The C library's functions behind ours, where a system call is not enough.
//!
//! Functions that may wait are cancellation points (pthreads(7)): a thread in the C library's
//! `sendmsg` can be cancelled, one in a system call of ours could not. So these are passed on to
//! whoever is next in line.

use std::ffi::{CStr, c_void};
use std::marker::PhantomData;
use std::mem::transmute_copy;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{c_int, c_uint, mmsghdr, msghdr, off64_t, ssize_t};

/// A function of type `F`, once it was looked up.
pub(crate) struct Next<F> {
    name: &'static CStr,
    /// Null, or the function that the C library has under this name.
    function: AtomicPtr<c_void>,
    of: PhantomData<F>,
}

pub(crate) static SENDMSG: Next<unsafe extern "C" fn(c_int, *const msghdr, c_int) -> ssize_t> =
    Next::named(c"sendmsg");
pub(crate) static SENDMMSG: Next<
    unsafe extern "C" fn(c_int, *mut mmsghdr, c_uint, c_int) -> c_int,
> = Next::named(c"sendmmsg");
pub(crate) static FALLOCATE: Next<unsafe extern "C" fn(c_int, c_int, off64_t, off64_t) -> c_int> =
    Next::named(c"fallocate64");

impl<F: Copy> Next<F> {
    const fn named(name: &'static CStr) -> Self {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>(), "F is a function pointer") };
        Self { name, function: AtomicPtr::new(null_mut()), of: PhantomData }
    }

    fn resolve(&self) {
        // SAFETY: the name is a C string.
        let function = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        // Relaxed, here and below: code is not published with the pointer to it.
        self.function.store(function, Ordering::Relaxed);
    }

    /// The function, or `fallback` for calls before this library was initialised.
    pub(crate) fn or(&self, fallback: F) -> F {
        let function = self.function.load(Ordering::Relaxed);
        if function.is_null() {
            return fallback;
        }
        // SAFETY: the only other value is what the C library has under this name, which is a
        // function of type `F`; function pointers are as wide as data pointers here.
        unsafe { transmute_copy(&function) }
    }
}

/// Looks the functions up while nothing else runs: dlsym(3) takes locks and may allocate, and the
/// first call could come from a signal handler.
extern "C" fn resolve() {
    SENDMSG.resolve();
    SENDMMSG.resolve();
    FALLOCATE.resolve();
}

#[used]
// SAFETY: the section is an array of such functions, which the loader calls before main.
#[unsafe(link_section = ".init_array")]
static RESOLVE: extern "C" fn() = resolve;
