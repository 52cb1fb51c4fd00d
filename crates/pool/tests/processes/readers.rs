//! Processes that read an object while another deletes it.

use bindery_pool::pool::{CreateOptions, DevicePath};
use bindery_pool::{MediaClass, ObjectId, Pool};

use crate::child::{Other, open};
use crate::model::Written;

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
    writer.commit().unwrap().entry().id
}

#[test]
fn what_another_process_reads_is_given_to_nobody() {
    let directory = tempfile::tempdir().unwrap();
    let paths = [directory.path().to_path_buf()];
    let device = DevicePath { path: paths[0].clone(), class: CLASS, bytes: Some(6 << 20) };
    let name = "read".parse().unwrap();
    let pool = Pool::create(&name, &[device], &CreateOptions::default()).unwrap();
    let id = write(&pool);
    let mut reader = Other::spawn("read", &paths, id.0);
    reader.wait_for("held");
    pool.delete(id).unwrap();
    pool.reclaim();
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
    let device = DevicePath { path: paths[0].clone(), class: CLASS, bytes: Some(6 << 20) };
    let name = "read".parse().unwrap();
    let pool = Pool::create(&name, &[device], &CreateOptions::default()).unwrap();
    let id = write(&pool);
    let mut reader = Other::spawn("read", &paths, id.0);
    reader.wait_for("held");
    pool.delete(id).unwrap();
    pool.reclaim();
    assert!(pool.usage(CLASS).limbo_bytes > 0);
    reader.kill();
    pool.reclaim();
    assert_eq!(pool.usage(CLASS).limbo_bytes, 0);
}
