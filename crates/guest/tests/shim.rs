//! The daemon's side against a shim made of a thread: one that behaves, one that is late, one that
//! lies, and one that dies.
#![expect(clippy::unwrap_used, reason = "a test: what fails is to be seen where it fails")]

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use bindery_guest::{Connection, Fetched, Guest, GuestError, Lane, LaneEnds, SocketLane, Welcome};
use bindery_sys::socket::{receive, receive_many, send, send_all, stream_pair};
use bindery_sys::thread::monotonic_time;
use bindery_units::{HostAddress, PageIndex, PageRange};
use bindery_wire::channel::{Channel, Received};
use bindery_wire::control::{FromDaemon, FromShim, Region, StoreId, VERSION};
use bindery_wire::frame::encode;
use bindery_wire::lane::{
    ANSWER_OFFSET, Answer, DigestKind, Op, PageDigest, PageOutcome, PageSpan, Presence, Reach,
    Request, Run, RunTarget, SEGMENTS_MAX, SEGMENTS_OFFSET, Status,
};
use zerocopy::{Immutable, IntoBytes, TryFromBytes};

const SOON: Duration = Duration::from_secs(20);

type ShimChannel = Channel<FromShim, FromDaemon>;

fn hello(stores: Vec<StoreId>) -> FromShim {
    FromShim::Hello {
        version: VERSION,
        instance: 42,
        name: Some("web".into()),
        domain: None,
        command: "vmm\n--memory".into(),
        stores,
    }
}

fn region(first: u32, count: u32) -> Region {
    Region { pages: PageRange { first: PageIndex(first), count }, address: HostAddress(1 << 40) }
}

fn next(channel: &mut ShimChannel) -> (FromDaemon, Vec<OwnedFd>) {
    match channel.receive(SOON).unwrap() {
        Received::Message(message, fds) => (message, fds),
        other => panic!("{other:?}"),
    }
}

fn welcomed(stores: Vec<StoreId>) -> (Arc<Guest>, ShimChannel, (FromDaemon, Vec<OwnedFd>)) {
    let (ours, theirs) = stream_pair().unwrap();
    let mut shim = ShimChannel::new(theirs);
    shim.send(&hello(stores), &[], SOON).unwrap();
    let arrival = Guest::accept(ours).unwrap();
    assert_eq!(arrival.name.as_deref(), Some("web"));
    assert_eq!(arrival.peer.pid, std::process::id().cast_signed());
    let (id, name, domain) = (7, "web".to_owned(), "all".to_owned());
    let (digest_key, slots, segment_slots) = ([9; 32], 256, 64);
    let welcome = Welcome { id, name, domain, digest_key, slots, segment_slots };
    let guest = arrival.welcome(welcome).unwrap();
    let answer = next(&mut shim);
    (guest, shim, answer)
}

/// Serves a lane with `answer` until it returns `None` or the daemon closes it.
fn serve<A: IntoBytes + Immutable>(
    ends: LaneEnds,
    mut answer: impl FnMut(Request, &File) -> Option<A> + Send + 'static,
) -> JoinHandle<()> {
    thread::spawn(move || {
        let (mut request, mut fds) = ([0; size_of::<Request>()], Vec::new());
        while receive_many(&ends.socket, &mut request, &mut fds)
            .is_ok_and(|arrived| arrived.bytes > 0)
        {
            let request = Request::try_read_from_bytes(&request).unwrap();
            assert_eq!(std::mem::take(&mut fds).len(), request.segments as usize);
            let Some(answer) = answer(request, &ends.window) else { return };
            if send(&ends.socket, answer.as_bytes(), &[]).is_err() {
                return;
            }
        }
    })
}

type AnswerBytes = [u8; size_of::<Answer>()];

fn bytes_of(answer: Answer) -> AnswerBytes {
    let mut bytes = [0; size_of::<Answer>()];
    answer.write_to(&mut bytes).unwrap();
    bytes
}

/// Takes one request and answers it with any bytes.
fn answer_once(ends: &LaneEnds, answer: impl Fn(&File) -> AnswerBytes) {
    let mut request = [0; size_of::<Request>()];
    receive(&ends.socket, &mut request, &mut Vec::new()).unwrap();
    send(&ends.socket, &answer(&ends.window), &[]).unwrap();
}

fn put<T: IntoBytes + Immutable>(window: &File, array: &[T]) {
    window.write_all_at(array.as_bytes(), ANSWER_OFFSET as u64).unwrap();
}

#[test]
fn a_guest_is_welcomed_and_tells_its_regions() {
    let (guest, mut shim, (message, fds)) = welcomed(vec![StoreId(1), StoreId(3)]);
    let (guest_id, store, slots, segment_slots) = (7, StoreId(2), 256, 64);
    let digest_key = [9; 32];
    let expected = FromDaemon::Welcome { guest: guest_id, digest_key, store, slots, segment_slots };
    assert_eq!((message, fds.len()), (expected, 0));
    assert!(guest.holds_other_stores());
    assert_eq!(guest.identity().command, "vmm\u{fffd}--memory");

    assert!(!guest.wait_events(Duration::ZERO).unwrap());
    let visitor = guest.written().visit().unwrap();
    shim.send(&FromShim::RegionAdded(region(512, 100)), &[], SOON).unwrap();
    assert!(guest.wait_events(SOON).unwrap());
    assert_eq!(visitor.count(), 100, "memory that is new has changed");
    visitor.clear();
    shim.send(&FromShim::RegionRemoved(region(550, 10).pages), &[], SOON).unwrap();
    assert!(guest.wait_events(SOON).unwrap());
    assert_eq!(visitor.count(), 10, "what comes there later is something else");
    let pages: Vec<_> = guest.regions().iter().map(|region| region.pages).collect();
    assert_eq!(pages, [region(512, 38).pages, region(560, 52).pages]);
    assert_eq!(guest.changes().unwrap().len(), 2);

    guest.release().unwrap();
    assert_eq!(next(&mut shim).0, FromDaemon::Release);
    shim.send(&FromShim::Released, &[], SOON).unwrap();
    assert!(guest.wait_events(SOON).unwrap() && guest.has_released());
    guest.close();
    assert!(matches!(shim.receive(SOON), Ok(Received::Closed)));
    assert!(matches!(guest.wait_events(SOON), Err(GuestError::Gone)));
    assert!(!guest.has_ended(), "the process (this one) goes on");
}

#[test]
fn no_descriptors_come_after_hello() {
    let null = File::open("/dev/null").unwrap();
    // With a message that needs none, and with part of one.
    for bytes in [encode(&FromShim::RegionAdded(region(512, 1))), vec![9]] {
        let (ours, theirs) = stream_pair().unwrap();
        send(&theirs, &encode(&hello(vec![])), &[]).unwrap();
        send(&theirs, &bytes, &[null.as_fd()]).unwrap();
        let error = Guest::accept(ours).unwrap_err();
        assert!(matches!(error, GuestError::Nonsense { .. }), "{error}");
    }
    // Words alone are heard once it is welcomed.
    let (ours, theirs) = stream_pair().unwrap();
    send(&theirs, &encode(&hello(vec![])), &[]).unwrap();
    send(&theirs, &encode(&FromShim::Released), &[]).unwrap();
    drop(Guest::accept(ours).unwrap());

    let (guest, shim, _) = welcomed(vec![]);
    if send(&shim, &[9], &[null.as_fd()]).is_ok() {
        return bindery_testkit::skipped!("descriptors cannot be refused before Linux 6.16");
    }
    let (_lane, ends) = SocketLane::open().unwrap();
    let error = send(&ends.socket, &[0; 64], &[null.as_fd()]).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied, "{error}");
    drop(guest);
}

#[test]
fn a_guest_that_steps_aside_is_heard_to_the_end() {
    let (guest, mut shim, _) = welcomed(vec![]);
    guest.release().unwrap();
    assert_eq!(next(&mut shim).0, FromDaemon::Release);
    // It has ended its lanes, and whoever worked on it takes it for lost.
    guest.close();
    assert!(!guest.wait_events(Duration::ZERO).unwrap());
    shim.send(&FromShim::Released, &[], SOON).unwrap();
    assert!(guest.wait_events(SOON).unwrap() && guest.has_released());
    guest.close();
    assert!(matches!(shim.receive(SOON), Ok(Received::Closed)));
}

#[test]
fn nothing_comes_after_a_guests_last_word() {
    for more in [FromShim::Released, FromShim::RegionAdded(region(512, 100)), hello(vec![])] {
        let (guest, mut shim, _) = welcomed(vec![]);
        for message in [&FromShim::Released, &more] {
            shim.send(message, &[], SOON).unwrap();
        }
        let result = loop {
            match guest.wait_events(Duration::from_millis(100)) {
                Ok(true) => {}
                result => break result,
            }
        };
        assert!(matches!(result, Err(GuestError::Nonsense { .. })), "{more:?}: {result:?}");
        assert!(guest.has_released() && guest.regions().is_empty());
    }
}

#[test]
fn a_guest_that_writes_without_end_is_read_in_turns() {
    let (guest, shim, _) = welcomed(vec![]);
    let region = region(512, 100);
    let said = [FromShim::RegionAdded(region), FromShim::RegionRemoved(region.pages)];
    let words = said.map(|message| encode(&message)).concat().repeat(20_000);
    let babble = thread::spawn(move || while send_all(&shim, &words, &[], SOON).is_ok() {});
    // As the engine does in each period, beside the thread that listens.
    let mut changes = 0;
    while changes < 1 << 18 {
        changes += guest.changes().unwrap().len();
    }
    guest.close();
    babble.join().unwrap();
}

#[test]
fn lanes_are_opened_once_and_used_again() {
    let (guest, mut shim, _) = welcomed(vec![]);
    let lane = guest.lane().unwrap();
    let (message, fds) = next(&mut shim);
    assert_eq!((message, fds.len()), (FromDaemon::OpenLane, 2));
    drop(lane);
    let first = guest.lane().unwrap();
    assert!(matches!(shim.receive(Duration::ZERO).unwrap(), Received::Nothing));
    let _second = guest.lane().unwrap();
    assert_eq!(next(&mut shim).0, FromDaemon::OpenLane);
    drop(first);
}

#[test]
fn what_is_not_a_shim_is_turned_away() {
    let refused = |first: &FromShim| {
        let (ours, theirs) = stream_pair().unwrap();
        let mut shim = ShimChannel::new(theirs);
        shim.send(first, &[], SOON).unwrap();
        (Guest::accept(ours).unwrap_err(), shim)
    };
    let (error, _) = refused(&FromShim::Released);
    assert!(matches!(error, GuestError::Nonsense { .. }), "{error}");

    let FromShim::Hello { instance, name, domain, command, stores, .. } = hello(vec![]) else {
        unreachable!()
    };
    let version = VERSION + 1;
    let newer = FromShim::Hello { version, instance, name, domain, command, stores };
    let (error, mut shim) = refused(&newer);
    assert!(matches!(error, GuestError::Version { .. }), "{error}");
    assert!(
        matches!(next(&mut shim).0, FromDaemon::Refused { reason } if reason.contains("version"))
    );
}

#[test]
fn answers_come_back_as_they_were_given() {
    let (mut lane, ends) = SocketLane::open().unwrap();
    let shim = serve(ends, |request, window| {
        let mut pages = vec![0_u32; request.count as usize];
        window.read_exact_at(pages.as_mut_bytes(), 0).unwrap();
        let mut answer = Answer { count: request.count, lane_cpu_ns: 500, ..Answer::default() };
        match request.op {
            Op::Scan => {
                put(window, &[PageSpan { first: 3, count: 2, presence: Presence::Present }]);
                answer = Answer { count: 1, more: 1, resume_at: 9, ..answer };
            }
            Op::Digest => {
                let of = |page: &u32| {
                    let digest = [u64::from(*page), 1];
                    PageDigest { kind: DigestKind::Content, digest }
                };
                put(window, &pages.iter().map(of).collect::<Vec<_>>());
            }
            Op::Fetch => {
                put(window, &[1_u8, 0]);
                window.write_all_at(&[5; 4096], ANSWER_OFFSET as u64 + 4096).unwrap();
            }
            Op::Merge => {
                let mut numbers = [0_u32; SEGMENTS_MAX];
                window.read_exact_at(numbers.as_mut_bytes(), SEGMENTS_OFFSET as u64).unwrap();
                let expected: Vec<u32> = (0..SEGMENTS_MAX as u32).map(|at| 3 * at).collect();
                assert_eq!(numbers.as_slice(), expected);
                put(window, &[PageOutcome::Merged, PageOutcome::Different, PageOutcome::Busy]);
            }
            _ => answer.status = Status::Refused,
        }
        if request.op == Op::Merge {
            answer.count = 3;
        }
        Some(answer)
    });
    let range = PageRange::new(PageIndex(2), 20);
    let mut spans = Vec::new();
    assert_eq!(lane.scan(Reach::Split, range, &mut spans).unwrap(), Some(PageIndex(9)));
    assert_eq!(spans, [PageSpan { first: 3, count: 2, presence: Presence::Present }]);
    let mut digests = Vec::new();
    lane.digest(&[8, 4], &mut digests).unwrap();
    assert_eq!(digests.iter().map(|digest| digest.digest[0]).collect::<Vec<_>>(), [8, 4]);
    let mut fetched = Fetched::default();
    lane.fetch(&[1, 2], &mut fetched).unwrap();
    assert_eq!((fetched.page(0), fetched.page(1)), (Some(&[5; 4096]), None));
    let runs = [
        Run { page: 1, count: 2, slot: 0, target: RunTarget::Slots },
        Run { page: 9, count: 1, slot: 5, target: RunTarget::Slots },
    ];
    let mut outcomes = Vec::new();
    let null = File::open("/dev/null").unwrap();
    let segments: Vec<_> = (0..SEGMENTS_MAX as u32).map(|at| (3 * at, null.as_fd())).collect();
    lane.merge(StoreId(1), &segments, &runs, &mut outcomes).unwrap();
    assert_eq!(outcomes, [PageOutcome::Merged, PageOutcome::Different, PageOutcome::Busy]);
    assert!(matches!(lane.mend(range), Err(GuestError::Refused { .. })));
    assert_eq!(lane.gauges().lane_cpu_ns, 500);
    assert_eq!(lane.gauges().lane_cpu_ns, 0);
    drop(lane);
    shim.join().unwrap();
}

#[test]
fn no_guest_has_used_more_cpu_time_than_has_passed() {
    let (mut lane, ends) = SocketLane::open().unwrap();
    let shim = serve(ends, |request, _| {
        let lane_cpu_ns = [0, 1 << 62, u64::MAX][request.first as usize];
        Some(Answer { lane_cpu_ns, handler_cpu_ns: u64::MAX, ..Answer::default() })
    });
    let start = Instant::now();
    for first in [1, 0, 2, 0, 1] {
        lane.mend(PageRange::new(PageIndex(first), 1)).unwrap();
    }
    let (passed, gauges) = (start.elapsed().as_nanos() as u64, lane.gauges());
    assert!(gauges.lane_cpu_ns <= passed, "{} ns in {passed}", gauges.lane_cpu_ns);
    let since_start = monotonic_time().as_nanos() as u64;
    assert!(gauges.handler_cpu_ns <= 2 * since_start, "{} ns", gauges.handler_cpu_ns);
    // While it is not asked it does nothing.
    thread::sleep(Duration::from_millis(100));
    let start = Instant::now();
    lane.mend(PageRange::new(PageIndex(2), 1)).unwrap();
    assert!(lane.gauges().lane_cpu_ns <= start.elapsed().as_nanos() as u64);
    drop(lane);
    shim.join().unwrap();
}

#[test]
fn a_late_answer_is_paid_for_as_far_as_it_was_waited_for() {
    let (lane, ends) = SocketLane::open().unwrap();
    let patience = Duration::from_millis(50);
    let mut lane = lane.with_patience(patience);
    let (answer, late) = channel::<()>();
    let shim = serve(ends, move |_, _| {
        let _ = late.recv();
        Some(Answer { lane_cpu_ns: 1 << 62, ..Answer::default() })
    });
    assert!(lane.mend(PageRange::new(PageIndex(0), 1)).is_err());
    thread::sleep(Duration::from_millis(300));
    drop(answer);
    let deadline = Instant::now() + SOON;
    while !lane.settle().unwrap() {
        assert!(Instant::now() < deadline, "the answer that was owed never came");
        thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(lane.gauges().lane_cpu_ns, patience.as_nanos() as u64);
    drop(lane);
    shim.join().unwrap();
}

#[test]
fn a_late_answer_is_owed_and_forgotten() {
    let (lane, ends) = SocketLane::open().unwrap();
    let mut lane = lane.with_patience(Duration::from_millis(300));
    let (answer, late) = channel::<()>();
    let shim = serve(ends, move |_, window| {
        // Only the first answer is late: there is nobody any more who could have the others wait.
        let _ = late.recv();
        put(window, &[PageSpan { first: 0, count: 1, presence: Presence::Present }]);
        Some(Answer { count: 1, ..Answer::default() })
    });
    let (range, mut spans) = (PageRange::new(PageIndex(0), 4), Vec::new());
    assert!(matches!(lane.scan(Reach::Split, range, &mut spans), Err(GuestError::Stalled { .. })));
    assert!(lane.owes() && !lane.settle().unwrap());
    let (mut lane, start) = (lane.with_patience(SOON), Instant::now());
    assert!(matches!(lane.scan(Reach::Split, range, &mut spans), Err(GuestError::Stalled { .. })));
    assert!(start.elapsed() < SOON, "it is waited for once, {:?}", start.elapsed());
    drop(answer);
    let deadline = Instant::now() + SOON;
    while !lane.settle().unwrap() {
        assert!(Instant::now() < deadline, "the answer that was owed never came");
        thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(lane.scan(Reach::Split, range, &mut spans).unwrap(), None);
    drop(lane);
    shim.join().unwrap();
}

#[test]
fn lies_are_called_nonsense() {
    let range = PageRange::new(PageIndex(10), 10);
    let unknown_status = || {
        let mut bytes = bytes_of(Answer::default());
        bytes[..4].copy_from_slice(&77u32.to_le_bytes());
        bytes
    };
    let lies: [&(dyn Fn(&File) -> AnswerBytes + Sync); 6] = [
        &|_| bytes_of(Answer { count: u32::MAX, ..Answer::default() }),
        &|_| unknown_status(),
        &|_| bytes_of(Answer { more: 1, resume_at: 10, ..Answer::default() }),
        &|window| {
            put(window, &[PageSpan { first: 19, count: 2, presence: Presence::Present }]);
            bytes_of(Answer { count: 1, ..Answer::default() })
        },
        &|window| {
            put(
                window,
                &[
                    PageSpan { first: 12, count: 1, presence: Presence::Present },
                    PageSpan { first: 12, count: 1, presence: Presence::Present },
                ],
            );
            bytes_of(Answer { count: 2, ..Answer::default() })
        },
        &|window| {
            // A span of pages that are in no known place.
            put(window, &[12u32, 1, 2]);
            bytes_of(Answer { count: 1, ..Answer::default() })
        },
    ];
    for (number, lie) in lies.into_iter().enumerate() {
        let (mut lane, ends) = SocketLane::open().unwrap();
        thread::scope(|scope| {
            scope.spawn(|| answer_once(&ends, lie));
            let result = lane.scan(Reach::Split, range, &mut Vec::new());
            assert!(matches!(result, Err(GuestError::Nonsense { .. })), "{number}: {result:?}");
        });
    }
}

#[test]
fn a_message_of_the_wrong_size_is_nonsense_and_death_is_gone() {
    let (mut lane, ends) = SocketLane::open().unwrap();
    let range = PageRange::new(PageIndex(0), 1);
    let shim = thread::spawn(move || {
        let mut request = [0; size_of::<Request>()];
        receive(&ends.socket, &mut request, &mut Vec::new()).unwrap();
        send(&ends.socket, &[0; 65], &[]).unwrap();
        receive(&ends.socket, &mut request, &mut Vec::new()).unwrap();
    });
    let result = lane.mend(range);
    assert!(matches!(result, Err(GuestError::Nonsense { .. })), "{result:?}");
    drop(lane);
    shim.join().unwrap();

    let (mut lane, ends) = SocketLane::open().unwrap();
    let shim = serve(ends, |_, _| None::<Answer>);
    assert!(matches!(lane.mend(range), Err(GuestError::Gone)));
    assert!(matches!(lane.mend(range), Err(GuestError::Stalled { .. } | GuestError::Gone)));
    shim.join().unwrap();
}
