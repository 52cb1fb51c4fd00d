//! Threads: their CPU clocks, names and signals.

use std::{io, thread, time::Duration};

/// CPU time of the calling thread so far.
#[must_use]
pub fn cpu_time() -> Duration {
    clock(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// CPU time of the calling process so far.
#[must_use]
pub fn process_cpu_time() -> Duration {
    clock(libc::CLOCK_PROCESS_CPUTIME_ID)
}

/// CPU time of process `pid` so far: of all its threads, those that have ended too.
///
/// # Errors
/// As clock_getcpuclockid(3): `ESRCH` when the process has ended.
pub fn process_cpu_time_of(pid: i32) -> io::Result<Duration> {
    let mut id = 0;
    // SAFETY: the identifier is writable.
    let result = unsafe { libc::clock_getcpuclockid(pid, &raw mut id) };
    if result != 0 {
        return Err(io::Error::from_raw_os_error(result));
    }
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the structure is writable; a clock whose process has ended meanwhile is an error.
    if unsafe { libc::clock_gettime(id, &raw mut time) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(Duration::new(time.tv_sec.cast_unsigned(), time.tv_nsec as u32))
}

fn clock(id: libc::clockid_t) -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the structure is writable and the clock is one that always exists.
    let result = unsafe { libc::clock_gettime(id, &raw mut time) };
    assert!(result == 0, "CPU clocks of the caller always exist");
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Starts a thread that no signal is ever delivered to, so that handlers of the program that we
/// live in never run on it.
///
/// # Errors
/// As clone(2).
pub fn spawn_without_signals<F>(name: &str, body: F) -> io::Result<thread::JoinHandle<()>>
where
    F: FnOnce() + Send + 'static,
{
    let before = block_all_signals();
    let started = thread::Builder::new().name(name.to_owned()).spawn(body);
    restore_signals(&before);
    started
}

fn block_all_signals() -> libc::sigset_t {
    // SAFETY: both sets are plain data, filled here before they are used.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        before
    }
}

fn restore_signals(before: &libc::sigset_t) {
    // SAFETY: the set came from the kernel.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before, std::ptr::null_mut()) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_without_signals_has_all_of_them_blocked() {
        let thread = spawn_without_signals("quiet", || {
            let status = std::fs::read_to_string("/proc/thread-self/status").expect("proc");
            let blocked =
                status.lines().find_map(|line| line.strip_prefix("SigBlk:")).expect("mask");
            // Everything but SIGKILL, SIGSTOP and the two that the C library keeps.
            assert_eq!(
                u64::from_str_radix(blocked.trim(), 16).expect("hex") & 0x7fff_0000,
                0x7ffb_0000
            );
        });
        thread.expect("started").join().expect("mask as expected");
    }

    #[test]
    fn cpu_time_grows_with_work() {
        let before = cpu_time();
        let mut sum = 0u64;
        while cpu_time() - before < Duration::from_millis(1) {
            sum = std::hint::black_box(sum + 1);
        }
        assert!(process_cpu_time() >= cpu_time());
        let own = std::process::id().cast_signed();
        let (before, of_own) = (process_cpu_time(), process_cpu_time_of(own).unwrap());
        // Other threads' time is not added up in the same instant.
        assert!(of_own.abs_diff(before) < Duration::from_millis(100));
        assert!(process_cpu_time_of(1 << 23).is_err());
    }
}
