//! Files and block devices as stores of blocks: how long they are, and giving back what is unused.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use rustix::fs::{AtFlags, FallocateFlags, Mode, OFlags, StatxFlags, fallocate, statx};
use rustix::io::Errno;
use rustix::ioctl::{Getter, Opcode, Setter, ioctl, opcode};

use crate::direct::ALIGNMENT;

/// `BLKGETSIZE64`: bytes of a block device.
const BLKGETSIZE64: Opcode = opcode::read::<usize>(0x12, 114);
/// `BLKROGET`: whether a block device is read-only.
const BLKROGET: Opcode = opcode::none(0x12, 94);
/// `BLKDISCARD`: a range of a block device, by start and length in bytes.
const BLKDISCARD: Opcode = opcode::none(0x12, 119);

/// What blocks are kept in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A regular file.
    File,
    /// A block device.
    BlockDevice,
}

impl Kind {
    /// What `file` is; none if it is neither.
    ///
    /// # Errors
    /// As fstat(2).
    pub fn of(file: &File) -> io::Result<Option<Self>> {
        let file_type = file.metadata()?.file_type();
        Ok(if file_type.is_file() {
            Some(Self::File)
        } else if file_type.is_block_device() {
            Some(Self::BlockDevice)
        } else {
            None
        })
    }
}

/// How a file or block device is opened.
#[derive(Clone, Copy, Debug)]
pub struct How {
    /// For writing, beside reading.
    pub writable: bool,
    /// Past the page cache (`O_DIRECT`).
    pub direct: bool,
    /// For nobody else's exclusive use, mounts among them (`O_EXCL`); for block devices alone.
    pub exclusive: bool,
}

/// Opens what is there.
///
/// # Errors
/// As open(2): `EINVAL` where there is no direct I/O, `EBUSY` where a block device is in exclusive use.
pub fn open(path: &Path, how: How) -> io::Result<File> {
    let mut flags = OFlags::CLOEXEC;
    flags.set(OFlags::RDWR, how.writable);
    flags.set(OFlags::DIRECT, how.direct);
    flags.set(OFlags::EXCL, how.exclusive);
    Ok(rustix::fs::open(path, flags, Mode::empty())?.into())
}

/// Opens what is there for cached reading, whatever it is: a FIFO does not block.
///
/// # Errors
/// As open(2).
pub fn open_cached(path: &Path) -> io::Result<File> {
    let flags = OFlags::CLOEXEC | OFlags::NONBLOCK;
    Ok(rustix::fs::open(path, flags, Mode::empty())?.into())
}

/// How long it is now, in bytes.
///
/// # Errors
/// As fstat(2) and ioctl(2).
pub fn bytes(file: &File, kind: Kind) -> io::Result<u64> {
    match kind {
        Kind::File => Ok(file.metadata()?.len()),
        Kind::BlockDevice => {
            // SAFETY: BLKGETSIZE64 writes a u64, whatever its number says.
            let bytes = unsafe { ioctl(file, Getter::<BLKGETSIZE64, u64>::new()) }?;
            Ok(bytes)
        }
    }
}

/// Returns true if a block device takes no writes, whoever opens it for them.
///
/// # Errors
/// As ioctl(2).
pub fn is_read_only(device: &File) -> io::Result<bool> {
    // SAFETY: BLKROGET writes an int.
    let is_read_only = unsafe { ioctl(device, Getter::<BLKROGET, libc::c_int>::new()) }?;
    Ok(is_read_only != 0)
}

/// Gives a range back to the file system or the device, if they take it. What it reads as afterwards is
/// anything; the length stays. False where they cannot.
///
/// # Errors
/// As fallocate(2) and ioctl(2).
pub fn discard(file: &File, kind: Kind, offset_bytes: u64, bytes: u64) -> io::Result<bool> {
    let discarded = match kind {
        Kind::File => {
            let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            fallocate(file, punch, offset_bytes, bytes)
        }
        Kind::BlockDevice => {
            // SAFETY: BLKDISCARD reads two u64, and changes no memory that Rust knows of.
            unsafe { ioctl(file, Setter::<BLKDISCARD, [u64; 2]>::new([offset_bytes, bytes])) }
        }
    };
    match discarded {
        Ok(()) => Ok(true),
        Err(Errno::OPNOTSUPP | Errno::NOTTY) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Whether O_DIRECT in units of [`ALIGNMENT`] works on a file; if not, why (statx(2),
/// `STATX_DIOALIGN`, Linux 6.1). A file system that does not say is taken at its open(2)'s word.
///
/// # Errors
/// As statx(2).
pub fn direct_io(file: impl AsFd) -> io::Result<Result<(), String>> {
    let status = statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN)?;
    if status.stx_mask & StatxFlags::DIOALIGN.bits() == 0 {
        return Ok(Ok(()));
    }
    let (memory, offset) = (status.stx_dio_mem_align, status.stx_dio_offset_align);
    Ok(if offset == 0 {
        Err("the file system has no direct I/O for it".into())
    } else if memory.max(offset) as usize > ALIGNMENT {
        Err(format!("its direct I/O wants blocks of {offset} and memory aligned to {memory} bytes"))
    } else {
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn files_have_a_length_and_holes() {
        let file = tempfile::tempfile().unwrap();
        assert_eq!(Kind::of(&file).unwrap(), Some(Kind::File));
        std::os::unix::fs::FileExt::write_all_at(&file, &[1; 1 << 20], 0).unwrap();
        file.sync_all().unwrap();
        let allocated = file.metadata().unwrap().blocks();
        if discard(&file, Kind::File, 0, 1 << 19).unwrap() {
            file.sync_all().unwrap();
            assert!(file.metadata().unwrap().blocks() < allocated);
        }
        assert_eq!(bytes(&file, Kind::File).unwrap(), 1 << 20);
    }

    #[test]
    fn what_holds_no_blocks_is_told_apart() {
        assert_eq!(Kind::of(&File::open("/dev/null").unwrap()).unwrap(), None);
        assert_eq!(Kind::of(&File::open("/tmp").unwrap()).unwrap(), None);
    }
}
