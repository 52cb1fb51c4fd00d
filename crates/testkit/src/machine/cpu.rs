//! CPU time of processes and threads.

use std::io;
use std::path::Path;
use std::time::Duration;

/// What one thread has used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ThreadTime {
    /// Its id.
    pub tid: u32,
    /// Its name.
    pub name: String,
    /// Its time on a CPU, user and kernel.
    pub time: Duration,
}

/// The CPU time of each thread that a process has now, to the nanosecond.
///
/// # Errors
/// What `/proc` answers, `NotFound` when the process has ended.
pub fn thread_cpu_times(pid: u32) -> io::Result<Vec<ThreadTime>> {
    let mut times = Vec::new();
    for entry in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let thread = entry?;
        let Some(tid) = thread.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        // A thread that ended since the directory was read is no error.
        if let Ok(time) = schedstat_time(&thread.path().join("schedstat")) {
            let name = std::fs::read_to_string(thread.path().join("comm")).unwrap_or_default();
            times.push(ThreadTime { tid, name: name.trim_end().to_owned(), time });
        }
    }
    Ok(times)
}

/// The first field of a schedstat file: nanoseconds on a CPU
/// (`Documentation/scheduler/sched-stats.rst`).
fn schedstat_time(path: &Path) -> io::Result<Duration> {
    let text = std::fs::read_to_string(path)?;
    let first = text.split_whitespace().next().and_then(|field| field.parse().ok());
    first.map(Duration::from_nanos).ok_or_else(|| {
        io::Error::new(io::ErrorKind::InvalidData, format!("{}: {text:?}", path.display()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn a_busy_loop_shows() {
        let pid = std::process::id();
        let of_threads = || -> Duration {
            thread_cpu_times(pid).unwrap().iter().map(|thread| thread.time).sum()
        };
        let threads = of_threads();
        let start = Instant::now();
        while of_threads() < threads + Duration::from_millis(60) {
            assert!(start.elapsed() < Duration::from_secs(60));
        }
    }
}
