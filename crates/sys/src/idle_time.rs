//! Time in which CPUs had nothing to do, from `/proc/uptime` (proc_uptime(5)).

use std::{fs::File, io, os::unix::fs::FileExt, time::Duration};

/// Clock of idle CPUs, for whoever looks again and again.
#[derive(Debug)]
pub struct IdleClock {
    /// Kept open: it is most wanted when nothing can be opened any more.
    uptime: File,
}

impl IdleClock {
    /// # Errors
    /// When `/proc` is not mounted, or descriptors are short.
    pub fn open() -> io::Result<Self> {
        Ok(Self { uptime: File::open("/proc/uptime")? })
    }

    /// Returns the time since the machine started in which a CPU had nothing to do, of all CPUs together, to a
    /// hundredth of a second. Waiting for a device is not in it.
    ///
    /// # Errors
    /// When the file cannot be read, or holds no times.
    pub fn time(&self) -> io::Result<Duration> {
        let mut text = [0; 64];
        let length = self.uptime.read_at(&mut text, 0)?;
        let idle = str::from_utf8(&text[..length]).ok().and_then(idle_time);
        idle.ok_or_else(|| io::Error::other("/proc/uptime holds no times"))
    }
}

/// Returns the second of two times in seconds, as in `350735.47 234388.90`.
fn idle_time(uptime: &str) -> Option<Duration> {
    let (whole, hundredths) = uptime.split_ascii_whitespace().nth(1)?.split_once('.')?;
    let hundredths: u64 = hundredths.parse().ok().filter(|_| hundredths.len() == 2)?;
    Some(Duration::from_secs(whole.parse().ok()?) + Duration::from_millis(10 * hundredths))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_time_is_that_of_idle_cpus() {
        let idle = Duration::from_millis(234_388_050);
        assert_eq!(idle_time("350735.47 234388.05\n"), Some(idle));
        assert_eq!(idle_time("350735.47 234388.5\n"), None);
        assert_eq!(idle_time("350735.47\n"), None);
    }

    #[test]
    fn the_clock_does_not_go_backwards() {
        let clock = IdleClock::open().expect("proc");
        let before = clock.time().expect("times");
        assert!(clock.time().expect("times") >= before);
    }
}
