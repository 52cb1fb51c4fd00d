//! `bindery unmanage` and guests that take their time to step aside, or cannot. The guest is a shim
//! made of a thread.
#![expect(clippy::unwrap_used, reason = "a test: what fails is to be seen where it fails")]

mod common;
#[path = "common/shim.rs"]
mod shim;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use bindery_sys::socket;
use bindery_units::{HostAddress, PageIndex, PageRange};
use bindery_wire::channel::{Channel, Received};
use bindery_wire::control::{FromDaemon, FromShim, Region};
use bindery_wire::lane::{Answer, Op, Request};
use common::{PATIENCE, TestDaemon};
use zerocopy::{IntoBytes, TryFromBytes};

/// Giving back takes longer than many periods.
const PERIOD: [&str; 2] = ["--period", "10ms"];
const GIVING_BACK: Duration = Duration::from_millis(500);

const PAGES: PageRange = PageRange { first: PageIndex(512), count: 512 };

struct Shim {
    channel: Channel<FromShim, FromDaemon>,
    lanes: Vec<Arc<OwnedFd>>,
}

impl Shim {
    /// Connects as `web`, tells of memory, and is asked about it.
    fn connect(daemon: &TestDaemon) -> Self {
        let channel = shim::welcomed(&daemon.socket(), "web");
        let mut shim = Self { channel, lanes: Vec::new() };
        let address = HostAddress(1 << 40);
        shim.tell(&FromShim::RegionAdded(Region { pages: PAGES, address }));
        let (message, fds) = shim.next();
        assert_eq!(message, FromDaemon::OpenLane);
        shim.serve(fds);
        shim
    }

    fn tell(&mut self, message: &FromShim) {
        self.channel.send(message, &[], PATIENCE).unwrap();
    }

    fn next(&mut self) -> (FromDaemon, Vec<OwnedFd>) {
        match self.channel.receive(PATIENCE).unwrap() {
            Received::Message(message, fds) => (message, fds),
            other => panic!("{other:?}"),
        }
    }

    /// Answers everything about memory that has no page.
    fn serve(&mut self, fds: Vec<OwnedFd>) {
        let lane = Arc::new(fds.into_iter().next().unwrap());
        self.lanes.push(Arc::clone(&lane));
        thread::spawn(move || {
            let mut request = [0; size_of::<Request>()];
            while socket::receive(&lane, &mut request, &mut Vec::new()).unwrap_or(0) > 0 {
                let asked = Request::try_read_from_bytes(&request).unwrap();
                // Of each block that it is not managed.
                let count = if asked.op == Op::Sample { asked.count } else { 0 };
                let answer = Answer { count, ..Answer::default() };
                if socket::send(&lane, answer.as_bytes(), &[]).is_err() {
                    break;
                }
            }
        });
    }

    /// Waits until it is to step aside, ends its lanes as every shim does, and takes its time.
    fn begin_to_step_aside(&mut self) {
        loop {
            match self.next() {
                (FromDaemon::OpenLane, fds) => self.serve(fds),
                (FromDaemon::Release, _) => break,
                other => panic!("{other:?}"),
            }
        }
        for lane in self.lanes.drain(..) {
            socket::shutdown(&lane).unwrap();
        }
        thread::sleep(GIVING_BACK);
    }
}

#[test]
fn it_waits_for_a_guest_that_takes_its_time() {
    let daemon = TestDaemon::start(&PERIOD);
    let mut shim = Shim::connect(&daemon);
    let guest = thread::spawn(move || {
        shim.begin_to_step_aside();
        shim.tell(&FromShim::RegionRemoved(PAGES));
        shim.tell(&FromShim::Released);
    });
    let begun = Instant::now();
    let ended = daemon.ask(&["unmanage", "web"]);
    assert_eq!(ended.code, Some(0), "{}\n{}", ended.err, daemon.log());
    assert!(begun.elapsed() >= GIVING_BACK);
    let guests = daemon.ask(&["ps", "--json"]).json();
    assert!(guests.as_array().unwrap().is_empty(), "{guests}");
    guest.join().unwrap();
}

#[test]
fn it_says_so_when_a_guest_could_not() {
    let daemon = TestDaemon::start(&PERIOD);
    let mut shim = Shim::connect(&daemon);
    let guest = thread::spawn(move || {
        shim.begin_to_step_aside();
        drop(shim);
    });
    let ended = daemon.ask(&["unmanage", "web"]);
    assert_ne!(ended.code, Some(0), "{}", daemon.log());
    assert!(ended.err.contains("could not step aside"), "{}", ended.err);
    guest.join().unwrap();
}
