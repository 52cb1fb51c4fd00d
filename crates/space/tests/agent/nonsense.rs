//! A daemon that is broken, or no daemon at all: the guest goes on, and so does the agent.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Instant;

use bindery_sys::{memfd, socket};
use bindery_wire::control::{FRAME_BYTES_MAX, FromDaemon, StoreId};
use bindery_wire::lane::{Op, Request, SEGMENTS_OFFSET, Status, WINDOW_BYTES};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use zerocopy::IntoBytes;

use crate::daemon::{Connection, SOON};
use crate::{Meeting, Stop, threads_named};

/// What a daemon says on a new connection, given a store.
type Speech<'a> = &'a dyn Fn(&mut Connection, &File);

/// Numbers near the edges of what is allowed, and any others.
fn edge(meeting: &Meeting) -> impl Strategy<Value = u32> + use<> {
    let first = meeting.bench.region.pages.first.0;
    let max = u32::MAX;
    prop_oneof![0u32..80, first..first + 80, Just(max), max - 70..max, any::<u32>()]
}

#[test]
fn a_lane_answers_any_request_and_the_guest_keeps_its_pages() {
    let Some(mut meeting) = Meeting::greeted(64, 64) else { return };
    let _stop = Stop(Arc::clone(&meeting.agent));
    for page in 0..64 {
        meeting.bench.fill(page, u64::from(page));
    }
    let lane = meeting.connection.open_lane();
    let header = (0u32..12, 0u32..4, edge(&meeting), edge(&meeting), 0u32..20, 0usize..3);
    let words = prop::collection::vec(edge(&meeting), 0..64);
    let mut runner = TestRunner::default();
    let file = meeting.bench.store.as_fd();
    let result = runner.run(&(header, words), |((code, store, first, count, last, of), words)| {
        let segments = of as u32;
        let mut request = Request { store, first, count, segments, ..Request::of(Op::Lost) };
        request.unused[9] = u32::from(last == 0);
        let mut bytes = [0; size_of::<Request>()];
        request.write_to(&mut bytes).unwrap();
        // Any operation, known or not.
        bytes[..4].copy_from_slice(&u32::to_le_bytes(code));
        lane.window.write_all_at(words.as_bytes(), 0).unwrap();
        let numbers: Vec<u32> = words.iter().take(of).map(|word| word % 3).collect();
        lane.window.write_all_at(numbers.as_bytes(), SEGMENTS_OFFSET as u64).unwrap();
        let answer = lane.ask_with(&bytes, &vec![file; of]).unwrap();
        let is_known = (1..=Op::Survey as u32).contains(&code);
        prop_assert!(is_known || answer.status == Status::Refused);
        Ok(())
    });
    result.unwrap();
    assert!((0..64).all(|page| meeting.bench.holds(page, u64::from(page))));
}

#[test]
fn a_broken_lane_ends_alone() {
    let Some(mut meeting) = Meeting::greeted(64, 64) else { return };
    let _stop = Stop(Arc::clone(&meeting.agent));
    let lost = Request::of(Op::Lost);
    for bytes in [&[][..], &[1; 63], &[1; 65]] {
        let lane = meeting.connection.open_lane();
        assert_eq!(lane.ask::<u8>(lost, &[]).status, Status::Done);
        assert!(lane.ask_raw(bytes).is_none(), "{} bytes are no request", bytes.len());
    }
    // As many descriptors as a request names, and none with any other.
    let merge = Request { store: 2, segments: 1, ..Request::of(Op::Merge) };
    let many = Request { segments: u32::MAX, ..merge };
    for (request, count) in [(lost, 1), (merge, 0), (merge, 2), (many, 1)] {
        let lane = meeting.connection.open_lane();
        let fds = vec![lane.window.as_fd(); count];
        let answer = lane.ask_with(request.as_bytes(), &fds);
        assert!(answer.is_none(), "{count} descriptors with {request:?}");
    }
    let lane = meeting.connection.open_lane();
    // A window that is none, one that somebody could make shorter, and one that is shorter.
    let (reader, _writer) = std::io::pipe().unwrap();
    let loose = tempfile::tempfile().unwrap();
    loose.set_len(WINDOW_BYTES as u64).unwrap();
    let short = memfd::create("test-lane", WINDOW_BYTES as u64 / 2).unwrap();
    for window in [reader.as_fd(), loose.as_fd(), short.as_fd()] {
        let (socket, theirs) = socket::seqpacket_pair().unwrap();
        let fds = [theirs.as_fd(), window];
        meeting.connection.channel.send(&FromDaemon::OpenLane, &fds, SOON).unwrap();
        drop(theirs);
        let broken = crate::daemon::Lane { socket, window: lane.window.try_clone().unwrap() };
        let fetch = Request { count: 1, ..Request::of(Op::Fetch) };
        assert!(broken.ask_raw(fetch.as_bytes()).is_none(), "{window:?}");
    }

    let lane = meeting.connection.open_lane();
    assert_eq!(lane.ask::<u8>(lost, &[]).status, Status::Done, "the session goes on");
}

#[test]
fn a_daemon_that_speaks_nonsense_is_left_and_called_again() {
    let Some(mut meeting) = Meeting::new(64, 64) else { return };
    let _stop = Stop(Arc::clone(&meeting.agent));
    let raw = |connection: &mut Connection, bytes: &[u8]| {
        socket::send(connection.channel.as_fd(), bytes, &[]).unwrap();
    };
    let too_long = (FRAME_BYTES_MAX + 1).to_le_bytes();
    let nonsense: [Speech<'_>; 6] = [
        &|connection, _| raw(connection, b"HTTP/1.1 400 Bad Request\r\n\r\n"),
        &|connection, _| raw(connection, &too_long),
        &|connection, _| raw(connection, &[1, 0, 0, 0, 250]),
        &|connection, _| connection.channel.send(&FromDaemon::Release, &[], SOON).unwrap(),
        // No store may be called 0.
        &|connection, store| connection.welcome(StoreId(0), store),
        &|connection, store| {
            connection.welcome(StoreId(2), store);
            connection.welcome(StoreId(3), store);
        },
    ];
    for speak in nonsense {
        let daemon = meeting.daemon.as_ref().unwrap();
        speak(&mut meeting.connection, &meeting.bench.store);
        assert!(meeting.connection.is_closed());
        meeting.connection = daemon.accept();
    }
    meeting.connection.welcome(StoreId(2), &meeting.bench.store);
    assert_eq!(meeting.connection.added(), meeting.bench.region);
}

#[test]
fn lanes_and_the_control_thread_end_when_the_agent_is_stopped() {
    let Some(mut meeting) = Meeting::greeted(64, 64) else { return };
    let lanes: Vec<_> = (0..3).map(|_| meeting.connection.open_lane()).collect();
    for lane in &lanes {
        assert_eq!(lane.ask::<u8>(Request::of(Op::Lost), &[]).status, Status::Done);
    }
    assert!(threads_named("bindery-lane") >= 3);
    let begun = Instant::now();
    meeting.agent.stop();
    assert!(begun.elapsed() < SOON);
    assert!(meeting.connection.is_closed());
    assert!(lanes.iter().all(|lane| lane.ask_raw(&[0; 64]).is_none()));
}
