//! A control group of one's own: memory and device bandwidth for the processes in it.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

/// How often and how long apart the removal of a group is tried: processes leave it as they end.
const REMOVALS: u32 = 100;
const REMOVAL_PAUSE: Duration = Duration::from_millis(20);

/// Of whichever version the machine has (cgroups(7)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// A device of blocks, by its numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockDevice {
    major: u32,
    minor: u32,
}

impl BlockDevice {
    /// The whole device below the file system that `path` is in.
    ///
    /// # Errors
    /// As stat(2); `Unsupported` if that is no block device's.
    pub fn below(path: &Path) -> io::Result<Self> {
        let number = fs::metadata(path)?.dev();
        let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
        let sys = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
        if !sys.exists() {
            let message = format!("{} is on no block device", path.display());
            return Err(io::Error::new(io::ErrorKind::Unsupported, message));
        }
        // Bandwidth is limited for disks, not for their partitions.
        let whole = match sys.join("partition").exists() {
            true => fs::read_to_string(fs::canonicalize(sys)?.join("../dev"))?,
            false => format!("{major}:{minor}"),
        };
        Self::parse(whole.trim())
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("device {whole}")))
    }

    /// How many KiB the kernel reads around a page that is not in memory, of files that are opened from
    /// now on: a [`SettingGuard`](super::SettingGuard)'s path.
    #[must_use]
    pub fn read_ahead_path(self) -> PathBuf {
        PathBuf::from(format!("/sys/dev/block/{}/queue/read_ahead_kb", self.name()))
    }

    fn parse(text: &str) -> Option<Self> {
        let (major, minor) = text.split_once(':')?;
        Some(Self { major: major.parse().ok()?, minor: minor.parse().ok()? })
    }

    fn name(self) -> String {
        format!("{}:{}", self.major, self.minor)
    }
}

/// What a device may give to a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceRate {
    /// Which device.
    pub device: BlockDevice,
    /// Bytes a second that are read, and that are written.
    pub bytes_per_s: u64,
    /// Requests a second, for each.
    pub requests_per_s: u64,
}

/// Removed when dropped, once its processes have ended.
#[derive(Debug)]
pub struct ControlGroup {
    version: Version,
    memory: PathBuf,
    /// The same directory in version 2.
    device: PathBuf,
}

impl ControlGroup {
    /// Makes a group that is called after `name` and this process.
    ///
    /// # Errors
    /// The kernel's, where no group with a memory controller can be made: root can, where that
    /// controller is enabled.
    pub fn create(name: &str) -> io::Result<Self> {
        let name = format!("bindery-{name}-{}", std::process::id());
        let root = Path::new("/sys/fs/cgroup");
        match root.join("memory").is_dir() {
            true => Self::create_in(
                Version::One,
                [root.join("memory").join(&name), root.join("blkio").join(&name)],
            ),
            false => Self::create_in(Version::Two, [root.join(&name), root.join(&name)]),
        }
    }

    fn create_in(version: Version, [memory, device]: [PathBuf; 2]) -> io::Result<Self> {
        let group = Self { version, memory, device };
        group.directories().try_for_each(fs::create_dir)?;
        match group.memory.join(group.limit_file()).exists() {
            true => Ok(group),
            false => {
                let message = "the memory controller is not enabled for new control groups";
                Err(io::Error::new(io::ErrorKind::Unsupported, message))
            }
        }
    }

    /// Each once.
    fn directories(&self) -> impl Iterator<Item = &PathBuf> {
        let second = (self.device != self.memory).then_some(&self.device);
        std::iter::once(&self.memory).chain(second)
    }

    const fn limit_file(&self) -> &'static str {
        match self.version {
            Version::One => "memory.limit_in_bytes",
            Version::Two => "memory.max",
        }
    }

    /// Puts a process into it; what it had before stays with its former group.
    ///
    /// # Errors
    /// The kernel's.
    pub fn put(&self, pid: u32) -> io::Result<()> {
        let enter =
            |directory: &PathBuf| fs::write(directory.join("cgroup.procs"), pid.to_string());
        self.directories().try_for_each(enter)
    }

    /// Limits memory, page cache included.
    ///
    /// # Errors
    /// The kernel's; `EBUSY` in version 1 if more is used and cannot be reclaimed.
    pub fn set_memory_limit(&self, bytes: u64) -> io::Result<()> {
        fs::write(self.memory.join(self.limit_file()), bytes.to_string())
    }

    /// Returns how often memory was at its limit when more was wanted, so that whoever wanted it had to make room.
    ///
    /// # Errors
    /// The kernel's, or if it does not say.
    pub fn limit_hits(&self) -> io::Result<u64> {
        let number = |text: &str| text.trim().parse().ok();
        let hits = match self.version {
            Version::One => number(&fs::read_to_string(self.memory.join("memory.failcnt"))?),
            Version::Two => {
                let events = fs::read_to_string(self.memory.join("memory.events"))?;
                events.lines().find_map(|line| number(line.strip_prefix("max ")?))
            }
        };
        hits.ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Holds a device to a rate, for this group.
    ///
    /// # Errors
    /// The kernel's, where the controller is not enabled.
    pub fn set_device_rate(&self, rate: DeviceRate) -> io::Result<()> {
        let DeviceRate { device, bytes_per_s, requests_per_s } = rate;
        let device = device.name();
        if self.version == Version::Two {
            let line = format!(
                "{device} rbps={bytes_per_s} wbps={bytes_per_s} riops={requests_per_s} \
                 wiops={requests_per_s}"
            );
            return fs::write(self.device.join("io.max"), line);
        }
        let limits = [("bps", bytes_per_s), ("iops", requests_per_s)];
        for (unit, limit) in limits {
            for way in ["read", "write"] {
                let file = format!("blkio.throttle.{way}_{unit}_device");
                fs::write(self.device.join(file), format!("{device} {limit}"))?;
            }
        }
        Ok(())
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        for directory in self.directories() {
            let is_removed = (0..REMOVALS).any(|_| {
                fs::remove_dir(directory).inspect_err(|_| thread::sleep(REMOVAL_PAUSE)).is_ok()
            });
            if !is_removed {
                eprintln!("{} is left: processes are in it", directory.display());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_named_by_their_numbers() {
        let device = BlockDevice::parse("254:16").unwrap();
        assert_eq!((device.major, device.minor, device.name().as_str()), (254, 16, "254:16"));
        assert!(BlockDevice::parse("sda").is_none());
    }
}
