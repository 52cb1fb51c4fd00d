//! The heap of this process, where glibc manages it.

/// Has every allocation of at least `bytes` be a mapping of its own, which is given back when it is
/// freed. Left alone, glibc raises that bound to the largest such allocation that was ever freed (at
/// most 32 MiB), and keeps what is freed below it: mallopt(3), `M_MMAP_THRESHOLD`.
///
/// For a process whose large allocations are rare and short-lived. Not for a library: the heap is the
/// program's. Elsewhere than with glibc this does nothing.
pub fn give_back_from(bytes: u32) {
    #[cfg(target_env = "gnu")]
    // SAFETY: mallopt changes how memory is got from now on, and nothing that was allocated.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, bytes.cast_signed());
    }
    #[cfg(not(target_env = "gnu"))]
    let _ = bytes;
}

/// Joins what is free in the heap, and gives the kernel back whole pages of it: malloc_trim(3). Takes
/// time by what is free, some milliseconds a GiB.
///
/// For who wants what comes next to find the heap in one piece, whoever used it before. The bound above
/// which allocations are mappings of their own stays where that use has raised it.
/// Elsewhere than with glibc this does nothing.
pub fn give_back_free() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim touches nothing that is allocated.
    unsafe {
        libc::malloc_trim(0);
    }
}
