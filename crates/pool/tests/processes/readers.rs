//! Processes that read an object while another deletes it.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bindery_pool::{
    CreateError, CreateOptions, DeviceIndex, DevicePath, JoinError, MediaClass, ObjectId,
    OpenError, PathError, Pool, PoolReader, ReaderError,
};

use crate::child::{Other, open};
use crate::model::{Written, read};

const CLASS: MediaClass = MediaClass::Capacity;

/// Writes objects until there is no room: nothing that is free is left as it was.
fn fill(pool: &Pool) {
    let mut writers = Vec::new();
    for length in [1 << 20, 64 << 10, 4 << 10] {
        while let Ok(mut writer) = pool.allocate_mblock(CLASS, length) {
            writer.append(&vec![0xee; length as usize]).unwrap();
            writers.push(writer);
        }
    }
    assert!(!writers.is_empty());
}

fn write(pool: &Pool) -> ObjectId {
    let it = Written { seed: 5, length: 1 << 20 };
    let mut writer = pool.allocate_mblock(CLASS, it.length as u64).unwrap();
    writer.append(&it.bytes()).unwrap();
    writer.commit().unwrap().entry().id()
}

/// A pool with an object that is deleted, and another process that has it.
fn deleted_beside_a_reader(paths: &[PathBuf; 1]) -> (Pool, Other) {
    let device = DevicePath { path: paths[0].clone(), class: CLASS, bytes: Some(6 << 20) };
    let name = "read".parse().unwrap();
    let pool = Pool::create(&name, &[device], &CreateOptions::default()).unwrap();
    let id = write(&pool);
    let mut reader = Other::spawn("read", paths, id.0);
    reader.wait_for("held");
    pool.delete(id).unwrap();
    pool.reclaim();
    (pool, reader)
}

#[test]
fn what_another_process_reads_is_given_to_nobody() {
    let directory = tempfile::tempdir().unwrap();
    let paths = [directory.path().to_path_buf()];
    let (pool, mut reader) = deleted_beside_a_reader(&paths);
    assert!(pool.usage(CLASS).limbo_bytes >= 1 << 20);
    fill(&pool);
    // The next one to open the pool knows nothing of it, but for the lock.
    drop(pool);
    let pool = open(&paths);
    fill(&pool);
    fill(&pool);
    reader.go_on();
    reader.wait_for("unchanged");
    reader.go_on();
    reader.wait_for("let go");
    pool.reclaim();
    assert_eq!(pool.usage(CLASS).limbo_bytes, 0);
    assert!(pool.verify().findings.is_empty());
}

#[test]
fn what_a_killed_reader_held_is_free() {
    let directory = tempfile::tempdir().unwrap();
    let paths = [directory.path().to_path_buf()];
    let (pool, mut reader) = deleted_beside_a_reader(&paths);
    assert!(pool.usage(CLASS).limbo_bytes > 0);
    reader.kill();
    pool.reclaim();
    assert_eq!(pool.usage(CLASS).limbo_bytes, 0);
}

/// A pool whose catalogue is soon full.
fn make_churned(paths: &[PathBuf; 1]) {
    let device = DevicePath { path: paths[0].clone(), class: CLASS, bytes: Some(6 << 20) };
    let options = CreateOptions { force: false, catalogue_bytes: Some(64 << 10) };
    drop(Pool::create(&"churned".parse().unwrap(), &[device], &options).unwrap());
}

/// Commits and deletes, renames and opens again, with a catalogue that is compacted all the time, until
/// enough was read beside it.
fn churn(paths: &[PathBuf], got: &AtomicU64) {
    let deadline = Instant::now() + Duration::from_secs(20);
    for round in 0.. {
        if got.load(Ordering::Relaxed) > 20 && round > 2 {
            return;
        }
        assert!(Instant::now() < deadline, "nobody reads");
        let pool = open(paths);
        let mut own = Vec::new();
        for number in 0..40 {
            let it = Written { seed: round * 100 + number, length: 30_000 };
            let mut writer = pool.allocate_mblock(CLASS, it.length as u64).unwrap();
            writer.append(&it.bytes()).unwrap();
            own.push(writer.commit().unwrap().entry().id());
            if own.len() > 5 {
                pool.delete(own.remove(0)).unwrap();
            }
        }
        own.into_iter().for_each(|id| pool.delete(id).unwrap());
        pool.rename(format!("churned-{round}").parse().unwrap()).unwrap();
        assert!(pool.statistics().catalogue.compactions > 0);
    }
}

#[test]
fn readers_are_right_whatever_the_writer_does() {
    let directory = tempfile::tempdir().unwrap();
    let paths = [directory.path().to_path_buf()];
    make_churned(&paths);
    let got = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| churn(&paths, &got));
        while !writer.is_finished() {
            let reader = PoolReader::open(&paths, None).unwrap();
            for entry in reader.list() {
                match reader.get(entry.id()) {
                    Ok(object) => {
                        // Only what was committed whole is seen, and it stays while it is held.
                        assert_eq!(read(&object).len(), 30_000);
                        got.fetch_add(1, Ordering::Relaxed);
                    }
                    Err(ReaderError::Deleted(id)) => assert_eq!(id, entry.id()),
                    Err(error) => panic!("{error}"),
                }
            }
        }
    });
}

#[test]
fn nothing_is_found_damaged_whatever_the_writer_does() {
    let directory = tempfile::tempdir().unwrap();
    let paths = [directory.path().to_path_buf()];
    make_churned(&paths);
    let got = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| churn(&paths, &got));
        let reader = PoolReader::open(&paths, None).unwrap();
        while !writer.is_finished() {
            let report = reader.verify(|_| {}).unwrap();
            assert!(report.findings.is_empty(), "{:?}", report.findings);
            got.fetch_add(report.objects, Ordering::Relaxed);
        }
    });
}

#[test]
fn readers_stay_when_the_pool_grows() {
    let directory = tempfile::tempdir().unwrap();
    let paths = [directory.path().to_path_buf()];
    let device = DevicePath { path: paths[0].clone(), class: CLASS, bytes: Some(6 << 20) };
    let name = "grown".parse().unwrap();
    let options = CreateOptions::default();
    let pool = Pool::create(&name, std::slice::from_ref(&device), &options).unwrap();
    let [first, second] = [write(&pool), write(&pool)];
    let reader = PoolReader::open(&paths, None).unwrap();
    pool.grow_device(DeviceIndex(0), 40 << 20).unwrap();
    assert_eq!(reader.get(first).unwrap().entry().id(), first);
    // In what was not there when the reader came.
    let it = Written { seed: 6, length: 20 << 20 };
    let mut writer = pool.allocate_mblock(CLASS, it.length as u64).unwrap();
    writer.append(&it.bytes()).unwrap();
    let large = writer.commit().unwrap().entry().id();
    reader.refresh().unwrap();
    assert_eq!(read(&reader.get(large).unwrap()), it.bytes());

    // Of a device that it does not have it says so, and goes on with those that it has.
    pool.add(&device, false).unwrap();
    assert_eq!(read(&reader.get(second).unwrap()).len(), 1 << 20);
    assert!(matches!(reader.refresh(), Err(OpenError::Missing { .. })));
    assert_eq!(read(&reader.get(large).unwrap()), it.bytes());
    pool.delete(second).unwrap();
    assert!(matches!(reader.get(second), Err(ReaderError::Deleted(id)) if id == second));
    assert!(PoolReader::open(&paths, None).unwrap().get(first).is_ok());
}

#[test]
fn a_pool_is_not_made_where_others_still_read() {
    let directory = tempfile::tempdir().unwrap();
    let paths = [directory.path().to_path_buf()];
    let device = DevicePath { path: paths[0].clone(), class: CLASS, bytes: Some(704 << 10) };
    let name = "small".parse().unwrap();
    let mut options = CreateOptions { force: false, catalogue_bytes: Some(64 << 10) };
    let pool = Pool::create(&name, std::slice::from_ref(&device), &options).unwrap();
    let mut writer = pool.allocate_mblock(CLASS, 256 << 10).unwrap();
    writer.append(&[7; 256 << 10]).unwrap();
    let id = writer.commit().unwrap().entry().id();
    drop(pool);
    let reader = PoolReader::open(&paths, None).unwrap();
    let held = reader.get(id).unwrap();
    options = CreateOptions { force: true, catalogue_bytes: Some(72 << 10) };
    let refused = Pool::create(&name, std::slice::from_ref(&device), &options).unwrap_err();
    assert!(
        matches!(refused, PathError::Create(CreateError::Join(JoinError::Held { .. }))),
        "{refused}"
    );
    assert_eq!(read(&held), [7; 256 << 10]);
    drop(held);
    drop(Pool::create(&name, &[device], &options).unwrap());
    // What it reads now is another pool.
    assert!(matches!(reader.refresh(), Err(OpenError::Foreign { .. })));
}
