//! The system calls that the hooks stand in front of.
//!
//! `libc::syscall` has the C library's convention: -1 and `errno`. The functions here have it too,
//! so that a hook that is not concerned can return the result as it is.

use libc::{c_int, c_long, c_uint, c_ulong, c_void, iovec, off64_t, size_t, ssize_t};

macro_rules! system_calls {
    ($($(#[$doc:meta])* $name:ident = $number:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => {
        $(
            $(#[$doc])*
            ///
            /// # Safety
            /// As the system call.
            pub(crate) unsafe extern "C" fn $name($($argument: $type),*) -> $result {
                // SAFETY: the caller's contract: that of the system call.
                unsafe { bindery_sys::syscall!(libc::$number, $($argument),*) as $result }
            }
        )*
    };
}

system_calls! {
    /// madvise(2)
    madvise = SYS_madvise(address: *mut c_void, bytes: size_t, advice: c_int) -> c_int;
    /// mbind(2)
    mbind = SYS_mbind(address: *mut c_void, bytes: c_ulong, mode: c_int, nodes: *const c_ulong,
        nodes_max: c_ulong, flags: c_uint) -> c_long;
    /// munmap(2)
    munmap = SYS_munmap(address: *mut c_void, bytes: size_t) -> c_int;
    /// mprotect(2)
    mprotect = SYS_mprotect(address: *mut c_void, bytes: size_t, protection: c_int) -> c_int;
    /// pkey_mprotect(2)
    pkey_mprotect = SYS_pkey_mprotect(address: *mut c_void, bytes: size_t, protection: c_int,
        key: c_int) -> c_int;
    /// mseal(2)
    mseal = SYS_mseal(address: *mut c_void, bytes: size_t, flags: c_ulong) -> c_int;
    /// process_madvise(2)
    process_madvise = SYS_process_madvise(process: c_int, ranges: *const iovec, count: size_t,
        advice: c_int, flags: c_uint) -> ssize_t;
    /// mmap(2)
    mmap = SYS_mmap(address: *mut c_void, bytes: size_t, protection: c_int, flags: c_int,
        file: c_int, offset: off64_t) -> *mut c_void;
    /// mremap(2)
    mremap = SYS_mremap(address: *mut c_void, old_bytes: size_t, new_bytes: size_t, flags: c_int,
        new_address: *mut c_void) -> *mut c_void;
    /// mlock(2)
    mlock = SYS_mlock(address: *const c_void, bytes: size_t) -> c_int;
    /// mlock2(2)
    mlock2 = SYS_mlock2(address: *const c_void, bytes: size_t, flags: c_uint) -> c_int;
    /// mlockall(2)
    mlockall = SYS_mlockall(flags: c_int) -> c_int;
    /// munlockall(2)
    munlockall = SYS_munlockall() -> c_int;
    /// ioctl(2)
    ioctl = SYS_ioctl(file: c_int, request: c_ulong, argument: *mut c_void) -> c_int;
}
