//! The memory of a model guest: it does what a shim does, to pages that are numbers.
//!
//! Between any two requests its "threads" write and discard pages at random. It compares bytes
//! before it maps a slot, as a shim does, and it checks at every look that a slot which it maps still
//! holds what its page held, and so does whatever a child of it has inherited: that is what must never
//! fail.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

use bindery_guest::{Resume, Segment};
use bindery_page::DigestKey;
use bindery_units::{PAGE_BYTES, PageIndex, PageRange, Slot};
use bindery_wire::control::StoreId;
use bindery_wire::lane::{
    BLOCK_PAGES, BlockOutcome, BlockSample, BlockState, LossCause, Lost, PageOutcome, PageSpan,
    Presence,
};

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

/// The segments of a store that the process has had.
pub(crate) struct Views {
    pub(crate) segment_slots: u32,
    pub(crate) files: BTreeMap<u32, Arc<File>>,
}

/// A page as a child of the process maps it: in the file of its segment, whatever becomes of that.
pub(crate) struct Inherited {
    file: Arc<File>,
    place: Slot,
    content: Content,
}

/// The process: it outlives connections.
pub(crate) struct Process {
    pub(crate) pid: i32,
    pub(crate) instance: u64,
    pub(crate) pages: BTreeMap<u32, Page>,
    pub(crate) written: BTreeSet<u32>,
    pub(crate) lost: VecDeque<Lost>,
    pub(crate) stores: BTreeMap<StoreId, Views>,
    /// What children of the process saw when they were born, of which nobody knows.
    pub(crate) heirs: Vec<Inherited>,
    pub(crate) key: DigestKey,
    pub(crate) seed: u64,
    pub(crate) ended: bool,
    /// Random writes and discards for each request, out of 256 pages looked at.
    pub(crate) unrest: u32,
    pub(crate) contents: u64,
    pub(crate) busy: bool,
    pub(crate) mappings: u32,
    pub(crate) mappings_max: u32,
    /// After so many requests more the line becomes this.
    pub(crate) fails_in: Option<(u32, Line)>,
    /// Blocks that are split, by number.
    pub(crate) split: BTreeSet<u32>,
    /// Blocks of which every page is there are huge pages.
    pub(crate) has_huge_pages: bool,
    /// Says of every page that it holds this.
    pub(crate) lies: Option<Content>,
    /// Takes so long for an answer, and reports one page in each.
    pub(crate) crawls: Option<Duration>,
    pub(crate) requests: Vec<&'static str>,
}

impl Process {
    pub(crate) fn random(&mut self, below: u64) -> u64 {
        // SplitMix64 (Steele et al., 2014).
        self.seed = self.seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.seed;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ z >> 31) % below
    }

    pub(crate) fn slot_bytes(&self, store: StoreId, slot: Slot) -> [u8; PAGE_BYTES] {
        let (file, place) = self.place_of(store, slot);
        read_slot(file, place)
    }

    fn place_of(&self, store: StoreId, slot: Slot) -> (&Arc<File>, Slot) {
        let Views { segment_slots, files } = &self.stores[&store];
        (&files[&(slot.0 / segment_slots)], Slot(slot.0 % segment_slots))
    }

    /// Takes in the segments of a request, as a shim does: another file only where it maps nothing of the old
    /// one.
    pub(crate) fn take_segments(&mut self, store: StoreId, segments: &[Segment<'_>]) {
        for (number, file) in segments {
            let file = File::from(file.try_clone_to_owned().expect("a descriptor"));
            let views = self.stores.get_mut(&store).expect("the store was named in a Welcome");
            let of = |slot: &Slot| slot.0 / views.segment_slots == *number;
            let is_used = self
                .pages
                .values()
                .any(|page| matches!(page, Page::Merged(id, slot, _) if *id == store && of(slot)));
            let is_same = views.files.get(number).is_some_and(|old| {
                let identity = |file: &File| bindery_sys::memfd::identity(file).expect("fstat");
                identity(old) == identity(&file)
            });
            assert!(is_same || !is_used, "another file for segment {number}, which is mapped");
            if !is_same {
                views.files.insert(*number, Arc::new(file));
            }
        }
    }

    /// The process has a child that maps what is merged now, and of which nobody hears.
    pub(crate) fn fork(&mut self) {
        let merged = self.pages.values().filter_map(|page| match page {
            Page::Merged(store, slot, content) => {
                let (file, place) = self.place_of(*store, *slot);
                Some(Inherited { file: Arc::clone(file), place, content: *content })
            }
            _ => None,
        });
        let merged: Vec<Inherited> = merged.collect();
        self.heirs.extend(merged);
    }

    /// What a guest reads at `page`. Panics if that is not what it wrote.
    pub(crate) fn read(&self, page: u32) -> Option<[u8; PAGE_BYTES]> {
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
        for Inherited { file, place, content } in &self.heirs {
            let is_unchanged = read_slot(file, *place) == bytes_of(*content);
            assert!(is_unchanged, "what a child maps of {place:?} has changed");
        }
    }

    pub(crate) fn lose(&mut self, page: u32, cause: LossCause) {
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
        self.lose(page, LossCause::Write);
        self.pages.insert(page, Page::Private(content));
        self.written.insert(page);
    }

    pub(crate) fn discard(&mut self, page: u32) {
        if self.pages.contains_key(&page) {
            self.lose(page, LossCause::Discard);
            self.pages.insert(page, Page::Absent);
            self.written.remove(&page);
        }
    }

    pub(crate) fn fidget(&mut self) {
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

    pub(crate) fn merge_one(
        &mut self,
        page: u32,
        store: StoreId,
        slot: Option<Slot>,
    ) -> PageOutcome {
        let Some(state) = self.pages.get(&page).copied() else { return PageOutcome::Never };
        assert!(self.is_split(page), "page {page} of a whole block is asked to merge");
        let busy = self.busy && self.random(4) == 0;
        let Some(bytes) = self.read(page).filter(|_| !busy) else { return PageOutcome::Busy };
        match (state, slot) {
            (Page::Zero, None) => PageOutcome::Already,
            (_, None) if bytes == [0; PAGE_BYTES] => {
                self.pages.insert(page, Page::Zero);
                PageOutcome::Merged
            }
            (Page::Merged(old, at, _), Some(slot)) if (old, at) == (store, slot) => {
                PageOutcome::Already
            }
            (Page::Private(content) | Page::Merged(_, _, content), Some(slot))
                if bytes == self.slot_bytes(store, slot) =>
            {
                if self.mappings > self.mappings_max {
                    // It was moved, and moved back.
                    self.written.extend(matches!(state, Page::Private(_)).then_some(page));
                    return PageOutcome::NoMappings;
                }
                self.pages.insert(page, Page::Merged(store, slot, content));
                self.written.remove(&page);
                PageOutcome::Merged
            }
            (Page::Private(_), Some(_)) => {
                // It was moved, and moved back.
                self.written.insert(page);
                PageOutcome::Different
            }
            _ => PageOutcome::Different,
        }
    }

    /// The first pages of `range` that were written, or that are there, protected from now on.
    pub(crate) fn scan(
        &mut self,
        range: PageRange,
        survey: bool,
        found: &mut Vec<PageSpan>,
    ) -> Resume {
        if let Some(resume) = self.crawl(range) {
            found.clear();
            return Some(resume);
        }
        let wanted = |(page, state): (&u32, &Page)| {
            let own = matches!(state, Page::Private(_)) && self.is_split(*page);
            (own && (survey || self.written.contains(page))).then_some(*page)
        };
        let within = self.pages.range(range.first.0..range.end().0);
        let pages: Vec<u32> = within.filter_map(wanted).collect();
        let runs = pages.chunk_by(|a, b| *b == a + 1);
        *found = runs
            .map(|run| PageSpan {
                first: run[0],
                count: run.len() as u32,
                presence: Presence::Present,
            })
            .collect();
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

    fn is_split(&self, page: u32) -> bool {
        self.split.contains(&(page / BLOCK_PAGES))
    }

    fn pages_of(&self, first: u32) -> impl Iterator<Item = (u32, Page)> + '_ {
        let pages = self.pages.range(first..first + BLOCK_PAGES);
        pages.map(|(page, state)| (*page, *state))
    }

    /// Samples the block that begins with `first`. One that was unmapped is not split when it is mapped again.
    pub(crate) fn sample(&self, first: u32) -> BlockSample {
        let there = |state: &Page| matches!(state, Page::Private(_) | Page::Merged(..));
        let present = self.pages_of(first).filter(|(_, state)| there(state)).count() as u32;
        let is_huge = self.has_huge_pages && present == BLOCK_PAGES;
        let state = match present {
            _ if self.pages_of(first).next().is_none() => BlockState::Unmanaged,
            _ if self.is_split(first) => BlockState::Split,
            0 => BlockState::Absent,
            _ if is_huge => BlockState::Huge,
            _ => BlockState::Small,
        };
        // Some of the pages.
        let sampled = self.pages_of(first).filter(|(page, _)| page.is_multiple_of(37));
        let signature = sampled.fold(1, |signature: u64, (_, state)| match state {
            Page::Private(content) => signature.wrapping_mul(31).wrapping_add(content),
            _ => signature,
        });
        BlockSample { state, may_be_huge: is_huge.into(), signature }
    }

    /// Splits the block that begins with `first`: none of its pages is protected yet, so each counts as written.
    pub(crate) fn split(&mut self, first: u32) {
        if self.split.insert(first / BLOCK_PAGES) {
            let there: Vec<u32> = self.pages_of(first).map(|(page, _)| page).collect();
            self.written.extend(there);
        }
    }

    /// Makes the block whole that begins with `first`.
    pub(crate) fn collapse(&mut self, first: u32) -> BlockOutcome {
        if self.pages_of(first).next().is_none() {
            return BlockOutcome::Unmanaged;
        }
        if self.busy && self.random(4) == 0 {
            return BlockOutcome::Stuck;
        }
        let pages: Vec<(u32, Page)> = self.pages_of(first).collect();
        for (page, state) in pages {
            let _ = self.read(page);
            match state {
                Page::Merged(_, _, content) => {
                    self.lose(page, LossCause::Unmerge);
                    self.pages.insert(page, Page::Private(content));
                }
                Page::Zero => drop(self.pages.insert(page, Page::Private(0))),
                Page::Absent | Page::Private(_) => {}
            }
        }
        self.split.remove(&(first / BLOCK_PAGES));
        if self.pages_of(first).all(|(_, state)| matches!(state, Page::Private(0))) {
            for page in first..first + BLOCK_PAGES {
                self.pages.entry(page).and_modify(|state| *state = Page::Absent);
            }
            return BlockOutcome::Whole;
        }
        BlockOutcome::Huge
    }

    /// Answers late, and for the first page of `range` only, if it does so.
    pub(crate) fn crawl(&self, range: PageRange) -> Resume {
        let first = self.crawls.filter(|_| range.count > 1).map(|_| range.first.plus(1));
        self.crawls.into_iter().for_each(std::thread::sleep);
        first
    }

    pub(crate) fn stores_in_use(&self) -> Vec<StoreId> {
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

fn read_slot(file: &File, place: Slot) -> [u8; PAGE_BYTES] {
    let mut bytes = [0; PAGE_BYTES];
    file.read_exact_at(&mut bytes, place.offset_bytes()).expect("a slot of the segment");
    bytes
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
