//! A daemon for one guest.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bindery_guest::{Connection, Guest, LostSource, Welcome};
use bindery_sys::socket;
use bindery_wire::control::{MAGIC, Offered};

use crate::program::Program;

/// Nothing here takes so long unless it is broken.
pub(crate) const SOON: Duration = Duration::from_secs(30);

pub(crate) struct Daemon {
    pub(crate) guest: Arc<Guest>,
}

impl Daemon {
    /// Takes the program's guest.
    pub(crate) fn accept(program: &Program) -> Self {
        accept(&program.listener)
    }

    /// Ends this daemon. Another takes the guest.
    pub(crate) fn replace(&self, program: &Program) -> Self {
        self.guest.hang_up();
        Self::accept(program)
    }

    fn wait<T>(&self, what: &str, mut found: impl FnMut(&Guest) -> Option<T>) -> T {
        let begun = Instant::now();
        loop {
            if let Some(found) = found(&self.guest) {
                return found;
            }
            assert!(begun.elapsed() < SOON, "no {what}");
            self.guest.wait_events(Duration::from_secs(1)).expect("the guest lives");
        }
    }

    /// Returns what was offered, once there is so much.
    pub(crate) fn offered(&self, count: usize) -> Vec<Offered> {
        self.wait("offers", |guest| Some(guest.offered()).filter(|offered| offered.len() >= count))
    }

    pub(crate) fn wait_offered(&self, count: usize) {
        self.wait("withdrawal", |guest| (guest.offered().len() == count).then_some(()));
    }

    pub(crate) fn lost_source(&self) -> LostSource {
        self.wait("lost source", Guest::lost_source)
    }

    pub(crate) fn wait_for_region(&self) {
        self.wait("region", |guest| (!guest.regions().is_empty()).then_some(()));
    }
}

/// Takes the next guest that calls.
pub(crate) fn accept(listener: &OwnedFd) -> Daemon {
    let arrival = Guest::accept(next(listener)).expect("a shim");
    let welcome = Welcome {
        id: 1,
        name: "restored".into(),
        domain: "test".into(),
        digest_key: [1; 32],
        slots: 64,
        segment_slots: 64,
    };
    Daemon { guest: arrival.welcome(welcome).expect("a guest") }
}

fn next(listener: &OwnedFd) -> OwnedFd {
    assert!(socket::wait_readable(listener, SOON).expect("wait"), "a guest calls");
    let stream = socket::accept(listener).expect("accept");
    assert!(socket::wait_readable(&stream, SOON).expect("wait"));
    let mut magic = [0; 4];
    socket::receive(&stream, &mut magic, &mut Vec::new()).expect("magic");
    assert_eq!(magic, MAGIC);
    stream
}
