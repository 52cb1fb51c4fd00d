//! Finds what can write a guest's memory without a mark in its process's page table.
//!
//! Tracking by write protection sees writes through the process's own mappings. Hardware that has pages
//! pinned writes past them, and so does I/O into buffers that were registered with io_uring. Neither can be
//! drained from outside, so a guest with one of them cannot be saved by what was written since.

use std::fs;
use std::io;
use std::path::Path;

use crate::{Obstacle, VmmError};

/// Device files whose users may write memory on their own, with what they are.
const DEVICES: [(&str, &str); 4] = [
    ("/dev/vfio/", "a device that was passed through (VFIO)"),
    ("/dev/iommu", "a device that was passed through (iommufd)"),
    ("/dev/vhost-vdpa", "a vDPA device"),
    ("/dev/infiniband/", "an RDMA device"),
];

/// Looks at process `pid` from outside for memory that is pinned or locked, and for devices that write memory
/// on their own. Memory that other processes map is not looked for.
///
/// # Errors
/// [`VmmError::Io`] if there is no such process, or without the right to look at it.
pub fn hidden_writers(pid: i32) -> Result<Vec<Obstacle>, VmmError> {
    let directory = Path::new("/proc").join(pid.to_string());
    let doing = format!(
        "looking for devices that write memory of process {pid} (run as its user, or as root)"
    );
    look(&directory).map_err(VmmError::io(doing))
}

fn look(directory: &Path) -> io::Result<Vec<Obstacle>> {
    let mut found = held_memory(&fs::read_to_string(directory.join("status"))?)?;
    let mut devices = Vec::new();
    for entry in fs::read_dir(directory.join("fd"))? {
        // One that was closed meanwhile is none.
        let Ok(link) = fs::read_link(entry?.path()) else { continue };
        devices.extend(device(&link.to_string_lossy()));
    }
    devices.sort_by(|a, b| a.what.cmp(&b.what));
    devices.dedup();
    found.append(&mut devices);
    Ok(found)
}

/// Returns what the process has pinned or locked, by its `/proc/PID/status`.
fn held_memory(status: &str) -> io::Result<Vec<Obstacle>> {
    let pinned = kibibytes(status, "VmPin:")?;
    let locked = kibibytes(status, "VmLck:")?;
    let mut found = Vec::new();
    if pinned > 0 {
        found.push(Obstacle::new(
            format!(
                "{pinned} KiB of the VMM's memory are pinned for a device or for io_uring's buffers"
            ),
            "start it without passed-through devices and without `blkio` and `nvme://` drivers",
        ));
    }
    if locked > 0 {
        found.push(Obstacle::new(
            format!("{locked} KiB of the VMM's memory are locked"),
            "start it with `-overcommit mem-lock=off`",
        ));
    }
    Ok(found)
}

fn kibibytes(status: &str, name: &str) -> io::Result<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let number = line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse().ok());
    // A process that has ended has no such lines.
    number.ok_or_else(|| {
        io::Error::new(io::ErrorKind::NotFound, format!("its status has no {name} has it ended?"))
    })
}

/// Returns the obstacle that an open file is, if it is one.
fn device(link: &str) -> Option<Obstacle> {
    let (_, what) = DEVICES.iter().find(|(prefix, _)| link.starts_with(prefix))?;
    let what = format!("{what} writes memory unseen: the VMM has {link} open");
    Some(Obstacle::new(what, "unplug the device, or start the guest without it"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bindery_sys::memfd;
    use std::os::unix::fs::symlink;

    const STATUS: &str = "Name:\tqemu\nVmLck:\t       0 kB\nVmPin:\t       0 kB\nThreads:\t1\n";

    #[test]
    fn a_process_without_devices_has_no_obstacle() {
        let _other = memfd::create("other", 4096).unwrap();
        assert_eq!(hidden_writers(std::process::id().cast_signed()).unwrap(), []);
    }

    #[test]
    fn each_obstacle_is_named_once() {
        let directory = tempfile::tempdir().unwrap();
        let status = STATUS.replace("VmPin:\t       0", "VmPin:\t      64");
        fs::write(directory.path().join("status"), status).unwrap();
        fs::create_dir(directory.path().join("fd")).unwrap();
        let links = [
            "/dev/vfio/vfio",
            "/dev/vfio/vfio",
            "/dev/iommu",
            "/dev/vhost-vdpa-0",
            "/dev/infiniband/uverbs0",
            "/dev/vhost-net",
            "/dev/kvm",
            "anon_inode:[io_uring]",
        ];
        for (number, link) in links.iter().enumerate() {
            symlink(link, directory.path().join("fd").join(number.to_string())).unwrap();
        }
        let found = look(directory.path()).unwrap();
        let named = [
            "64 KiB",
            "/dev/infiniband/uverbs0",
            "/dev/iommu",
            "/dev/vfio/vfio",
            "/dev/vhost-vdpa-0",
        ];
        assert_eq!(found.len(), named.len(), "{found:?}");
        for name in named {
            assert!(found.iter().any(|obstacle| obstacle.what.contains(name)), "{name}: {found:?}");
        }
    }

    #[test]
    fn locked_memory_is_an_obstacle_and_its_absence_is_none() {
        assert_eq!(held_memory(STATUS).unwrap(), []);
        let locked = STATUS.replace("VmLck:\t       0", "VmLck:\t     128");
        assert!(held_memory(&locked).unwrap()[0].remedy.contains("mem-lock=off"));
    }

    #[test]
    fn a_process_that_has_ended_is_an_error() {
        assert!(held_memory("Name:\tqemu\nState:\tZ (zombie)\n").is_err());
        let error = hidden_writers(i32::MAX).unwrap_err();
        assert!(error.to_string().contains("process"), "{error}");
    }
}
