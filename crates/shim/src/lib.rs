//! The preload library: puts an unmodified VMM's memory under management.
//!
//! `LD_PRELOAD`ed into a VMM (or linked by one, see `include/bindery.h`), it stands in front of the
//! C library's calls about memory. `madvise(MADV_MERGEABLE)`, by which a VMM offers memory to KSM, is
//! taken as an offer to [`Space`](bindery_space::Space) instead. From then on the calls by which the
//! VMM discards, unmaps, moves, protects, locks or watches that memory itself are answered so that it
//! notices no difference. All else goes to the kernel at once.
//!
//! # Invariants
//! - Nothing is started, opened or allocated before the first `MADV_MERGEABLE`: programs that
//!   inherit the preload and never give that advice pay one load and a branch for each call.
//! - The kernel is reached by system calls, never through the C library's symbols, which may be
//!   our own.
//! - A call about memory that is not managed takes no lock and allocates nothing: allocators call
//!   these functions from within.
//! - `errno` is what the C library would leave: untouched by a call that succeeds.
//!
//! # What is not seen
//! Calls that go through no symbol: the C library's own `mmap`s and `munmap`s (its heap and thread
//! stacks, never guest memory), system calls made by instructions of the program's own, also those that
//! copy the process (a page that is just being merged may then be missing in the copy), and io_uring's
//! `IORING_OP_MADVISE`. A VMM that manages guest memory by those links the library and says what it does
//! (`bindery_discard`, `bindery_forget`). Calls made by the C library's `syscall` are seen.
//!
//! # Descriptors
//! The program's descriptor table holds nothing of ours, whatever the program closes, replaces or hands on:
//! our threads have a table of their own ([`table`](bindery_sys::table)).
//!
//! Shared memory is never taken, so that nothing is to be known of other mappings and descriptors.
//!
//! # Children
//! A copy of the process (fork, clone) manages nothing. What was merged when it was made lies in private
//! mappings of a store there, which the hooks make memory of its own before a call that tells the two
//! apart (`child`).
//!
//! # Concurrency
//! The VMM may make any of these calls from any thread at once. Calls that race with each other about
//! the same memory are as undefined as they are without us.

#[cfg(not(all(target_os = "linux", target_pointer_width = "64")))]
compile_error!("the shim stands in for the 64-bit Linux C library's calls");

pub mod abi;
mod advice;
mod answer;
mod child;
mod device;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub mod direct;
mod fill;
pub mod fork;
pub mod hooks;
mod kept;
mod kernel;
mod lock;
mod managed;
mod nodes;
mod process;
mod protect;
mod remap;
mod replace;
mod split;
mod watch;
