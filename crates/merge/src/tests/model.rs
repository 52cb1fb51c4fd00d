//! A model guest: a process behind a connection that may stop answering (having done what it was
//! asked, or not), fail, and come back.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use bindery_guest::{
    Connection, Fetched, Gauges, GuestError, Identity, Lane, LaneLease, LanePool, RegionChange,
    RegionTable, Resume, Segment, Unmerged, Written,
};
use bindery_page::DigestKey;
use bindery_units::{HostAddress, PAGE_BYTES, PageIndex, PageRange, Slot};
use bindery_wire::control::{Region, StoreId};
use bindery_wire::lane::{
    BlockOutcome, BlockSample, DigestKind, LossCause, Lost, MergedSpan, PageDigest, PageOutcome,
    PageSpan, Reach, Run, RunTarget, SEGMENTS_MAX,
};

use super::process::{Line, Page, Process, Views, bytes_of};
use crate::Grant;

/// A connection of a process.
pub(crate) struct ModelGuest {
    identity: Identity,
    store: StoreId,
    holds_other_stores: bool,
    pub(crate) process: Arc<Mutex<Process>>,
    regions: Mutex<RegionTable>,
    announced: AtomicBool,
    line: Arc<Mutex<Line>>,
    lanes: LanePool,
    written: Written,
}

impl ModelGuest {
    /// A process with `pages` absent pages and its first connection.
    pub(crate) fn start(id: u32, grant: &Grant, pages: u32, seed: u64) -> Arc<Self> {
        let process = Process {
            pid: 1000 + id as i32,
            instance: u64::from(id),
            pages: BTreeMap::new(),
            written: BTreeSet::new(),
            lost: VecDeque::new(),
            stores: BTreeMap::new(),
            key: DigestKey::from_secret(&grant.digest_key()),
            seed,
            ended: false,
            heirs: Vec::new(),
            unrest: 0,
            contents: 40,
            busy: false,
            mappings: 100,
            mappings_max: 1_000_000,
            fails_in: None,
            split: BTreeSet::new(),
            has_huge_pages: false,
            lies: None,
            crawls: None,
            requests: Vec::new(),
        };
        let guest = Self::connect(id, grant, &Arc::new(Mutex::new(process)));
        guest.add_region(0, pages);
        guest
    }

    /// A new connection of a process, to this or another daemon.
    pub(crate) fn connect(id: u32, grant: &Grant, process: &Arc<Mutex<Process>>) -> Arc<Self> {
        let guest = Self::connect_silently(id, grant, process);
        guest.announce();
        guest
    }

    /// A connection that does not report yet which regions there are.
    pub(crate) fn connect_silently(
        id: u32,
        grant: &Grant,
        process: &Arc<Mutex<Process>>,
    ) -> Arc<Self> {
        let mut inner = process.lock().unwrap();
        inner.key = DigestKey::from_secret(&grant.digest_key());
        let in_use: Vec<StoreId> = inner.stores_in_use();
        inner.stores.retain(|store, _| in_use.contains(store));
        let store = (1..).map(StoreId).find(|store| !in_use.contains(store)).unwrap();
        let segment_slots = grant.segment_slots();
        inner.stores.insert(store, Views { segment_slots, files: BTreeMap::new() });
        // A shim reports what it lost to the daemon that asks next, or not at all if the store is
        // no longer in use: entries of the model are kept, the engine has to see through them.
        let identity = Identity {
            id,
            name: format!("guest-{id}"),
            domain: grant.name().to_owned(),
            uid: 0,
            pid: inner.pid,
            command: "model".into(),
            instance: inner.instance,
        };
        drop(inner);
        Arc::new(Self {
            identity,
            store,
            holds_other_stores: !in_use.is_empty(),
            process: Arc::clone(process),
            regions: Mutex::default(),
            announced: AtomicBool::new(false),
            line: Arc::default(),
            lanes: LanePool::default(),
            written: Written::default(),
        })
    }

    /// Reports which regions there are, if it has not.
    pub(crate) fn announce(&self) {
        let pages: Vec<u32> = self.process().pages.keys().copied().collect();
        let mut regions = self.regions.lock().unwrap();
        if !self.announced.swap(true, Ordering::Relaxed) {
            for run in pages.chunk_by(|a, b| *b == a + 1) {
                regions.add(region(run[0], run.len() as u32)).unwrap();
            }
        }
    }

    pub(crate) fn process(&self) -> MutexGuard<'_, Process> {
        self.process.lock().unwrap()
    }

    pub(crate) fn set_line(&self, line: Line) {
        *self.line.lock().unwrap() = line;
    }

    pub(crate) fn line(&self) -> Line {
        *self.line.lock().unwrap()
    }

    pub(crate) fn add_region(&self, first: u32, count: u32) {
        let announced = self.announced.load(Ordering::Relaxed);
        let taken = self.process().pages.range(first..first + count).next().is_some();
        if !taken && (!announced || self.regions.lock().unwrap().add(region(first, count)).is_ok())
        {
            self.process().pages.extend((first..first + count).map(|page| (page, Page::Absent)));
        }
    }

    pub(crate) fn remove_region(&self, first: u32, count: u32) {
        let range = PageRange::new(PageIndex(first), count);
        if self.announced.load(Ordering::Relaxed) {
            self.regions.lock().unwrap().remove(range).unwrap();
        }
        let mut process = self.process();
        process.pages.retain(|page, _| !range.contains(PageIndex(*page)));
        process.written.retain(|page| !range.contains(PageIndex(*page)));
    }

    /// Pages that are merged with this connection's store.
    pub(crate) fn merged(&self) -> BTreeMap<u32, Slot> {
        let process = self.process();
        let merged = process.pages.iter().filter_map(|(page, state)| match state {
            Page::Merged(store, slot, _) if *store == self.store => Some((*page, *slot)),
            _ => None,
        });
        merged.collect()
    }

    /// Whether a loss of `page` waits to be asked for.
    pub(crate) fn has_lost(&self, page: u32, slot: Slot) -> bool {
        let process = self.process();
        process.lost.iter().any(|lost| lost.page == page && lost.slot == slot.0)
    }
}

fn region(first: u32, count: u32) -> Region {
    Region { pages: PageRange::new(PageIndex(first), count), address: HostAddress(1 << 40) }
}

impl Connection for ModelGuest {
    fn identity(&self) -> &Identity {
        &self.identity
    }

    fn store(&self) -> StoreId {
        self.store
    }

    fn holds_other_stores(&self) -> bool {
        self.holds_other_stores
    }

    fn regions(&self) -> Vec<Region> {
        self.regions.lock().unwrap().regions()
    }

    fn changes(&self) -> Result<Vec<RegionChange>, GuestError> {
        if self.line() == Line::Closed || self.process().ended {
            return Err(GuestError::Gone);
        }
        Ok(self.regions.lock().unwrap().take_changes())
    }

    fn lane(&self) -> Result<LaneLease<'_>, GuestError> {
        let (process, line) = (Arc::clone(&self.process), Arc::clone(&self.line));
        self.lanes.lease(|| Ok(Box::new(ModelLane { process, line, owes: false })))
    }

    fn written(&self) -> &Written {
        &self.written
    }

    fn rest(&self) {
        self.lanes.rest();
    }

    fn settle(&self) -> Result<bool, GuestError> {
        self.lanes.settle()
    }

    fn close(&self) {
        self.set_line(Line::Closed);
    }

    fn has_released(&self) -> bool {
        false
    }

    fn has_ended(&self) -> bool {
        self.process().ended
    }
}

struct ModelLane {
    process: Arc<Mutex<Process>>,
    line: Arc<Mutex<Line>>,
    owes: bool,
}

impl ModelLane {
    /// How the line is for the next request.
    fn line_now(&self, process: &mut Process) -> Line {
        let mut line = self.line.lock().unwrap();
        match process.fails_in.take() {
            Some((0, failure)) => *line = failure,
            Some((requests, failure)) => process.fails_in = Some((requests - 1, failure)),
            None => {}
        }
        *line
    }

    /// Does `work` as the guest does: with unrest around it, and an answer only on an open line.
    fn ask<T>(
        &mut self,
        request: &'static str,
        work: impl FnOnce(&mut Process) -> T,
    ) -> Result<T, GuestError> {
        let mut process = self.process.lock().unwrap();
        let patience = bindery_guest::ANSWER_PATIENCE;
        if process.ended || *self.line.lock().unwrap() == Line::Closed {
            return Err(GuestError::Gone);
        }
        if self.owes {
            return Err(GuestError::Stalled { request, patience });
        }
        process.requests.push(request);
        process.fidget();
        let line = self.line_now(&mut process);
        if line != Line::Open {
            // A stopped guest goes on with what it was asked when it runs again, or had done it.
            if process.random(2) == 0 {
                work(&mut process);
            }
            self.owes = line == Line::Stalled;
            return Err(match line {
                Line::Stalled => GuestError::Stalled { request, patience },
                _ => GuestError::Gone,
            });
        }
        let answer = work(&mut process);
        process.fidget();
        Ok(answer)
    }
}

impl Lane for ModelLane {
    fn scan(
        &mut self,
        _: Reach,
        range: PageRange,
        written: &mut Vec<PageSpan>,
    ) -> Result<Resume, GuestError> {
        self.ask("scan", |process| process.scan(range, false, written))
    }

    fn survey(
        &mut self,
        _: Reach,
        range: PageRange,
        present: &mut Vec<PageSpan>,
    ) -> Result<Resume, GuestError> {
        self.ask("survey", |process| process.scan(range, true, present))
    }

    fn lost(&mut self, lost: &mut Vec<Lost>) -> Result<bool, GuestError> {
        self.ask("lost", |process| {
            let some = process.lost.len().min(30);
            *lost = process.lost.drain(..some).collect();
            !process.lost.is_empty()
        })
    }

    fn digest(&mut self, pages: &[u32], digests: &mut Vec<PageDigest>) -> Result<(), GuestError> {
        self.ask("digest", |process| {
            let read = |page| {
                let truth = process.read(page)?;
                Some(process.lies.map_or(truth, bytes_of))
            };
            let digest = |page: &u32| match read(*page) {
                None => PageDigest::default(),
                Some(bytes) if bytes == [0; PAGE_BYTES] => {
                    PageDigest { kind: DigestKind::Zeros, ..PageDigest::default() }
                }
                Some(bytes) => {
                    let digest = bindery_page::digest(&bytes, &process.key).to_words();
                    PageDigest { kind: DigestKind::Content, digest }
                }
            };
            *digests = pages.iter().map(digest).collect();
        })
    }

    fn fetch(&mut self, pages: &[u32], fetched: &mut Fetched) -> Result<(), GuestError> {
        self.ask("fetch", |process| {
            fetched.reset(pages.len());
            for (at, page) in pages.iter().enumerate() {
                if let Some(bytes) = process.read(*page) {
                    fetched.put(at, &bytes);
                }
            }
        })
    }

    fn merge(
        &mut self,
        store: StoreId,
        segments: &[Segment<'_>],
        runs: &[Run],
        outcomes: &mut Vec<PageOutcome>,
    ) -> Result<(), GuestError> {
        assert!(segments.len() <= SEGMENTS_MAX && segments.is_sorted_by(|a, b| a.0 < b.0));
        self.ask("merge", |process| {
            process.take_segments(store, segments);
            outcomes.clear();
            for run in runs {
                process.mappings += if run.target == RunTarget::Slots { 2 } else { 0 };
                for at in 0..run.count {
                    let slot = (run.target == RunTarget::Slots).then(|| Slot(run.slot + at));
                    outcomes.push(process.merge_one(run.page + at, store, slot));
                }
            }
        })
    }

    fn unmerge(&mut self, range: PageRange) -> Result<Unmerged, GuestError> {
        self.ask("unmerge", |process| {
            let mut done = Unmerged { resume: process.crawl(range), ..Unmerged::default() };
            if done.resume.is_some() {
                return done;
            }
            for page in range.pages() {
                let Some(Page::Merged(_, _, content)) = process.pages.get(&page.0).copied() else {
                    continue;
                };
                if done.pages == 40 {
                    done.resume = Some(page);
                    break;
                }
                let _ = process.read(page.0);
                process.lose(page.0, LossCause::Unmerge);
                process.pages.insert(page.0, Page::Private(content));
                process.written.insert(page.0);
                done.pages += 1;
            }
            done
        })
    }

    fn report(
        &mut self,
        range: PageRange,
        merged: &mut Vec<MergedSpan>,
    ) -> Result<Resume, GuestError> {
        self.ask("report", |process| {
            merged.clear();
            for (page, state) in process.pages.range(range.first.0..range.end().0) {
                let Page::Merged(store, slot, _) = state else { continue };
                if merged.len() == 60 {
                    return Some(PageIndex(*page));
                }
                let (store, slot) = (u32::from(store.0), slot.0);
                merged.push(MergedSpan { page: *page, count: 1, slot, store });
            }
            None
        })
    }

    fn mend(&mut self, _range: PageRange) -> Result<u32, GuestError> {
        self.ask("mend", |_| 0)
    }

    fn sample(&mut self, blocks: &[u32], samples: &mut Vec<BlockSample>) -> Result<(), GuestError> {
        self.ask("sample", |process| {
            *samples = blocks.iter().map(|first| process.sample(*first)).collect();
        })
    }

    fn split(
        &mut self,
        blocks: &[u32],
        outcomes: &mut Vec<BlockOutcome>,
    ) -> Result<(), GuestError> {
        self.ask("split", |process| {
            blocks.iter().for_each(|first| process.split(*first));
            *outcomes = vec![BlockOutcome::Split; blocks.len()];
        })
    }

    fn collapse(
        &mut self,
        blocks: &[u32],
        outcomes: &mut Vec<BlockOutcome>,
    ) -> Result<(), GuestError> {
        self.ask("collapse", |process| {
            // Some at a time.
            let some = blocks.iter().take(3);
            *outcomes = some.map(|first| process.collapse(*first)).collect();
        })
    }

    fn gauges(&mut self) -> Gauges {
        let process = self.process.lock().unwrap();
        let (mappings, mappings_max) = (process.mappings, process.mappings_max);
        Gauges { mappings, mappings_max, lane_cpu_ns: 1000, ..Gauges::default() }
    }

    fn owes(&self) -> bool {
        self.owes
    }

    fn settle(&mut self) -> Result<bool, GuestError> {
        match *self.line.lock().unwrap() {
            Line::Closed => Err(GuestError::Gone),
            Line::Stalled => Ok(!self.owes),
            Line::Open => {
                self.owes = false;
                Ok(true)
            }
        }
    }
}
