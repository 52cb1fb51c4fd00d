//! Threads: their CPU clocks, names and signals.

use std::{io, os::unix::thread::JoinHandleExt, thread, time::Duration};

/// A clock of the CPU time of a thread or of a process, which others may read.
#[derive(Clone, Copy, Debug)]
pub struct CpuClock(libc::clockid_t);

impl CpuClock {
    /// The clock of a thread of this process.
    ///
    /// # Errors
    /// As pthread_getcpuclockid(3): `ESRCH` when the thread has ended.
    pub fn of_thread<T>(thread: &thread::JoinHandle<T>) -> io::Result<Self> {
        let mut id = 0;
        // SAFETY: the handle has not been joined, so it names a thread; the identifier is writable.
        let result = unsafe { libc::pthread_getcpuclockid(thread.as_pthread_t(), &raw mut id) };
        if result == 0 { Ok(Self(id)) } else { Err(io::Error::from_raw_os_error(result)) }
    }

    /// The clock of process `pid`: of all its threads, those that have ended too.
    ///
    /// # Errors
    /// As clock_getcpuclockid(3): `ESRCH` when there is no such process.
    pub fn of_process(pid: i32) -> io::Result<Self> {
        let mut id = 0;
        // SAFETY: the identifier is writable.
        let result = unsafe { libc::clock_getcpuclockid(pid, &raw mut id) };
        if result == 0 { Ok(Self(id)) } else { Err(io::Error::from_raw_os_error(result)) }
    }

    /// The CPU time so far.
    ///
    /// # Errors
    /// As clock_gettime(2): `EINVAL` when whose clock it is has ended.
    pub fn time(self) -> io::Result<Duration> {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the structure is writable; a clock that is gone is an error.
        if unsafe { libc::clock_gettime(self.0, &raw mut time) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Duration::new(time.tv_sec.cast_unsigned(), time.tv_nsec as u32))
    }
}

/// CPU time of the calling thread so far.
#[must_use]
pub fn cpu_time() -> Duration {
    of_caller(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// CPU time of the calling process so far.
#[must_use]
pub fn process_cpu_time() -> Duration {
    of_caller(libc::CLOCK_PROCESS_CPUTIME_ID)
}

/// Time since the machine started, its sleep left out (`CLOCK_MONOTONIC`): the same for all processes.
#[must_use]
pub fn monotonic_time() -> Duration {
    of_caller(libc::CLOCK_MONOTONIC)
}

fn of_caller(id: libc::clockid_t) -> Duration {
    CpuClock(id).time().expect("the caller's clocks always exist")
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

pub(crate) fn block_all_signals() -> libc::sigset_t {
    // SAFETY: both sets are plain data, filled here before they are used.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        before
    }
}

pub(crate) fn restore_signals(before: &libc::sigset_t) {
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
        let own = CpuClock::of_process(std::process::id().cast_signed()).unwrap();
        let (before, time, after) = (process_cpu_time(), own.time().unwrap(), process_cpu_time());
        // Other threads' time is not added up in the same instant.
        let slack = Duration::from_millis(100);
        assert!(before < time + slack && time < after + slack, "{before:?} {time:?} {after:?}");
        assert!(CpuClock::of_process(1 << 23).is_err());
    }

    #[test]
    fn a_thread_is_watched_from_outside() {
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let busy = thread::spawn(move || while stopped.try_recv().is_err() {});
        let clock = CpuClock::of_thread(&busy).unwrap();
        let before = clock.time().unwrap();
        while clock.time().unwrap() < before + Duration::from_millis(1) {}
        stop.send(()).unwrap();
        busy.join().unwrap();
    }
}
