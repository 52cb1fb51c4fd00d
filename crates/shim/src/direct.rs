//! System calls that the program makes by the C library's `syscall`.
//!
//! Those about memory go to the functions that stand in for the calls, and those that copy the process
//! pause what moves pages. All others are made at once, as the C library makes them: a child may begin at
//! the instruction behind, on a stack of its own, where nothing of ours may be. So the way there is written
//! in assembly, and a call that makes such a child is none of ours.

use std::arch::naked_asm;
use std::ffi::c_void;

use bindery_sys::call;
use libc::c_long;

use crate::answer::Errno;
use crate::{fork, hooks};

/// Numbers of system calls that are looked up.
const NUMBERS: usize = 512;

/// Calls that may be ours.
static CONCERNED: [u8; NUMBERS] = {
    let mut concerned = [0; NUMBERS];
    let mut at = 0;
    while at < OURS.len() {
        concerned[OURS[at] as usize] = 1;
        at += 1;
    }
    concerned
};

const OURS: &[c_long] = &[
    libc::SYS_madvise,
    libc::SYS_munmap,
    libc::SYS_mmap,
    libc::SYS_mremap,
    libc::SYS_mprotect,
    libc::SYS_pkey_mprotect,
    libc::SYS_mseal,
    libc::SYS_process_madvise,
    libc::SYS_mbind,
    libc::SYS_mlock,
    libc::SYS_mlock2,
    libc::SYS_mlockall,
    libc::SYS_munlockall,
    libc::SYS_ioctl,
    libc::SYS_clone,
    libc::SYS_clone3,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_fork,
];

/// Stands in for syscall(2).
///
/// # Safety
/// As the system call.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syscall() -> c_long {
    naked_asm!(
        "cmp rdi, {numbers}",
        "jae 2f",
        "lea rax, [rip + {concerned}]",
        "cmp byte ptr [rax + rdi], 0",
        "jne 3f",
        // As the C library: the number and six arguments, the last of which is on the stack.
        "2:",
        "mov rax, rdi",
        "mov rdi, rsi",
        "mov rsi, rdx",
        "mov rdx, rcx",
        "mov r10, r8",
        "mov r8, r9",
        "mov r9, qword ptr [rsp + 8]",
        "syscall",
        "cmp rax, -4095",
        "jae 4f",
        "ret",
        "3:",
        "push rdi",
        "push rsi",
        "push rdx",
        "push rcx",
        "push r8",
        "push r9",
        "sub rsp, 8",
        "call {is_ours}",
        "add rsp, 8",
        "pop r9",
        "pop r8",
        "pop rcx",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "test al, al",
        "je 2b",
        "jmp {stand_in}",
        "4:",
        "mov rdi, rax",
        "jmp {failed}",
        numbers = const NUMBERS,
        concerned = sym CONCERNED,
        is_ours = sym is_ours,
        stand_in = sym stand_in,
        failed = sym failed,
    )
}

/// Stands in for syscall(2).
///
/// # Safety
/// As the system call.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syscall() -> c_long {
    naked_asm!(
        "cmp x0, #{numbers}",
        "b.hs 2f",
        "adrp x9, {concerned}",
        "add x9, x9, :lo12:{concerned}",
        "ldrb w9, [x9, x0]",
        "cbnz w9, 3f",
        // As the C library: the number and six arguments.
        "2:",
        "mov x8, x0",
        "mov x0, x1",
        "mov x1, x2",
        "mov x2, x3",
        "mov x3, x4",
        "mov x4, x5",
        "mov x5, x6",
        "svc #0",
        "cmn x0, #4095",
        "b.cs 4f",
        "ret",
        "3:",
        "stp x29, x30, [sp, #-80]!",
        "mov x29, sp",
        "stp x0, x1, [sp, #16]",
        "stp x2, x3, [sp, #32]",
        "stp x4, x5, [sp, #48]",
        "str x6, [sp, #64]",
        "bl {is_ours}",
        "mov w9, w0",
        "ldp x0, x1, [sp, #16]",
        "ldp x2, x3, [sp, #32]",
        "ldp x4, x5, [sp, #48]",
        "ldr x6, [sp, #64]",
        "ldp x29, x30, [sp], #80",
        "tbz w9, #0, 2b",
        "b {stand_in}",
        "4:",
        "b {failed}",
        numbers = const NUMBERS,
        concerned = sym CONCERNED,
        is_ours = sym is_ours,
        stand_in = sym stand_in,
        failed = sym failed,
    )
}

/// Leaves the reason of a failure.
extern "C" fn failed(answer: c_long) -> c_long {
    Errno(-answer as i32).set();
    -1
}

/// The beginning of `struct clone_args`.
#[repr(C)]
struct CloneArguments {
    flags: u64,
    unused: [u64; 4],
    stack: u64,
}

/// Returns true for a call that [`stand_in`] is to answer, one that is [concerned](CONCERNED).
extern "C" fn is_ours(number: c_long, first: usize, second: usize) -> bool {
    // A child with a stack of its own goes on there.
    let copies = |flags: u64, stack: u64| flags & libc::CLONE_VM as u64 == 0 && stack == 0;
    match number {
        libc::SYS_clone => copies(first as u64, second as u64),
        libc::SYS_clone3 if first != 0 && second >= size_of::<CloneArguments>() => {
            let arguments = first as *const CloneArguments;
            // SAFETY: what the program gives to clone3(2): so many bytes. A bad pointer here gets what it
            // gets from the C library's own functions.
            let arguments = unsafe { arguments.read_unaligned() };
            copies(arguments.flags, arguments.stack)
        }
        libc::SYS_clone3 => false,
        _ => true,
    }
}

/// Answers a call about memory, or one that copies the process.
///
/// # Safety
/// As the system call.
unsafe extern "C" fn stand_in(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    let address = a as *mut c_void;
    // SAFETY: the caller's contract, for each of these.
    unsafe {
        match number {
            libc::SYS_madvise => hooks::madvise(address, b, c as i32).into(),
            libc::SYS_munmap => hooks::munmap(address, b).into(),
            libc::SYS_mmap => {
                hooks::mmap(address, b, c as i32, d as i32, e as i32, f as i64) as c_long
            }
            libc::SYS_mremap => hooks::mremap(address, b, c, d as i32, e as *mut c_void) as c_long,
            libc::SYS_mprotect => hooks::mprotect(address, b, c as i32).into(),
            libc::SYS_pkey_mprotect => hooks::pkey_mprotect(address, b, c as i32, d as i32).into(),
            libc::SYS_mseal => hooks::mseal(address, b, c as libc::c_ulong).into(),
            libc::SYS_process_madvise => {
                let ranges = b as *const libc::iovec;
                hooks::process_madvise(a as i32, ranges, c, d as i32, e as u32) as c_long
            }
            libc::SYS_mbind => {
                let nodes = d as *const libc::c_ulong;
                hooks::mbind(
                    address,
                    b as libc::c_ulong,
                    c as i32,
                    nodes,
                    e as libc::c_ulong,
                    f as u32,
                )
            }
            libc::SYS_mlock => hooks::mlock(address, b).into(),
            libc::SYS_mlock2 => hooks::mlock2(address, b, c as u32).into(),
            libc::SYS_mlockall => hooks::mlockall(a as i32).into(),
            libc::SYS_munlockall => hooks::munlockall().into(),
            libc::SYS_ioctl => hooks::ioctl(a as i32, b as libc::c_ulong, c as *mut c_void).into(),
            _ => fork::while_nothing_moves(|| call::with_errno(number, [a, b, c, d, e, f])),
        }
    }
}
