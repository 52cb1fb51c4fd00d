//! What limits of memory a process's cgroups leave it, see cgroups(7).

use std::fs;
use std::path::{Path, PathBuf};

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

/// Memory that a limit leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MemoryLeft {
    /// Caches of files included, in bytes: they make room by themselves, while whoever wants it waits.
    pub bytes: u64,
    /// Part of it that nothing is in, in bytes.
    pub unused_bytes: u64,
}

/// Returns the memory that the limits of a process's cgroups leave it: the least of its own and of all above.
/// `None` if there is no limit, or none that can be read.
#[must_use]
pub fn memory_left(pid: i32) -> Option<MemoryLeft> {
    let cgroups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let limits = HIERARCHIES.iter().filter_map(|hierarchy| {
        let path = hierarchy.path_of(&cgroups)?;
        hierarchy.left(Path::new(hierarchy.root), path)
    });
    limits.min()
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
    fn left(&self, root: &Path, path: &str) -> Option<MemoryLeft> {
        let own = root.join(path.trim_start_matches('/'));
        let above = own.ancestors().take_while(|directory| directory.starts_with(root));
        above.filter_map(|directory| self.left_in(directory.to_owned())).min()
    }

    fn left_in(&self, directory: PathBuf) -> Option<MemoryLeft> {
        let number = |text: &str| text.trim().parse::<u64>().ok();
        let read = |name| number(&fs::read_to_string(directory.join(name)).ok()?);
        // "max" is no number: no limit.
        let limit = read(self.limit)?;
        let stat = fs::read_to_string(directory.join("memory.stat")).unwrap_or_default();
        let cache = |name: &&str| stat.lines().find_map(|line| number(line.strip_prefix(*name)?));
        let caches: u64 = self.caches.iter().filter_map(cache).sum();
        let used = read(self.used)?;
        Some(MemoryLeft {
            bytes: limit.saturating_sub(used.saturating_sub(caches)),
            unused_bytes: limit.saturating_sub(used),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            let left = |path| hierarchy.left(root.path(), path);
            let both = |bytes, unused_bytes| Some(MemoryLeft { bytes, unused_bytes });
            assert_eq!(left("/vms/web"), both(100, 100));
            assert_eq!(left("/vms/db"), both(0, 0));
            assert_eq!(left("/"), None);
            let [inactive, active] = hierarchy.caches;
            let stat = format!("anon 1\n{inactive}300\n{active}20\nshmem 400\n");
            fs::write(root.path().join("vms/memory.stat"), stat).unwrap();
            assert_eq!(left("/vms/web"), both(420, 100));
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
