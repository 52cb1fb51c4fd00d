//! A guest without a VMM: writers and devices that write pages, and a kernel that notes which, as the real ones do.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime};

use bindery_transfer::{BlockPages, Changed, Memory, MemoryError, PauseKind, Sink, SinkError};
use bindery_units::{PAGE_BYTES, PageIndex, PageRange};
use bindery_vmm::{
    DeviceState, GuestDescription, Overlay, Pause, Purpose, SaveMethod, Vmm, VmmError,
};

/// Pages of each block. The last one is tracked by nobody.
pub(crate) const BLOCKS: [u32; 3] = [700, 90, 5];

const UNTRACKED: usize = 2;

type Page = (usize, u32);

/// Content of a page: a word everywhere. None of an absent page.
type Words = BTreeMap<Page, u64>;

/// Knowledge of the guest's process and its kernel.
#[derive(Default)]
struct State {
    words: Words,
    /// Written since they were protected.
    written: BTreeSet<Page>,
    /// Told by scans and not taken yet.
    changed: BTreeSet<Page>,
    taken: Vec<Page>,
    /// Pages that a device reads into, with what comes: they are marked when that begins, and no more.
    in_flight: Vec<(Page, u64)>,
    is_paused: bool,
    next_word: u64,
}

/// Fails at one call, counted from 1.
#[derive(Default)]
pub(crate) struct Faults {
    calls: AtomicUsize,
    at: AtomicUsize,
}

impl Faults {
    /// Fails at the `at`-th call from now on; never at 0.
    pub(crate) fn arm(&self, at: usize) {
        self.calls.store(0, Ordering::SeqCst);
        self.at.store(at, Ordering::SeqCst);
    }

    fn check(&self, what: &str) -> Result<(), String> {
        let call = self.calls.fetch_add(1, Ordering::SeqCst) + 1;
        if call == self.at.load(Ordering::SeqCst) {
            return Err(format!("{what} was told to fail"));
        }
        Ok(())
    }

    /// Returns true if the call that was to fail came.
    pub(crate) fn came(&self) -> bool {
        self.calls.load(Ordering::SeqCst) >= self.at.load(Ordering::SeqCst)
    }
}

pub(crate) struct Played {
    state: Mutex<State>,
    pub(crate) faults: Faults,
    ends: AtomicBool,
    /// Steps of all threads between two looks at the pause.
    pub(crate) slow_reads: AtomicBool,
}

impl Played {
    /// A guest with something in a part of its pages, and with as many writers.
    pub(crate) fn start(writers: u64, seed: u64) -> (Arc<Self>, Vec<JoinHandle<()>>) {
        let mut state = State { next_word: 1, ..State::default() };
        let mut random = Random(seed);
        for _ in 0..400 {
            let page = random.page();
            state.write(page);
        }
        let played = Arc::new(Self {
            state: Mutex::new(state),
            faults: Faults::default(),
            ends: AtomicBool::new(false),
            slow_reads: AtomicBool::new(false),
        });
        let write = |number| {
            let played = Arc::clone(&played);
            thread::spawn(move || played.write_on(Random(seed ^ number << 32)))
        };
        let threads = (1..=writers).map(write).collect();
        (played, threads)
    }

    pub(crate) fn end(&self, threads: Vec<JoinHandle<()>>) {
        self.ends.store(true, Ordering::SeqCst);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes, discards, has a device write, and has somebody scan the running guest, until the end.
    fn write_on(&self, mut random: Random) {
        while !self.ends.load(Ordering::SeqCst) {
            for _ in 0..20 {
                self.step(&mut random);
            }
            thread::sleep(Duration::from_micros(200));
        }
    }

    fn step(&self, random: &mut Random) {
        let mut state = self.state();
        if state.is_paused {
            return;
        }
        let page = random.page();
        match random.below(20) {
            0 => state.discard(page),
            1 => state.begin_read(page),
            2 | 3 => state.end_read(),
            4 => state.scan(),
            _ => state.write(page),
        }
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.state().is_paused
    }

    /// Lets a guest run that nobody could resume.
    pub(crate) fn rescue(&self) {
        self.state().is_paused = false;
    }

    /// Writes a page of its own, as a guest that does nothing else would.
    pub(crate) fn write(&self, page: Page) {
        self.state().write(page);
    }
}

impl State {
    fn fresh(&mut self) -> u64 {
        self.next_word += 1;
        self.next_word
    }

    fn write(&mut self, page: Page) {
        let word = self.fresh();
        // Zeros now and then.
        self.words.insert(page, if word.is_multiple_of(16) { 0 } else { word });
        self.written.insert(page);
    }

    /// No scan finds what is not there: whoever discards notes it.
    fn discard(&mut self, page: Page) {
        if self.in_flight.iter().all(|(other, _)| *other != page) {
            self.words.remove(&page);
            self.written.insert(page);
        }
    }

    fn begin_read(&mut self, page: Page) {
        let word = self.fresh();
        self.words.entry(page).or_default();
        self.written.insert(page);
        self.in_flight.push((page, word));
    }

    /// The data arrives, and nothing is marked.
    fn end_read(&mut self) {
        if let Some((page, word)) = self.in_flight.pop() {
            self.words.insert(page, word);
        }
    }

    fn scan(&mut self) {
        let found = std::mem::take(&mut self.written);
        self.changed.extend(found.into_iter().filter(|(block, _)| *block != UNTRACKED));
    }

    fn pause(&mut self) {
        while !self.in_flight.is_empty() {
            self.end_read();
        }
        self.is_paused = true;
    }
}

/// The guest's memory, as a transfer sees it.
pub(crate) struct PlayedMemory {
    played: Arc<Played>,
    prepared: bool,
}

impl PlayedMemory {
    /// Begins to follow: all pages count as changed.
    pub(crate) fn new(played: Arc<Played>) -> Self {
        let all =
            (0..UNTRACKED).flat_map(|block| (0..BLOCKS[block]).map(move |page| (block, page)));
        played.state().changed.extend(all);
        Self { played, prepared: false }
    }

    pub(crate) const fn is_prepared(&self) -> bool {
        self.prepared
    }

    fn check(&self, what: &str) -> Result<(), MemoryError> {
        self.played.faults.check(what).map_err(MemoryError::Callback)
    }
}

fn one((block, page): Page) -> BlockPages {
    BlockPages { block, pages: PageRange::new(PageIndex(page), 1) }
}

impl Memory for PlayedMemory {
    fn blocks(&self) -> &[u32] {
        &BLOCKS
    }

    fn estimate(&mut self) -> Result<u64, MemoryError> {
        self.check("estimate")?;
        let mut state = self.played.state();
        state.scan();
        Ok(state.changed.len() as u64 + u64::from(BLOCKS[UNTRACKED]))
    }

    fn before_pause(&mut self) -> Result<(), MemoryError> {
        self.check("before_pause")?;
        self.prepared = true;
        Ok(())
    }

    fn take(&mut self, kind: PauseKind) -> Result<Changed, MemoryError> {
        assert!(self.prepared);
        let mut state = self.played.state();
        assert!(state.is_paused, "pages are taken in a pause");
        state.scan();
        let taken: Vec<Page> = std::mem::take(&mut state.changed).into_iter().collect();
        state.taken.extend(&taken);
        let (pages, zeros): (Vec<Page>, Vec<Page>) =
            taken.into_iter().partition(|page| state.words.contains_key(page));
        drop(state);
        // Pages are taken when this fails.
        self.check("take")?;
        let mut pages: Vec<BlockPages> = pages.into_iter().map(one).collect();
        if kind == PauseKind::Last {
            let all = PageRange::new(PageIndex(0), BLOCKS[UNTRACKED]);
            pages.push(BlockPages { block: UNTRACKED, pages: all });
        }
        Ok(Changed { pages, zeros: zeros.into_iter().map(one).collect() })
    }

    fn after_pause(&mut self) {
        self.prepared = false;
    }

    fn read(&mut self, pages: &[BlockPages], into: &mut [u8]) -> Result<(), MemoryError> {
        self.check("read")?;
        let each = pages.iter().flat_map(|run| run.pages.pages().map(|page| (run.block, page.0)));
        for (page, bytes) in each.zip(into.as_chunks_mut::<PAGE_BYTES>().0) {
            let word = self.played.state().words.get(&page).copied().unwrap_or(0);
            bytes.as_chunks_mut::<8>().0.fill(word.to_le_bytes());
            if self.played.slow_reads.load(Ordering::SeqCst) {
                thread::sleep(Duration::from_micros(20));
            }
        }
        Ok(())
    }

    fn commit(&mut self) {
        self.played.state().taken.clear();
    }

    fn put_back(&mut self) {
        self.prepared = false;
        let mut state = self.played.state();
        let taken = std::mem::take(&mut state.taken);
        state.changed.extend(taken);
    }
}

/// The guest's VMM.
pub(crate) struct PlayedVmm {
    played: Arc<Played>,
    has_saved: bool,
    /// The guest's memory in the last pause.
    pub(crate) oracle: Option<Vec<Vec<u64>>>,
    pub(crate) pauses: usize,
}

impl PlayedVmm {
    pub(crate) const fn new(played: Arc<Played>) -> Self {
        Self { played, has_saved: false, oracle: None, pauses: 0 }
    }

    fn check(&self, what: &str) -> Result<(), VmmError> {
        let doing = what.to_owned();
        self.played.faults.check(what).map_err(|reason| VmmError::Callback { doing, reason })
    }

    fn look(&mut self) {
        let state = self.played.state();
        let block = |block| {
            let word = |page| state.words.get(&(block, page)).copied().unwrap_or(0);
            (0..BLOCKS[block]).map(word).collect()
        };
        self.oracle = Some((0..BLOCKS.len()).map(block).collect());
    }
}

impl Vmm for PlayedVmm {
    fn describe(&mut self) -> Result<GuestDescription, VmmError> {
        self.check("describe")?;
        Ok(GuestDescription {
            name: None,
            machine: "played".to_owned(),
            version: "1".to_owned(),
            vcpus: 1,
            is_running: !self.played.is_paused(),
            memory: Vec::new(),
            disks: Vec::new(),
            plugged_arguments: Vec::new(),
            obstacles: Vec::new(),
        })
    }

    fn pause(&mut self) -> Result<Pause, VmmError> {
        self.check("pause")?;
        let mut state = self.played.state();
        self.has_saved = false;
        self.pauses += 1;
        if state.is_paused {
            return Ok(Pause::WasPaused);
        }
        state.pause();
        Ok(Pause::Stopped { at: SystemTime::now() })
    }

    fn snapshot_disks(&mut self, _overlays: &[Overlay]) -> Result<(), VmmError> {
        self.check("snapshot")
    }

    fn save_device_state(&mut self, _purpose: Purpose) -> Result<DeviceState, VmmError> {
        self.check("save")?;
        // Saving may write guest memory.
        let mut state = self.played.state();
        assert!(state.is_paused);
        state.write((0, 3));
        self.has_saved = true;
        let (machine, version) = ("played".to_owned(), "1".to_owned());
        Ok(DeviceState { machine, version, method: SaveMethod::Callback, bytes: vec![1] })
    }

    fn check_paused(&mut self) -> Result<(), VmmError> {
        self.check("check")?;
        if self.has_saved {
            self.look();
        }
        Ok(())
    }

    fn resume(&mut self) -> Result<SystemTime, VmmError> {
        self.check("resume")?;
        self.played.state().is_paused = false;
        Ok(SystemTime::now())
    }
}

/// An image of the guest's memory that is put page by page.
pub(crate) struct Image {
    played: Arc<Played>,
    pub(crate) blocks: Vec<Vec<u64>>,
    pub(crate) puts: u64,
}

impl Image {
    pub(crate) fn new(played: Arc<Played>) -> Self {
        let blocks = BLOCKS.map(|pages| vec![u64::MAX; pages as usize]).to_vec();
        Self { played, blocks, puts: 0 }
    }
}

impl Sink for Image {
    fn put(&mut self, block: usize, first: PageIndex, bytes: &[u8]) -> Result<(), SinkError> {
        self.played.faults.check("put")?;
        let (pages, rest) = bytes.as_chunks::<PAGE_BYTES>();
        assert!(rest.is_empty() && !pages.is_empty());
        for (at, page) in pages.iter().enumerate() {
            let words = page.as_chunks::<8>().0;
            assert!(words.iter().all(|word| *word == words[0]));
            let word = u64::from_le_bytes(words[0]);
            assert_ne!(word, 0, "zeros are put as such");
            self.blocks[block][first.at() + at] = word;
        }
        self.puts += pages.len() as u64;
        Ok(())
    }

    fn zeros(&mut self, block: usize, pages: PageRange) -> Result<(), SinkError> {
        self.played.faults.check("zeros")?;
        assert!(!pages.is_empty());
        self.blocks[block][pages.first.at()..pages.end().at()].fill(0);
        Ok(())
    }
}

/// Numbers that look random.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) const fn below(&mut self, end: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }

    fn page(&mut self) -> Page {
        let block = match self.below(20) {
            0 => 2,
            1..4 => 1,
            _ => 0,
        };
        (block, self.below(BLOCKS[block].into()) as u32)
    }
}
