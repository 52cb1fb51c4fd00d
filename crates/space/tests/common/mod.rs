//! A little daemon for tests: guest memory, a store, and the right to merge.
#![allow(dead_code, reason = "each test file uses what it needs")]

use std::{
    fs::File,
    os::{fd::OwnedFd, unix::fs::FileExt},
    sync::Arc,
};

use bindery_space::{LastingAdvice, PinError, Segments, Space, Worker};
use bindery_sys::{
    mapping::Mapping,
    memfd,
    table::{self, Kept},
};
use bindery_units::{HostAddress, PAGE_BYTES, PageIndex, PageRange, Slot};
use bindery_wire::control::{Region, StoreId};
use bindery_wire::lane::{BLOCK_PAGES, BlockOutcome, PageOutcome, Run, RunTarget};

/// The store's name in these tests.
pub(crate) const STORE: StoreId = StoreId(1);

/// Managed memory and a store beside it.
pub(crate) struct Bench {
    /// The space, one for each test process.
    pub(crate) space: Arc<Space>,
    /// Guest memory.
    pub(crate) memory: Mapping,
    /// What the space calls it.
    pub(crate) region: Region,
    /// The file of the store's only segment, writable.
    pub(crate) store: File,
    /// The same, for reading.
    pub(crate) view: Kept<OwnedFd>,
}

/// Whether this machine can manage memory at all; says so loudly if not.
#[must_use]
pub(crate) fn start() -> Option<Arc<Space>> {
    match Space::start() {
        Ok(space) => Some(space),
        Err(error) => {
            bindery_testkit::skipped!("{error}");
            None
        }
    }
}

/// Takes memory under management and splits all its blocks, so that every page is watched.
pub(crate) fn manage(space: &Arc<Space>, address: HostAddress, bytes: usize) -> Region {
    let region = space.manage(address, bytes).expect("manage");
    let mut worker = space.worker().expect("worker");
    assert!(split(&mut worker, region.pages), "blocks can be split");
    region
}

/// Splits the blocks that a range has pages of. Returns true if all are split.
pub(crate) fn split(worker: &mut Worker, pages: PageRange) -> bool {
    let mut outcomes = Vec::new();
    worker.split(&blocks_of(pages), &mut outcomes);
    outcomes.iter().all(|outcome| *outcome == BlockOutcome::Split)
}

/// The first pages of the blocks that a range has pages of.
pub(crate) fn blocks_of(pages: PageRange) -> Vec<u32> {
    let numbers = pages.first.0 / BLOCK_PAGES..pages.end().0.div_ceil(BLOCK_PAGES);
    numbers.map(|number| number * BLOCK_PAGES).collect()
}

/// `AnonHugePages` of the mappings between two addresses, in KiB.
pub(crate) fn huge_kib(start: HostAddress, bytes: usize) -> u64 {
    let smaps = std::fs::read_to_string("/proc/self/smaps").expect("smaps");
    let (mut inside, mut sum) = (false, 0);
    for line in smaps.lines() {
        let bounds = line.split(' ').next().and_then(|bounds| bounds.split_once('-'));
        let parsed = bounds.and_then(|(low, high)| {
            Some((usize::from_str_radix(low, 16).ok()?, usize::from_str_radix(high, 16).ok()?))
        });
        if let Some((low, high)) = parsed {
            inside = low < start.0 + bytes && start.0 < high;
        } else if inside && let Some(size) = line.strip_prefix("AnonHugePages:") {
            sum += size.trim().trim_end_matches(" kB").parse::<u64>().expect("a number");
        }
    }
    sum
}

impl Bench {
    /// `pages` pages of managed memory and a store of `slots` slots; nothing where the machine
    /// cannot.
    #[must_use]
    pub(crate) fn new(pages: usize, slots: u32) -> Option<Self> {
        let space = start()?;
        let memory = Mapping::anonymous(pages * PAGE_BYTES).expect("memory");
        let region = manage(&space, memory.address(), memory.bytes());
        Some(Self::with_store(space, memory, region, slots))
    }

    /// As [`new`](Self::new), of whole blocks, which are huge pages once they are touched where the kernel
    /// makes any.
    pub(crate) fn of_huge_pages(pages: usize, slots: u32) -> Option<Self> {
        let space = start()?;
        let memory = Mapping::huge(pages * PAGE_BYTES).expect("memory");
        let region = space.manage(memory.address(), memory.bytes()).expect("manage");
        let wanted = LastingAdvice::of(libc::MADV_HUGEPAGE).expect("it lasts");
        space.note_advice(memory.address(), memory.bytes(), wanted);
        Some(Self::with_store(space, memory, region, slots))
    }

    fn with_store(space: Arc<Space>, memory: Mapping, region: Region, slots: u32) -> Self {
        let store =
            memfd::create("test-store", u64::from(slots) * PAGE_BYTES as u64).expect("memfd");
        space.attach_store(STORE, slots, slots).expect("attach");
        let view = view_of(&store);
        Self { space, memory, region, store, view }
    }

    /// As many slots as `pages` pages, all full of a word.
    #[must_use]
    pub(crate) fn full_of(pages: u32, word: u64) -> Option<Self> {
        let bench = Self::new(pages as usize, pages)?;
        for page in 0..pages {
            bench.fill(page, word);
            bench.fill_slot(Slot(page), word);
        }
        Some(bench)
    }

    /// The index of the memory's page `page`.
    #[must_use]
    pub(crate) fn page(&self, page: u32) -> PageIndex {
        self.region.pages.first.plus(page)
    }

    /// The address of the memory's page `page`.
    #[must_use]
    pub(crate) fn address(&self, page: u32) -> HostAddress {
        self.region.address.plus_pages(page)
    }

    /// The memory as words, to be read and written volatile.
    #[must_use]
    pub(crate) fn words(&self, page: u32) -> *mut u64 {
        self.address(page).0 as *mut u64
    }

    /// Fills a page with a word.
    pub(crate) fn fill(&self, page: u32, word: u64) {
        for at in 0..PAGE_BYTES / 8 {
            // SAFETY: the page is in the mapping.
            unsafe { self.words(page).add(at).write_volatile(word) };
        }
    }

    /// Whether a page is full of a word.
    #[must_use]
    pub(crate) fn holds(&self, page: u32, word: u64) -> bool {
        // SAFETY: the page is in the mapping.
        (0..PAGE_BYTES / 8).all(|at| unsafe { self.words(page).add(at).read_volatile() } == word)
    }

    /// Fills a slot with a word.
    pub(crate) fn fill_slot(&self, slot: Slot, word: u64) {
        let bytes = word.to_ne_bytes().repeat(PAGE_BYTES / 8);
        self.store.write_all_at(&bytes, slot.offset_bytes()).expect("store");
    }

    /// All slots of the store, for a request.
    #[must_use]
    pub(crate) fn segments(&self) -> Segments {
        self.pin().expect("pin")
    }

    /// The same where the kernel may have no mapping for it.
    pub(crate) fn pin(&self) -> Result<Segments, PinError> {
        // The test may be in a thread that has the library's table.
        self.view.with(|file| {
            let file = file.try_clone().expect("descriptor");
            self.space.pin(STORE, [(0, file)])
        })
    }

    /// Merges consecutive pages with consecutive slots.
    pub(crate) fn merge(
        &self,
        worker: &mut Worker,
        page: u32,
        count: u32,
        slot: Slot,
    ) -> Vec<PageOutcome> {
        match self.pin() {
            Ok(segments) => self.merge_with(worker, &segments, (page, count), slot),
            Err(PinError::Map(_)) => vec![PageOutcome::NoMappings; count as usize],
            Err(error) => panic!("{error}"),
        }
    }

    /// The same with segments at hand.
    pub(crate) fn merge_with(
        &self,
        worker: &mut Worker,
        segments: &Segments,
        (page, count): (u32, u32),
        slot: Slot,
    ) -> Vec<PageOutcome> {
        let mut outcomes = Vec::new();
        let run = Run { page: self.page(page).0, count, slot: slot.0, target: RunTarget::Slots };
        worker.merge(segments, &[run], &mut outcomes);
        outcomes
    }

    /// All managed pages.
    #[must_use]
    pub(crate) fn all(&self) -> PageRange {
        self.region.pages
    }
}

/// A segment for reading, where the library finds it.
#[must_use]
pub(crate) fn view_of(segment: &File) -> Kept<OwnedFd> {
    let view = memfd::reopen_read_only(segment).expect("reopen");
    table::adopt(view.into()).expect("adopt")
}

/// So many pages merged.
#[must_use]
pub(crate) fn merged(count: usize) -> Vec<PageOutcome> {
    vec![PageOutcome::Merged; count]
}
