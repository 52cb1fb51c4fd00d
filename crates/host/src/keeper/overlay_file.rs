//! Files of overlays: the image that one stands on, and its removal.
//!
//! Paths are in directories of guests' users. Nothing is followed or waited for that they put there meanwhile.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, fstat, open, statat, unlinkat};

/// Start of a qcow2 image.
const MAGIC: &[u8; 4] = b"QFI\xfb";

/// Longest path of a backing file, by the format.
const BACKING_BYTES_MAX: usize = 1023;

/// Returns the path of the image that a qcow2 image stands on, as its header has it; none if it stands on none or is not
/// there.
///
/// # Errors
/// The kernel's; if the file is no qcow2 image.
pub(super) fn backing_of(path: &Path) -> io::Result<Option<Vec<u8>>> {
    // Looked at before it is opened: opening a device may do something.
    let found = match open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()) {
        Ok(found) => found,
        Err(rustix::io::Errno::NOENT) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    if FileType::from_raw_mode(fstat(&found)?.st_mode) != FileType::RegularFile {
        return Err(not_an_image());
    }
    let file = File::open(format!("/proc/self/fd/{}", found.as_raw_fd()))?;
    let mut head = [0; 20];
    if file.read_at(&mut head, 0)? < head.len() {
        return Err(not_an_image());
    }
    let Some((MAGIC, fields)) = head.split_first_chunk::<4>() else { return Err(not_an_image()) };
    let (_version, fields) = fields.split_first_chunk::<4>().ok_or_else(not_an_image)?;
    let (offset, fields) = fields.split_first_chunk::<8>().ok_or_else(not_an_image)?;
    let (length, _) = fields.split_first_chunk::<4>().ok_or_else(not_an_image)?;
    let (offset, length) = (u64::from_be_bytes(*offset), u32::from_be_bytes(*length) as usize);
    if offset == 0 {
        return Ok(None);
    }
    if length > BACKING_BYTES_MAX {
        return Err(not_an_image());
    }
    let mut backing = vec![0; length];
    file.read_exact_at(&mut backing, offset)?;
    Ok(Some(backing))
}

/// Returns true unless a file is surely gone: its directory is seen here, as guests see it, and it is not in it.
pub(super) fn may_be_there(path: &Path) -> bool {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let is_seen = path.parent().is_some_and(Path::is_dir);
            !is_seen || private_directories().iter().any(|private| path.starts_with(private))
        }
        _ => true,
    }
}

/// Returns the directories that a service manager has given this process in place of everybody's: `PrivateTmp` does.
fn private_directories() -> Vec<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let private = |line: &str| {
        let mut fields = line.split(' ').skip(3);
        let (root, place) = (fields.next()?, fields.next()?);
        root.contains("/systemd-private-").then(|| PathBuf::from(place))
    };
    mounts.lines().filter_map(private).collect()
}

fn not_an_image() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "it is no qcow2 image")
}

/// Removes a file, if it is one of user `uid`. One that is not there is as good as removed.
///
/// # Errors
/// The kernel's; if it is another user's, or no file.
pub(super) fn remove(path: &Path, uid: Option<u32>) -> io::Result<()> {
    let other = || io::Error::other("it is not the file of the guest's user that was made there");
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Err(other()) };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let name = OsStr::from_bytes(name.as_bytes());
    let result = open(parent, flags, Mode::empty()).and_then(|directory| {
        let stat = statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
        let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        if !is_file || Some(stat.st_uid) != uid {
            return Ok(false);
        }
        unlinkat(&directory, name, AtFlags::empty()).map(|()| true)
    });
    match result {
        Ok(true) | Err(rustix::io::Errno::NOENT) => Ok(()),
        Ok(false) => Err(other()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bindery_sys::process::effective_user;
    use proptest::prelude::*;

    fn image(backing: &[u8]) -> Vec<u8> {
        let (offset, length) = (512_u64, backing.len() as u32);
        let mut bytes =
            [&MAGIC[..], &[0, 0, 0, 3], &offset.to_be_bytes(), &length.to_be_bytes()].concat();
        bytes.resize(512, 0);
        [bytes, backing.to_vec()].concat()
    }

    #[test]
    fn the_backing_file_is_the_headers() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a");
        assert_eq!(backing_of(&path).unwrap(), None);
        std::fs::write(&path, image(b"/srv/disk.raw")).unwrap();
        assert_eq!(backing_of(&path).unwrap(), Some(b"/srv/disk.raw".to_vec()));
        std::os::unix::fs::symlink(&path, directory.path().join("link")).unwrap();
        backing_of(&directory.path().join("link")).unwrap_err();
        backing_of(directory.path()).unwrap_err();
    }

    #[test]
    fn files_are_gone_where_their_directory_is_seen() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a");
        assert!(!may_be_there(&path));
        assert!(may_be_there(&path.join("b")), "its directory is not seen");
        std::fs::write(&path, "x").unwrap();
        assert!(may_be_there(&path));
    }

    #[test]
    fn only_files_of_the_user_are_removed() {
        let directory = tempfile::tempdir().unwrap();
        let (path, uid) = (directory.path().join("a"), effective_user());
        remove(&path, Some(uid)).unwrap();
        std::fs::write(&path, "x").unwrap();
        remove(&path, Some(uid + 1)).unwrap_err();
        remove(&path, None).unwrap_err();
        remove(directory.path(), Some(uid)).unwrap_err();
        remove(&path, Some(uid)).unwrap();
        assert!(!path.exists());
    }

    proptest! {
        #[test]
        fn damaged_headers_are_refused_or_read(mut bytes in prop::collection::vec(any::<u8>(), 0..600)) {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("a");
            if let Some(start) = bytes.get_mut(..4) {
                start.copy_from_slice(MAGIC);
            }
            std::fs::write(&path, &bytes).unwrap();
            let _ = backing_of(&path);
        }
    }
}
