//! Files of memory on a file system of their own, whose memory comes in large folios.
//!
//! What a memfd is made of, `shmem_enabled` says for the whole machine: single pages, unless somebody
//! changed that. A mount of one's own has its own setting. Since Linux 6.14 a write gets folios as
//! long as it is (`shmem_get_orders_within_size`, mm/shmem.c), as long as they end within the file.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, Mode, OFlags, openat, unlinkat};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_string, fsmount,
    fsopen,
};
use rustix::process::{Resource, getrlimit};
use rustix::system::uname;

/// A file system of memory that nobody else can reach. It lasts as long as any of its files is open or
/// mapped anywhere.
#[derive(Debug)]
pub struct PrivateTmpfs {
    mount: OwnedFd,
}

impl PrivateTmpfs {
    /// Mounts one, detached from the file tree, for files of up to `bytes_max` each.
    ///
    /// # Errors
    /// `PermissionDenied` without `CAP_SYS_ADMIN`; `Unsupported` before Linux 6.14; `InvalidInput` if the
    /// kernel has no huge pages; `FileTooLarge` above `RLIMIT_FSIZE`, beyond which a write would raise
    /// `SIGXFSZ`; and when descriptors or memory are short.
    pub fn mount(bytes_max: u64) -> io::Result<Self> {
        if !writes_get_large_folios(uname().release().to_str().unwrap_or_default()) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        if getrlimit(Resource::Fsize).current.is_some_and(|limit| limit < bytes_max) {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
        fsconfig_set_string(&context, "huge", "within_size")?;
        // As for a memfd, what there is of memory is the only limit.
        fsconfig_set_string(&context, "size", "0")?;
        fsconfig_set_string(&context, "nr_inodes", "0")?;
        fsconfig_create(&context)?;
        let attributes = MountAttrFlags::empty();
        let mount = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
        Ok(Self { mount })
    }

    /// Makes an empty file, open to read and write, that has no name (any more). `name` is for
    /// `/proc/PID/maps`. One thread at a time.
    ///
    /// It is as long as what was written, and folios end within it: each write at its end gets folios no
    /// longer than the write, and one to a hole within it up to 2 MiB as far as the hole reaches. A folio
    /// begins at a multiple of its length.
    ///
    /// # Errors
    /// When descriptors or memory are short.
    pub fn create(&self, name: &str) -> io::Result<File> {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
        let file = openat(&self.mount, name, flags, Mode::RUSR | Mode::WUSR)?;
        unlinkat(&self.mount, name, AtFlags::empty())?;
        Ok(File::from(file))
    }
}

/// Whether a kernel of that release is 6.14 or later.
fn writes_get_large_folios(release: &str) -> bool {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor) >= (6, 14),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memfd;
    use std::os::fd::AsRawFd as _;
    use std::os::unix::fs::FileExt as _;

    #[test]
    fn a_file_is_nobody_elses_and_holds_no_more_than_was_written() {
        use io::ErrorKind::{PermissionDenied, Unsupported};
        let tmpfs = match PrivateTmpfs::mount(1 << 20) {
            Ok(tmpfs) => tmpfs,
            Err(error) if matches!(error.kind(), PermissionDenied | Unsupported) => {
                return bindery_testkit::skipped!("it takes CAP_SYS_ADMIN and Linux 6.14: {error}");
            }
            Err(error) => panic!("{error}"),
        };
        let file = tmpfs.create("bindery-test").unwrap();
        let other = tmpfs.create("bindery-test").unwrap();
        assert_ne!(memfd::identity(&file).unwrap(), memfd::identity(&other).unwrap());
        drop((tmpfs, other));
        assert_eq!(memfd::look_at(&file).unwrap().map(|it| it.bytes), Some(0));
        file.write_all_at(&[7; 70 * 4096], 0).unwrap();
        assert_eq!(memfd::allocated_bytes(&file).unwrap(), 70 * 4096);
        let name = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap();
        assert_eq!(name.to_str(), Some("/bindery-test (deleted)"));
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let (device, _) = memfd::identity(&file).unwrap();
        let device = format!(" {}:{} ", rustix::fs::major(device), rustix::fs::minor(device));
        assert!(!mounts.contains(&device), "{mounts}");
        memfd::punch(&file, 0, 70 * 4096).unwrap();
        assert_eq!(memfd::allocated_bytes(&file).unwrap(), 0);
    }

    #[test]
    fn releases_are_told_apart() {
        let old = ["", "linux", "5.19.0", "6.1.0-56-cloud-amd64", "6.13.9", "6"];
        assert!(!old.into_iter().any(writes_get_large_folios));
        let new = ["6.14.0", "6.18.5-x", "7.0.0-rc1", "10.2"];
        assert!(new.into_iter().all(writes_get_large_folios));
    }
}
