//! Slots with an uncorrected memory error: who reads one gets SIGBUS, and a thread that has that blocked
//! takes its process along. A store that was cut short stands in for the error, which reads alike.

use std::{
    ffi::{CStr, CString},
    io::{self, Write},
    os::unix::ffi::OsStrExt,
    ptr,
};

use bindery_space::Worker;
use bindery_units::{PAGE_BYTES, Slot};
use bindery_wire::lane::PageOutcome;

use crate::{
    alone::alone,
    common::{Bench, STORE, merged, view_of},
};

/// Eight pages and as many slots that hold the same, in a store that can be cut short.
fn bench() -> Option<Bench> {
    let mut bench = Bench::full_of(8, 7)?;
    let store = tempfile::tempfile_in("/dev/shm").expect("a file of tmpfs");
    store.set_len(8 * PAGE_BYTES as u64).expect("slots");
    bench.space.attach_store(STORE, 8, 8).expect("attach");
    bench.view = view_of(&store);
    bench.store = store;
    (0..8).for_each(|slot| bench.fill_slot(Slot(slot), 7));
    Some(bench)
}

/// Has the last four slots be unreadable.
fn spoil(bench: &Bench) {
    bench.store.set_len(4 * PAGE_BYTES as u64).expect("the store is cut short");
}

/// Has this thread see a machine that had an uncorrected error, and `worker` hear of it. Whether that can
/// be done here.
fn hear_of_errors(worker: &mut Worker) -> bool {
    let mut told = tempfile::NamedTempFile::new().expect("a file");
    writeln!(told, "HardwareCorrupted:     4 kB").expect("written");
    let file = CString::new(told.path().as_os_str().as_bytes()).expect("a path");
    // A mount namespace of this thread's own, none of whose mounts get out.
    // SAFETY: the strings end with a zero, and no data is passed.
    let mounted = unsafe {
        let mount = |from: &CStr, at: &CStr, flags| {
            libc::mount(from.as_ptr(), at.as_ptr(), ptr::null(), flags, ptr::null())
        };
        libc::unshare(libc::CLONE_NEWNS) == 0
            && mount(c"none", c"/", libc::MS_REC | libc::MS_PRIVATE) == 0
            && mount(&file, c"/proc/meminfo", libc::MS_BIND) == 0
    };
    if !mounted {
        bindery_testkit::skipped!("a mount namespace: {}", io::Error::last_os_error());
        return false;
    }
    worker.lost(&mut Vec::new(), 64);
    true
}

/// Does `test` in a process of its own, as on a machine that had an uncorrected error.
fn after_an_error(name: &str, test: impl FnOnce(Bench, Worker)) {
    alone(name, || {
        let Some(bench) = bench() else { return };
        let mut worker = bench.space.worker().expect("worker");
        if hear_of_errors(&mut worker) {
            test(bench, worker);
        }
    });
}

#[test]
fn pages_are_not_merged_with_slots_that_cannot_be_read() {
    after_an_error(
        "errors::pages_are_not_merged_with_slots_that_cannot_be_read",
        |bench, mut worker| {
            let segments = bench.segments();
            spoil(&bench);
            let outcomes = bench.merge_with(&mut worker, &segments, (0, 8), Slot(0));
            assert_eq!(outcomes[..4], merged(4));
            assert_eq!(outcomes[4..], [PageOutcome::Different; 4]);
            assert!((0..8).all(|page| bench.holds(page, 7)));
            // Nor are pages of one slot given another such.
            let outcomes = bench.merge_with(&mut worker, &segments, (0, 4), Slot(4));
            assert_eq!(outcomes, [PageOutcome::Different; 4]);
            assert!((0..8).all(|page| bench.holds(page, 7)));
        },
    );
}

#[test]
fn what_lies_beside_slots_that_cannot_be_read_comes_back() {
    after_an_error(
        "errors::what_lies_beside_slots_that_cannot_be_read_comes_back",
        |bench, mut worker| {
            assert_eq!(bench.merge(&mut worker, 0, 8, Slot(0)), merged(8));
            spoil(&bench);
            // A write stream, which would bring back more than can be read.
            (0..4).for_each(|page| bench.fill(page, 8));
            assert!((0..4).all(|page| bench.holds(page, 8)));
            let unmerged = worker.unmerge(bench.all(), u32::MAX);
            assert_eq!((unmerged.pages, unmerged.stuck, unmerged.resume_at), (0, 4, None));
        },
    );
}
