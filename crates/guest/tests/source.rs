//! The daemon's end of a source against a guest made of the test: one that behaves, one that lies.
#![expect(clippy::unwrap_used, reason = "a test: what fails is to be seen where it fails")]

use std::collections::BTreeSet;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use bindery_guest::{
    Guest, GuestError, Image, ImageError, ServeOptions, Served, SourceError, SourceLink, Welcome,
};
use bindery_sys::socket::{receive, send, stream_pair, wait_readable};
use bindery_units::{HostAddress, PAGE_BYTES, PageIndex, PageRange};
use bindery_wire::channel::{Channel, Received};
use bindery_wire::control::{BoundRange, FromDaemon, FromShim, Offered, PAGES_MAX, VERSION};
use bindery_wire::source::{
    FromGuest, FromSource, GuestWord, SLOT_BYTES, SLOT_PAGES, SLOTS, SourceWord,
};
use proptest::prelude::*;
use zerocopy::IntoBytes;

const SOON: Duration = Duration::from_secs(20);
const TOKEN: &[u8] = b"checkpoint";

/// Pages hold their number; every eighth is zero.
struct Numbers;

impl Image for Numbers {
    fn read(&self, first: PageIndex, into: &mut [u8]) -> Result<(), ImageError> {
        for (at, page) in into.chunks_mut(PAGE_BYTES).enumerate() {
            page.fill((first.0 + at as u32) as u8);
        }
        Ok(())
    }

    fn zero_run(&self, page: PageIndex) -> Option<PageRange> {
        page.0.is_multiple_of(8).then(|| PageRange::new(page, 1))
    }
}

type ShimChannel = Channel<FromShim, FromDaemon>;

fn guest() -> (Arc<Guest>, ShimChannel) {
    let (ours, theirs) = stream_pair().unwrap();
    let mut shim = ShimChannel::new(theirs);
    let hello = FromShim::Hello {
        version: VERSION,
        instance: 42,
        name: None,
        domain: None,
        command: "vmm".into(),
        stores: Vec::new(),
    };
    shim.send(&hello, &[], SOON).unwrap();
    let (name, domain) = ("web".into(), "all".into());
    let welcome =
        Welcome { id: 7, name, domain, digest_key: [9; 32], slots: 64, segment_slots: 64 };
    let guest = Guest::accept(ours).unwrap().welcome(welcome).unwrap();
    let welcomed = shim.receive(SOON).unwrap();
    assert!(matches!(welcomed, Received::Message(FromDaemon::Welcome { .. }, _)));
    (guest, shim)
}

/// The guest's end.
struct Ends {
    socket: OwnedFd,
    window: File,
}

impl Ends {
    fn take(shim: &mut ShimChannel) -> (FromDaemon, Self) {
        let Received::Message(message, fds) = shim.receive(SOON).unwrap() else {
            panic!("the daemon says nothing");
        };
        let [socket, window] = fds.try_into().unwrap();
        (message, Self { socket, window: File::from(window) })
    }

    fn say(&self, frame: FromGuest) {
        send(&self.socket, frame.as_bytes(), &[]).unwrap();
    }

    /// Returns the daemon's next frame. `None` at the end of the connection.
    fn next(&self) -> Option<(FromSource, PageRange)> {
        assert!(wait_readable(&self.socket, SOON).unwrap(), "the daemon says something");
        let mut bytes = [0; 17];
        match receive(&self.socket, &mut bytes, &mut Vec::new()) {
            Ok(0) | Err(_) => None,
            Ok(count) => Some(FromSource::read(&bytes[..count]).unwrap()),
        }
    }

    /// Checks what a frame brings, and makes room for more.
    fn take_in(&self, frame: FromSource, pages: PageRange) {
        for (at, page) in pages.pages().enumerate() {
            let is_zero = page.0.is_multiple_of(8);
            assert_eq!(is_zero, frame.word == SourceWord::Zeros, "page {page:?}");
            if !is_zero {
                let mut bytes = [0; PAGE_BYTES];
                let offset = frame.slot as usize * SLOT_BYTES + at * PAGE_BYTES;
                self.window.read_exact_at(&mut bytes, offset as u64).unwrap();
                assert!(bytes.iter().all(|&byte| byte == page.0 as u8), "page {page:?}");
            }
        }
        if frame.word == SourceWord::Pages {
            self.say(FromGuest::of(GuestWord::Taken, frame.slot));
        }
    }
}

fn range(page: usize, pages: u64, first: u32) -> BoundRange {
    let address = HostAddress((1 << 40) + page * PAGE_BYTES);
    BoundRange { address, bytes: pages * PAGE_BYTES as u64, first: PageIndex(first) }
}

fn pages(first: u32, count: u32) -> PageRange {
    PageRange::new(PageIndex(first), count)
}

fn bound(ranges: &[BoundRange]) -> (SourceLink, Ends, Arc<Guest>, ShimChannel) {
    let (guest, mut shim) = guest();
    thread::scope(|scope| {
        let binding = scope.spawn(|| guest.bind(ranges, TOKEN));
        let (message, ends) = Ends::take(&mut shim);
        let (ranges, token) = (ranges.to_vec(), TOKEN.to_vec());
        assert_eq!(message, FromDaemon::Bind { ranges, token });
        ends.say(FromGuest::of(GuestWord::Bound, 0));
        let link = binding.join().unwrap().unwrap();
        (link, ends, Arc::clone(&guest), shim)
    })
}

fn serve(
    link: SourceLink,
    ahead: Vec<PageRange>,
    options: ServeOptions,
) -> thread::JoinHandle<Result<Served, SourceError>> {
    thread::spawn(move || link.serve(&Numbers, ahead.into_iter(), options))
}

#[test]
fn each_page_is_sent_once_and_what_was_named_first() {
    let (link, ends, _guest, _shim) = bound(&[range(0, 100, 1000), range(500, 300, 40)]);
    let handle = link.handle();
    assert_eq!(handle.unsent_pages(), 400);
    let ahead = vec![pages(1050, 3), pages(0, 45), pages(PAGES_MAX - 1, 1), pages(1049, 3)];
    let serving = serve(link, ahead, ServeOptions::default());
    let mut sent = Vec::new();
    while sent.len() < 400 {
        let (frame, pages) = ends.next().unwrap();
        ends.take_in(frame, pages);
        sent.extend(pages.pages().map(|page| page.0));
    }
    let named = [1050, 1051, 1052, 40, 41, 42, 43, 44, 1049];
    let is_named = |page: &u32| named.contains(page);
    let rest = (40..340).chain(1000..1100).filter(|page| !is_named(page));
    assert_eq!(sent, named.into_iter().chain(rest).collect::<Vec<_>>());
    assert_eq!(handle.unsent_pages(), 0);
    ends.say(FromGuest::of(GuestWord::Complete, 0));
    let served = serving.join().unwrap().unwrap();
    assert_eq!((served.faults, served.pushed_pages), (0, 400));
    assert_eq!(served.zero_pages + served.content_pages, 400);
}

#[test]
fn faults_are_answered_though_nothing_more_is_pushed() {
    let (link, ends, _guest, _shim) = bound(&[range(0, 2000, 1000)]);
    let serving = serve(link, Vec::new(), ServeOptions::default());
    // The guest takes nothing: what may be pushed fills all slots but some.
    let mut slots = 0;
    while wait_readable(&ends.socket, Duration::from_millis(300)).unwrap() {
        slots += u32::from(ends.next().unwrap().0.word == SourceWord::Pages);
    }
    assert!(0 < slots && slots < SLOTS, "{slots}");
    ends.say(FromGuest::about(GuestWord::Fault, pages(2900, 1)));
    let mut came = Vec::new();
    while came.len() < 16 {
        came.extend(ends.next().unwrap().1.pages().map(|page| page.0));
    }
    assert_eq!(came, (2896..2912).collect::<Vec<_>>());
    // What was sent is not sent again, and what is none of its pages never.
    for page in [2901, 1000, 0, PAGES_MAX - 1] {
        ends.say(FromGuest::of(GuestWord::Fault, 0));
        ends.say(FromGuest { first: page, ..FromGuest::of(GuestWord::Fault, 0) });
    }
    assert!(!wait_readable(&ends.socket, Duration::from_millis(300)).unwrap());
    ends.say(FromGuest::of(GuestWord::Complete, 0));
    let served = serving.join().unwrap().unwrap();
    assert_eq!(served.touched.first(), Some(&pages(2896, 16)));
    assert_eq!(served.faults, 9);
}

#[test]
fn a_fault_gets_no_more_than_its_range() {
    let options =
        ServeOptions { ahead_bytes_per_s: Some(1), fault_pages: SLOT_PAGES, is_lazy: false };
    let (link, ends, _guest, _shim) =
        bound(&[range(0, 3, 100), range(500, 5, 103), range(900, 1, 96)]);
    let serving = serve(link, vec![pages(96, 1)], options);
    assert_eq!(ends.next().unwrap().1, pages(96, 1));
    // The one page of content that is pushed before the rest waits for its turn.
    assert_eq!(ends.next().unwrap().1, pages(100, 3));
    ends.say(FromGuest::about(GuestWord::Fault, pages(106, 1)));
    assert_eq!(ends.next().unwrap().1, pages(103, 1));
    assert_eq!(ends.next().unwrap().1, pages(104, 1));
    assert_eq!(ends.next().unwrap().1, pages(105, 3));
    ends.say(FromGuest::of(GuestWord::Complete, 0));
    serving.join().unwrap().unwrap();
}

#[test]
fn a_guest_that_lies_is_hung_up_on() {
    let nonsense = [
        FromGuest::of(GuestWord::Bound, 0).as_bytes().to_vec(),
        FromGuest::of(GuestWord::Failed, 5).as_bytes().to_vec(),
        FromGuest::about(GuestWord::Lacks, pages(1, 1)).as_bytes().to_vec(),
        // A slot that is free, and one that is none.
        FromGuest::of(GuestWord::Taken, SLOTS).as_bytes().to_vec(),
        FromGuest::of(GuestWord::Taken, 0).as_bytes().to_vec(),
        FromGuest::about(GuestWord::Fault, pages(PAGES_MAX, 1)).as_bytes().to_vec(),
        FromGuest::about(GuestWord::Fault, pages(u32::MAX, 0)).as_bytes().to_vec(),
        vec![9; 16],
        vec![3; 15],
        vec![3; 17],
    ];
    for bytes in nonsense {
        let (link, ends, _guest, _shim) = bound(&[range(0, 1, 8)]);
        let serving = serve(link, Vec::new(), ServeOptions::default());
        send(&ends.socket, &bytes, &[]).unwrap();
        let error = serving.join().unwrap().unwrap_err();
        let is_nonsense = matches!(error, SourceError::Guest(GuestError::Nonsense { .. }));
        assert!(is_nonsense, "{bytes:?}: {error}");
    }
    // More than the slots hold.
    let (link, ends, _guest, _shim) = bound(&[range(0, 1000, 8)]);
    let serving = serve(link, Vec::new(), ServeOptions::default());
    drop(ends);
    let error = serving.join().unwrap().unwrap_err();
    assert!(matches!(error, SourceError::Guest(GuestError::Gone)), "{error}");
}

#[test]
fn a_guest_whose_last_word_is_lost_has_all() {
    let (link, ends, _guest, _shim) = bound(&[range(0, 20, 8)]);
    let serving = serve(link, Vec::new(), ServeOptions::default());
    let mut sent = 0;
    while sent < 20 {
        let (frame, pages) = ends.next().unwrap();
        ends.take_in(frame, pages);
        sent += pages.count;
    }
    drop(ends);
    let served = serving.join().unwrap().unwrap();
    assert_eq!(served.content_pages + served.zero_pages, 20);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// A guest may say anything: it gets no page twice and none that is not its own, and an end.
    #[test]
    fn a_guest_may_say_anything(
        said in prop::collection::vec((0u32..9, 0u32..420, 0u32..40, 0u32..20), 0..80),
        takes in any::<bool>(),
    ) {
        let (link, ends, _guest, _shim) = bound(&[range(0, 100, 300), range(500, 300, 0)]);
        let serving = serve(link, Vec::new(), ServeOptions::default());
        for (word, first, count, value) in said {
            // A daemon that has hung up takes nothing more.
            let frame = [word, first, count, value].map(u32::to_ne_bytes).concat();
            let _ = send(&ends.socket, &frame, &[]);
        }
        let mut sent = BTreeSet::new();
        while wait_readable(&ends.socket, Duration::from_millis(20)).unwrap() {
            let Some((frame, pages)) = ends.next() else { break };
            prop_assert!(pages.end().0 <= 400, "{pages:?}");
            prop_assert!(pages.pages().all(|page| sent.insert(page.0)), "{pages:?} again");
            if takes && frame.word == SourceWord::Pages {
                let taken = FromGuest::of(GuestWord::Taken, frame.slot);
                let _ = send(&ends.socket, taken.as_bytes(), &[]);
            }
        }
        drop(ends);
        let _ = serving.join().unwrap();
    }
}

#[test]
fn a_lost_source_is_heard_of_and_what_it_lacks() {
    let (guest, mut shim) = guest();
    assert!(guest.lost_source().is_none() && guest.offered().is_empty());
    let offered = Offered { number: 0, address: HostAddress(1 << 30), bytes: 8192 };
    shim.send(&FromShim::Offered(offered), &[], SOON).unwrap();
    let lost = FromShim::SourceLost { token: TOKEN.to_vec(), missing_pages: 30 };
    shim.send(&lost, &[], SOON).unwrap();
    while guest.lost_source().is_none() {
        guest.wait_events(SOON).unwrap();
    }
    assert_eq!(guest.offered(), [offered]);
    let lost = guest.lost_source().unwrap();
    assert_eq!((lost.token.as_slice(), lost.missing_pages), (TOKEN, 30));
    let lacks = |pages| FromGuest::about(GuestWord::Lacks, pages);
    // What overlaps, is nothing, or is no page.
    for bad in [pages(10, 5), pages(50, 0), pages(PAGES_MAX, 1)] {
        let error = thread::scope(|scope| {
            let binding = scope.spawn(|| guest.rebind(&lost));
            let (_, ends) = Ends::take(&mut shim);
            [pages(10, 5), bad].into_iter().for_each(|pages| ends.say(lacks(pages)));
            binding.join().unwrap().unwrap_err()
        });
        assert!(matches!(error, GuestError::Nonsense { .. }), "{error}");
    }
    let (link, ends) = thread::scope(|scope| {
        let binding = scope.spawn(|| guest.rebind(&lost));
        let (message, ends) = Ends::take(&mut shim);
        assert_eq!(message, FromDaemon::Rebind { token: TOKEN.to_vec() });
        [pages(20, 6), pages(10, 5)].into_iter().for_each(|pages| ends.say(lacks(pages)));
        ends.say(FromGuest::of(GuestWord::Bound, 0));
        (binding.join().unwrap().unwrap(), ends)
    });
    let serving = serve(link, Vec::new(), ServeOptions::default());
    let mut sent = Vec::new();
    while sent.len() < 11 {
        let (frame, pages) = ends.next().unwrap();
        ends.take_in(frame, pages);
        sent.extend(pages.pages().map(|page| page.0));
    }
    assert_eq!(sent, (10..15).chain(20..26).collect::<Vec<_>>());
    ends.say(FromGuest::of(GuestWord::Complete, 0));
    serving.join().unwrap().unwrap();
    let long = FromShim::SourceLost { token: vec![0; 513], missing_pages: 1 };
    shim.send(&long, &[], SOON).unwrap();
    assert!(matches!(guest.wait_events(SOON), Err(GuestError::Nonsense { .. })));
}
