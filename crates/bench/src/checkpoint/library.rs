//! Whole cycles of a small KVM guest with the crates alone: it writes, is stopped, what it wrote is found and copied.
//!
//! A VMM that holds back the guest's output lets it go once the copy is there. Nothing is written to a disk. The guest
//! has no kernel; its slot is large and hardly any of it is there, as in [`dirty`](crate::dirty).

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Result, bail, ensure};
use bindery_sys::mapping::{Mapping, copy_changing};
use bindery_testkit::kvm::TinyGuest;
use bindery_units::{PAGE_BYTES, PageIndex};
use rand::{SeedableRng, rngs::SmallRng, seq::index};
use serde::Serialize;

use crate::dirty::machines::{Machine, Way};
use crate::harness::{Bar, Measured, SampleSet, Table, median, take_turns};

/// Size of the guest and of what it writes.
#[derive(Clone, Debug)]
pub struct Options {
    /// Interleaved rounds; medians are shown.
    pub rounds: usize,
    /// Cycles in each round.
    pub cycles: usize,
    /// Memory of the guest, in GiB.
    pub gib: usize,
    /// Pages that are written in each cycle.
    pub dirty_pages: usize,
}

/// Figures.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Memory of the guest, in GiB.
    pub gib: usize,
    /// Pages that were written in each cycle.
    pub dirty_pages: usize,
    /// Figures by the way of finding them, `KVM_GET_DIRTY_LOG` by hand first.
    pub ways: Vec<SampleSet>,
    /// Bars.
    pub bars: Vec<Bar>,
}

const WAYS: [Way; 4] = [Way::GetByHand, Way::Bitmap, Way::Manual, Way::Ring];

const RATE: &str = "cycles";

/// Cycles a second of the best way.
const CYCLES: f64 = 2500.0;

/// Most of the slot that a guest in real mode reaches.
const REACH_PAGES: usize = ((4 << 30) - (1 << 20)) / PAGE_BYTES;

/// Measures.
///
/// # Errors
/// If an option is zero, there is no KVM, or two ways find different pages.
pub fn run(options: &Options) -> Result<Report> {
    let Options { rounds, cycles, gib, dirty_pages } = *options;
    ensure!(cycles > 0 && gib > 0 && dirty_pages > 0, "a cycle needs memory and pages to write");
    if let Some(why) = TinyGuest::unavailable() {
        bail!("there is no KVM: {why}");
    }
    let memory = Arc::new(Mapping::anonymous(gib << 30)?);
    let reachable = (memory.bytes() / PAGE_BYTES).min(REACH_PAGES);
    ensure!(dirty_pages <= reachable, "at most {reachable} pages can be written");
    let mut random = SmallRng::seed_from_u64(dirty_pages as u64);
    let pages = index::sample(&mut random, reachable, dirty_pages).into_vec();
    let machines = WAYS.iter().map(|way| Machine::new(*way, &memory));
    let mut machines: Vec<Machine> = machines.collect::<Result<_>>()?;
    // Once in vain: memory comes to be there.
    machines.iter_mut().try_for_each(|machine| machine.epoch(&pages).map(drop))?;
    let names = WAYS.map(|way| way.name().to_owned());
    let mut copies =
        Copies { memory: Arc::clone(&memory), pages: vec![0; dirty_pages * PAGE_BYTES] };
    let ways = take_turns("cycles of the library", rounds, &names, |who| {
        time(&mut machines[who], &pages, cycles, &mut copies)
    })?;
    let best = ways[1..].iter().filter_map(|set| set.figure(RATE)).map(|found| found.median);
    let best = best.fold(f64::NAN, f64::max);
    let bars = vec![Bar::at_least("cycles a second, the best source", best, CYCLES)];
    Ok(Report { gib, dirty_pages, ways, bars })
}

fn time(
    machine: &mut Machine,
    pages: &[usize],
    cycles: usize,
    copies: &mut Copies,
) -> Result<Measured> {
    let (mut stopped, mut check) = (Vec::with_capacity(cycles), 0);
    let start = Instant::now();
    for _ in 0..cycles {
        let epoch = machine.epoch(pages)?;
        let copying = Instant::now();
        copies.take(machine.found())?;
        stopped.push((epoch.total + copying.elapsed()).as_secs_f64() * 1e6);
        check = epoch.check;
    }
    let rate = cycles as f64 / start.elapsed().as_secs_f64();
    Ok(Measured::new(RATE, "/s", rate).and("guest stopped", "µs", median(&stopped)).checked(check))
}

/// Copies of the pages of one cycle.
struct Copies {
    memory: Arc<Mapping>,
    pages: Vec<u8>,
}

impl Copies {
    fn take(&mut self, found: &[PageIndex]) -> Result<()> {
        for (page, copy) in found.iter().zip(self.pages.chunks_exact_mut(PAGE_BYTES)) {
            let at = page.at() * PAGE_BYTES;
            ensure!(at + PAGE_BYTES <= self.memory.bytes(), "page {page:?} is outside the slot");
            let page = self.memory.as_ptr().wrapping_add(at);
            // SAFETY: the page lies in the mapping, and `copy` is a page that nobody else has.
            unsafe { copy_changing(page, copy.as_mut_ptr(), PAGE_BYTES) };
        }
        std::hint::black_box(&self.pages);
        Ok(())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let title = format!("cycles of {} dirty pages in {} GiB", self.dirty_pages, self.gib);
        writeln!(f, "{}", Table::of_samples(title, &self.ways, 0))?;
        Bar::table(&self.bars).fmt(f)
    }
}
