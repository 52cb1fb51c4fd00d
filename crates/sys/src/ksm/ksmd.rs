//! KSM's kernel thread, and the CPU time that it uses.

use std::borrow::Cow;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

/// The thread that scans.
#[derive(Debug)]
pub struct Ksmd {
    pid: u32,
    file: File,
    clock: Clock,
    status: File,
}

/// Where its CPU time is told.
#[derive(Clone, Copy, Debug)]
enum Clock {
    /// `schedstat`: nanoseconds (`Documentation/scheduler/sched-stats.rst`).
    Schedstat,
    /// `stat`, on a kernel built without `CONFIG_SCHED_INFO`: ticks of so many nanoseconds.
    Stat { tick_ns: u64 },
}

impl Ksmd {
    /// Looks for it. Some milliseconds on a machine with thousands of processes.
    ///
    /// # Errors
    /// `NotFound` on a kernel without KSM, and in a PID namespace that it is not in, as in most
    /// containers.
    pub fn find() -> io::Result<Self> {
        for entry in fs::read_dir("/proc")? {
            let process = entry?.path();
            // A kernel thread has no executable; a process that took the name has one.
            let is_named = fs::read_to_string(process.join("comm")).is_ok_and(|c| c == "ksmd\n");
            if is_named && fs::read_link(process.join("exe")).is_err() {
                return Self::open(&process);
            }
        }
        Err(io::Error::new(
            io::ErrorKind::NotFound,
            "there is no thread ksmd in /proc: the kernel has no KSM, or this is a container with \
             processes of its own; run it on the host",
        ))
    }

    fn open(process: &Path) -> io::Result<Self> {
        let name = process.file_name().and_then(|name| name.to_str());
        let pid = name.and_then(|name| name.parse().ok()).ok_or(io::ErrorKind::InvalidData)?;
        let schedstat = Self::with(pid, process, Clock::Schedstat);
        if let Ok(ksmd) = schedstat
            // All zero where the kernel does not count.
            && ksmd.cpu_time()? > Duration::ZERO
        {
            return Ok(ksmd);
        }
        let ticks = rustix::param::clock_ticks_per_second().max(1);
        Self::with(pid, process, Clock::Stat { tick_ns: 1_000_000_000 / ticks })
    }

    fn with(pid: u32, process: &Path, clock: Clock) -> io::Result<Self> {
        let name = match clock {
            Clock::Schedstat => "schedstat",
            Clock::Stat { .. } => "stat",
        };
        let status = File::open(process.join("status"))?;
        Ok(Self { pid, file: File::open(process.join(name))?, clock, status })
    }

    /// Its process id.
    #[must_use]
    pub const fn pid(&self) -> u32 {
        self.pid
    }

    /// Its CPU time since boot: to the nanosecond while it rests, a tick old while it runs. About
    /// 2 µs.
    ///
    /// # Errors
    /// The kernel's.
    pub fn cpu_time(&self) -> io::Result<Duration> {
        let mut bytes = [0; TEXT_BYTES];
        let text = read_text(&self.file, &mut bytes)?;
        let ns = match self.clock {
            Clock::Schedstat => schedstat_ns(&text),
            Clock::Stat { tick_ns } => stat_ticks(&text).map(|ticks| ticks * tick_ns),
        };
        ns.map(Duration::from_nanos).ok_or_else(|| invalid(&text))
    }

    /// Which of its rests it is in, counted since boot; `None` while it has work in hand. It looked at no
    /// page between two looks that find it in the same one. About 5 µs.
    ///
    /// # Errors
    /// The kernel's.
    pub fn rest(&self) -> io::Result<Option<u64>> {
        let mut bytes = [0; TEXT_BYTES];
        let text = read_text(&self.status, &mut bytes)?;
        let (state, switches) = state_and_switches(&text).ok_or_else(|| invalid(&text))?;
        // Between batches it sleeps as one that a signal could wake; in a batch it runs, waits for a
        // CPU, or waits for a lock (proc_pid_stat(5): S, R, D).
        Ok((state == "S").then_some(switches))
    }
}

/// As much as the kernel tells of a thread.
const TEXT_BYTES: usize = 4096;

fn read_text<'a>(file: &File, bytes: &'a mut [u8]) -> io::Result<Cow<'a, str>> {
    let count = file.read_at(bytes, 0)?;
    Ok(String::from_utf8_lossy(&bytes[..count]))
}

fn invalid(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("ksmd: {text:?}"))
}

/// `State` and `voluntary_ctxt_switches` of proc_pid_status(5).
fn state_and_switches(status: &str) -> Option<(&str, u64)> {
    let field = |name: &str| {
        let mut lines = status.lines();
        let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        value.split_ascii_whitespace().next()
    };
    Some((field("State")?, field("voluntary_ctxt_switches")?.parse().ok()?))
}

/// The first field of schedstat: nanoseconds on a CPU.
fn schedstat_ns(text: &str) -> Option<u64> {
    text.split_ascii_whitespace().next()?.parse().ok()
}

/// `utime` and `stime` of stat, fields 14 and 15 (proc_pid_stat(5)); the name before them may hold
/// spaces.
fn stat_ticks(text: &str) -> Option<u64> {
    let (_, fields) = text.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace().skip(11);
    let mut ticks = || fields.next()?.parse::<u64>().ok();
    Some(ticks()? + ticks()?)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn both_clocks_are_read() {
        assert_eq!(schedstat_ns("2178847717590 429351529944 934658\n"), Some(2_178_847_717_590));
        let stat =
            "37 (ks md) S 2 0 0 0 -1 2129984 0 0 0 0 3 40 0 0 25 5 1 0 86 0 0 18446744073709";
        assert_eq!(stat_ticks(stat), Some(43));
        assert_eq!(stat_ticks("37 (ksmd) S"), None);
    }

    #[test]
    fn its_state_and_its_sleeps_are_read() {
        let status = "Name:\tksmd\nState:\tS (sleeping)\nTgid:\t37\n\
                      voluntary_ctxt_switches:\t412\nnonvoluntary_ctxt_switches:\t7\n";
        assert_eq!(state_and_switches(status), Some(("S", 412)));
        assert_eq!(state_and_switches("Name:\tksmd\nState:\tR (running)\n"), None);
    }

    #[test]
    fn both_clocks_agree() {
        let Ok(ksmd) = Ksmd::find() else {
            bindery_testkit::skipped!("both_clocks_agree: there is no ksmd here");
            return;
        };
        let process = PathBuf::from(format!("/proc/{}", ksmd.pid()));
        let tick_ns = 1_000_000_000 / rustix::param::clock_ticks_per_second();
        let ticks = Ksmd::with(ksmd.pid(), &process, Clock::Stat { tick_ns }).unwrap();
        let (exact, coarse) = (ksmd.cpu_time().unwrap(), ticks.cpu_time().unwrap());
        // The kernel scales ticks to the exact time; two readings are two instants.
        let slack = Duration::from_millis(100) + exact / 100;
        assert!(exact.abs_diff(coarse) < slack, "{exact:?} {coarse:?}");
    }
}
