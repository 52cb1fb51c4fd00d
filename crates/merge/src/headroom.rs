//! How much memory there is to bring pages back into, and for canonical pages.

use std::fs;
use std::path::{Path, PathBuf};

use bindery_units::PAGE_BYTES;

/// Memory that the store leaves to the daemon itself. The kernel does not refuse what is beyond a
/// cgroup's limit: it ends the process.
const RESERVE_BYTES: u64 = 4 << 20;

/// How many canonical pages there is memory for.
pub(crate) fn pages_to_spare() -> usize {
    let own = std::process::id().cast_signed();
    let bytes = headroom_bytes(own).map_or(u64::MAX, |bytes| bytes.saturating_sub(RESERVE_BYTES));
    usize::try_from(bytes / PAGE_BYTES as u64).unwrap_or(usize::MAX)
}

/// One kind of cgroup hierarchy, and what its files are called.
struct Hierarchy {
    root: &'static str,
    /// What begins its line in `/proc/PID/cgroup`, after the hierarchy's number.
    line: &'static str,
    limit: &'static str,
    used: &'static str,
    /// Fields of `memory.stat`: caches of files, which make room by themselves.
    caches: [&'static str; 2],
}

/// Version 2, and version 1 where a machine has the memory controller there, see cgroups(7).
const HIERARCHIES: [Hierarchy; 2] = [
    Hierarchy {
        root: "/sys/fs/cgroup",
        line: ":",
        limit: "memory.max",
        used: "memory.current",
        caches: ["inactive_file ", "active_file "],
    },
    Hierarchy {
        root: "/sys/fs/cgroup/memory",
        line: "memory:",
        limit: "memory.limit_in_bytes",
        used: "memory.usage_in_bytes",
        caches: ["total_inactive_file ", "total_active_file "],
    },
];

/// Bytes that process `pid` can be given before the machine or one of its cgroups is short.
/// `None` if the machine does not say; limits of cgroups that cannot be read do not count.
pub(crate) fn headroom_bytes(pid: i32) -> Option<u64> {
    let machine = available_bytes(&fs::read_to_string("/proc/meminfo").ok()?)?;
    let cgroups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let limits = HIERARCHIES.iter().filter_map(|hierarchy| {
        let path = hierarchy.path_of(&cgroups)?;
        hierarchy.headroom_bytes(Path::new(hierarchy.root), path)
    });
    Some(limits.fold(machine, u64::min))
}

/// `MemAvailable` of `/proc/meminfo`, see proc_meminfo(5).
fn available_bytes(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

impl Hierarchy {
    /// The path of a process's cgroup, from its `/proc/PID/cgroup`.
    fn path_of<'a>(&self, cgroups: &'a str) -> Option<&'a str> {
        cgroups.lines().find_map(|line| {
            let (_, rest) = line.split_once(':')?;
            rest.strip_prefix(self.line)
        })
    }

    /// The least of what the limits leave, of the cgroup and all those above it.
    fn headroom_bytes(&self, root: &Path, path: &str) -> Option<u64> {
        let own = root.join(path.trim_start_matches('/'));
        let above = own.ancestors().take_while(|directory| directory.starts_with(root));
        above.filter_map(|directory| self.left_in(directory.to_owned())).min()
    }

    fn left_in(&self, directory: PathBuf) -> Option<u64> {
        let number = |text: &str| text.trim().parse::<u64>().ok();
        let read = |name| number(&fs::read_to_string(directory.join(name)).ok()?);
        // "max" is no number: no limit.
        let limit = read(self.limit)?;
        let stat = fs::read_to_string(directory.join("memory.stat")).unwrap_or_default();
        let cache = |name: &&str| stat.lines().find_map(|line| number(line.strip_prefix(*name)?));
        let caches: u64 = self.caches.iter().filter_map(cache).sum();
        Some(limit.saturating_sub(read(self.used)?.saturating_sub(caches)))
    }
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
        for hierarchy in HIERARCHIES {
            let root = tempfile::tempdir().unwrap();
            let put = |path: &str, limit: &str, used: &str| {
                let directory = root.path().join(path);
                fs::create_dir_all(&directory).unwrap();
                fs::write(directory.join(hierarchy.limit), limit).unwrap();
                fs::write(directory.join(hierarchy.used), used).unwrap();
            };
            put("vms", "1000\n", "900\n");
            put("vms/web", "max\n", "50\n");
            put("vms/db", "70\n", "90\n");
            let left = |path| hierarchy.headroom_bytes(root.path(), path);
            assert_eq!(left("/vms/web"), Some(100));
            assert_eq!(left("/vms/db"), Some(0));
            assert_eq!(left("/"), None);
            let [inactive, active] = hierarchy.caches;
            let stat = format!("anon 1\n{inactive}300\n{active}20\nshmem 400\n");
            fs::write(root.path().join("vms/memory.stat"), stat).unwrap();
            assert_eq!(left("/vms/web"), Some(420));
        }
    }

    #[test]
    fn both_hierarchies_are_found_where_they_are() {
        let [v2, v1] = HIERARCHIES;
        let hybrid = "9:name=systemd:/x\n4:memory:/vms/old\n0::/vms/new\n";
        assert_eq!((v2.path_of(hybrid), v1.path_of(hybrid)), (Some("/vms/new"), Some("/vms/old")));
        let unified = "0::/vms/web\n";
        assert_eq!((v2.path_of(unified), v1.path_of(unified)), (Some("/vms/web"), None));
    }
}
