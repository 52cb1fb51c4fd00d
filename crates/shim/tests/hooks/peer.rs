//! A daemon for one guest, which merges all of the little VMM's pages.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bindery_guest::{Arrival, Connection, Fetched, Guest, GuestError, Lane, Welcome};
use bindery_sys::{memfd, socket};
use bindery_units::PAGE_BYTES;
use bindery_wire::control::{MAGIC, Region, STORE_NAME};
use bindery_wire::lane::{
    BLOCK_PAGES, BlockOutcome, FETCH_PAGES_MAX, PageOutcome, PageSpan, Reach, Run, RunTarget,
};

/// Nothing here takes so long unless it is broken.
pub(crate) const SOON: Duration = Duration::from_secs(20);

/// Pages that the little VMM fills, and with how many different words: 1, 2, …
const FILLED: u32 = 256;
pub(crate) const KINDS: u32 = 8;

pub(crate) struct Peer {
    listener: OwnedFd,
    store: File,
}

impl Peer {
    pub(crate) fn listen(path: &Path) -> Self {
        let bytes = u64::from(KINDS) * PAGE_BYTES as u64;
        let store = memfd::create(STORE_NAME, bytes).expect("memfd");
        for slot in 0..KINDS {
            let page = u64::from(slot + 1).to_ne_bytes().repeat(PAGE_BYTES / 8);
            let offset = u64::from(slot) * PAGE_BYTES as u64;
            store.write_all_at(&page, offset).expect("the store holds a page");
        }
        Self { listener: socket::listen(path, 1).expect("listen"), store }
    }

    /// The only segment of the store, for reading.
    pub(crate) fn segment(&self) -> File {
        memfd::reopen_read_only(&self.store).expect("reopen")
    }

    /// The next guest that calls, not taken yet.
    pub(crate) fn arrival(&self) -> Arrival {
        assert!(socket::wait_readable(&self.listener, SOON).expect("wait"), "a guest calls");
        let stream = socket::accept(&self.listener).expect("accept");
        assert!(socket::wait_readable(&stream, SOON).expect("wait"));
        let mut magic = [0; 4];
        socket::receive(&stream, &mut magic, &mut Vec::new()).expect("magic");
        assert_eq!(magic, MAGIC);
        Guest::accept(stream).expect("a shim")
    }

    /// The next guest that calls.
    pub(crate) fn accept(&self) -> Arc<Guest> {
        let arrival = self.arrival();
        let welcome = Welcome {
            id: 1,
            name: arrival.name.clone().expect("BINDERY_NAME"),
            domain: "test".into(),
            digest_key: [1; 32],
            slots: KINDS,
            segment_slots: KINDS,
        };
        arrival.welcome(welcome).expect("a guest")
    }
}

/// The guest's only region, once it is told.
pub(crate) fn region(guest: &Guest) -> Region {
    wait_until(guest, |regions| !regions.is_empty());
    guest.regions()[0]
}

/// Waits until the guest's regions are as `wanted`.
pub(crate) fn wait_until(guest: &Guest, wanted: impl Fn(&[Region]) -> bool) {
    let begun = Instant::now();
    while !wanted(&guest.regions()) {
        assert!(begun.elapsed() < SOON, "regions stay {:?}", guest.regions());
        guest.wait_events(SOON).expect("the guest lives");
    }
}

/// Merges whatever the guest has, as soon as it was written, until it ends. Returns how many pages it
/// merged and how many it was told of as lost.
pub(crate) fn merge_until_gone(guest: &Guest, store: &File) -> (usize, usize) {
    let (mut merged, mut told) = (0, 0);
    loop {
        match merge_round(guest, store) {
            Ok((more_merged, more_told)) => {
                merged += more_merged;
                told += more_told;
            }
            Err(GuestError::Gone) => return (merged, told),
            // The machine is busy; a lane that owes an answer is not used until it has given it.
            Err(GuestError::Stalled { .. }) => std::thread::sleep(Duration::from_millis(50)),
            Err(error) => panic!("{error}"),
        }
    }
}

fn merge_round(guest: &Guest, store: &File) -> Result<(usize, usize), GuestError> {
    guest.changes()?;
    let mut lane = guest.lane()?;
    let (mut merged, mut told) = (0, 0);
    let mut lost = Vec::new();
    while lane.lost(&mut lost)? {
        told += lost.len();
    }
    told += lost.len();
    for region in guest.regions() {
        split(&mut *lane, region)?;
        let mut written = Vec::new();
        lane.scan(Reach::Split, region.pages, &mut written)?;
        let pages: Vec<u32> =
            written.iter().flat_map(|span| span.first..span.first + span.count).collect();
        for pages in pages.chunks(FETCH_PAGES_MAX) {
            let mut fetched = Fetched::default();
            lane.fetch(pages, &mut fetched)?;
            let runs: Vec<Run> = pages
                .iter()
                .enumerate()
                .filter_map(|(at, &page)| Some((page, fetched.page(at)?)))
                .map(|(page, bytes)| run_for(page, bytes[0].into()))
                .collect();
            let mut outcomes = Vec::new();
            lane.merge(guest.store(), &[(0, store.as_fd())], &runs, &mut outcomes)?;
            merged += outcomes.iter().filter(|&&page| page == PageOutcome::Merged).count();
        }
    }
    Ok((merged, told))
}

/// Splits all blocks of a region, so that every page is watched.
fn split(lane: &mut dyn Lane, region: Region) -> Result<(), GuestError> {
    let pages = region.pages;
    let numbers = pages.first.0 / BLOCK_PAGES..pages.end().0.div_ceil(BLOCK_PAGES);
    let blocks: Vec<u32> = numbers.map(|number| number * BLOCK_PAGES).collect();
    let mut outcomes = Vec::new();
    lane.split(&blocks, &mut outcomes)?;
    assert!(!outcomes.contains(&BlockOutcome::Stuck), "blocks can be split");
    Ok(())
}

/// How a page that seems to be full of `word` is merged.
fn run_for(page: u32, word: u32) -> Run {
    match word {
        1..=KINDS => Run { page, count: 1, slot: word - 1, target: RunTarget::Slots },
        _ => Run { page, count: 1, slot: 0, target: RunTarget::Zeros },
    }
}

/// Merges every page that the little VMM filled.
pub(crate) fn merge_all(guest: &Guest, store: &File) {
    let region = region(guest);
    let mut lane = guest.lane().expect("a lane");
    let mut written: Vec<PageSpan> = Vec::new();
    split(&mut *lane, region).expect("split");
    // A page that is on its way to another frame is found by a later scan.
    let deadline = Instant::now() + SOON;
    let mut pages = 0;
    while pages < FILLED && Instant::now() < deadline {
        written.clear();
        lane.scan(Reach::Split, region.pages, &mut written).expect("scan");
        pages += written.iter().map(|span| span.count).sum::<u32>();
    }
    assert_eq!(pages, FILLED, "the pages that were written are those that were filled");
    let run = |first| Run {
        page: region.pages.first.0 + first,
        count: KINDS,
        slot: 0,
        target: RunTarget::Slots,
    };
    let runs: Vec<Run> = (0..FILLED).step_by(KINDS as usize).map(run).collect();
    let mut outcomes = Vec::new();
    let segments = [(0, store.as_fd())];
    lane.merge(guest.store(), &segments, &runs, &mut outcomes).expect("merge");
    let merged = outcomes.iter().filter(|&&page| page == PageOutcome::Merged).count();
    assert_eq!(merged, FILLED as usize, "{outcomes:?}");
}
