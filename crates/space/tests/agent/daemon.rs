//! A tiny daemon: the other end of the agent's protocol, saying exactly what a test wants said.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bindery_sys::{memfd, socket};
use bindery_units::PAGE_BYTES;
use bindery_wire::array::ArrayReader;
use bindery_wire::channel::{Channel, Received};
use bindery_wire::control::{FromDaemon, FromShim, MAGIC, Region, StoreId};
use bindery_wire::lane::{
    ANSWER_OFFSET, Answer, Op, Request, Run, SEGMENTS_OFFSET, Status, WINDOW_BYTES,
};
use zerocopy::{Immutable, IntoBytes, KnownLayout, TryFromBytes};

/// Nothing here takes so long unless it is broken.
pub(crate) const SOON: Duration = Duration::from_secs(20);

/// Every domain's secret, in these tests.
pub(crate) const SECRET: [u8; 32] = [7; 32];

/// Listens where the agent looks.
pub(crate) struct Daemon {
    path: PathBuf,
    listener: OwnedFd,
}

/// One agent's connection.
pub(crate) struct Connection {
    pub(crate) channel: Channel<FromDaemon, FromShim>,
    pub(crate) hello: FromShim,
}

/// The daemon's end of a lane.
pub(crate) struct Lane {
    pub(crate) socket: OwnedFd,
    pub(crate) window: File,
}

impl Daemon {
    pub(crate) fn listen(path: &Path) -> Self {
        Self { path: path.into(), listener: socket::listen(path, 8).expect("listen") }
    }

    /// The next agent that says Hello.
    pub(crate) fn accept(&self) -> Connection {
        assert!(socket::wait_readable(&self.listener, SOON).expect("wait"), "an agent connects");
        let stream = socket::accept(&self.listener).expect("accept");
        assert!(socket::wait_readable(&stream, SOON).expect("wait"));
        let mut magic = [0; 4];
        assert_eq!(socket::receive(&stream, &mut magic, &mut Vec::new()).expect("magic"), 4);
        assert_eq!(magic, MAGIC);
        let mut channel = Channel::new(stream);
        let hello = message(&mut channel);
        Connection { channel, hello }
    }

    /// Whether an agent connects within `patience`.
    pub(crate) fn is_called(&self, patience: Duration) -> bool {
        socket::wait_readable(&self.listener, patience).expect("wait")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        std::fs::remove_file(&self.path).expect("the socket is there");
    }
}

fn message(channel: &mut Channel<FromDaemon, FromShim>) -> FromShim {
    match channel.receive(SOON).expect("a message") {
        Received::Message(message, _) => message,
        other => panic!("{other:?} instead of a message"),
    }
}

impl Connection {
    /// Takes the guest, with a store `id` whose only segment is `store`.
    pub(crate) fn welcome(&mut self, id: StoreId, store: &File) {
        let slots = (store.metadata().expect("store").len() / PAGE_BYTES as u64) as u32;
        let (guest, digest_key, store, segment_slots) = (1, SECRET, id, slots);
        let welcome = FromDaemon::Welcome { guest, digest_key, store, slots, segment_slots };
        self.channel.send(&welcome, &[], SOON).expect("welcome");
    }

    /// Opens a lane that serves requests already: the agent has its descriptors, and takes no more.
    pub(crate) fn open_serving_lane(&mut self) -> Lane {
        let lane = self.open_lane();
        let answer = lane.ask::<u8>(Request::of(Op::Lost), &[]);
        assert_eq!(answer.status, Status::Done);
        lane
    }

    /// Opens a lane, which the agent takes some time later.
    pub(crate) fn open_lane(&mut self) -> Lane {
        let (socket, theirs) = socket::seqpacket_pair().expect("pair");
        let window = memfd::create("test-lane", WINDOW_BYTES as u64).expect("window");
        let fds = [theirs.as_fd(), window.as_fd()];
        self.channel.send(&FromDaemon::OpenLane, &fds, SOON).expect("open");
        Lane { socket, window }
    }

    /// The next message.
    pub(crate) fn message(&mut self) -> FromShim {
        message(&mut self.channel)
    }

    /// The next message, which is to be a region.
    pub(crate) fn added(&mut self) -> Region {
        match self.message() {
            FromShim::RegionAdded(region) => region,
            other => panic!("{other:?} instead of a region"),
        }
    }

    /// Whether the agent hangs up.
    pub(crate) fn is_closed(&mut self) -> bool {
        loop {
            match self.channel.receive(SOON) {
                Ok(Received::Closed) | Err(_) => return true,
                Ok(Received::Nothing) => return false,
                Ok(Received::Message(..)) => {}
            }
        }
    }
}

impl Lane {
    /// The answer to a request with an array of `elements`.
    pub(crate) fn ask<T: IntoBytes + Immutable>(&self, request: Request, array: &[T]) -> Answer {
        self.window.write_all_at(array.as_bytes(), 0).expect("window");
        self.ask_raw(request.as_bytes()).expect("the lane answers")
    }

    /// The answer to a request to merge runs with slots of the segments given.
    pub(crate) fn ask_to_merge(
        &self,
        store: u32,
        runs: &[Run],
        segments: &[(u32, &File)],
    ) -> Answer {
        let numbers: Vec<u32> = segments.iter().map(|(number, _)| *number).collect();
        let (count, of) = (runs.len() as u32, segments.len() as u32);
        let request = Request { store, count, segments: of, ..Request::of(Op::Merge) };
        self.window.write_all_at(runs.as_bytes(), 0).expect("window");
        self.window.write_all_at(numbers.as_bytes(), SEGMENTS_OFFSET as u64).expect("window");
        let files: Vec<File> = segments
            .iter()
            .map(|(_, file)| memfd::reopen_read_only(file).expect("reopen"))
            .collect();
        let fds: Vec<BorrowedFd<'_>> = files.iter().map(AsFd::as_fd).collect();
        self.ask_with(request.as_bytes(), &fds).expect("the lane answers")
    }

    /// The answer to any bytes; nothing if the lane ends instead.
    pub(crate) fn ask_raw(&self, bytes: &[u8]) -> Option<Answer> {
        self.ask_with(bytes, &[])
    }

    /// The same with descriptors.
    pub(crate) fn ask_with(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Option<Answer> {
        socket::send(&self.socket, bytes, fds).ok()?;
        assert!(socket::wait_readable(&self.socket, SOON).expect("wait"), "a lane answers or ends");
        let mut answer = [0; size_of::<Answer>()];
        match socket::receive(&self.socket, &mut answer, &mut Vec::new()) {
            Ok(64) => Some(Answer::try_read_from_bytes(&answer).expect("an answer")),
            Ok(0) | Err(_) => None,
            Ok(bytes) => panic!("an answer of {bytes} bytes"),
        }
    }

    /// Elements of the answer's array, `offset` bytes into it.
    pub(crate) fn array<T>(&self, offset: usize, count: u32) -> Vec<T>
    where
        T: TryFromBytes + KnownLayout + Immutable + Copy,
    {
        let (mut reader, mut array) = (ArrayReader::default(), Vec::new());
        let at = ANSWER_OFFSET + offset;
        reader.read(&self.window, at, count as usize, &mut array).expect("an array");
        array
    }
}
