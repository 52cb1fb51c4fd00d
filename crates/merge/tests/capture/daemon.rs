//! A daemon of a test: takes one guest and merges it as fast as it goes.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bindery_guest::{Connection, Guest, Welcome};
use bindery_merge::{Engine, MergeSettings};
use bindery_sys::socket::{accept, listen, receive, wait_readable};

const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Daemon {
    pub(crate) guest: Arc<Guest>,
    engine: Arc<Engine>,
    periods: Option<JoinHandle<()>>,
}

pub(crate) fn listener(socket: &Path) -> OwnedFd {
    listen(socket, 4).unwrap()
}

impl Daemon {
    /// Waits for a guest, and has it merged in periods of `period`.
    pub(crate) fn take(listener: &OwnedFd, period: Duration) -> Self {
        assert!(wait_readable(listener, PATIENCE).unwrap(), "no guest came");
        let stream = accept(listener).unwrap();
        let mut magic = [0; 4];
        assert_eq!(receive(&stream, &mut magic, &mut Vec::new()).unwrap(), 4);
        let arrival = Guest::accept(stream).unwrap();
        let settings = MergeSettings {
            index_keys: 1 << 17,
            period,
            workers: 2,
            backs_off: false,
            ..MergeSettings::default()
        };
        let engine = Arc::new(Engine::new(settings));
        let grant = engine.domain("test").unwrap();
        let (name, domain) = ("captured".to_owned(), "test".to_owned());
        let (digest_key, slots) = (grant.digest_key(), grant.slots());
        let segment_slots = grant.segment_slots();
        let welcome = Welcome { id: 1, name, domain, digest_key, slots, segment_slots };
        let guest = arrival.welcome(welcome).unwrap();
        engine.add_guest(&grant, guest.clone());
        let running = Arc::clone(&engine);
        let periods = Some(std::thread::spawn(move || running.run()));
        Self { guest, engine, periods }
    }

    /// Waits until the guest has regions, and no more came for a while.
    pub(crate) fn wait_regions(&self) {
        let start = Instant::now();
        let (mut pages, mut since) = (0, start);
        while pages == 0 || since.elapsed() < Duration::from_millis(500) {
            assert!(start.elapsed() < PATIENCE, "no region was announced");
            self.guest.wait_events(Duration::from_millis(50)).unwrap();
            let now = self.guest.regions().iter().map(|region| region.pages.count).sum();
            if now != pages {
                (pages, since) = (now, Instant::now());
            }
        }
    }

    /// Returns pages merged now, zero pages, and breaks so far.
    pub(crate) fn counts(&self) -> (u64, u64, u64) {
        let status = self.engine.status();
        let guests = status.domains.iter().flat_map(|domain| &domain.guests);
        guests.fold((0, 0, 0), |(merged, zero, breaks), guest| {
            let counts = &guest.counts;
            (merged + counts.pages_merged, zero + counts.zero_pages, breaks + counts.breaks)
        })
    }

    pub(crate) fn set_idle(&self, is_idle: bool) {
        self.engine.set_idle(is_idle);
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.engine.stop();
        if let Some(periods) = self.periods.take() {
            let _ = periods.join();
        }
    }
}
