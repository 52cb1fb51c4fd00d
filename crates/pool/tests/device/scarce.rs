//! Block devices, and file systems and devices that are full, read-only, or go away.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::path::Path;

use bindery_pool::device::{
    Device, DeviceAccess, DeviceOptions, Failing, Fault, FileDevice, IoEngine, IoError, OpenError,
    Operation,
};
use bindery_testkit::skipped;

use super::machine::{Loop, Mount};
use super::{
    READ, WRITE, all_options, assert_holds, assert_is_ours, create, offset, patiently, write_blocks,
};

macro_rules! or_skip {
    ($what:expr) => {
        match $what {
            Ok(what) => what,
            Err(why) => return skipped!("{why}"),
        }
    };
}

fn details(error: &io::Error) -> &IoError {
    error.get_ref().unwrap().downcast_ref().unwrap()
}

/// Writes one block after the other until there is no room. How many there was room for.
fn fill(device: &FileDevice, blocks: u64) -> u64 {
    for block in 0..blocks {
        let Err(error) = write_blocks(device, block..block + 1, 1) else { continue };
        assert_eq!(error.kind(), ErrorKind::StorageFull, "{error}");
        assert_eq!(details(&error).offset_bytes, offset(block));
        assert!(error.to_string().contains("is full"), "{error}");
        return block;
    }
    panic!("there was room for all")
}

/// Each engine in a file of its own.
fn fill_up(directory: &Path) {
    for options in IoEngine::ALL.map(|engine| DeviceOptions { engine: Some(engine), ..WRITE }) {
        let device = create(directory, 4096, &options);
        let room = fill(&device, 4096);
        assert!(room > 128, "room for {room} blocks");
        let error = write_blocks(&device, room..4096, 2).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::StorageFull, "{error}");
        assert!(details(&error).offset_bytes >= offset(room));
        device.sync().unwrap();
        assert_holds(&device, 0..room, 1);
        // What is given back is room again.
        device.discard(0, offset(128)).unwrap();
        device.sync().unwrap();
        write_blocks(&device, 0..64, 3).unwrap();
        assert_holds(&device, 0..64, 3);
        assert_holds(&device, 128..room, 1);
        // The kernel lets go of a ring, and of the file with it, some time after it was closed: the next
        // file is to find the room at once.
        std::fs::File::create(device.path()).unwrap();
        std::fs::remove_file(device.path()).unwrap();
    }
}

#[test]
fn a_full_tmpfs_is_an_error() {
    fill_up(or_skip!(Mount::tmpfs(2 << 20)).path());
}

#[test]
fn a_full_ext4_is_an_error() {
    let below = tempfile::tempdir().unwrap();
    fill_up(or_skip!(Mount::ext4(below.path(), 8 << 20)).path());
}

#[test]
fn a_read_only_file_system_is_read() {
    let mount = or_skip!(Mount::tmpfs(2 << 20));
    let device = create(mount.path(), 16, &WRITE);
    write_blocks(&device, 0..16, 1).unwrap();
    let path = device.path().to_owned();
    drop(device);
    patiently(|| mount.make_read_only()).unwrap();
    let refused = FileDevice::open(&path, &WRITE).unwrap_err();
    assert!(
        matches!(&refused, OpenError::Io { source, .. } if source.kind() == ErrorKind::ReadOnlyFilesystem),
        "{refused}"
    );
    let refused = FileDevice::create(&mount.path().join("new"), 4096, &WRITE).unwrap_err();
    assert!(refused.to_string().contains("Read-only"), "{refused}");
    assert_holds(&FileDevice::open(&path, &READ).unwrap(), 0..16, 1);
}

#[test]
fn a_file_that_was_cut_ends_early() {
    for options in all_options() {
        let directory = tempfile::tempdir().unwrap();
        let device = create(directory.path(), 64, &options);
        write_blocks(&device, 0..64, 1).unwrap();
        File::options().write(true).open(device.path()).unwrap().set_len(offset(40) + 100).unwrap();
        let error = super::read_blocks(&device, 0..64).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::UnexpectedEof, "{error}");
        let IoError { operation: Operation::Read, offset_bytes, .. } = details(&error) else {
            panic!("{error}")
        };
        assert!((offset(40)..offset(64)).contains(offset_bytes), "{error}");
        let mut all = bindery_sys::direct::Buffer::zeroed(offset(64) as usize);
        let error = device.read(0, &mut all).unwrap_err();
        assert_eq!(details(&error).offset_bytes, offset(40), "{error}");
        assert_holds(&device, 0..40, 1);
    }
}

#[test]
fn a_block_device_is_written_grown_and_given_back() {
    for options in all_options() {
        let directory = tempfile::tempdir().unwrap();
        let backing = directory.path().join("backing");
        let file = File::create(&backing).unwrap();
        file.set_len(offset(256) + 512).unwrap();
        let device = or_skip!(Loop::of(&backing));
        let path = device.path().to_owned();
        let blocks = FileDevice::open(&path, &options).unwrap();
        assert_eq!((blocks.bytes(), blocks.is_block_device()), (offset(256), true));
        write_blocks(&blocks, 0..256, 1).unwrap();
        blocks.discard(0, offset(128)).unwrap();
        blocks.sync().unwrap();
        assert_holds(&blocks, 128..256, 1);
        file.set_len(offset(512)).unwrap();
        device.resize();
        assert_eq!(blocks.grow(offset(1024)).unwrap(), offset(512));
        write_blocks(&blocks, 500..512, 2).unwrap();
        assert_holds(&blocks, 500..512, 2);

        assert_is_ours(&path, &options);
        let reader =
            FileDevice::open(&path, &DeviceOptions { access: DeviceAccess::Read, ..options })
                .unwrap();
        let hold = reader.hold(offset(1), offset(1)).unwrap().unwrap();
        assert!(blocks.is_held(0, offset(2)).unwrap());
        drop(hold);
        assert!(!blocks.is_held(0, offset(2)).unwrap());
        assert!(blocks.file().is_some());
    }
}

/// The block device's own file has no room: cached writes fail when they are synced.
#[test]
fn after_a_failed_sync_nothing_is_written() {
    let mount = or_skip!(Mount::tmpfs(1 << 20));
    let backing = mount.path().join("backing");
    File::create(&backing).unwrap().set_len(16 << 20).unwrap();
    let device = or_skip!(Loop::of(&backing));
    let blocks =
        FileDevice::open(device.path(), &DeviceOptions { buffered: true, ..WRITE }).unwrap();
    let written = write_blocks(&blocks, 0..4096, 1);
    let synced = blocks.sync();
    let error = written.and(synced).unwrap_err();
    assert!(matches!(details(&error).operation, Operation::Sync | Operation::Write), "{error}");
    // The kernel has told once, and says all is well now.
    let error = blocks.sync().unwrap_err();
    assert!(error.to_string().contains("an earlier sync failed"), "{error}");
    let error = write_blocks(&blocks, 0..1, 2).unwrap_err();
    assert!(error.to_string().contains("an earlier sync failed"), "{error}");
    drop(blocks);

    let blocks = patiently(|| FileDevice::open(device.path(), &WRITE)).unwrap();
    let error = write_blocks(&blocks, 0..4096, 1).unwrap_err();
    assert_eq!(details(&error).operation, Operation::Write, "{error}");
    assert!(error.to_string().contains(&device.path().display().to_string()), "{error}");
}

/// What its file has lost, a loop device cannot read.
#[test]
fn a_device_that_goes_away_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let backing = directory.path().join("backing");
    let file = File::create(&backing).unwrap();
    file.set_len(offset(64)).unwrap();
    let device = or_skip!(Loop::of(&backing));
    for options in IoEngine::ALL.map(|engine| DeviceOptions { engine: Some(engine), ..WRITE }) {
        file.set_len(offset(64)).unwrap();
        let blocks = patiently(|| FileDevice::open(device.path(), &options)).unwrap();
        write_blocks(&blocks, 0..64, 1).unwrap();
        blocks.sync().unwrap();
        file.set_len(offset(32)).unwrap();
        let error = super::read_blocks(&blocks, 0..64).unwrap_err();
        assert_eq!(details(&error).operation, Operation::Read, "{error}");
        assert!((offset(32)..offset(64)).contains(&details(&error).offset_bytes), "{error}");
        assert_holds(&blocks, 0..32, 1);
    }
}

#[test]
fn faults_come_when_they_are_to() {
    let directory = tempfile::tempdir().unwrap();
    let device = Failing::new(create(directory.path(), 16, &WRITE));
    write_blocks(&device, 0..16, 1).unwrap();
    assert_eq!((device.operations(), device.has_failed()), (16, false));
    let fault = Fault {
        operation: Some(Operation::Write),
        after: 3,
        lasts: false,
        kind: ErrorKind::StorageFull,
    };
    device.set(Some(fault));
    device.sync().unwrap();
    assert_eq!(write_blocks(&device, 0..16, 2).unwrap_err().kind(), ErrorKind::StorageFull);
    assert_holds(&device, 0..3, 2);
    assert_holds(&device, 3..16, 1);
    write_blocks(&device, 0..16, 3).unwrap();
    device.set(Some(Fault { lasts: true, after: 0, ..fault }));
    for _ in 0..2 {
        assert!(write_blocks(&device, 0..1, 4).is_err());
        device.sync().unwrap();
    }
    device.set(None);
    assert_holds(&device, 0..16, 3);
}

#[test]
fn a_read_only_block_device_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let backing = directory.path().join("backing");
    File::create(&backing).unwrap().set_len(1 << 20).unwrap();
    let device = or_skip!(Loop::of(&backing));
    device.set_read_only(true);
    let error = FileDevice::open(device.path(), &WRITE).unwrap_err();
    assert!(matches!(&error, OpenError::ReadOnly { path } if path == device.path()), "{error}");
    assert!(error.to_string().contains("is read-only: make it writable"), "{error}");
    drop(FileDevice::open(device.path(), &READ).unwrap());
    device.set_read_only(false);
    drop(FileDevice::open(device.path(), &WRITE).unwrap());
}
