//! Reading and writing the superblocks of one device.

use std::io;

use bindery_sys::direct::Buffer;

use crate::BLOCK_BYTES;
use crate::device::Device;
use crate::format::superblock::{HEAD_BYTES, NoSuperblock, SUPERBLOCK_OFFSETS, Superblock};

/// Both copies, as they are.
pub(crate) type SuperblockCopies = [Result<Superblock, NoSuperblock>; 2];

/// Reads both. A device without room for them has none. That one cannot be read is no error where the
/// other is good: that is what there are two for.
pub(crate) fn read(device: &dyn Device) -> io::Result<SuperblockCopies> {
    if device.bytes() < HEAD_BYTES {
        return Ok([Err(NoSuperblock::Absent), Err(NoSuperblock::Absent)]);
    }
    match [read_copy(device, 0), read_copy(device, 1)] {
        [Err(_), Ok(Ok(good))] => Ok([Err(NoSuperblock::Unreadable), Ok(good)]),
        [Ok(Ok(good)), Err(_)] => Ok([Ok(good), Err(NoSuperblock::Unreadable)]),
        [first, second] => Ok([first?, second?]),
    }
}

fn read_copy(device: &dyn Device, copy: u8) -> io::Result<Result<Superblock, NoSuperblock>> {
    let mut block = Buffer::zeroed(BLOCK_BYTES);
    device.read(SUPERBLOCK_OFFSETS[usize::from(copy)], &mut block)?;
    Ok(Superblock::decode(copy, &block))
}

/// The one that counts. A newer format counts more than all: this program would misread the rest.
pub(crate) fn newest(copies: &SuperblockCopies) -> Result<&Superblock, NoSuperblock> {
    let errors = || copies.iter().filter_map(|copy| copy.as_ref().err());
    if let Some(newer) = errors().find(|error| matches!(error, NoSuperblock::Newer { .. })) {
        return Err(*newer);
    }
    let best = copies.iter().flatten().max_by_key(|superblock| superblock.revision);
    // One that is damaged was a superblock once.
    let error = || errors().find(|error| **error == NoSuperblock::Damaged);
    best.ok_or_else(|| *error().unwrap_or(&NoSuperblock::Absent))
}

/// Writes both, as the next revision, the one that counts last: at any time the other, or it, is whole.
/// One that cannot be read is written first, which may be all that it lacks.
pub(crate) fn write(device: &dyn Device, superblock: &Superblock) -> io::Result<()> {
    let revision_of = |copy: u8| match read_copy(device, copy) {
        Ok(Ok(found)) => found.revision,
        Ok(Err(_)) | Err(_) => 0,
    };
    let [first, second] = [revision_of(0), revision_of(1)];
    let revision = first.max(second) + 1;
    let order = if second > first { [0, 1] } else { [1, 0] };
    for copy in order {
        let superblock = Superblock { copy, revision, ..superblock.clone() };
        let mut block = Buffer::zeroed(BLOCK_BYTES);
        superblock.encode(&mut block);
        device.write(SUPERBLOCK_OFFSETS[usize::from(copy)], &block)?;
        device.sync()?;
    }
    Ok(())
}

/// Overwrites both with nothing.
pub(crate) fn wipe(device: &dyn Device) -> io::Result<()> {
    let nothing = Buffer::zeroed(BLOCK_BYTES);
    SUPERBLOCK_OFFSETS.iter().try_for_each(|&offset| device.write(offset, &nothing))?;
    device.sync()
}
