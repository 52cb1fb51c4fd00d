//! System calls made by this library itself.
//!
//! The C library's `syscall` is a symbol like any other: a preload library in the same process may stand
//! in front of it, and would take our calls for its host's.

use std::arch::asm;

use libc::c_long;

/// Makes a system call and returns what the kernel answers: a negative error number for a failure.
///
/// # Safety
/// As the system call, which may change whatever memory the kernel lets it.
#[cfg(target_arch = "x86_64")]
pub unsafe fn raw(number: c_long, arguments: [usize; 6]) -> isize {
    let [a, b, c, d, e, f] = arguments;
    let answer: isize;
    // SAFETY: the caller's contract; the kernel keeps all registers but these.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number as isize => answer,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            lateout("rcx") _, lateout("r11") _,
            options(nostack)
        );
    }
    answer
}

/// Makes a system call and returns what the kernel answers: a negative error number for a failure.
///
/// # Safety
/// As the system call, which may change whatever memory the kernel lets it.
#[cfg(target_arch = "aarch64")]
pub unsafe fn raw(number: c_long, arguments: [usize; 6]) -> isize {
    let [a, b, c, d, e, f] = arguments;
    let answer: isize;
    // SAFETY: the caller's contract; the kernel keeps all registers but these.
    unsafe {
        asm!(
            "svc 0",
            in("x8") number,
            inlateout("x0") a => answer,
            in("x1") b, in("x2") c, in("x3") d, in("x4") e, in("x5") f,
            options(nostack)
        );
    }
    answer
}

/// Makes a system call and answers as the C library's `syscall`: -1, and the reason in `errno`.
///
/// # Safety
/// As [`raw`].
pub unsafe fn with_errno(number: c_long, arguments: [usize; 6]) -> c_long {
    // SAFETY: the caller's contract.
    let answer = unsafe { raw(number, arguments) };
    if answer > -4096 && answer < 0 {
        // SAFETY: the location is this thread's own, for as long as it runs.
        unsafe { *libc::__errno_location() = -answer as i32 };
        return -1;
    }
    answer as c_long
}

/// Makes a system call with up to six arguments and answers as the C library's `syscall`. Unsafe as
/// [`raw`].
#[macro_export]
macro_rules! syscall {
    ($number:expr $(, $argument:expr)* $(,)?) => {
        $crate::call::with_errno($number, $crate::call::padded([$($argument as usize),*]))
    };
}

/// As many arguments as the kernel takes, the first of them given.
#[must_use]
pub fn padded<const N: usize>(given: [usize; N]) -> [usize; 6] {
    let mut arguments = [0; 6];
    arguments[..N].copy_from_slice(&given);
    arguments
}

#[cfg(test)]
mod tests {
    use std::io;

    #[test]
    fn answers_are_those_of_the_c_library() {
        // SAFETY: these change nothing.
        unsafe {
            assert_eq!(crate::syscall!(libc::SYS_getpid), i64::from(std::process::id()));
            assert_eq!(crate::syscall!(libc::SYS_close, -1i32), -1);
            assert_eq!(io::Error::last_os_error().raw_os_error(), Some(libc::EBADF));
        }
        // SAFETY: new memory of ours.
        let memory = unsafe {
            crate::syscall!(
                libc::SYS_mmap,
                0,
                4096,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1i32,
                0
            )
        };
        assert!(memory > 0);
        // SAFETY: the same memory, which nobody uses.
        assert_eq!(unsafe { crate::syscall!(libc::SYS_munmap, memory, 4096) }, 0);
    }
}
