//! A file of memory on a file system of its own, whose memory comes in large folios.
//!
//! What a memfd is made of, `shmem_enabled` says for the whole machine: single pages, unless somebody
//! changed that. A mount of one's own has its own setting. Since Linux 6.14 a write gets folios as
//! long as it is (`shmem_get_orders_within_size`, mm/shmem.c), as long as they end within the file.

use std::fs::File;
use std::io;

use rustix::fs::{AtFlags, Mode, OFlags, openat, unlinkat};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_string, fsmount,
    fsopen,
};

/// Makes an empty file of memory, open to read and write, in a file system that nobody else can reach
/// and that lasts as long as the file. `name` is for `/proc/PID/maps`.
///
/// It can grow, but not beyond the end of what is written: a folio that would end there is halved
/// until it does not. Folios of up to 2 MiB, each at a multiple of its length, take the place of
/// nothing but holes.
///
/// # Errors
/// `PermissionDenied` without `CAP_SYS_ADMIN`; `InvalidInput` if the kernel has no huge pages; and
/// when descriptors or memory are short.
pub fn create(name: &str) -> io::Result<File> {
    let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(&context, "huge", "within_size")?;
    // As for a memfd, what there is of memory is the only limit.
    fsconfig_set_string(&context, "size", "0")?;
    fsconfig_create(&context)?;
    let attributes = MountAttrFlags::empty();
    let mount = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
    let file = openat(&mount, name, flags, Mode::RUSR | Mode::WUSR)?;
    unlinkat(&mount, name, AtFlags::empty())?;
    Ok(File::from(file))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memfd;
    use std::os::fd::AsRawFd as _;
    use std::os::unix::fs::FileExt as _;

    #[test]
    fn a_file_is_nobody_elses_and_holds_no_more_than_was_written() {
        let file = match create("bindery-test") {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                return eprintln!("SKIPPED: mounting takes CAP_SYS_ADMIN: {error}");
            }
            Err(error) => panic!("{error}"),
        };
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
}
