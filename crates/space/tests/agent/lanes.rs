//! Each request of a lane, looked at from the daemon's end.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bindery_page::DigestKey;
use bindery_space::wire::control::{FromDaemon, FromShim, StoreId};
use bindery_space::wire::lane::{
    Lost, MergedSpan, PageDigest, PageSpan, Request, Run,
    op::{DIGEST, FETCH, LOST, MERGE, REPORT, SCAN, SURVEY, UNMERGE},
    outcome, status,
};
use bindery_sys::{mapping::Mapping, socket};
use bindery_units::{PAGE_BYTES, Slot};

use crate::common::merged;
use crate::daemon::{Lane, SECRET, SOON};
use crate::{Meeting, Stop};

/// Long enough for the agent to tell what it is to tell.
const SHORTLY: Duration = Duration::from_millis(500);

fn about(op: u32, meeting: &Meeting) -> Request {
    let pages = meeting.bench.region.pages;
    Request { op, first: pages.first.0, count: pages.count, ..Request::default() }
}

fn lost(lane: &Lane) -> Vec<Lost> {
    let answer = lane.ask::<u8>(Request { op: LOST, ..Request::default() }, &[]);
    assert_eq!((answer.status, answer.more), (status::DONE, 0));
    lane.array(0, answer.count)
}

/// So many losses: who writes to a page goes on a little before it is noted as lost.
fn await_lost(lane: &Lane, count: usize) -> Vec<Lost> {
    let (mut all, deadline) = (Vec::new(), Instant::now() + SOON);
    while all.len() < count && Instant::now() < deadline {
        all.extend(lost(lane));
    }
    all
}

fn merge(lane: &Lane, runs: &[Run]) -> Vec<u8> {
    let request = Request { op: MERGE, store: 2, count: runs.len() as u32, ..Request::default() };
    let answer = lane.ask(request, runs);
    assert_eq!(answer.status, status::DONE);
    lane.array(0, answer.count)
}

#[test]
fn every_request_does_what_it_says() {
    let Some(mut meeting) = Meeting::greeted(64, 64) else { return };
    let _stop = Stop(Arc::clone(&meeting.agent));
    let bench = &meeting.bench;
    let lane = meeting.connection.open_lane();
    for page in 0..4 {
        bench.fill(page, u64::from(page));
        bench.fill_slot(Slot(page), u64::from(page));
    }

    let answer = lane.ask::<u8>(about(SCAN, &meeting), &[]);
    assert_eq!((answer.status, answer.count, answer.more), (status::DONE, 1, 0));
    let first = bench.page(0).0;
    assert_eq!(lane.array::<PageSpan>(0, 1), [PageSpan { first, count: 4, gone: 0 }]);
    assert!(answer.lane_cpu_ns > 0 && answer.mappings > 0 && answer.mappings_max > 0);
    assert_eq!(lane.ask::<u8>(about(SCAN, &meeting), &[]).count, 0, "nothing written since");
    assert_eq!(lane.ask::<u8>(about(SURVEY, &meeting), &[]).count, 1);
    assert_eq!(
        lane.array::<PageSpan>(0, 1),
        [PageSpan { first, count: 4, gone: 0 }],
        "still there"
    );

    let pages = [first, first + 3, first + 1_000_000];
    let request = Request { op: DIGEST, count: 3, ..Request::default() };
    assert_eq!(lane.ask(request, &pages).count, 3);
    let key = DigestKey::from_secret(&SECRET);
    let mut bytes = [0; PAGE_BYTES];
    bytes.chunks_mut(8).for_each(|word| word[0] = 3);
    let digest = bindery_page::digest(&bytes, &key).to_words();
    let none = PageDigest::default();
    let expected = [PageDigest { kind: 1, ..none }, PageDigest { kind: 2, digest }, none];
    assert_eq!(lane.array::<PageDigest>(0, 3), expected);

    let request = Request { op: FETCH, count: 3, ..Request::default() };
    assert_eq!(lane.ask(request, &pages).count, 3);
    assert_eq!(lane.array::<u8>(0, 3), [1, 1, 0]);
    assert!(lane.array::<u8>(2 * PAGE_BYTES, PAGE_BYTES as u32) == bytes);

    let zero = Run { page: first, count: 1, slot: 0, zero: 1 };
    let others = Run { page: first + 1, count: 3, slot: 1, zero: 0 };
    assert_eq!(merge(&lane, &[zero, others]), merged(4));
    assert_eq!(merge(&lane, &[Run { slot: 2, ..others }])[0], outcome::DIFFERENT);
    assert_eq!(lane.ask::<u8>(about(REPORT, &meeting), &[]).count, 1);

    bench.fill(2, 99);
    let told: Vec<_> =
        await_lost(&lane, 1).iter().map(|l| (l.page, l.slot, l.store, l.cause)).collect();
    assert_eq!(told, [(first + 2, 2, 2, 1)]);
    let answer = lane.ask::<u8>(about(UNMERGE, &meeting), &[]);
    assert_eq!((answer.status, answer.count, answer.more), (status::DONE, 2, 0));
    assert!(bench.holds(1, 1) && bench.holds(2, 99) && bench.holds(3, 3));
    assert_eq!(lost(&lane).len(), 2);
}

#[test]
fn losses_wait_for_children_that_may_still_see_them() {
    let Some(mut meeting) = Meeting::greeted(64, 64) else { return };
    let _stop = Stop(Arc::clone(&meeting.agent));
    let bench = &meeting.bench;
    let lane = meeting.connection.open_lane();
    bench.fill(1, 5);
    bench.fill_slot(Slot(1), 5);
    let run = Run { page: bench.page(1).0, count: 1, slot: 1, zero: 0 };
    assert_eq!(merge(&lane, &[run]), merged(1));

    meeting.agent.before_fork();
    let words = bench.words(1) as usize;
    // SAFETY: the page is in the bench's memory, and nobody else writes it.
    let writer = std::thread::spawn(move || unsafe { (words as *mut u64).write_volatile(6) });
    // Long enough to meet the fork half-way: the write waits for its end.
    std::thread::sleep(std::time::Duration::from_millis(20));
    let child = Child::fork();
    meeting.agent.after_fork_in_parent();

    writer.join().unwrap();
    assert_eq!(lost(&lane), [], "the child may still look at the slot");
    drop(child);
    assert_eq!(await_lost(&lane, 1).len(), 1);
}

/// A child of fork that does nothing.
struct Child(libc::pid_t);

impl Child {
    fn fork() -> Self {
        // SAFETY: the child calls nothing but pause and what ends it.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: neither takes a lock or returns.
            unsafe {
                libc::pause();
                libc::_exit(0);
            }
        }
        assert!(child > 0);
        Self(child)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // SAFETY: our own child.
        unsafe {
            libc::kill(self.0, libc::SIGKILL);
            assert_eq!(libc::waitpid(self.0, std::ptr::null_mut(), 0), self.0);
        }
    }
}

#[test]
fn slots_and_regions_stay_for_children_that_may_still_see_them() {
    let Some(mut meeting) = Meeting::greeted(64, 64) else { return };
    let _stop = Stop(Arc::clone(&meeting.agent));
    let lane = meeting.connection.open_lane();
    let bench = &meeting.bench;
    bench.fill(1, 5);
    (1..3).for_each(|slot| bench.fill_slot(Slot(slot), 5));
    let run = |slot| Run { page: bench.page(1).0, count: 1, slot, zero: 0 };
    assert_eq!(merge(&lane, &[run(1)]), merged(1));

    meeting.agent.before_fork();
    let child = Child::fork();
    meeting.agent.after_fork_in_parent();
    assert_eq!(merge(&lane, &[run(2)]), [outcome::BUSY], "the daemon would free the first slot");
    assert_eq!(merge(&lane, &[run(1)]), [outcome::ALREADY]);

    bench.fill(1, 5);
    assert_eq!(lost(&lane), [], "the child may still look at the slot");
    let report = lane.ask::<u8>(about(REPORT, &meeting), &[]);
    assert_eq!((report.status, report.errno), (status::FAILED, libc::EBUSY as u32));
    let gone = bench.space.forget(bench.address(32), PAGE_BYTES);
    meeting.agent.regions_changed();
    assert!(!socket::wait_readable(meeting.connection.channel.as_fd(), SHORTLY).unwrap());
    let more = Mapping::anonymous(16 * PAGE_BYTES).expect("memory");
    let region = bench.space.manage(more.address(), more.bytes()).expect("manage");
    meeting.agent.regions_changed();
    assert_eq!(meeting.connection.added(), region, "what came is told at once");

    drop(child);
    assert_eq!(meeting.connection.message(), FromShim::RegionRemoved(gone[0]));
    assert_eq!(await_lost(&lane, 1).len(), 1);
    let bench = &meeting.bench;
    assert_eq!(merge(&lane, &[run(1)]), merged(1));
    let moved = Run { page: bench.page(1).0, count: 1, slot: 2, zero: 0 };
    assert_eq!(merge(&lane, &[moved]), merged(1));
    assert!(bench.holds(1, 5));
    bench.space.release_range(more.address(), more.bytes()).expect("release");
}

#[test]
fn a_daemon_that_lives_is_told_of_no_loss_by_a_new_connection_either() {
    let Some(mut meeting) = Meeting::greeted(64, 64) else { return };
    let _stop = Stop(Arc::clone(&meeting.agent));
    let lane = meeting.connection.open_lane();
    let bench = &meeting.bench;
    (1..3).for_each(|page| bench.fill(page, 5));
    (1..3).for_each(|slot| bench.fill_slot(Slot(slot), 5));
    let run = Run { page: bench.page(1).0, count: 2, slot: 1, zero: 0 };
    assert_eq!(merge(&lane, &[run]), merged(2));

    meeting.agent.before_fork();
    let child = Child::fork();
    meeting.agent.after_fork_in_parent();
    bench.fill(1, 6);
    assert_eq!(lost(&lane), [], "the child may still look at the slot");

    // The child has the daemon's end as well.
    socket::shutdown(meeting.connection.channel.as_fd()).expect("shutdown");
    let mut meeting = meeting.replace_daemon();
    // It calls the same store by another name, and frees what it is not told of.
    meeting.connection.welcome(StoreId(3), &meeting.bench.store);
    assert_eq!(meeting.connection.added(), meeting.bench.region);
    let lane = meeting.connection.open_lane();
    let report = lane.ask::<u8>(about(REPORT, &meeting), &[]);
    assert_eq!((report.status, report.errno), (status::FAILED, libc::EBUSY as u32));
    drop(child);
    let report = lane.ask::<u8>(about(REPORT, &meeting), &[]);
    assert_eq!((report.status, report.count), (status::DONE, 1));
    let expected = MergedSpan { page: meeting.bench.page(2).0, count: 1, slot: 2, store: 2 };
    assert_eq!(lane.array::<MergedSpan>(0, 1), [expected]);
}

#[test]
fn memory_is_given_back_when_no_child_may_see_what_is_merged() {
    let Some(mut meeting) = Meeting::greeted(64, 64) else { return };
    let _stop = Stop(Arc::clone(&meeting.agent));
    meeting.agent.before_fork();
    let child = Child::fork();
    meeting.agent.after_fork_in_parent();
    meeting.connection.channel.send(&FromDaemon::Release, &[], SOON).expect("release");
    assert!(!socket::wait_readable(meeting.connection.channel.as_fd(), SHORTLY).unwrap());
    let lane = meeting.connection.open_lane();
    assert_eq!(lost(&lane), [], "it goes on");
    assert!(!meeting.bench.space.regions().is_empty());
    drop(child);
    let removed = FromShim::RegionRemoved(meeting.bench.region.pages);
    assert_eq!(meeting.connection.message(), removed);
    assert_eq!(meeting.connection.message(), FromShim::Released);
}
