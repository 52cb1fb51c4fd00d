//! Whole epochs: from the guest's last write to the list of what it wrote.
//!
//! * Few pages of a large slot: KVM's bitmap in both protocols and its ring, by hand as VMMs do it,
//!   and through a source and a set. The slot's memory is the same in all machines.
//! * From few pages to many: where the bitmap becomes cheaper than the ring.
//! * A scan of memory of which nothing was written.
//!
//! What the guest pays is not in here: its writes run where KVM emulates real mode, or does not.

use std::fmt;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use bindery_dirty::Tree;
use bindery_dirty::source::{Region, Source, WrittenPages};
use bindery_sys::mapping::{self, Mapping};
use bindery_sys::userfault::{Userfault, feature, mode};
use bindery_testkit::kvm::TinyGuest;
use bindery_units::{ByteCount, PAGE_BYTES, PageIndex, PageRange};
use rand::{SeedableRng, rngs::SmallRng, seq::index};
use serde::Serialize;

use super::machines::{Machine, RING_ENTRIES, Way};
use crate::harness::{Measured, SampleSet, Table, significant, take_turns};

/// What to measure, and how often.
#[derive(Clone, Debug)]
pub struct Options {
    /// Interleaved rounds; the tables show medians over them.
    pub rounds: usize,
    /// Pages of the slot.
    pub slot_pages: usize,
    /// Pages written in an epoch; the first of them is compared in all ways.
    pub dirty_pages: Vec<usize>,
    /// Pages of which none is written, to be scanned.
    pub scanned_pages: usize,
}

impl Default for Options {
    /// A slot of 16 GiB, of which hardly anything is there, and 2 GiB to scan, which are all there.
    fn default() -> Self {
        Self {
            rounds: 25,
            slot_pages: 4 << 20,
            dirty_pages: vec![16, 64, 256, 1024, 4096, 16_384, 65_536],
            scanned_pages: 512 << 10,
        }
    }
}

/// Everything that was measured.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Pages of the slot.
    pub slot_pages: usize,
    /// Why KVM was not measured, if it was not.
    pub without_kvm: Option<String>,
    /// All ways, for the first number of pages.
    pub few: Vec<SampleSet>,
    /// The sources, for each number of pages.
    pub crossover: Vec<Crossover>,
    /// From how many dirty pages on a bitmap is cheaper than the ring: between two that were measured,
    /// on a straight line between the logarithms.
    pub crossover_pages: Option<f64>,
    /// What an epoch costs, as [`EpochCosts`](bindery_dirty::source::EpochCosts) has it.
    pub costs: Option<Costs>,
    /// Pages scanned.
    pub scanned_pages: usize,
    /// A scan of pages of which none was written, and a harvest of the set.
    pub scan: Vec<SampleSet>,
}

/// The sources, when so many pages are written.
#[derive(Debug, Serialize)]
pub struct Crossover {
    /// Pages written in an epoch.
    pub dirty_pages: usize,
    /// One entry for each of the bitmap, the bitmap cleared by hand, and the ring.
    pub sources: Vec<SampleSet>,
}

/// Fitted to the fewest and the most pages, in nanoseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Costs {
    /// The bitmap (the cheaper protocol), each page of the slot.
    pub bitmap_tracked_page_ns: f64,
    /// The bitmap, each dirty page.
    pub bitmap_dirty_page_ns: f64,
    /// The ring, each dirty page.
    pub ring_dirty_page_ns: f64,
}

/// Measures.
///
/// # Errors
/// If an option is zero or empty, if a system call is refused, or if two ways find different pages.
pub fn run(options: &Options) -> Result<Report> {
    let Options { rounds, slot_pages, dirty_pages, scanned_pages } = options;
    ensure!(*rounds > 0, "--rounds must be at least 1");
    ensure!(*scanned_pages > 0, "there must be a page to scan");
    let reachable = (*slot_pages).min(REACH_PAGES);
    let most = dirty_pages.iter().max().context("a number of dirty pages is needed")?;
    ensure!(*most <= reachable, "at most {reachable} pages of the slot can be written, not {most}");
    let without_kvm = TinyGuest::unavailable();
    let (mut few, mut crossover) = (Vec::new(), Vec::new());
    if without_kvm.is_none() {
        let memory = Arc::new(Mapping::anonymous(slot_pages * PAGE_BYTES)?);
        few = compete(&Way::ALL, &memory, dirty_pages[0], *rounds)?;
        for &dirty_pages in dirty_pages {
            let sources = compete(&Way::SOURCES, &memory, dirty_pages, *rounds)?;
            crossover.push(Crossover { dirty_pages, sources });
        }
    }
    Ok(Report {
        slot_pages: *slot_pages,
        without_kvm,
        few,
        crossover_pages: crossing(&crossover),
        costs: fit(&crossover, *slot_pages),
        crossover,
        scanned_pages: *scanned_pages,
        scan: scan(*scanned_pages, *rounds)?,
    })
}

/// Pages that a guest in real mode reaches, from 1 MiB on.
const REACH_PAGES: usize = ((4 << 30) - (1 << 20)) / PAGE_BYTES;

const EPOCH: &str = "epoch";

fn compete(
    ways: &[Way],
    memory: &Arc<Mapping>,
    dirty_pages: usize,
    rounds: usize,
) -> Result<Vec<SampleSet>> {
    let reachable = (memory.bytes() / PAGE_BYTES).min(REACH_PAGES);
    let mut random = SmallRng::seed_from_u64(dirty_pages as u64);
    let pages: Vec<usize> = index::sample(&mut random, reachable, dirty_pages).into_vec();
    let mut machines: Vec<Machine> =
        ways.iter().map(|way| Machine::new(*way, memory)).collect::<Result<_>>()?;
    // Once in vain: memory comes to be there, and tables.
    machines.iter_mut().try_for_each(|machine| machine.epoch(&pages).map(drop))?;
    let names: Vec<String> = ways.iter().map(|way| way.name().to_owned()).collect();
    take_turns(&format!("epochs of {dirty_pages} dirty pages"), rounds, &names, |turn| {
        let epoch = machines[turn].epoch(&pages)?;
        let us = |time: std::time::Duration| time.as_secs_f64() * 1e6;
        let measured = Measured::new(EPOCH, "µs", us(epoch.total)).and(
            "of it the set",
            "µs",
            us(epoch.harvest),
        );
        let looked = ways[turn] != Way::GetAlone;
        Ok(if looked { measured.checked(epoch.check) } else { measured })
    })
}

fn epoch_ns(set: &SampleSet) -> f64 {
    set.figure(EPOCH).map_or(f64::NAN, |figure| figure.median * 1e3)
}

/// Whichever of the two bitmaps is cheaper, and the ring.
fn bitmap_and_ring_ns(sources: &[SampleSet]) -> Option<[f64; 2]> {
    let [plain, manual, ring] = sources else { return None };
    Some([epoch_ns(plain).min(epoch_ns(manual)), epoch_ns(ring)])
}

fn crossing(crossover: &[Crossover]) -> Option<f64> {
    let point = |at: &Crossover| {
        let [bitmap, ring] = bitmap_and_ring_ns(&at.sources)?;
        Some(((at.dirty_pages as f64).ln(), (ring / bitmap).ln()))
    };
    crossover.windows(2).find_map(|two| {
        let ((few, below), (many, above)) = (point(&two[0])?, point(&two[1])?);
        let crosses = below < 0.0 && above >= 0.0;
        crosses.then(|| (few + (many - few) * below / (below - above)).exp())
    })
}

fn fit(crossover: &[Crossover], slot_pages: usize) -> Option<Costs> {
    let (first, last) = (crossover.first()?, crossover.last()?);
    let more = last.dirty_pages.checked_sub(first.dirty_pages).filter(|more| *more > 0)? as f64;
    let [bitmap_few, ring_few] = bitmap_and_ring_ns(&first.sources)?;
    let [bitmap_many, ring_many] = bitmap_and_ring_ns(&last.sources)?;
    Some(Costs {
        bitmap_tracked_page_ns: bitmap_few / slot_pages as f64,
        bitmap_dirty_page_ns: (bitmap_many - bitmap_few) / more,
        ring_dirty_page_ns: (ring_many - ring_few) / more,
    })
}

/// Scans memory that is there, and that nobody writes.
fn scan(pages: usize, rounds: usize) -> Result<Vec<SampleSet>> {
    let features = feature::PAGEFAULT_FLAG_WP | feature::WP_UNPOPULATED | feature::WP_ASYNC;
    let context = Userfault::open(features).context("userfaultfd with WP_ASYNC (Linux 6.7)")?;
    let memory = Mapping::anonymous(pages * PAGE_BYTES)?;
    let (start, bytes) = (memory.address(), memory.bytes());
    // SAFETY: the memory is ours, and nobody waits in asynchronous write protection. Without huge
    // pages, so that each page has an entry of its own, as merged and migrated memory has.
    unsafe {
        mapping::advise(start, bytes, libc::MADV_NOHUGEPAGE)?;
        mapping::advise(start, bytes, libc::MADV_POPULATE_WRITE)?;
        context.register(start, bytes, mode::WP)?;
    }
    let count = u32::try_from(pages).context("at most 16 TiB are scanned")?;
    let whole = PageRange::new(PageIndex(0), count);
    let region = Region { start, pages: whole };
    let mut source = WrittenPages::of_self(vec![region])?;
    let set = Tree::new(u64::from(count))?;
    // The first scan has all pages, and protects them.
    let all = source.collect(&set)?;
    ensure!(all.pages == pages as u64, "{} of {pages} pages were written at first", all.pages);
    let mut found = Vec::with_capacity(pages);
    set.harvest_into(whole, &mut found)?;
    take_turns("a scan", rounds, &["scan, source and set".to_owned()], |_| {
        found.clear();
        let mut failed = None;
        let measured = Measured::time_per_item("ns/page", pages as u64, || {
            failed = source.collect(&set).err();
            set.harvest_into(whole, &mut found).expect("the tree has its own pages");
            found.len() as u64
        });
        failed.map_or(Ok(()), Err)?;
        ensure!(found.is_empty(), "{} pages were written, though nobody wrote", found.len());
        Ok(measured)
    })
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let slot = ByteCount((self.slot_pages * PAGE_BYTES) as u64);
        if let Some(why) = &self.without_kvm {
            writeln!(f, "KVM is not measured: {why}")?;
        }
        if let Some(first) = self.crossover.first() {
            let title = format!("an epoch of {} dirty pages of a {slot} slot", first.dirty_pages);
            writeln!(f, "{}", Table::of_samples(title, &self.few, 0))?;
            writeln!(f, "{}", self.crossover_table(slot))?;
        }
        if let Some(pages) = self.crossover_pages {
            writeln!(f, "the bitmap is cheaper from about {} dirty pages on", significant(pages))?;
        }
        if let Some(costs) = &self.costs {
            let [tracked, bitmap, ring] = [
                costs.bitmap_tracked_page_ns * 64.0,
                costs.bitmap_dirty_page_ns,
                costs.ring_dirty_page_ns,
            ]
            .map(significant);
            writeln!(f, "bitmap: {tracked} ns for 64 pages and {bitmap} ns a dirty page")?;
            writeln!(f, "ring of {RING_ENTRIES} entries: {ring} ns a dirty page\n")?;
        }
        let scanned = ByteCount((self.scanned_pages * PAGE_BYTES) as u64);
        let title = format!("a scan of {scanned}, all there, nothing written");
        write!(f, "{}", Table::of_samples(title, &self.scan, 0))
    }
}

impl Report {
    fn crossover_table(&self, slot: ByteCount) -> Table {
        let headings = ["dirty pages", "bitmap (µs)", "by hand (µs)", "ring (µs)", "ring ÷ bitmap"];
        let mut table = Table::new(format!("an epoch of a {slot} slot, source and set"), &headings);
        for Crossover { dirty_pages, sources } in &self.crossover {
            let mut row = vec![dirty_pages.to_string()];
            row.extend(sources.iter().map(|set| significant(epoch_ns(set) / 1e3)));
            let ratio =
                bitmap_and_ring_ns(sources).map(|[bitmap, ring]| significant(ring / bitmap));
            row.extend(ratio);
            table.push(row);
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The smallest run: that all ways find the same pages is what `run` checks.
    #[test]
    fn all_ways_find_the_same_pages() {
        let options = Options {
            rounds: 2,
            slot_pages: 10_001,
            dirty_pages: vec![16, 3000],
            scanned_pages: 1000,
        };
        let report = run(&options).unwrap();
        let shown = report.to_string();
        if report.without_kvm.is_none() {
            assert_eq!((report.few.len(), report.crossover.len()), (7, 2));
            assert!(shown.contains("ring ÷ bitmap"), "{shown}");
        }
        assert!(shown.contains("nothing written"), "{shown}");
        assert!(run(&Options { dirty_pages: vec![20_000], ..options }).is_err());
    }
}
