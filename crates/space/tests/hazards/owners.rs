//! Memory that others have a say in: children of fork, another userfaultfd, huge pages, a new user.

use bindery_wire::lane::{PageOutcome, Presence};
use std::{
    io::{Read, Write},
    os::{fd::AsRawFd, unix::fs::MetadataExt},
};

use bindery_space::ManageError;
use bindery_sys::{
    mapping::{self, Mapping},
    pagemap::Pagemap,
    userfault::{Userfault, mode},
};
use bindery_units::{HostAddress, PAGE_BYTES, Slot};

use crate::{
    alone::alone,
    common::{self, Bench, merged},
};

/// A child of fork that has a copy of the memory, and does nothing.
struct Child {
    pid: i32,
    end: std::io::PipeWriter,
}

impl Child {
    fn fork(bench: &Bench) -> Self {
        let (mut reader, end) = std::io::pipe().expect("pipe");
        bench.space.pause();
        // SAFETY: the child only reads a pipe and exits: nothing that needs another thread.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            // The writing end is ours, too, so that it would never close.
            // SAFETY: closing our own copy; then the end.
            unsafe { libc::close(std::os::fd::AsRawFd::as_raw_fd(&end)) };
            let _ = reader.read(&mut [0]);
            // SAFETY: as above.
            unsafe { libc::_exit(0) };
        }
        bench.space.resume();
        assert!(pid > 0, "fork");
        Self { pid, end }
    }

    fn end(mut self) {
        self.end.write_all(&[1]).expect("it reads");
        // SAFETY: our own child.
        assert_eq!(unsafe { libc::waitpid(self.pid, std::ptr::null_mut(), 0) }, self.pid);
    }
}

#[test]
fn pages_that_a_child_shares_are_left_until_they_are_written() {
    alone("owners::pages_that_a_child_shares_are_left_until_they_are_written", || {
        let Some(bench) = Bench::full_of(64, 2) else { return };
        let mut worker = bench.space.worker().expect("worker");
        let child = Child::fork(&bench);
        assert_eq!(bench.merge(&mut worker, 0, 64, Slot(0)), [PageOutcome::Busy; 64]);
        assert!((0..64).all(|page| bench.holds(page, 2)));
        bench.fill(5, 2);
        assert_eq!(bench.merge(&mut worker, 5, 1, Slot(5)), merged(1));
        child.end();
        assert!((0..64).all(|page| bench.holds(page, 2)));
    });
}

#[test]
fn memory_that_another_userfaultfd_watches_is_refused_and_left_alone() {
    let Some(space) = common::start() else { return };
    let memory = Mapping::anonymous(16 * PAGE_BYTES).expect("memory");
    let other = Userfault::open(0).expect("a second context");
    // SAFETY: nothing of the memory is absent when it is touched.
    unsafe {
        memory.as_ptr().write_bytes(7, memory.bytes());
        other.register(memory.address(), memory.bytes(), mode::MISSING).expect("register");
    }
    let refused = space.manage(memory.address(), memory.bytes()).expect_err("it is another's");
    assert!(matches!(refused, ManageError::Watched { .. }), "{refused}");
    assert!(space.regions().is_empty());
    // SAFETY: as above.
    assert_eq!(unsafe { memory.as_ptr().read_volatile() }, 7);
    drop(other);
    space.manage(memory.address(), memory.bytes()).expect("when that has ended");
    space.forget(memory.address(), memory.bytes());
}

#[test]
fn huge_pages_are_split_where_they_are_merged_and_nowhere_else() {
    const HUGE: usize = 512 * PAGE_BYTES;
    let Some(mut bench) = Bench::new(1, 512) else { return };
    let memory = Mapping::anonymous(4 * HUGE).expect("memory");
    let start = HostAddress(memory.address().0.next_multiple_of(HUGE));
    // SAFETY: advice and content are this test's to give.
    unsafe {
        mapping::advise(start, 2 * HUGE, libc::MADV_HUGEPAGE).expect("advice");
        (start.0 as *mut u8).write_bytes(1, HUGE);
    }
    let was_huge = common::huge_kib(start, HUGE);
    bench.region = bench.space.manage(start, 2 * HUGE).expect("manage");
    let mut worker = bench.space.worker().expect("worker");
    let word = u64::from_ne_bytes([1; 8]);
    (100..164).for_each(|slot| bench.fill_slot(Slot(slot), word));
    assert_eq!(bench.merge(&mut worker, 100, 64, Slot(100)), merged(64));
    bench.fill(120, 5);
    assert!((0..512).all(|page| bench.holds(page, if page == 120 { 5 } else { word })));
    // The second half is touched only now.
    (512..1024).for_each(|page| bench.fill(page, 6));
    assert_eq!(common::huge_kib(start, HUGE), 0, "4 KiB pages where memory is merged");
    assert_eq!(
        common::huge_kib(start.plus(HUGE), HUGE),
        was_huge,
        "what the kernel makes where it is not"
    );
    if was_huge == 0 {
        bindery_testkit::skipped!("no huge pages are made here, so none was split");
    }
    bench.space.forget(start, 2 * HUGE);
}

/// The kernel joins a region's tables with others', and what is cut out of their midst takes a mapping
/// more than there is.
#[test]
fn memory_can_be_taken_away_where_no_mapping_is_left() {
    alone("owners::memory_can_be_taken_away_where_no_mapping_is_left", || {
        let Some(bench) = Bench::new(64, 64) else { return };
        let others =
            [64, 64, 64].map(|pages| Mapping::anonymous(pages * PAGE_BYTES).expect("memory"));
        for memory in &others {
            common::manage(&bench.space, memory.address(), memory.bytes());
        }
        let taken = take_all_mappings();
        assert!(taken > 1000, "mappings ran out");
        // Tables of a region lie at the end of what was joined, and between others'.
        for memory in &others {
            bench.space.forget(memory.address(), memory.bytes());
        }
        bench.fill(3, 1);
        assert!(bench.holds(3, 1));
    });
}

/// Until the kernel refuses. They stay: the process is for this.
fn take_all_mappings() -> u32 {
    let map = |protection| {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: new memory, in nobody's place.
        let address =
            unsafe { libc::mmap(std::ptr::null_mut(), PAGE_BYTES, protection, flags, -1, 0) };
        address != libc::MAP_FAILED
    };
    let mut taken = 0;
    while map(if taken % 2 == 0 { libc::PROT_READ } else { libc::PROT_NONE }) {
        taken += 1;
    }
    taken
}

/// The kernel frees a segment with its last user, whoever that is.
#[test]
fn a_child_keeps_what_it_saw_when_a_segment_is_dropped() {
    alone("owners::a_child_keeps_what_it_saw_when_a_segment_is_dropped", || {
        let Some(bench) = Bench::full_of(16, 7) else { return };
        let mut worker = bench.space.worker().expect("worker");
        assert_eq!(bench.merge(&mut worker, 0, 16, Slot(0)), merged(16));
        bench.space.pause();
        let (reader, writer) = std::io::pipe().expect("pipe");
        // SAFETY: the child calls only what is async-signal-safe.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let mut go = [0u8; 1];
            // SAFETY: our own descriptors and buffer; _exit does not return.
            unsafe {
                libc::close(writer.as_raw_fd());
                libc::read(reader.as_raw_fd(), go.as_mut_ptr().cast(), 1);
                libc::_exit(i32::from(!(0..16).all(|page| bench.holds(page, 7))));
            }
        }
        bench.space.resume();
        (0..16).for_each(|page| bench.fill(page, 8));
        let mut lost = Vec::new();
        for _ in 0..3 {
            while worker.lost(&mut lost, 100) {}
        }
        let inode = format!(" {} ", bench.store.metadata().expect("memfd").ino());
        let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
        assert!(!maps.contains(&inode), "the parent has let go of it");
        // As the daemon closes it.
        let Bench { store, view, .. } = bench;
        drop((store, view));
        drop(writer);
        let mut status = 0;
        // SAFETY: our own child.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0, "the child reads what it saw when it was born");
    });
}

/// QEMU's `-runas`: after it, `/proc/self` is root's.
#[test]
fn merging_goes_on_when_the_process_gives_its_rights_up() {
    // SAFETY: asks only.
    if unsafe { libc::geteuid() } != 0 {
        bindery_testkit::skipped!("only root can become another user");
        return;
    }
    alone("owners::merging_goes_on_when_the_process_gives_its_rights_up", || {
        let Some(bench) = Bench::full_of(64, 2) else { return };
        let mut worker = bench.space.worker().expect("worker");
        // SAFETY: this process is for this. All of its threads change.
        let given_up = unsafe { libc::setresuid(65534, 65534, 65534) };
        assert_eq!(given_up, 0);
        assert!(Pagemap::of_self().is_err(), "what was not opened before cannot be opened");
        assert_eq!(bench.merge(&mut worker, 0, 64, Slot(0)), merged(64));
        bench.fill(5, 9);
        let mut written = Vec::new();
        worker.scan(bench.all(), &mut written, 10).expect("scan");
        let there = written.iter().filter(|span| span.presence == Presence::Present);
        assert_eq!(there.map(|span| span.first).collect::<Vec<_>>(), [bench.page(5).0]);
        bench.space.worker().expect("another lane");
        worker.mend(bench.all());
        worker.unmerge(bench.all(), u32::MAX);
        assert!((0..64).all(|page| bench.holds(page, if page == 5 { 9 } else { 2 })));
        bench.space.release().expect("release");
    });
}
