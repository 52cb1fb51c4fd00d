//! Pools on devices that do as they are told.

use std::collections::HashSet;
use std::io::IoSlice;
use std::sync::Arc;

use bindery_pool::format::record::ObjectEntry;
use bindery_pool::mblock::Committed;
use bindery_pool::object::{Object, ReadError};
use bindery_pool::write::{AppendError, CommitError};
use bindery_pool::{
    AllocateError, CreateError, CreateOptions, DeleteError, DeviceIndex, FindError, GrowError,
    JoinError, LogError, MediaClass, NewDevice, ObjectId, OpenError, Pool, ReaderError, UNIT_BYTES,
};
use bindery_sys::direct::Buffer;

use crate::model::{Written, read};
use crate::rig::{MIB, Rig, attached};

use MediaClass::{Capacity, Staging};

fn write(pool: &Pool, class: MediaClass, written: Written) -> Arc<Committed> {
    let mut writer = pool.allocate_mblock(class, written.length as u64).unwrap();
    writer.append(&written.bytes()).unwrap();
    writer.commit().unwrap()
}

#[test]
fn objects_are_read_as_they_were_written_and_listed_by_class() {
    let rig = Rig::two();
    let pool = rig.create();
    let lengths = [1, 4095, 4096, 4097, 100_000, 1 << 20, 1_500_000];
    let written = (1..).zip(lengths).map(|(seed, length)| Written { seed, length });
    let written: Vec<_> = written.collect();
    let objects: Vec<_> = written.iter().map(|&it| write(&pool, Capacity, it)).collect();
    let staged = write(&pool, Staging, Written { seed: 9, length: 5 });
    for (object, it) in objects.iter().zip(&written) {
        assert_eq!(read(object), it.bytes());
        assert_eq!((object.class(), object.length_bytes()), (Capacity, it.length as u64));
        let alignment = (it.length as u64).next_multiple_of(4096).next_power_of_two();
        assert!(object.offset_bytes().is_multiple_of(alignment), "{object:?}");
    }
    assert_eq!(staged.class(), Staging);
    assert_eq!(pool.list().len(), 8);
    drop((objects, pool));
    drop(staged);
    let pool = rig.open().unwrap();
    let ids = pool.list().iter().map(ObjectEntry::id).collect::<Vec<_>>();
    for (&id, it) in ids.iter().zip(&written) {
        let object = pool.get(id).unwrap();
        assert_eq!(read(&object), it.bytes());
        assert!(Arc::ptr_eq(&object, &pool.get(id).unwrap()), "there are two of one object");
    }
}

#[test]
fn pieces_of_any_length_make_the_same_object() {
    let rig = Rig::two();
    let pool = rig.create();
    for (seed, pieces) in (1..).zip([1, 3, 64, 10_000]) {
        let it = Written { seed, length: 300_000 };
        let writer = pool.allocate_mblock(Capacity, it.length as u64).unwrap();
        let mut writer = writer.in_pieces_of(pieces * UNIT_BYTES);
        it.bytes().chunks(17_001).for_each(|bytes| writer.append(bytes).unwrap());
        assert_eq!(read(&writer.commit().unwrap()), it.bytes(), "{pieces} units at once");
    }
}

#[test]
fn what_does_not_fit_is_refused_and_what_was_not_written_is_free() {
    let rig = Rig::two();
    let pool = rig.create();
    let before = pool.usage(Capacity);
    let mut writer = pool.allocate_mblock(Capacity, 1 << 20).unwrap();
    assert!(pool.usage(Capacity).held_bytes >= 1 << 20);
    writer.append_vectored(&[IoSlice::new(b"abc"), IoSlice::new(&[]), IoSlice::new(b"d")]).unwrap();
    let error = writer.append(&vec![0; 1 << 20]).unwrap_err();
    assert!(matches!(error, AppendError::BeyondCapacity { length_bytes: 4, .. }), "{error}");
    let object = writer.commit().unwrap();
    assert_eq!(read(&object), b"abcd");
    let after = pool.usage(Capacity);
    // One block of data, one of checksums.
    assert_eq!((after.held_bytes, before.free_bytes - after.free_bytes), (0, 8192));
    let mut buffer = Buffer::zeroed(8192);
    assert!(matches!(object.read(0, &mut buffer), Err(ReadError::BeyondEnd(_))));

    let empty = pool.allocate_mblock(Capacity, 100).unwrap();
    assert!(matches!(empty.commit(), Err(CommitError::Empty(_))));
    let mut aborted = pool.allocate_mblock(Capacity, 100_000).unwrap();
    aborted.append(&[1; 70_000]).unwrap();
    aborted.abort();
    pool.reclaim();
    assert_eq!(pool.usage(Capacity), after);
    assert!(matches!(pool.allocate_mblock(Capacity, 0), Err(AllocateError::Nothing)));
    for much in [1 << 30, u64::MAX - 5000, u64::MAX] {
        let error = pool.allocate_mblock(Capacity, much).unwrap_err();
        assert!(matches!(error, AllocateError::NoSpace { .. }), "{error}");
    }
    assert_eq!((pool.statistics().committed, pool.statistics().aborted), (1, 2));
}

#[test]
fn a_refusal_reports_the_longest_free_piece() {
    let rig = Rig::two();
    let pool = rig.create();
    let _first = write(&pool, Capacity, Written { seed: 1, length: 1 << 20 });
    let free = pool.usage(Capacity).free_bytes;
    for much in [1 << 30, 1 << 62, u64::MAX] {
        match pool.allocate_mblock(Capacity, much).unwrap_err() {
            AllocateError::NoSpace { free_bytes, longest_bytes, .. } => {
                assert_eq!(free_bytes, free, "of {much} bytes");
                // One piece less than all that is free, which the first object cuts in two.
                assert!(longest_bytes > MIB && longest_bytes < free, "{longest_bytes} of {free}");
                let part_bytes = longest_bytes - MIB / 2;
                assert!(pool.allocate_mblock(Capacity, part_bytes).is_ok());
                pool.reclaim();
            }
            error => panic!("{error}"),
        }
    }
}

#[test]
fn a_deleted_object_stays_readable_for_whoever_holds_it() {
    let rig = Rig::two();
    let pool = rig.create();
    let empty = pool.usage(Capacity);
    let it = Written { seed: 1, length: 3 << 20 };
    let object = write(&pool, Capacity, it);
    let id = object.id();
    pool.delete(id).unwrap();
    assert_eq!(pool.get(id).unwrap_err(), FindError::NotFound(id));
    let again = pool.delete(id).unwrap_err();
    assert!(matches!(again, DeleteError::Find(FindError::NotFound(_))), "{again}");
    // Its space is not given out, however much it is needed.
    let error = pool.allocate_mblock(Capacity, 2 << 20).unwrap_err();
    assert!(matches!(error, AllocateError::NoSpace { .. }), "{error}");
    assert_eq!(read(&object), it.bytes());
    drop(object);
    let _writer = pool.allocate_mblock(Capacity, 2 << 20).unwrap();
    drop(_writer);
    pool.reclaim();
    assert_eq!(pool.usage(Capacity), empty);
}

#[test]
fn ids_are_never_given_twice() {
    let rig = Rig::two();
    let mut seen = HashSet::new();
    let mut pool = rig.create();
    for _ in 0..3 {
        for _ in 0..300 {
            assert!(seen.insert(pool.allocate_mblock(Capacity, 1).unwrap().id()));
        }
        drop(pool);
        pool = rig.open().unwrap();
    }
}

#[test]
fn clients_have_logs_and_a_root() {
    let rig = Rig::two();
    let pool = rig.create();
    let mut log = pool.create_log(Staging, 40_000, 2).unwrap();
    let log_id = log.id();
    log.append(b"one").unwrap();
    log.sync().unwrap();
    assert!(matches!(pool.open_log(log_id), Err(LogError::Open(_))));
    assert!(matches!(pool.delete(log_id), Err(DeleteError::Open(_))));
    assert!(matches!(pool.create_log(Staging, 40_000, 3), Err(LogError::Copies(3))));
    let mut root = pool.create_root(Capacity, 64 << 10, 2).unwrap();
    let root_id = root.id();
    assert!(matches!(pool.create_root(Capacity, 64 << 10, 1), Err(LogError::HasRoot(_))));
    root.append(b"two").unwrap();
    root.sync().unwrap();
    let plain = pool.create_mdc(Capacity, 64 << 10, 1).unwrap().id();
    assert!(matches!(pool.open_log(root_id), Err(LogError::Open(_))));
    drop((log, root, pool));

    let pool = rig.open().unwrap();
    assert_eq!(pool.root(), Some(root_id));
    let log = pool.open_log(log_id).unwrap();
    assert_eq!(log.records().map(Result::unwrap).collect::<Vec<_>>(), [b"one"]);
    let root = pool.open_mdc(root_id).unwrap();
    assert_eq!(root.records().map(Result::unwrap).collect::<Vec<_>>(), [b"two"]);
    drop((log, root));
    let wrong = pool.open_log(root_id).unwrap_err();
    assert!(matches!(wrong, LogError::Find(FindError::Kind { .. })), "{wrong}");
    assert!(matches!(pool.get(log_id), Err(FindError::Kind { .. })));
    [log_id, root_id, plain].into_iter().for_each(|id| pool.delete(id).unwrap());
    assert_eq!((pool.root(), pool.list().len()), (None, 0));
    pool.reclaim();
    assert!(pool.verify().findings.is_empty());
    let again = pool.create_root(Capacity, 64 << 10, 2).unwrap();
    assert_ne!(again.id(), root_id);
}

#[test]
fn a_full_catalogue_says_so_and_still_takes_deletions() {
    let rig = Rig::new(&[(Capacity, 16 * MIB)]);
    let pool = rig.create();
    let mut ids = Vec::new();
    let error = loop {
        let mut writer = pool.allocate_mblock(Capacity, 1).unwrap();
        writer.append(&[7]).unwrap();
        match writer.commit() {
            Ok(object) => ids.push(object.id()),
            Err(error) => break error,
        }
    };
    assert!(error.to_string().contains("the catalogue is full"), "{error}");
    assert!(ids.len() > 100, "only {} objects", ids.len());
    drop(pool);
    let pool = rig.open().unwrap();
    assert_eq!(pool.list().len(), ids.len());
    ids.iter().for_each(|&id| pool.delete(id).unwrap());
    write(&pool, Capacity, Written { seed: 1, length: 9 });
    pool.reclaim();
    assert!(pool.verify().findings.is_empty());
}

#[test]
fn a_pool_grows_by_devices_and_by_longer_ones() {
    let mut rig = Rig::two();
    let pool = rig.create();
    let too_much = || pool.allocate_mblock(Capacity, 6 * MIB);
    assert!(matches!(too_much(), Err(AllocateError::NoSpace { .. })));
    rig.device(0).limit(12 * MIB);
    let error = pool.grow_device(DeviceIndex(0), 20 * MIB).unwrap_err();
    assert!(matches!(&error, GrowError::Device { device, .. } if device == "disk0"), "{error}");
    assert!(matches!(pool.grow_device(DeviceIndex(0), MIB), Err(GrowError::Device { .. })));
    assert!(matches!(pool.grow_device(DeviceIndex(9), MIB), Err(GrowError::NoDevice { .. })));
    assert_eq!(pool.grow_device(DeviceIndex(0), 12 * MIB).unwrap(), 12 * MIB);
    drop(too_much().unwrap());
    pool.reclaim();
    let before = pool.usage(Staging);
    let new = attached(2, &rig.machine.device(3 * MIB));
    let new = NewDevice { attached: new, class: Staging };
    assert_eq!(pool.add_device(new, false).unwrap(), DeviceIndex(2));
    rig.classes.push(Staging);
    let usage = pool.usage(Staging);
    assert_eq!(usage.total_bytes - before.total_bytes, 3 * MIB);
    let it = Written { seed: 3, length: 2 << 20 };
    let id = write(&pool, Staging, it).id();
    drop(pool);
    let pool = rig.open().unwrap();
    assert_eq!(pool.devices().len(), 3);
    assert_eq!(read(&pool.get(id).unwrap()), it.bytes());
    assert!(pool.verify().findings.is_empty());
}

#[test]
fn an_exported_pool_is_used_after_it_was_imported() {
    let rig = Rig::two();
    let pool = rig.create();
    pool.rename("elsewhere".parse().unwrap()).unwrap();
    let id = write(&pool, Capacity, Written { seed: 1, length: 10 }).id();
    pool.export().unwrap();
    let refused = rig.open().unwrap_err();
    assert!(matches!(&refused, OpenError::Exported { name } if name.as_str() == "elsewhere"));
    assert!(matches!(rig.read(), Err(OpenError::Exported { .. })));
    let pool = Pool::import_on(rig.attached()).unwrap();
    pool.get(id).unwrap();
    drop(pool);
    assert_eq!(rig.open().unwrap().name().as_str(), "elsewhere");
}

#[test]
fn readers_see_the_pool_as_it_was_until_they_refresh() {
    let rig = Rig::two();
    let pool = rig.create();
    let it = Written { seed: 1, length: 70_000 };
    let first = write(&pool, Capacity, it).id();
    let reader = rig.read().unwrap();
    let second = write(&pool, Capacity, it).id();
    assert_eq!(read(&reader.get(first).unwrap()), it.bytes());
    assert!(matches!(reader.get(second), Err(ReaderError::Find(_))));
    reader.refresh().unwrap();
    let both = reader.get_many(&[second, first]).unwrap();
    assert_eq!(both.iter().map(|object| object.id()).collect::<Vec<_>>(), [second, first]);
    drop(both);
    pool.delete(first).unwrap();
    // Not what is there now: it may be another's.
    let gone = reader.get(first).unwrap_err();
    assert!(matches!(gone, ReaderError::Deleted(id) if id == first), "{gone}");
    reader.refresh().unwrap();
    assert!(matches!(reader.get(first), Err(ReaderError::Find(FindError::NotFound(_)))));
    assert_eq!(reader.usage(Capacity).used_bytes, {
        pool.reclaim();
        pool.usage(Capacity).used_bytes
    });
    assert_eq!(reader.get(ObjectId(99)).unwrap_err().to_string(), "there is no object 0x63");
}

#[test]
fn what_is_deleted_and_still_held_is_accounted_for() {
    let rig = Rig::two();
    let pool = rig.create();
    let before = pool.usage(Capacity);
    let object = write(&pool, Capacity, Written { seed: 1, length: 50_000 });
    let used = before.free_bytes - pool.usage(Capacity).free_bytes;
    pool.delete(object.id()).unwrap();
    let usage = pool.usage(Capacity);
    assert_eq!((usage.limbo_bytes, usage.used_bytes), (used, before.used_bytes));
    let findings = pool.verify().findings;
    assert!(findings.is_empty(), "{}", findings[0]);
    assert_eq!(pool.reclaim(), 0);
    drop(object);
    assert_eq!(pool.reclaim(), used);
    assert_eq!(pool.usage(Capacity), before);
    assert!(pool.verify().findings.is_empty());
}

#[test]
fn a_catalogue_of_any_length_is_made_or_refused() {
    let rig = Rig::two();
    for bytes in [1 << 30, 1 << 61, u64::MAX - 5000, u64::MAX] {
        let options = CreateOptions { force: true, catalogue_bytes: Some(bytes) };
        let devices = rig.attached().into_iter().zip([Capacity, Staging]);
        let devices = devices.map(|(attached, class)| NewDevice { attached, class }).collect();
        let error = Pool::create_on("large".parse().unwrap(), devices, &options).unwrap_err();
        assert!(matches!(error, CreateError::Join(JoinError::TooShort { .. })), "{error}");
    }
}
