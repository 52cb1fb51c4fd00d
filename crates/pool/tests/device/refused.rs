//! io_uring refused by the kernel, before a device is opened and in the middle.

use std::collections::BTreeMap;
use std::thread;

use bindery_pool::device::{Device, DeviceOptions, FileDevice, IoEngine, OpenError};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};

use super::under_way::{BLOCKS, write_one_by_one};
use super::{WRITE, assert_holds, create, write_blocks};

const URING: DeviceOptions = DeviceOptions { engine: Some(IoEngine::Uring), ..WRITE };

/// System calls of io_uring, as numbers that all architectures have.
const SETUP: i64 = 425;
const ENTER: i64 = 426;

/// Has the kernel refuse a system call to this thread and those that it starts, for ever.
fn refuse(call: i64, errno: u32) {
    let rules = BTreeMap::from([(call, Vec::new())]);
    let arch = std::env::consts::ARCH.try_into().unwrap();
    let filter =
        SeccompFilter::new(rules, SeccompAction::Allow, SeccompAction::Errno(errno), arch).unwrap();
    let program: BpfProgram = filter.try_into().unwrap();
    seccompiler::apply_filter(&program).unwrap();
}

/// As Docker's profile, and as a kernel without io_uring.
#[test]
fn threads_do_it_where_io_uring_is_refused() {
    const EPERM: u32 = 1;
    const ENOSYS: u32 = 38;
    for errno in [EPERM, ENOSYS] {
        let check = move || {
            refuse(SETUP, errno);
            let directory = tempfile::tempdir().unwrap();
            let device = create(directory.path(), 128, &WRITE);
            assert_eq!(device.engine(), IoEngine::Threads);
            write_blocks(&device, 0..128, 1).unwrap();
            device.sync().unwrap();
            assert_holds(&device, 0..128, 1);
            let path = device.path().to_owned();
            drop(device);
            let refused = FileDevice::open(&path, &URING).unwrap_err();
            assert!(matches!(refused, OpenError::NoUring { .. }), "{refused}");
        };
        thread::spawn(check).join().unwrap();
    }
}

#[test]
fn threads_go_on_where_io_uring_ends() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("device.bindery");
    let device = match FileDevice::create(&path, 128 << 12, &URING) {
        Ok(device) => device,
        Err(error) => return bindery_testkit::skipped!("{error}"),
    };
    thread::scope(|scope| {
        for call in [SETUP, ENTER] {
            let device = &device;
            let check = scope.spawn(move || {
                if call == ENTER {
                    write_blocks(device, 0..128, 1).unwrap();
                }
                refuse(call, 1);
                write_blocks(device, 0..128, 2).unwrap();
                assert_holds(device, 0..128, 2);
                write_one_by_one(device, 3).unwrap();
                assert_holds(device, 0..BLOCKS, 3);
            });
            check.join().unwrap();
        }
    });
    assert_eq!(device.engine(), IoEngine::Uring);
}
