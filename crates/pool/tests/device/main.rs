//! Real devices: files, loop devices and file systems that are full, read-only or gone.
//!
//! What needs root or a kernel's module says so loudly and is passed over without.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod locks;
mod machine;
mod model;
mod refused;
mod scarce;
mod threads;
mod under_way;

use std::path::Path;
use std::time::{Duration, Instant};

use bindery_pool::BLOCK_BYTES;
use bindery_pool::device::{
    Device, DeviceAccess, DeviceOptions, FileDevice, IoEngine, OpenError, Read, Write,
};
use bindery_sys::direct::Buffer;

const WRITE: DeviceOptions = DeviceOptions::new(DeviceAccess::Write);
const READ: DeviceOptions = DeviceOptions::new(DeviceAccess::Read);

/// Both engines, past the page cache and through it.
fn all_options() -> impl Iterator<Item = DeviceOptions> {
    IoEngine::ALL.into_iter().flat_map(|engine| {
        [false, true].map(|buffered| DeviceOptions {
            engine: Some(engine),
            buffered,
            depth: 16,
            ..WRITE
        })
    })
}

/// Blocks that tell where they belong, and of which writing they are.
fn pattern(block: u64, blocks: usize, version: u64) -> Buffer {
    let mut buffer = Buffer::zeroed(blocks * BLOCK_BYTES);
    for (at, part) in buffer.chunks_exact_mut(BLOCK_BYTES).enumerate() {
        let seed = (block + at as u64) << 20 | version;
        for (word, bytes) in part.chunks_exact_mut(8).enumerate() {
            bytes.copy_from_slice(
                &(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ word as u64).to_le_bytes(),
            );
        }
    }
    buffer
}

/// Does again what fails, for a while: a process that another test starts at this moment has our
/// descriptors until it executes, and what hangs on them.
fn patiently<T, E>(mut attempt: impl FnMut() -> Result<T, E>) -> Result<T, E> {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        match attempt() {
            Err(_) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(2)),
            outcome => return outcome,
        }
    }
}

/// Whom a second writer is told of, once that is this process alone.
fn assert_is_ours(path: &Path, options: &DeviceOptions) {
    let named = patiently(|| match FileDevice::open(path, options) {
        Err(OpenError::InUse { holders, .. }) if holders == [std::process::id()] => Ok(()),
        outcome => Err(format!("{outcome:?}")),
    });
    named.unwrap_or_else(|outcome| panic!("{outcome}"));
}

fn offset(block: u64) -> u64 {
    block * BLOCK_BYTES as u64
}

fn write_blocks(
    device: &dyn Device,
    blocks: std::ops::Range<u64>,
    version: u64,
) -> std::io::Result<()> {
    let buffers: Vec<Buffer> = blocks.clone().map(|block| pattern(block, 1, version)).collect();
    let writes: Vec<Write<'_>> = blocks
        .zip(&buffers)
        .map(|(block, from)| Write { offset_bytes: offset(block), from })
        .collect();
    device.write_many(&writes)
}

fn read_blocks(device: &dyn Device, blocks: std::ops::Range<u64>) -> std::io::Result<Vec<Buffer>> {
    let mut buffers: Vec<Buffer> = blocks.clone().map(|_| Buffer::zeroed(BLOCK_BYTES)).collect();
    let mut reads: Vec<Read<'_>> = blocks
        .zip(&mut buffers)
        .map(|(block, into)| Read { offset_bytes: offset(block), into })
        .collect();
    device.read_many(&mut reads)?;
    Ok(buffers)
}

fn assert_holds(device: &dyn Device, blocks: std::ops::Range<u64>, version: u64) {
    for (block, found) in blocks.clone().zip(read_blocks(device, blocks).unwrap()) {
        assert!(*found == *pattern(block, 1, version), "block {block} of {device:?}");
    }
}

fn create(directory: &Path, blocks: u64, options: &DeviceOptions) -> FileDevice {
    FileDevice::create(&directory.join("device.bindery"), offset(blocks), options).unwrap()
}

#[test]
fn what_is_written_is_there_when_it_is_opened_again() {
    for options in all_options() {
        let directory = tempfile::tempdir().unwrap();
        let device = create(directory.path(), 300, &options);
        assert_eq!((device.bytes(), device.engine()), (offset(300), options.engine.unwrap()));
        write_blocks(&device, 0..300, 1).unwrap();
        device.write(offset(3), &pattern(3, 200, 2)).unwrap();
        device.sync().unwrap();
        let path = device.path().to_owned();
        drop(device);
        let device =
            FileDevice::open(&path, &DeviceOptions { access: DeviceAccess::Read, ..options })
                .unwrap();
        assert_holds(&device, 0..3, 1);
        assert_holds(&device, 3..203, 2);
        assert_holds(&device, 203..300, 1);
        let mut long = Buffer::zeroed(200 * BLOCK_BYTES);
        device.read(offset(3), &mut long).unwrap();
        assert!(*long == *pattern(3, 200, 2));
        let refused = device.write(0, &pattern(0, 1, 3)).unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::PermissionDenied);
        assert!(refused.to_string().contains("device.bindery at byte 0"), "{refused}");
    }
}

/// What one engine wrote past the cache, the other reads through it.
#[test]
fn all_ways_see_the_same_bytes() {
    let directory = tempfile::tempdir().unwrap();
    let path = create(directory.path(), 64, &WRITE).path().to_owned();
    for (version, options) in all_options().enumerate() {
        let device = FileDevice::open(&path, &options).unwrap();
        write_blocks(&device, 0..64, version as u64).unwrap();
        for options in all_options() {
            let reader =
                FileDevice::open(&path, &DeviceOptions { access: DeviceAccess::Read, ..options });
            assert_holds(&reader.unwrap(), 0..64, version as u64);
        }
    }
}

#[test]
fn files_are_sparse_grow_and_give_back() {
    use std::os::unix::fs::MetadataExt;
    let directory = tempfile::tempdir().unwrap();
    let device = create(directory.path(), 1 << 20, &WRITE);
    let stored_bytes = || device.path().metadata().unwrap().blocks() * 512;
    assert!(stored_bytes() < 1 << 20);
    write_blocks(&device, 100..356, 1).unwrap();
    device.sync().unwrap();
    let full = stored_bytes();
    device.discard(offset(100), offset(128)).unwrap();
    device.discard(offset(100), 0).unwrap();
    device.sync().unwrap();
    assert!(stored_bytes() + (1 << 18) < full, "{} of {full}", stored_bytes());
    assert_holds(&device, 228..356, 1);
    assert_eq!(device.grow(offset(10)).unwrap(), offset(1 << 20));
    assert_eq!(device.grow(offset(1 << 21)).unwrap(), offset(1 << 21));
    write_blocks(&device, (1 << 21) - 3..1 << 21, 2).unwrap();
    assert_holds(&device, (1 << 21) - 3..1 << 21, 2);
}

#[test]
fn what_is_no_device_is_told_apart() {
    let directory = tempfile::tempdir().unwrap();
    let taken = directory.path().join("taken");
    std::fs::write(&taken, "something").unwrap();
    let fifo = directory.path().join("fifo");
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    for (error, expected) in [
        (FileDevice::create(&taken, 4096, &WRITE), "cannot make"),
        (FileDevice::create(&directory.path().join("a/b"), 4096, &WRITE), "No such file"),
        (FileDevice::open(&directory.path().join("none"), &READ), "No such file"),
        (FileDevice::open(directory.path(), &READ), "neither a regular file nor a block device"),
        (FileDevice::open(&fifo, &WRITE), "neither a regular file nor a block device"),
        (FileDevice::open(Path::new("/dev/null"), &READ), "neither"),
    ] {
        let error = error.unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    assert_eq!(std::fs::read(&taken).unwrap(), b"something");
}

#[test]
#[should_panic(expected = "are not within")]
fn what_is_beyond_the_end_is_the_callers_mistake() {
    let directory = tempfile::tempdir().unwrap();
    let device = create(directory.path(), 4, &WRITE);
    let _ = device.read(offset(3), &mut Buffer::zeroed(2 * BLOCK_BYTES));
}
