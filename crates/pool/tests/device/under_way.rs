//! Writes that are begun, and go on while the next is prepared.

use std::io;

use bindery_pool::device::{Device, Failing, Fault, Operation};

use super::{WRITE, all_options, assert_holds, create, offset, pattern};

pub(super) const BLOCKS: u64 = 40;

/// Writes all blocks, one after the other, and waits for them.
pub(super) fn write_one_by_one(device: &dyn Device, version: u64) -> io::Result<()> {
    let mut under_way = device.under_way();
    let mut begin = |block| {
        let mut buffer = under_way.buffer(pattern(0, 1, 0).len());
        buffer.copy_from_slice(&pattern(block, 1, version));
        device.begin_write(&mut under_way, offset(block), buffer.into())
    };
    let begun = (0..BLOCKS).try_for_each(&mut begin);
    begun.and(device.end_writes(&mut under_way))
}

#[test]
fn what_was_begun_is_there_when_it_was_ended() {
    let directory = tempfile::tempdir().unwrap();
    for (at, options) in all_options().enumerate() {
        let directory = directory.path().join(at.to_string());
        std::fs::create_dir(&directory).unwrap();
        let device = create(&directory, BLOCKS, &options);
        // The second caller gets what the first has left.
        for version in 1..4 {
            write_one_by_one(&device, version).unwrap();
            assert_holds(&device, 0..BLOCKS, version);
        }
    }
}

#[test]
fn each_write_that_fails_is_told_of() {
    let directory = tempfile::tempdir().unwrap();
    let device = Failing::new(create(directory.path(), BLOCKS, &WRITE));
    for after in 0.. {
        let (operation, kind) = (Some(Operation::Write), io::ErrorKind::StorageFull);
        device.set(Some(Fault { operation, after, lasts: false, kind }));
        let written = write_one_by_one(&device, after);
        assert_eq!(written.is_err(), device.has_failed(), "after {after} writes");
        if !device.has_failed() {
            assert_eq!(after, BLOCKS);
            assert_holds(&device, 0..BLOCKS, after);
            break;
        }
    }
}
