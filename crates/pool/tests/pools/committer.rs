//! Objects that are committed while the next are written.

use std::collections::BTreeMap;
use std::sync::Arc;

use bindery_pool::write::{CommitError, Committer};
use bindery_pool::{MediaClass, ObjectId, Pool};
use bindery_sys::direct::Buffer;

use crate::crashes::{reopen, rig};
use crate::model::{Model, Written, read};
use crate::rig::Rig;
use crate::simulated::Fault;

/// Objects of one life, some larger than what may be under way behind others.
fn objects() -> impl Iterator<Item = (MediaClass, Written)> {
    let lengths = [100, 50_000, 4096, 300_000, 1, 20_000, 8192];
    (1..).zip(lengths).map(|(seed, length)| {
        let class = [MediaClass::Capacity, MediaClass::Staging][seed as usize % 2];
        (class, Written { seed, length })
    })
}

/// Hands all objects in, and notes what may have become of them.
fn live(pool: &Pool, model: &mut Model) -> u64 {
    let mut handed_in = BTreeMap::new();
    let committer = pool.committer().unwrap();
    let errors = objects().filter(|&(class, written)| {
        hand_in(pool, &committer, class, written).map(|id| handed_in.insert(id, written)).is_none()
    });
    let mut errors = errors.count() as u64;
    for outcome in committer.finish() {
        match outcome {
            Ok(object) => {
                let id = object.entry().id();
                model.sure.insert(id, handed_in.remove(&id).unwrap());
            }
            Err(error) => {
                errors += 1;
                if let CommitError::Catalogue { object, .. } = error {
                    model.unsure.insert(object, handed_in.remove(&object).unwrap());
                }
            }
        }
    }
    errors
}

fn hand_in(
    pool: &Pool,
    committer: &Committer,
    class: MediaClass,
    written: Written,
) -> Option<ObjectId> {
    let mut writer = pool.allocate_mblock(class, written.length as u64 + 9000).ok()?;
    let id = writer.id();
    writer.append(&written.bytes()).ok()?;
    committer.commit(writer).ok().map(|()| id)
}

#[test]
fn what_has_come_out_is_there_and_more_come_out_with_one_sync() {
    let rig = Rig::two();
    let (pool, mut model) = (rig.create(), Model::default());
    assert_eq!(live(&pool, &mut model), 0);
    assert_eq!(model.sure.len(), objects().count());
    model.check(&pool);
    drop(pool);
    model.check(&rig.open().unwrap());
}

#[test]
fn a_crash_at_any_operation_loses_nothing_that_has_come_out() {
    for at in 0.. {
        let (mut rig, mut model) = (rig(), Model::default());
        let pool = rig.create();
        rig.machine.fail_power_after(at);
        let errors = live(&pool, &mut model);
        drop(pool);
        rig.machine.restart(at);
        reopen(&mut rig, &mut model);
        if errors == 0 {
            assert!(at > 20, "nothing was written");
            break;
        }
    }
}

#[test]
fn an_error_at_any_operation_loses_no_more_than_its_outcome_says() {
    let mut errors = 0;
    for (device, at) in (0..2).flat_map(|device| (0..40).map(move |at| (device, at))) {
        let (mut rig, mut model) = (rig(), Model::default());
        let pool = rig.create();
        rig.device(device).fail(at..at + 1, Fault::Error);
        errors += live(&pool, &mut model);
        for (&id, &written) in &model.sure {
            assert_eq!(read(&pool.get(id).unwrap()), written.bytes());
        }
        drop(pool);
        rig.device(device).mend();
        rig.machine.restart(at);
        drop(reopen(&mut rig, &mut model));
    }
    assert!(errors > 20, "{errors} objects were lost");
}

#[test]
fn an_empty_object_is_refused_at_once_and_the_others_go_on() {
    let pool = Rig::two().create();
    let committer = pool.committer().unwrap();
    let empty = pool.allocate_mblock(MediaClass::Capacity, 1).unwrap();
    let id = empty.id();
    assert!(matches!(committer.commit(empty), Err(CommitError::Empty(other)) if other == id));
    let written = Written { seed: 3, length: 10_000 };
    let id = hand_in(&pool, &committer, MediaClass::Capacity, written).unwrap();
    // Dropped, not finished: nothing that was handed in is lost by that.
    drop(committer);
    assert_eq!(read(&pool.get(id).unwrap()), written.bytes());
}

#[test]
#[should_panic(expected = "another pool's")]
fn an_object_of_another_pool_is_a_mistake() {
    let [one, other] = [(); 2].map(|()| Rig::two().create());
    let mut writer = other.allocate_mblock(MediaClass::Capacity, 1).unwrap();
    writer.append(&[1]).unwrap();
    let _ = one.committer().unwrap().commit(writer);
}

#[test]
fn memory_that_is_shared_is_written_as_it_is_and_comes_back() {
    let rig = Rig::two();
    let pool = rig.create();
    let mut buffer = Buffer::zeroed(24 << 10);
    buffer.copy_from_slice(&Written { seed: 8, length: 24 << 10 }.bytes());
    let mut shared = Arc::new(buffer);
    // Behind nothing, behind part of a unit, and behind units that are not written yet.
    for before in [0, 100, 4096, 8192] {
        let mut writer = pool.allocate_mblock(MediaClass::Capacity, 64 << 10).unwrap();
        let bytes = Written { seed: 9, length: before }.bytes();
        writer.append(&bytes).unwrap();
        writer.append_shared(&shared).unwrap();
        writer.append_shared(&shared).unwrap();
        writer.append(&[5; 3]).unwrap();
        let object = writer.commit().unwrap();
        assert_eq!(read(&object), [&bytes[..], &shared, &shared, &[5; 3]].concat());
        Arc::get_mut(&mut shared).unwrap().fill(before as u8);
    }
    let mut writer = pool.allocate_mblock(MediaClass::Capacity, 40 << 10).unwrap();
    writer.append_shared(&shared).unwrap();
    writer.append_shared(&shared).unwrap_err();
    writer.abort();
    assert!(Arc::get_mut(&mut shared).is_some());
}
