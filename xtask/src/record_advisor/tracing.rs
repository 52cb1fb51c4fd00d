//! The kernel's trace event `ksm:ksm_advisor`, in a trace instance of our own
//! (`Documentation/trace/ftrace.rst`, "Instances").

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use bindery_advisor::kernel::Event;

const USUAL: &str = "/sys/kernel/tracing";

/// Records the event while it lives; nothing of it is left behind.
#[derive(Debug)]
pub(super) struct Events {
    instance: PathBuf,
    // Dropped after the instance is removed.
    _mount: Option<Mount>,
}

/// tracefs in a directory of its own, where the machine has it nowhere.
#[derive(Debug)]
struct Mount(PathBuf);

impl Events {
    /// Begins to record.
    pub(super) fn record() -> Result<Self> {
        let (root, mount) = match Path::new(USUAL).join("instances").is_dir() {
            true => (PathBuf::from(USUAL), None),
            false => Mount::make().map(|mount| (mount.0.clone(), Some(mount)))?,
        };
        let instance = root.join(format!("instances/bindery-{}", std::process::id()));
        fs::create_dir(&instance).context("making a trace instance; this needs root")?;
        let events = Self { instance, _mount: mount };
        events.write("events/ksm/ksm_advisor/enable", "1").context(
            "this kernel has no trace event ksm:ksm_advisor: that needs Linux 6.8 and CONFIG_KSM",
        )?;
        Ok(events)
    }

    /// Forgets what was recorded.
    pub(super) fn clear(&self) -> Result<()> {
        self.write("trace", "")
    }

    /// What was recorded, in order.
    pub(super) fn read(&self) -> Result<Vec<Event>> {
        let text = fs::read_to_string(self.instance.join("trace")).context("reading the trace")?;
        let lines = text.lines().filter_map(|line| line.split_once("ksm_advisor: "));
        lines.map(|(_, event)| parse(event).with_context(|| format!("event {event:?}"))).collect()
    }

    fn write(&self, name: &str, value: &str) -> Result<()> {
        let path = self.instance.join(name);
        fs::write(&path, value).with_context(|| format!("writing {}", path.display()))
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        let disabled = self.write("events/ksm/ksm_advisor/enable", "0");
        if let Err(error) = disabled.and_then(|()| Ok(fs::remove_dir(&self.instance)?)) {
            eprintln!("{} is left behind: {error:#}", self.instance.display());
        }
    }
}

impl Mount {
    fn make() -> Result<Self> {
        let path = std::env::temp_dir().join(format!("bindery-tracing-{}", std::process::id()));
        fs::create_dir(&path)?;
        let status =
            Command::new("mount").args(["-t", "tracefs", "tracefs"]).arg(&path).status()?;
        if !status.success() {
            fs::remove_dir(&path)?;
            bail!("tracefs cannot be mounted; this needs root and a kernel with CONFIG_TRACING");
        }
        Ok(Self(path))
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let unmounted = Command::new("umount").arg(&self.0).status();
        if !unmounted.is_ok_and(|status| status.success()) || fs::remove_dir(&self.0).is_err() {
            eprintln!("{} is left mounted", self.0.display());
        }
    }
}

/// An event as the kernel prints it: `ksm scan time %lld pages_to_scan %lu cpu percent %u`.
fn parse(event: &str) -> Option<Event> {
    let (scan_time, rest) = event.strip_prefix("ksm scan time ")?.split_once(" pages_to_scan ")?;
    let (pages_to_scan, cpu_percent) = rest.split_once(" cpu percent ")?;
    Some(Event {
        scan_time_s: scan_time.parse().ok()?,
        pages_to_scan: pages_to_scan.parse().ok()?,
        cpu_percent: cpu_percent.trim().parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_read_as_the_kernel_prints_them() {
        let event = parse("ksm scan time 3 pages_to_scan 1200 cpu percent 17").unwrap();
        assert_eq!((event.scan_time_s, event.pages_to_scan, event.cpu_percent), (3, 1200, 17));
        assert_eq!(parse("ksm scan time x pages_to_scan 1 cpu percent 1"), None);
        assert_eq!(parse("something else"), None);
    }
}
