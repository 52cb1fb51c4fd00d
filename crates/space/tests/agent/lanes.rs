//! Each request of a lane, looked at from the daemon's end.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Instant;

use bindery_page::DigestKey;
use bindery_sys::memfd;
use bindery_units::{PAGE_BYTES, Slot};
use bindery_wire::lane::{
    DigestKind, LossCause, Lost, Op, PageDigest, PageOutcome, PageSpan, Presence, Request, Run,
    RunTarget, SEGMENTS_OFFSET, Status,
};
use zerocopy::IntoBytes;

use crate::common::{Bench, merged};
use crate::daemon::{Lane, SECRET, SOON};
use crate::{Meeting, Stop};

fn about(op: Op, meeting: &Meeting) -> Request {
    let pages = meeting.bench.region.pages;
    Request { first: pages.first.0, count: pages.count, ..Request::of(op) }
}

fn lost(lane: &Lane) -> Vec<Lost> {
    let answer = lane.ask::<u8>(Request::of(Op::Lost), &[]);
    assert_eq!((answer.status, answer.more), (Status::Done, 0));
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

fn merge(lane: &Lane, bench: &Bench, runs: &[Run]) -> Vec<PageOutcome> {
    let answer = lane.ask_to_merge(2, runs, &[(0, &bench.store)]);
    assert_eq!(answer.status, Status::Done);
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

    let answer = lane.ask::<u8>(about(Op::Scan, &meeting), &[]);
    assert_eq!((answer.status, answer.count, answer.more), (Status::Done, 2, 0));
    let first = bench.page(0).0;
    // Zeros were filled in behind them.
    let spans = [(first, 4, Presence::Present), (first + 4, 60, Presence::Gone)]
        .map(|(first, count, presence)| PageSpan { first, count, presence });
    assert_eq!(lane.array::<PageSpan>(0, 2), spans);
    assert!(answer.lane_cpu_ns > 0 && answer.mappings > 0 && answer.mappings_max > 0);
    assert_eq!(lane.ask::<u8>(about(Op::Scan, &meeting), &[]).count, 0, "nothing written since");
    assert_eq!(lane.ask::<u8>(about(Op::Survey, &meeting), &[]).count, 1);
    assert_eq!(
        lane.array::<PageSpan>(0, 1),
        [PageSpan { first, count: 4, presence: Presence::Present }],
        "still there"
    );

    let pages = [first, first + 3, first + 1_000_000];
    let request = Request { count: 3, ..Request::of(Op::Digest) };
    assert_eq!(lane.ask(request, &pages).count, 3);
    let key = DigestKey::from_secret(&SECRET);
    let mut bytes = [0; PAGE_BYTES];
    bytes.chunks_mut(8).for_each(|word| word[0] = 3);
    let digest = bindery_page::digest(&bytes, &key).to_words();
    let none = PageDigest::default();
    let expected = [
        PageDigest { kind: DigestKind::Zeros, ..none },
        PageDigest { kind: DigestKind::Content, digest },
        none,
    ];
    assert_eq!(lane.array::<PageDigest>(0, 3), expected);

    let request = Request { count: 3, ..Request::of(Op::Fetch) };
    assert_eq!(lane.ask(request, &pages).count, 3);
    assert_eq!(lane.array::<u8>(0, 3), [1, 1, 0]);
    assert!(lane.array::<u8>(2 * PAGE_BYTES, PAGE_BYTES as u32) == bytes);

    let zero = Run { page: first, count: 1, slot: 0, target: RunTarget::Zeros };
    let others = Run { page: first + 1, count: 3, slot: 1, target: RunTarget::Slots };
    assert_eq!(merge(&lane, bench, &[zero, others]), merged(4));
    assert_eq!(merge(&lane, bench, &[Run { slot: 2, ..others }])[0], PageOutcome::Different);
    assert_eq!(lane.ask::<u8>(about(Op::Report, &meeting), &[]).count, 1);

    bench.fill(2, 99);
    let told: Vec<_> =
        await_lost(&lane, 1).iter().map(|l| (l.page, l.slot, l.store, l.cause)).collect();
    assert_eq!(told, [(first + 2, 2, 2, LossCause::Write)]);
    let answer = lane.ask::<u8>(about(Op::Unmerge, &meeting), &[]);
    assert_eq!((answer.status, answer.count, answer.more), (Status::Done, 2, 0));
    assert!(bench.holds(1, 1) && bench.holds(2, 99) && bench.holds(3, 3));
    assert_eq!(lost(&lane).len(), 2);
}

#[test]
fn segments_that_make_no_sense_are_refused_and_the_lane_goes_on() {
    let Some(mut meeting) = Meeting::greeted(64, 64) else { return };
    let _stop = Stop(Arc::clone(&meeting.agent));
    let lane = meeting.connection.open_lane();
    let bench = &meeting.bench;
    bench.fill(1, 5);
    bench.fill_slot(Slot(1), 5);
    let run = Run { page: bench.page(1).0, count: 1, slot: 1, target: RunTarget::Slots };
    let other = memfd::create("other", 64 * PAGE_BYTES as u64).unwrap();
    let long = memfd::create("long", 65 * PAGE_BYTES as u64).unwrap();
    let status =
        |store, run, segments: &[(u32, &File)]| lane.ask_to_merge(store, &[run], segments).status;
    let store = &bench.store;
    assert_eq!(status(2, run, &[]), Status::Refused, "no segment came");
    assert_eq!(status(2, run, &[(1, store)]), Status::Refused, "there is no such segment");
    assert_eq!(status(2, run, &[(0, store), (0, store)]), Status::Refused, "one came twice");
    assert_eq!(status(3, run, &[(0, store)]), Status::Refused, "there is no such store");
    assert_eq!(status(2, run, &[(0, &long)]), Status::Refused, "it is too long");
    let beyond = Run { count: 2, slot: 63, ..run };
    assert_eq!(status(2, beyond, &[(0, store)]), Status::Refused, "it has no such slot");
    let loose = tempfile::tempfile_in("/proc/self/cwd").unwrap();
    loose.set_len(64 * PAGE_BYTES as u64).unwrap();
    if memfd::look_at(&loose).unwrap().is_none() {
        assert_eq!(status(2, run, &[(0, &loose)]), Status::Refused, "it is no memory");
    }
    assert_eq!(merge(&lane, bench, &[run]), merged(1));
    assert_eq!(
        status(2, run, &[(0, &other)]),
        Status::Refused,
        "another file for a page's segment"
    );
    assert!(bench.holds(1, 5));
    assert_eq!(merge(&lane, bench, &[run]), [PageOutcome::Already]);
}

#[test]
fn a_lane_closes_the_segments_that_came_with_a_request() {
    let Some(mut meeting) = Meeting::greeted(64, 64) else { return };
    let _stop = Stop(Arc::clone(&meeting.agent));
    let lane = meeting.connection.open_serving_lane();
    let bench = &meeting.bench;
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    bench.fill(1, 5);
    bench.fill_slot(Slot(1), 5);
    let run = Run { page: bench.page(1).0, count: 1, slot: 1, target: RunTarget::Slots };
    let before = open();
    assert_eq!(merge(&lane, bench, &[run]), merged(1));
    assert_eq!(Status::Refused, lane.ask_to_merge(2, &[run], &[(7, &bench.store)]).status);
    assert_eq!(open(), before);
}

#[test]
fn a_process_without_descriptors_does_nothing_and_says_so() {
    let Some(mut meeting) = Meeting::greeted(64, 64) else { return };
    let _stop = Stop(Arc::clone(&meeting.agent));
    let lane = meeting.connection.open_serving_lane();
    let bench = &meeting.bench;
    bench.fill(1, 5);
    bench.fill_slot(Slot(1), 5);
    let run = Run { page: bench.page(1).0, count: 1, slot: 1, target: RunTarget::Slots };
    let limits = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    let mut before = limits;
    // SAFETY: a live local. The test is alone in its process with what needs descriptors.
    assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut before) }, 0);
    let segment = memfd::reopen_read_only(&bench.store).unwrap();
    let request = Request { store: 2, count: 1, segments: 1, ..Request::of(Op::Merge) };
    lane.window.write_all_at(run.as_bytes(), 0).unwrap();
    lane.window.write_all_at(&[0; 4], SEGMENTS_OFFSET as u64).unwrap();
    // New descriptors must be below the limit; those that there are stay.
    let few = libc::rlimit { rlim_cur: 3, ..before };
    // SAFETY: as above.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const few) }, 0);
    let answer = lane.ask_with(request.as_bytes(), &[segment.as_fd()]);
    // SAFETY: as above.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const before) }, 0);
    let answer = answer.unwrap();
    assert_eq!((answer.status, answer.errno), (Status::Failed, libc::EMFILE as u32));
    assert_eq!(merge(&lane, bench, &[run]), merged(1), "once there are some");
}
