//! How much memory there is to bring pages back into.

use std::fs;
use std::path::{Path, PathBuf};

/// Where cgroups are (version 2; the older kind is not looked at).
const CGROUPS: &str = "/sys/fs/cgroup";

/// Bytes that process `pid` can be given before the machine or one of its cgroups is short.
/// `None` if the machine does not say; limits of cgroups that cannot be read do not count.
pub(crate) fn headroom_bytes(pid: i32) -> Option<u64> {
    let machine = available_bytes(&fs::read_to_string("/proc/meminfo").ok()?)?;
    let cgroup = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok();
    let path = cgroup.as_deref().and_then(cgroup_path);
    let limit = path.and_then(|path| cgroup_headroom_bytes(Path::new(CGROUPS), path));
    Some(machine.min(limit.unwrap_or(u64::MAX)))
}

/// `MemAvailable` of `/proc/meminfo`, see proc_meminfo(5).
fn available_bytes(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// The path of the process's cgroup in the unified hierarchy, see cgroups(7).
fn cgroup_path(cgroup: &str) -> Option<&str> {
    cgroup.lines().find_map(|line| line.strip_prefix("0::"))
}

/// The least of what `memory.max` leaves, of the cgroup and all those above it.
fn cgroup_headroom_bytes(root: &Path, path: &str) -> Option<u64> {
    let own = root.join(path.trim_start_matches('/'));
    let above = own.ancestors().take_while(|directory| directory.starts_with(root));
    above.filter_map(|directory| left_in(directory.to_owned())).min()
}

fn left_in(directory: PathBuf) -> Option<u64> {
    let read = |name| fs::read_to_string(directory.join(name)).ok()?.trim().parse::<u64>().ok();
    // "max" is no number: no limit.
    Some(read("memory.max")?.saturating_sub(read("memory.current")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_says_what_is_available() {
        let meminfo = "MemTotal:  100 kB\nMemFree: 7 kB\nMemAvailable:   12 kB\n";
        assert_eq!(available_bytes(meminfo), Some(12 * 1024));
        assert_eq!(available_bytes("MemTotal: 100 kB\n"), None);
        assert!(headroom_bytes(std::process::id().cast_signed()).is_some_and(|bytes| bytes > 0));
    }

    #[test]
    fn the_tightest_cgroup_counts() {
        let root = tempfile::tempdir().unwrap();
        let put = |path: &str, max: &str, current: &str| {
            let directory = root.path().join(path);
            fs::create_dir_all(&directory).unwrap();
            fs::write(directory.join("memory.max"), max).unwrap();
            fs::write(directory.join("memory.current"), current).unwrap();
        };
        put("vms", "1000\n", "900\n");
        put("vms/web", "max\n", "50\n");
        put("vms/db", "70\n", "90\n");
        let left = |path| cgroup_headroom_bytes(root.path(), path);
        assert_eq!(left("/vms/web"), Some(100));
        assert_eq!(left("/vms/db"), Some(0));
        assert_eq!(left("/"), None);
        assert_eq!(cgroup_path("1:name=systemd:/x\n0::/vms/web\n"), Some("/vms/web"));
    }
}
