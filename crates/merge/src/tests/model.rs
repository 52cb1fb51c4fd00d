//! A guest made of a table: it does what a shim does, to pages that are numbers.
//!
//! Between any two requests its "threads" write and discard pages at random. It may stop answering
//! (having done what it was asked, or not), lose its connection, come back as the same process, and
//! end. It compares bytes before it maps a slot, as a shim does, and it checks at every look that a
//! slot which it maps still holds what its page held: that is what must never fail.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use bindery_guest::{
    Connection, Fetched, Gauges, GuestError, Identity, Lane, LaneLease, LanePool, RegionChange,
    RegionTable, Resume, Unmerged,
};
use bindery_page::DigestKey;
use bindery_space::wire::control::{Backing, Region, StoreId};
use bindery_space::wire::lane::{Lost, MergedSpan, PageDigest, PageSpan, Run, outcome};
use bindery_units::{HostAddress, PAGE_BYTES, PageIndex, PageRange, Slot};

use crate::Grant;

/// What a page holds: zero is zero.
pub(crate) type Content = u64;

/// The bytes of a content.
pub(crate) fn bytes_of(content: Content) -> [u8; PAGE_BYTES] {
    let mut page = [0; PAGE_BYTES];
    for (at, word) in page.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        *word = (content.wrapping_mul(at as u64 * 2 + 1)).to_le_bytes();
    }
    page
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Page {
    Absent,
    Private(Content),
    Zero,
    Merged(StoreId, Slot, Content),
}

/// The process: it outlives connections.
pub(crate) struct Process {
    pub(crate) pid: i32,
    pub(crate) instance: u64,
    pub(crate) pages: BTreeMap<u32, Page>,
    written: BTreeMap<u32, ()>,
    lost: VecDeque<Lost>,
    stores: BTreeMap<StoreId, File>,
    key: DigestKey,
    seed: u64,
    pub(crate) ended: bool,
    /// Random writes and discards for each request, out of 256 pages looked at.
    pub(crate) unrest: u32,
    pub(crate) contents: u64,
    pub(crate) busy: bool,
    pub(crate) mappings: u32,
    pub(crate) mappings_max: u32,
    /// After so many requests more the line becomes this.
    pub(crate) fails_in: Option<(u32, Line)>,
    /// Says of every page that it holds this.
    pub(crate) lies: Option<Content>,
    pub(crate) requests: Vec<&'static str>,
}

impl Process {
    fn random(&mut self, below: u64) -> u64 {
        // SplitMix64 (Steele et al., 2014).
        self.seed = self.seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.seed;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ z >> 31) % below
    }

    fn slot_bytes(&self, store: StoreId, slot: Slot) -> [u8; PAGE_BYTES] {
        let mut bytes = [0; PAGE_BYTES];
        let file = &self.stores[&store];
        file.read_exact_at(&mut bytes, slot.offset_bytes()).expect("a slot of the store");
        bytes
    }

    /// What a guest reads at `page`. Panics if that is not what it wrote.
    fn read(&self, page: u32) -> Option<[u8; PAGE_BYTES]> {
        match self.pages.get(&page)? {
            Page::Absent => None,
            Page::Zero => Some([0; PAGE_BYTES]),
            Page::Private(content) => Some(bytes_of(*content)),
            Page::Merged(store, slot, content) => {
                let bytes = self.slot_bytes(*store, *slot);
                assert!(bytes == bytes_of(*content), "page {page} lost its bytes in {slot:?}");
                Some(bytes)
            }
        }
    }

    /// The process ends: nothing is mapped any more.
    pub(crate) fn end(&mut self) {
        self.ended = true;
        self.pages.clear();
        self.written.clear();
    }

    /// Every merged page still reads as what was written to it.
    pub(crate) fn check(&self) {
        for page in self.pages.keys() {
            let _ = self.read(*page);
        }
    }

    fn lose(&mut self, page: u32, cause: u32) {
        if let Some(Page::Merged(store, slot, _)) = self.pages.get(&page) {
            let (store, slot) = (u32::from(store.0), slot.0);
            self.lost.push_back(Lost { page, slot, store, cause });
        }
    }

    pub(crate) fn write(&mut self, page: u32, content: Content) {
        if !self.pages.contains_key(&page) {
            return;
        }
        let _ = self.read(page);
        self.lose(page, 1);
        self.pages.insert(page, Page::Private(content));
        self.written.insert(page, ());
    }

    pub(crate) fn discard(&mut self, page: u32) {
        if self.pages.contains_key(&page) {
            self.lose(page, 2);
            self.pages.insert(page, Page::Absent);
            self.written.remove(&page);
        }
    }

    fn fidget(&mut self) {
        let pages: Vec<u32> = self.pages.keys().copied().collect();
        for _ in 0..self.unrest {
            if pages.is_empty() {
                return;
            }
            let page = pages[self.random(pages.len() as u64) as usize];
            if self.random(8) == 0 {
                self.discard(page);
            } else {
                let content = self.random(self.contents);
                self.write(page, content);
            }
        }
    }

    fn merge_one(&mut self, page: u32, store: StoreId, slot: Option<Slot>) -> u8 {
        let Some(state) = self.pages.get(&page).copied() else { return outcome::NEVER };
        let busy = self.busy && self.random(4) == 0;
        let Some(bytes) = self.read(page).filter(|_| !busy) else { return outcome::BUSY };
        match (state, slot) {
            (Page::Zero, None) => outcome::ALREADY,
            (_, None) if bytes == [0; PAGE_BYTES] => {
                self.pages.insert(page, Page::Zero);
                outcome::MERGED
            }
            (Page::Merged(old, at, _), Some(slot)) if (old, at) == (store, slot) => {
                outcome::ALREADY
            }
            (Page::Private(content) | Page::Merged(_, _, content), Some(slot))
                if bytes == self.slot_bytes(store, slot) =>
            {
                if self.mappings >= self.mappings_max {
                    return outcome::NO_MAPPINGS;
                }
                self.mappings += 1;
                self.pages.insert(page, Page::Merged(store, slot, content));
                self.written.remove(&page);
                outcome::MERGED
            }
            _ => outcome::DIFFERENT,
        }
    }

    /// The first pages of `range` that were written, or that are there, protected from now on.
    fn scan(&mut self, range: PageRange, survey: bool, found: &mut Vec<PageSpan>) -> Resume {
        let wanted = |(page, state): (&u32, &Page)| {
            let own = matches!(state, Page::Private(_));
            (own && (survey || self.written.contains_key(page))).then_some(*page)
        };
        let within = self.pages.range(range.first.0..range.end().0);
        let pages: Vec<u32> = within.filter_map(wanted).collect();
        let runs = pages.chunk_by(|a, b| *b == a + 1);
        *found = runs.map(|run| PageSpan { first: run[0], count: run.len() as u32 }).collect();
        // Windows are small here, so that scans are resumed.
        let resume = found.get(50).map(|span| PageIndex(span.first));
        found.truncate(50);
        for span in found {
            (span.first..span.first + span.count).for_each(|page| {
                self.written.remove(&page);
            });
        }
        resume
    }
}

/// How a connection is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Line {
    #[default]
    Open,
    /// Stops answering; the request may or may not be done.
    Stalled,
    Closed,
}

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
}

impl ModelGuest {
    /// A process with `pages` absent pages and its first connection.
    pub(crate) fn start(id: u32, grant: &Grant, pages: u32, seed: u64) -> Arc<Self> {
        let process = Process {
            pid: 1000 + id as i32,
            instance: u64::from(id),
            pages: BTreeMap::new(),
            written: BTreeMap::new(),
            lost: VecDeque::new(),
            stores: BTreeMap::new(),
            key: DigestKey::from_secret(&grant.digest_key()),
            seed,
            ended: false,
            unrest: 0,
            contents: 40,
            busy: false,
            mappings: 100,
            mappings_max: 1_000_000,
            fails_in: None,
            lies: None,
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

    /// A connection that does not tell yet which regions there are.
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
        inner.stores.insert(store, grant.store().try_clone_to_owned().unwrap().into());
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
        })
    }

    /// Tells which regions there are, if it has not.
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
        process.written.retain(|page, ()| !range.contains(PageIndex(*page)));
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

impl Process {
    fn stores_in_use(&self) -> Vec<StoreId> {
        let merged = self.pages.values().filter_map(|page| match page {
            Page::Merged(store, ..) => Some(*store),
            _ => None,
        });
        let mut stores: Vec<StoreId> = merged.collect();
        stores.sort_unstable();
        stores.dedup();
        stores
    }
}

fn region(first: u32, count: u32) -> Region {
    Region {
        pages: PageRange::new(PageIndex(first), count),
        address: HostAddress(1 << 40),
        backing: Backing::Anonymous,
    }
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
        range: PageRange,
        written: &mut Vec<PageSpan>,
    ) -> Result<Resume, GuestError> {
        self.ask("scan", |process| process.scan(range, false, written))
    }

    fn survey(
        &mut self,
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
                    PageDigest { kind: 1, ..PageDigest::default() }
                }
                Some(bytes) => {
                    let digest = bindery_page::digest(&bytes, &process.key).to_words();
                    PageDigest { kind: 2, digest }
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
        runs: &[Run],
        outcomes: &mut Vec<u8>,
    ) -> Result<(), GuestError> {
        self.ask("merge", |process| {
            outcomes.clear();
            for run in runs {
                for at in 0..run.count {
                    let slot = (run.zero == 0).then(|| Slot(run.slot + at));
                    outcomes.push(process.merge_one(run.page + at, store, slot));
                }
            }
        })
    }

    fn unmerge(&mut self, range: PageRange) -> Result<Unmerged, GuestError> {
        self.ask("unmerge", |process| {
            let mut done = Unmerged::default();
            for page in range.pages() {
                let Some(Page::Merged(_, _, content)) = process.pages.get(&page.0).copied() else {
                    continue;
                };
                if done.pages == 40 {
                    done.resume = Some(page);
                    break;
                }
                let _ = process.read(page.0);
                process.lose(page.0, 3);
                process.pages.insert(page.0, Page::Private(content));
                process.written.insert(page.0, ());
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
