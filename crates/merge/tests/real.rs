//! The engine with a real space: this process's own memory, merged by itself over its own sockets.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test: what fails is to be seen where it fails")]

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bindery_guest::{Connection, Guest, Welcome};
use bindery_merge::status::{DomainStatus, GuestStatus};
use bindery_merge::{Engine, MergeSettings};
use bindery_space::Space;
use bindery_space::agent::{Agent, AgentConfig};
use bindery_sys::socket::{accept, listen, receive};
use bindery_units::{HostAddress, PAGE_BYTES};

const PAGES: usize = 16 * 1024;

/// Memory of this process that is managed, and what each page is to hold.
struct Memory {
    bytes: Vec<u8>,
    first: usize,
    contents: Vec<u64>,
}

impl Memory {
    fn new(contents: Vec<u64>) -> Self {
        // Large enough that the allocator maps it for itself, alone.
        let bytes = vec![0; (contents.len() + 512) * PAGE_BYTES];
        let first = bytes.as_ptr().align_offset(2 << 20);
        let mut memory = Self { bytes, first, contents };
        for page in 0..memory.contents.len() {
            memory.write(page, memory.contents[page]);
        }
        memory
    }

    fn page(&mut self, page: usize) -> &mut [u8] {
        &mut self.bytes[self.first + page * PAGE_BYTES..][..PAGE_BYTES]
    }

    fn write(&mut self, page: usize, content: u64) {
        self.contents[page] = content;
        let words = self.page(page).as_chunks_mut::<8>().0;
        words.iter_mut().for_each(|word| *word = content.to_le_bytes());
    }

    fn address(&self) -> HostAddress {
        HostAddress(self.bytes.as_ptr().addr() + self.first)
    }

    fn check(&mut self) {
        for page in 0..self.contents.len() {
            let expected = self.contents[page].to_le_bytes();
            let words = self.page(page).as_chunks::<8>().0;
            assert!(words.iter().all(|word| *word == expected), "page {page}");
        }
    }
}

/// A daemon that knows one guest.
struct Daemon {
    engine: Engine,
    guest: Arc<Guest>,
}

impl Daemon {
    /// Waits for the shim and takes it.
    fn take(listener: &OwnedFd) -> Self {
        let stream = accept(listener).unwrap();
        let mut magic = [0; 4];
        assert_eq!(receive(&stream, &mut magic, &mut Vec::new()).unwrap(), 4);
        let arrival = Guest::accept(stream).unwrap();
        let engine = Engine::new(MergeSettings { index_keys: 1 << 17, ..MergeSettings::default() });
        let grant = engine.domain("test").unwrap();
        let (name, domain) = ("self".to_owned(), "test".to_owned());
        let (digest_key, slots) = (grant.digest_key(), grant.slots());
        let segment_slots = grant.segment_slots();
        let welcome = Welcome { id: 1, name, domain, digest_key, slots, segment_slots };
        let guest = arrival.welcome(welcome).unwrap();
        engine.add_guest(&grant, guest.clone());
        let start = Instant::now();
        while guest.regions().is_empty() {
            assert!(start.elapsed() < Duration::from_secs(20), "no region was announced");
            guest.wait_events(Duration::from_millis(100)).unwrap();
        }
        Self { engine, guest }
    }

    fn periods(&self, count: u32) -> (DomainStatus, GuestStatus) {
        (0..count).for_each(|_| self.engine.run_period());
        let domain = self.engine.status().domains[0].clone();
        let guest = domain.guests[0].clone();
        (domain, guest)
    }
}

/// A third of the pages is zero, a third has duplicates, in the same order several times over, and
/// a third is unique.
fn contents() -> Vec<u64> {
    let content = |page: usize| match page / (PAGES / 3) {
        0 => 0,
        1 => 1 + (page % 1000) as u64,
        _ => 1 << 32 | page as u64,
    };
    (0..PAGES).map(content).collect()
}

#[test]
fn memory_is_merged_breaks_survives_the_daemon_and_is_taken_over() {
    let space = match Space::start() {
        Ok(space) => space,
        Err(error) => return bindery_testkit::skipped!("no space can be managed here: {error}"),
    };
    let mut memory = Memory::new(contents());
    space.manage(memory.address(), PAGES * PAGE_BYTES).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("socket");
    let listener = listen(&socket, 4).unwrap();
    let config = AgentConfig { socket, ..AgentConfig::from_environment() };
    let agent = Agent::start(Arc::clone(&space), config).unwrap();

    let daemon = Daemon::take(&listener);
    let (domain, guest) = daemon.periods(4);
    memory.check();
    let (zeros, duplicates) = (PAGES / 3, PAGES / 3);
    assert_eq!(guest.counts.zero_pages, zeros as u64, "{guest:?}");
    assert_eq!(guest.counts.pages_merged, duplicates as u64, "{guest:?}");
    assert_eq!((domain.pages_shared, domain.pages_sharing), (1000, duplicates as u64 - 1000));
    assert_eq!(domain.store_bytes, 1000 * PAGE_BYTES as u64);
    // The index takes its memory in pieces for 16 Ki contents.
    assert!(domain.metadata_bytes < 32 * PAGES as u64 + (256 << 10), "{domain:?}");
    assert!(domain.general_profit > 0);

    // Merged pages are written to: they part, and come together again after their back-off.
    for page in (zeros..zeros + duplicates).step_by(3) {
        let content = memory.contents[page] % 1000 + 1;
        memory.write(page, content);
    }
    let (_, guest) = daemon.periods(2);
    assert!(guest.counts.breaks >= duplicates as u64 / 3, "{guest:?}");
    memory.check();
    let (domain, guest) = daemon.periods(4);
    memory.check();
    assert_eq!((domain.pages_shared, guest.counts.pages_merged), (1000, duplicates as u64));

    // In steady state no page is read, and nothing is asked but what was lost and written.
    let digested = guest.counts.pages_digested;
    let (_, guest) = daemon.periods(3);
    assert_eq!(guest.counts.pages_digested, digested);

    // The daemon goes; the guest goes on; the next daemon finds everything in another store.
    drop(daemon);
    memory.check();
    memory.write(zeros, 1 << 40);
    let daemon = Daemon::take(&listener);
    assert!(daemon.guest.holds_other_stores());
    let (_, guest) = daemon.periods(1);
    assert!(guest.counts.pages_foreign + guest.counts.pages_merged > 5000, "{guest:?}");
    memory.check();
    let (domain, guest) = daemon.periods(9);
    memory.check();
    assert_eq!(guest.counts.pages_foreign, 0, "{guest:?}");
    assert_eq!((domain.pages_shared, guest.counts.pages_merged), (1000, duplicates as u64 - 1));

    let unmerged = daemon.engine.unmerge(1).unwrap();
    assert_eq!((unmerged.pages, unmerged.left), (duplicates as u64 - 1, 0));
    let (domain, guest) = daemon.periods(2);
    assert_eq!((domain.pages_shared, domain.store_bytes), (0, 0), "{guest:?}");
    memory.check();
    daemon.engine.merge(1).unwrap();
    let (domain, _) = daemon.periods(4);
    assert_eq!(domain.pages_shared, 1000);
    memory.check();
    agent.stop();
    space.release().unwrap();
    memory.check();
}
