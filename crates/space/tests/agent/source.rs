//! A daemon that binds memory and sends what the test wants, nonsense included.
#![expect(clippy::unwrap_used, reason = "a test: what fails is to be seen where it fails")]

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use bindery_sys::{memfd, socket};
use bindery_units::{PAGE_BYTES, PageIndex, PageRange};
use bindery_wire::control::{BoundRange, FromDaemon, FromShim, TOKEN_BYTES_MAX};
use bindery_wire::source::{
    FromGuest, FromSource, GuestWord, SLOT_BYTES, SLOT_PAGES, SLOTS, SourceWord, WINDOW_BYTES,
};
use zerocopy::IntoBytes;

use crate::daemon::{Connection, SOON};
use crate::{Meeting, Stop};

const FIRST: u32 = 500;
const PAGES: u32 = 64;

/// The daemon's end.
struct Source {
    socket: OwnedFd,
    window: File,
}

impl Source {
    fn open(connection: &mut Connection, message: &FromDaemon, window_bytes: usize) -> Self {
        let (socket, theirs) = socket::seqpacket_pair().unwrap();
        let window = memfd::create("test-source", window_bytes as u64).unwrap();
        connection.channel.send(message, &[theirs.as_fd(), window.as_fd()], SOON).unwrap();
        Self { socket, window }
    }

    fn bind(meeting: &mut Meeting) -> Self {
        let message = bind(meeting, b"token".to_vec());
        let source = Self::open(&mut meeting.connection, &message, WINDOW_BYTES);
        assert_eq!(source.next(), Some(FromGuest::of(GuestWord::Bound, 0)));
        source
    }

    /// Returns the guest's next frame. `None` at the end of the connection.
    fn next(&self) -> Option<FromGuest> {
        assert!(socket::wait_readable(&self.socket, SOON).unwrap(), "the guest says something");
        let mut bytes = [0; 17];
        match socket::receive(&self.socket, &mut bytes, &mut Vec::new()) {
            Ok(0) | Err(_) => None,
            Ok(count) => Some(FromGuest::read(&bytes[..count]).unwrap()),
        }
    }

    fn send(&self, word: SourceWord, pages: PageRange, slot: u32) {
        let frame = FromSource::about(word, pages, slot);
        socket::send(&self.socket, frame.as_bytes(), &[]).unwrap();
    }

    fn send_pages(&self, pages: PageRange, slot: u32) {
        for (at, page) in pages.pages().enumerate() {
            let bytes = u64::from(page.0).to_ne_bytes().repeat(PAGE_BYTES / 8);
            let offset = slot as usize * SLOT_BYTES + at * PAGE_BYTES;
            self.window.write_all_at(&bytes, offset as u64).unwrap();
        }
        self.send(SourceWord::Pages, pages, slot);
        assert_eq!(self.next(), Some(FromGuest::of(GuestWord::Taken, slot)));
    }
}

fn pages(first: u32, count: u32) -> PageRange {
    PageRange::new(PageIndex(first), count)
}

fn bind(meeting: &Meeting, token: Vec<u8>) -> FromDaemon {
    let address = meeting.bench.region.address;
    let bytes = u64::from(PAGES) * PAGE_BYTES as u64;
    FromDaemon::Bind { ranges: vec![BoundRange { address, bytes, first: PageIndex(FIRST) }], token }
}

fn rebind(token: &[u8]) -> FromDaemon {
    FromDaemon::Rebind { token: token.to_vec() }
}

#[test]
fn bound_memory_is_managed_again_when_all_is_there() {
    let Some(mut meeting) = Meeting::greeted(PAGES as usize, 64) else { return };
    let _stop = Stop(Arc::clone(&meeting.agent));
    meeting.bench.fill(5, 77);
    let source = Source::bind(&mut meeting);
    let gone = meeting.connection.message();
    assert_eq!(gone, FromShim::RegionRemoved(meeting.bench.region.pages));
    assert_eq!(meeting.bench.space.missing_pages(), Some(64));
    // Beyond what is bound on both sides, in vain.
    source.send_pages(pages(FIRST - 4, 8), 0);
    source.send_pages(pages(FIRST + 60, 8), SLOTS - 1);
    source.send_pages(pages(9000, SLOT_PAGES), 2);
    source.send(SourceWord::Zeros, pages(FIRST + 4, 10), 0);
    // What was sent before is not replaced.
    source.send_pages(pages(FIRST + 2, 4), 3);
    std::thread::scope(|scope| {
        scope.spawn(|| assert!(meeting.bench.holds(20, u64::from(FIRST + 20))));
        let fault = FromGuest::about(GuestWord::Fault, pages(FIRST + 20, 1));
        assert_eq!(source.next(), Some(fault));
        assert_eq!(meeting.bench.space.missing_pages(), Some(64 - 4 - 4 - 10));
        source.send_pages(pages(FIRST + 14, 20), 4);
    });
    source.send(SourceWord::Zeros, pages(FIRST + 34, 1000), 0);
    assert_eq!(source.next(), Some(FromGuest::of(GuestWord::Complete, 0)));
    assert_eq!(source.next(), None);
    let again = meeting.connection.added();
    assert_eq!(again.address, meeting.bench.region.address);
    for page in 0..PAGES {
        let is_zero = (4..14).contains(&page) || (34..60).contains(&page);
        let wanted = if is_zero { 0 } else { u64::from(FIRST + page) };
        assert!(meeting.bench.holds(page, wanted), "page {page}");
    }
    assert_eq!(meeting.bench.space.missing_pages(), None);
}

#[test]
fn a_source_that_speaks_nonsense_is_lost_and_nothing_else() {
    let Some(mut meeting) = Meeting::greeted(PAGES as usize, 64) else { return };
    let _stop = Stop(Arc::clone(&meeting.agent));
    let mut source = Source::bind(&mut meeting);
    assert!(matches!(meeting.connection.message(), FromShim::RegionRemoved(_)));
    let frame = |word: u32, first: u32, count: u32, slot: u32| {
        [word, first, count, slot].as_bytes().to_vec()
    };
    let nonsense = [
        vec![1; 15],
        vec![1; 17],
        frame(0, FIRST, 1, 0),
        frame(4, FIRST, 1, 0),
        frame(1, FIRST, 0, 0),
        frame(1, FIRST, SLOT_PAGES + 1, 0),
        frame(1, FIRST, 1, SLOTS),
        frame(1, FIRST, 1, u32::MAX),
        frame(2, u32::MAX, 2, 0),
        frame(3, 2, u32::MAX, 0),
    ];
    for (n, bytes) in nonsense.into_iter().enumerate() {
        source.send_pages(pages(FIRST + n as u32, 1), 0);
        socket::send(&source.socket, &bytes, &[]).unwrap();
        assert_eq!(source.next(), None, "{bytes:?}");
        let missing_pages = u64::from(PAGES) - n as u64 - 1;
        let lost = FromShim::SourceLost { token: b"token".to_vec(), missing_pages };
        assert_eq!(meeting.connection.message(), lost);
        source = Source::open(&mut meeting.connection, &rebind(b"token"), WINDOW_BYTES);
        let lacks = pages(FIRST + n as u32 + 1, missing_pages as u32);
        assert_eq!(source.next(), Some(FromGuest::about(GuestWord::Lacks, lacks)));
        assert_eq!(source.next(), Some(FromGuest::of(GuestWord::Bound, 0)));
    }
    assert!((0..10).all(|page| meeting.bench.holds(page, u64::from(FIRST + page))));
    source.send(SourceWord::Zeros, pages(0, 1 << 30), 0);
    assert_eq!(source.next(), Some(FromGuest::of(GuestWord::Complete, 0)));
}

#[test]
fn what_cannot_be_bound_is_refused_with_a_reason() {
    let Some(mut meeting) = Meeting::greeted(PAGES as usize, 64) else { return };
    let _stop = Stop(Arc::clone(&meeting.agent));
    meeting.bench.fill(5, 77);
    let failed = |errno: i32| Some(FromGuest::of(GuestWord::Failed, errno.unsigned_abs()));
    let none = Source::open(&mut meeting.connection, &rebind(b"token"), WINDOW_BYTES);
    assert_eq!(none.next(), failed(libc::ENOENT));
    let long = bind(&meeting, vec![0; TOKEN_BYTES_MAX + 1]);
    let refused = Source::open(&mut meeting.connection, &long, WINDOW_BYTES);
    assert_eq!(refused.next(), failed(libc::EINVAL));
    let nothing = FromDaemon::Bind { ranges: Vec::new(), token: Vec::new() };
    let refused = Source::open(&mut meeting.connection, &nothing, WINDOW_BYTES);
    assert_eq!(refused.next(), failed(libc::EINVAL));
    let fitting = bind(&meeting, Vec::new());
    let refused = Source::open(&mut meeting.connection, &fitting, WINDOW_BYTES - PAGE_BYTES);
    assert!(matches!(refused.next(), Some(FromGuest { word: GuestWord::Failed, .. })));
    assert!(meeting.bench.holds(5, 77) && meeting.bench.space.missing_pages().is_none());

    let source = Source::bind(&mut meeting);
    assert!(matches!(meeting.connection.message(), FromShim::RegionRemoved(_)));
    let second = Source::open(&mut meeting.connection, &fitting, WINDOW_BYTES);
    assert_eq!(second.next(), failed(libc::EBUSY));
    // It is not lost.
    let other = Source::open(&mut meeting.connection, &rebind(b"token"), WINDOW_BYTES);
    assert_eq!(other.next(), failed(libc::ENOENT));
    // Nothing can be given back before it is there: the guest hangs up, and comes again.
    meeting.connection.channel.send(&FromDaemon::Release, &[], SOON).unwrap();
    assert!(meeting.connection.is_closed());
    source.send(SourceWord::Zeros, pages(FIRST, PAGES), 0);
    assert_eq!(source.next(), Some(FromGuest::of(GuestWord::Complete, 0)));
    assert!(meeting.bench.holds(5, 0));
}
