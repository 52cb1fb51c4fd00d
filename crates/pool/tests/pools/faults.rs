//! Devices that fail at one operation, each in turn: the error says what failed, and nothing that was
//! committed is lost.

use bindery_pool::MediaClass;
use bindery_pool::object::Object;
use bindery_pool::write::{AppendError, CommitError};

use crate::crashes::{reopen, rig};
use crate::life;
use crate::model::{Model, Written, read};
use crate::rig::Rig;
use crate::simulated::Fault;

/// Lives a life on devices of which one fails; what was committed before and after is there.
fn live_with(fault: Fault, device: usize, operations: std::ops::Range<u64>) {
    let (mut rig, mut model) = (rig(), Model::default());
    let pool = rig.create();
    rig.device(device).fail(operations.clone(), fault);
    let mut errors = 0;
    for step in life::script() {
        errors += u64::from(life::go(&mut rig, &pool, &mut model, step).is_err());
    }
    for (&id, &written) in &model.sure {
        assert_eq!(read(&pool.get(id).unwrap()), written.bytes());
    }
    assert!(errors > 0 || operations.start > 0, "nothing failed");
    drop(pool);
    for device in rig.machine.devices() {
        device.mend();
    }
    rig.machine.restart(operations.start);
    drop(reopen(&mut rig, &mut model));
}

fn operations(device: usize) -> u64 {
    let (mut rig, mut model) = (rig(), Model::default());
    let pool = rig.create();
    let before = rig.device(device).operations();
    for step in life::script() {
        life::go(&mut rig, &pool, &mut model, step).unwrap();
    }
    rig.device(device).operations() - before
}

#[test]
fn an_error_at_any_operation_loses_nothing_that_was_committed() {
    for device in 0..3 {
        let operations = operations(device);
        assert!(operations > 5);
        for at in 0..operations {
            live_with(Fault::Error, device, at..at + 1);
        }
    }
}

#[test]
fn a_full_file_system_and_short_writes_lose_nothing_either() {
    for device in 0..2 {
        for at in (0..operations(device)).step_by(3) {
            live_with(Fault::Full, device, at..at + 1);
            live_with(Fault::Short, device, at..at + 1);
            live_with(Fault::Full, device, at..u64::MAX);
        }
    }
}

#[test]
fn errors_name_the_object_and_what_was_done() {
    let rig = Rig::two();
    let pool = rig.create();
    let write = |length: usize| {
        let mut writer = pool.allocate_mblock(MediaClass::Staging, length as u64).unwrap();
        let id = writer.id();
        let appended = writer.append(&Written { seed: 1, length }.bytes());
        (id, appended.map_err(CommitError::from).and_then(|()| writer.commit()))
    };
    let (_, whole) = write(10_000);
    let whole = whole.unwrap();

    // While it is written: that object alone is lost.
    rig.device(1).fail(0..1, Fault::Full);
    let (id, error) = write(10_000);
    let error = error.unwrap_err();
    assert!(matches!(error, CommitError::Append(AppendError::Device { .. })), "{error}");
    assert!(error.to_string().contains(&id.to_string()), "{error}");
    rig.device(1).mend();
    write(10_000).1.unwrap();

    // While it is synced: nothing on that device can be trusted to become durable.
    rig.device(1).fail(2..3, Fault::Error);
    let (id, error) = write(10_000);
    let error = error.unwrap_err();
    assert!(matches!(&error, CommitError::Sync { device, .. } if device == "disk1"), "{error}");
    assert!(error.to_string().contains(&id.to_string()), "{error}");
    rig.device(1).mend();
    assert!(matches!(write(10).1, Err(CommitError::Sync { .. })));
    assert_eq!(read(&whole), Written { seed: 1, length: 10_000 }.bytes());
    assert!(pool.get(id).is_err());

    // The catalogue: nothing changes any more, everything can be read.
    rig.device(0).vanish();
    let error = pool.rename("other".parse().unwrap()).unwrap_err();
    assert!(error.to_string().contains("until it is opened again"), "{error}");
    assert!(pool.delete(whole.id()).is_err());
    assert_eq!(read(&pool.get(whole.id()).unwrap()).len(), 10_000);
}
