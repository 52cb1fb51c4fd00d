//! What one lane can do with a space.

use std::{
    convert::Infallible,
    io,
    os::fd::BorrowedFd,
    sync::{Arc, PoisonError},
};

use bindery_page::{DigestKey, Examined};
use bindery_sys::{
    mapping,
    pagemap::{EXTENTS_PER_CALL_MAX, Extent, Query, category},
};
use bindery_units::{HostAddress, PAGE_BYTES, PageIndex, PageRange, Slot};

use crate::{
    Core,
    entry::{Entry, Kind},
    merge::Target,
    region::Region,
    restore::Unmerged,
    spare::Spare,
    store::StoreView,
    transfer::Staging,
    wire::{
        control::StoreId,
        lane::{Lost, MergedSpan, PageDigest, PageSpan, RUN_PAGES_MAX, Run, outcome},
    },
};

/// One thread's hands on the space: a staging area, spare pages and the room for a scan's answer.
#[derive(Debug)]
pub struct Worker {
    core: Arc<Core>,
    staging: Staging,
    spare: Spare,
    extents: Box<[Extent; EXTENTS_PER_CALL_MAX]>,
    /// A slot for each page of the runs at work.
    slots: Vec<Slot>,
    transit_max_ns: u64,
}

/// Which of a guest's own pages a scan is for. Absent ones, the zero page and merged ones never are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sought {
    /// Those written since the last scan.
    Written,
    /// All that are there.
    Present,
}

impl Sought {
    fn query(self) -> Query {
        let own = category::WP_ALLOWED | category::PRESENT | category::ZERO;
        match self {
            // Mappings of the store are not of the kind that is required, and passed over whole.
            Self::Written => Query {
                require: own | category::WRITTEN,
                invert: category::ZERO,
                report: category::WRITTEN,
                protect: true,
                ..Query::default()
            },
            Self::Present => Query {
                require: own | category::FILE,
                invert: category::ZERO | category::FILE,
                report: category::PRESENT,
                protect: true,
                ..Query::default()
            },
        }
    }
}

impl Worker {
    pub(crate) fn new(core: Arc<Core>) -> io::Result<Self> {
        let staging = Staging::new(&core.guest_faults)?;
        let extents = Box::new([Extent::default(); EXTENTS_PER_CALL_MAX]);
        let (spare, slots) = (Spare::new()?, Vec::new());
        Ok(Self { core, staging, spare, extents, slots, transit_max_ns: 0 })
    }

    /// Which pages of `range` were written since the last scan: [`scan_for`](Self::scan_for) those.
    ///
    /// # Errors
    /// As `PAGEMAP_SCAN`.
    pub fn scan(
        &mut self,
        range: PageRange,
        written: &mut Vec<PageSpan>,
        max: usize,
    ) -> io::Result<Option<PageIndex>> {
        self.scan_for(Sought::Written, range, written, max)
    }

    /// Which pages of `range` are as sought, ascending, into `found` until it has `max` elements.
    /// Protects them again. Returns where to go on if `found` became full.
    ///
    /// Pages that are absent, the zero page or merged are not looked at. About 2 ns for each
    /// private page that was not written.
    ///
    /// # Errors
    /// As `PAGEMAP_SCAN`.
    pub fn scan_for(
        &mut self,
        sought: Sought,
        range: PageRange,
        found: &mut Vec<PageSpan>,
        max: usize,
    ) -> io::Result<Option<PageIndex>> {
        self.staging.empty();
        let query = sought.query();
        for part in self.core.parts(range) {
            let region = &part.region;
            let (mut at, end) = (region.address(part.pages.first), part.end_address());
            while at < end {
                if found.len() >= max {
                    return Ok(Some(region.page(at)));
                }
                let room = (max - found.len()).min(EXTENTS_PER_CALL_MAX);
                let extents = &mut self.extents[..room];
                let scanned = self.core.pagemap.scan(at, end.0 - at.0, query, extents)?;
                for extent in &extents[..scanned.extents] {
                    let first = region.page(HostAddress(extent.start as usize)).0;
                    found.push(PageSpan { first, count: extent.pages() as u32 });
                }
                at = scanned.resume_at;
            }
        }
        Ok(None)
    }

    /// Merged pages that came back since this was asked last, into `lost` until it has `max`
    /// elements. Whether there are more. Old stores that no page is left in are forgotten.
    pub fn lost(&mut self, lost: &mut Vec<Lost>, max: usize) -> bool {
        self.staging.empty();
        self.core.forget_old_stores();
        self.core.budget.follow();
        let regions = self.core.regions.read().clone();
        !regions.iter().all(|region| {
            region.take_lost_groups(|pages| {
                if lost.len() + pages.count as usize > max {
                    return false;
                }
                for page in pages.pages() {
                    let entry = region.entry(page);
                    // A page that changed meanwhile left its mark again for the next time.
                    if entry.is_lost() && region.report_loss(page, entry) {
                        lost.push(describe(page, entry));
                    }
                }
                true
            })
        })
    }

    /// Digests pages as they are now; a page that is written meanwhile gets some digest.
    pub fn digest(&mut self, pages: &[u32], key: &DigestKey, digests: &mut Vec<PageDigest>) {
        let examine = |region: &Region, page| {
            let bytes = region.address(PageIndex(page)).0 as *const u8;
            // SAFETY: `look` gives a region that is mapped and stays so: a page is 4096 bytes,
            // aligned to as many.
            match unsafe { bindery_page::examine_at(bytes, key) } {
                Examined::Zero => PageDigest { kind: 1, digest: [0; 2] },
                Examined::Content(digest) => PageDigest { kind: 2, digest: digest.to_words() },
            }
        };
        let Ok(()) = self.look(pages, |pages, region| {
            digests.extend(
                pages
                    .iter()
                    .map(|&page| region.map_or_else(PageDigest::default, |r| examine(r, page))),
            );
            Ok::<(), Infallible>(())
        });
    }

    /// Copies pages to a file, one after the other from `offset_bytes` on. `found` is told of each
    /// whether it is managed; the copy of one that is not is zero.
    ///
    /// # Errors
    /// As pwritev(2).
    pub fn copy(
        &mut self,
        pages: &[u32],
        file: BorrowedFd<'_>,
        offset_bytes: u64,
        mut found: impl FnMut(bool),
    ) -> io::Result<()> {
        let zeros = HostAddress(self.core.zeros.as_ptr() as usize);
        let mut at = offset_bytes;
        self.look(pages, |pages, region| {
            let mut addresses = [zeros; LOOK_PAGES];
            for (address, page) in addresses.iter_mut().zip(pages) {
                found(region.is_some());
                *address = region.map_or(zeros, |region| region.address(PageIndex(*page)));
            }
            // SAFETY: `look` gives a region that is mapped and stays so, and zeros are a page too.
            unsafe { mapping::write_pages(file, &addresses[..pages.len()], at)? };
            at += (pages.len() * PAGE_BYTES) as u64;
            Ok(())
        })
    }

    /// Calls `found` with some of `pages` after the other, and with the region that they are in,
    /// which stays mapped during the call; or with none, if they are not managed.
    fn look<E>(
        &self,
        pages: &[u32],
        mut found: impl FnMut(&[u32], Option<&Region>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut rest = pages;
        while let [first, ..] = *rest {
            let Some(region) = self.core.regions.of(PageIndex(first)) else {
                found(&rest[..1], None)?;
                rest = &rest[1..];
                continue;
            };
            let _mapped = region.mapped.read().unwrap_or_else(PoisonError::into_inner);
            // Somebody who unmaps waits for us, so let go now and then.
            let batch = rest.iter().take(LOOK_PAGES);
            let count = batch.take_while(|&&page| region.pages().contains(PageIndex(page))).count();
            let stands = self.core.regions.has(&region);
            found(&rest[..count], stands.then_some(&region))?;
            rest = &rest[count..];
        }
        Ok(())
    }

    /// Merges runs of pages with runs of slots or of zeros; one [`outcome`] each is appended. Runs
    /// whose pages follow one another are merged together, which costs less.
    pub fn merge(&mut self, store: StoreId, runs: &[Run], outcomes: &mut Vec<u8>) {
        let store = self.core.store(store);
        let view = store.as_deref();
        for stretch in runs.chunk_by(|run, next| is_continued(run, next, view)) {
            // A window is held as long as all its runs take.
            for runs in stretch.chunks(WINDOW_RUNS_MAX) {
                self.merge_consecutive(view, runs, outcomes);
            }
        }
    }

    /// Merges runs whose pages are consecutive and that are alike in kind and in whether they make sense.
    fn merge_consecutive(
        &mut self,
        store: Option<&StoreView>,
        runs: &[Run],
        outcomes: &mut Vec<u8>,
    ) {
        let pages: u32 = runs.iter().map(|run| run.count).sum();
        let asked = outcomes.len();
        outcomes.resize(asked + pages as usize, outcome::NEVER);
        let outcomes = &mut outcomes[asked..];
        let [first, ..] = runs else { return };
        if !is_sane(first, store) {
            return;
        }
        self.slots.clear();
        if first.zero == 0 {
            self.slots.extend(runs.iter().flat_map(|run| run.slot..run.slot + run.count).map(Slot));
        }
        let pages = PageRange::new(PageIndex(first.page), pages);
        let core = Arc::clone(&self.core);
        for part in core.parts(pages) {
            for piece in part.pages.pieces(RUN_PAGES_MAX) {
                let at = (piece.first.0 - first.page) as usize;
                let piece_at = at..at + piece.count as usize;
                let outcomes = &mut outcomes[piece_at.clone()];
                let target = match store {
                    Some(store) if first.zero == 0 => Target::Slots(store, &self.slots[piece_at]),
                    _ => Target::Zero,
                };
                // Nobody unmaps the region while its pages are in transit.
                let _mapped = part.region.mapped.read().unwrap_or_else(PoisonError::into_inner);
                if !core.regions.has(&part.region) {
                    outcomes.fill(outcome::BUSY);
                    continue;
                }
                let transit_ns =
                    core.merge(&part.region, piece, target, &mut self.staging, outcomes);
                self.transit_max_ns = self.transit_max_ns.max(transit_ns);
            }
        }
    }

    /// Makes merged pages of `range` private again, at most about `budget_pages` of them.
    pub fn unmerge(&mut self, range: PageRange, budget_pages: u32) -> Unmerged {
        self.staging.empty();
        let mut done = Unmerged::default();
        for part in self.core.parts(range) {
            let _mapped = part.region.mapped.read().unwrap_or_else(PoisonError::into_inner);
            if !self.core.regions.has(&part.region) {
                continue;
            }
            let budget = budget_pages.saturating_sub(done.pages);
            let some = self.core.unmerge(&part.region, part.pages, budget, &mut self.spare);
            done.pages += some.pages;
            done.stuck += some.stuck;
            if some.resume_at.is_some() {
                done.resume_at = some.resume_at;
                break;
            }
        }
        done
    }

    /// Joins the mappings that restored pages left apart in `range`. Returns how many fewer there
    /// are. Reads the process's list of mappings twice; about 0.3 µs a page of torn runs.
    pub fn mend(&mut self, range: PageRange) -> u32 {
        self.core.budget.refresh();
        let before = self.core.budget.now();
        for part in self.core.parts(range) {
            let _mapped = part.region.mapped.read().unwrap_or_else(PoisonError::into_inner);
            if part.region.watched && self.core.regions.has(&part.region) {
                self.core.mend(&part.region, part.pages, &mut self.spare);
            }
        }
        before.saturating_sub(self.core.budget.now())
    }

    /// Which pages of `range` are merged, ascending, into `spans` until it has `max` elements.
    /// Returns where to go on if it became full.
    pub fn report(
        &self,
        range: PageRange,
        spans: &mut Vec<MergedSpan>,
        max: usize,
    ) -> Option<PageIndex> {
        for part in self.core.parts(range) {
            for page in part.pages.pages() {
                let entry = part.region.entry(page);
                if !matches!(entry.kind(), Kind::Merged | Kind::Bound) {
                    continue;
                }
                let (store, slot) = (u32::from(entry.store().0), entry.slot().0);
                let full = spans.len() >= max;
                match spans.last_mut() {
                    Some(last)
                        if last.page + last.count == page.0
                            && last.slot + last.count == slot
                            && last.store == store =>
                    {
                        last.count += 1;
                    }
                    _ if full => return Some(page),
                    _ => spans.push(MergedSpan { page: page.0, count: 1, slot, store }),
                }
            }
        }
        None
    }

    /// The longest that pages were in transit since this was asked last, in nanoseconds.
    pub fn transit_max_ns(&mut self) -> u64 {
        std::mem::take(&mut self.transit_max_ns)
    }
}

/// Runs merged together at most: each takes some microseconds, for which guests wait that touch any.
const WINDOW_RUNS_MAX: usize = 16;

/// Whether a run makes sense: pages that can be, slots that the store has.
fn is_sane(run: &Run, store: Option<&StoreView>) -> bool {
    let fits = |store: &StoreView| store.has(Slot(run.slot), run.count);
    run.page.checked_add(run.count).is_some() && (run.zero != 0 || store.is_some_and(fits))
}

/// Whether `next` can be merged together with `run`.
fn is_continued(run: &Run, next: &Run, store: Option<&StoreView>) -> bool {
    run.page.checked_add(run.count) == Some(next.page)
        && (run.zero != 0) == (next.zero != 0)
        && is_sane(run, store) == is_sane(next, store)
}

/// Pages looked at before whoever unmaps them gets a turn.
const LOOK_PAGES: usize = 512;

fn describe(page: PageIndex, entry: Entry) -> Lost {
    let cause = match entry.kind() {
        Kind::Discarded => 2,
        Kind::Unmerged => 3,
        _ => 1,
    };
    Lost { page: page.0, slot: entry.slot().0, store: u32::from(entry.store().0), cause }
}

/// The part of a range that lies in one region.
pub(crate) struct Part {
    pub(crate) region: Arc<Region>,
    pub(crate) pages: PageRange,
}

impl Part {
    fn end_address(&self) -> HostAddress {
        self.region.address(self.pages.first).plus_pages(self.pages.count)
    }
}

impl Core {
    /// The managed parts of a range, ascending.
    pub(crate) fn parts(&self, range: PageRange) -> Vec<Part> {
        let regions = self.regions.read();
        let mut parts: Vec<Part> = regions
            .iter()
            .map(|region| Part {
                region: Arc::clone(region),
                pages: region.pages().intersection(range),
            })
            .filter(|part| !part.pages.is_empty())
            .collect();
        parts.sort_by_key(|part| part.pages.first);
        parts
    }
}
