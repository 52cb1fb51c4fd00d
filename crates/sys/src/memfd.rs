//! Memory that is a file: made by one process, mapped by others.
//!
//! All files made here are close-on-exec and can never be executed. All but those of [`create_growing`] are
//! sealed against changing size, so that a mapping of them never raises `SIGBUS` and a reader never meets
//! their end.

use std::fs::{File, Permissions};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};

use rustix::fs::{
    FallocateFlags, FileType, MemfdFlags, SealFlags, Stat, fallocate, fcntl_add_seals,
    fcntl_get_seals, fstat, fstatfs, ftruncate, memfd_create,
};

/// Makes a memfd of `bytes` zeros, none of them allocated. `name` is for `/proc/PID/maps`.
///
/// # Errors
/// The kernel's, when descriptors or memory are short; `FileTooLarge` above `RLIMIT_FSIZE`.
pub fn create(name: &str, bytes: u64) -> io::Result<File> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::NOEXEC_SEAL;
    let file = memfd_create(name, flags)?;
    ftruncate(&file, bytes)?;
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(File::from(file))
}

/// Makes an empty memfd that grows as it is written, for output of unknown length.
///
/// # Errors
/// The kernel's, when descriptors or memory are short.
pub fn create_growing(name: &str) -> io::Result<File> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::NOEXEC_SEAL;
    Ok(File::from(memfd_create(name, flags)?))
}

/// Whether the file is memory of `bytes` that nobody can make shorter or longer, as those made here.
#[must_use]
pub fn is_fixed(file: impl AsFd, bytes: u64) -> bool {
    let seals = SealFlags::SHRINK | SealFlags::GROW;
    fcntl_get_seals(&file).is_ok_and(|has| has.contains(seals))
        && fstat(file).is_ok_and(|Stat { st_size, .. }| st_size.cast_unsigned() == bytes)
}

/// What is known of a file of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryFile {
    /// Device and inode, as of [`identity`].
    pub identity: (u64, u64),
    /// Length, in bytes.
    pub bytes: u64,
}

/// Looks at a file that somebody else says is memory: a memfd, or a regular file on a tmpfs, of pages of
/// 4 KiB. `None` if it is not.
///
/// # Errors
/// As fstat(2) and fstatfs(2).
pub fn look_at(file: impl AsFd) -> io::Result<Option<MemoryFile>> {
    let stat = fstat(&file)?;
    let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    // Of the type, the low 32 bits are the magic number, whatever its sign: see statfs(2).
    if !is_file || fstatfs(&file)?.f_type as u32 != libc::TMPFS_MAGIC as u32 {
        return Ok(None);
    }
    let bytes = stat.st_size.cast_unsigned();
    Ok(Some(MemoryFile { identity: (stat.st_dev, stat.st_ino), bytes }))
}

/// Takes the right to write from everybody who opens the file anew (by `/proc/PID/fd`), its owner
/// included, and the right to open it at all from everybody else. Root is not stopped.
///
/// # Errors
/// The kernel's.
pub fn forbid_reopening_for_write(file: &File) -> io::Result<()> {
    file.set_permissions(Permissions::from_mode(0o400))
}

/// A second description of the same file that can be read and mapped privately, never written,
/// punched, or mapped shared and writable. Reading and mapping it does not note when it was accessed.
///
/// # Errors
/// The kernel's, when descriptors are short or `/proc` is not mounted.
pub fn reopen_read_only(file: impl AsFd) -> io::Result<File> {
    // O_NOATIME is for who owns the file, and this process made it.
    let mut options = File::options();
    options.read(true).custom_flags(libc::O_NOATIME);
    options.open(format!("/proc/thread-self/fd/{}", file.as_fd().as_raw_fd()))
}

/// Opens a second description of the same file that can be written only, at offset 0. The file is not
/// truncated.
///
/// # Errors
/// The kernel's, when descriptors are short or `/proc` is not mounted.
pub fn reopen_write_only(file: impl AsFd) -> io::Result<File> {
    let path = format!("/proc/thread-self/fd/{}", file.as_fd().as_raw_fd());
    File::options().write(true).open(path)
}

/// Gives the memory of a range back; it reads as zeros afterwards, **in every mapping** that still
/// shows it. Whole pages only.
///
/// # Errors
/// The kernel's.
pub fn punch(file: impl AsFd, offset_bytes: u64, bytes: u64) -> io::Result<()> {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    Ok(fallocate(file, flags, offset_bytes, bytes)?)
}

/// What tells one file from another while either is open: its device and its inode.
///
/// # Errors
/// As fstat(2).
pub fn identity(file: impl AsFd) -> io::Result<(u64, u64)> {
    let Stat { st_dev, st_ino, .. } = fstat(file)?;
    Ok((st_dev, st_ino))
}

/// The memory that the file holds now, in bytes.
///
/// # Errors
/// The kernel's.
pub fn allocated_bytes(file: &File) -> io::Result<u64> {
    // st_blocks counts 512 bytes whatever the block size, see stat(2).
    Ok(file.metadata()?.blocks() * 512)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::fs::FileExt;

    const MIB: u64 = 1 << 20;

    #[test]
    fn holes_hold_no_memory_and_read_as_zeros() {
        let file = create("test", 64 * MIB).unwrap();
        assert_eq!(allocated_bytes(&file).unwrap(), 0);
        file.write_all_at(&[7; 3 * 4096], 4096).unwrap();
        assert_eq!(allocated_bytes(&file).unwrap(), 3 * 4096);
        punch(&file, 2 * 4096, 4096).unwrap();
        assert_eq!(allocated_bytes(&file).unwrap(), 2 * 4096);
        let mut bytes = [1; 2];
        file.read_exact_at(&mut bytes, 2 * 4096 - 1).unwrap();
        assert_eq!(bytes, [7, 0]);
    }

    #[test]
    fn a_growing_file_has_what_its_writer_wrote() {
        let mut file = create_growing("test").unwrap();
        let mut writer = reopen_write_only(&file).unwrap();
        writer.write_all(b"device state").unwrap();
        assert!(writer.read(&mut [0]).is_err());
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).unwrap();
        assert_eq!(bytes, b"device state");
    }

    #[test]
    fn only_what_is_sealed_at_a_length_is_fixed() {
        let file = create("test", MIB).unwrap();
        assert!(is_fixed(&file, MIB) && !is_fixed(&file, MIB / 2));
        let loose = tempfile::tempfile().unwrap();
        loose.set_len(MIB).unwrap();
        assert!(!is_fixed(&loose, MIB));
    }

    #[test]
    fn a_file_is_itself_through_every_descriptor() {
        let (file, other) = (create("test", MIB).unwrap(), create("test", MIB).unwrap());
        let again = reopen_read_only(&file).unwrap();
        assert_eq!(identity(&file).unwrap(), identity(&again).unwrap());
        assert_ne!(identity(&file).unwrap(), identity(&other).unwrap());
    }

    #[test]
    fn files_of_memory_are_told_from_others() {
        let file = create("test", MIB).unwrap();
        let seen = look_at(&file).unwrap().unwrap();
        assert_eq!((seen.identity, seen.bytes), (identity(&file).unwrap(), MIB));
        let (reader, _writer) = std::io::pipe().unwrap();
        assert_eq!(look_at(&reader).unwrap(), None);
        for path in ["/proc/self/exe", "/dev/zero", "/dev/shm", "/proc/self/maps"] {
            // One that is not there is none, either.
            let Ok(other) = File::open(path) else { continue };
            assert_eq!(look_at(&other).unwrap(), None, "{path}");
        }
    }

    #[test]
    fn the_size_cannot_change() {
        let file = create("test", MIB).unwrap();
        assert!(file.set_len(0).is_err() && file.set_len(2 * MIB).is_err());
    }

    #[test]
    fn a_read_only_description_cannot_write_or_punch() {
        let file = create("test", MIB).unwrap();
        forbid_reopening_for_write(&file).unwrap();
        file.write_all_at(b"canonical", 0).unwrap();
        let mut shared = reopen_read_only(&file).unwrap();
        let mut bytes = [0; 9];
        shared.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"canonical");
        assert!(shared.write(b"x").is_err());
        assert!(punch(&shared, 0, 4096).is_err());
        assert_eq!(file.metadata().unwrap().mode() & 0o777, 0o400);
    }
}
