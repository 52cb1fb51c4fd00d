//! `bindery-bench dirty`: the dirty tree beside other ways to know which pages were written.
//!
//! The table is that of the mail in which a packed radix tree was first proposed to KVM (`seed`),
//! extended: so many dirty pages, at random or one after the other, of ten million; what a mark
//! costs, what it costs to list them all, and what the set takes. Every contender is given the same
//! pages in the same order and must list the same ones. Lists are touched before. What is short is
//! repeated, each time with other pages (or branches would be predicted that never are), and a
//! round's figure is the median of its repetitions. Harvests are timed right after the marks, and then
//! again, each after other memory has been written, as it is when a guest runs between the two.
//!
//! The baselines are favoured where they differ: the mail's list, tree and bitmap are not emptied
//! within the time, as they were not there.

mod bars;
mod contender;
pub mod epoch;
pub(crate) mod machines;
mod marks;
mod seed;

use std::fmt;

use anyhow::{Result, ensure};
use serde::Serialize;

use crate::harness::{Bar, Measured, SampleSet, Table, median, significant, take_turns, timed};

use self::contender::{
    Contender, Flat, HiSparse, List, Lists, Own, OwnBitmap, Roaring, SeedBitmap, SeedTree, VmMemory,
};
pub use self::marks::Marks;
use self::seed::RadixTree;

/// What to measure, and how often.
#[derive(Clone, Debug)]
pub struct Options {
    /// Pages of the guest.
    pub pages: u64,
    /// Numbers of dirty pages.
    pub dirty: Vec<u64>,
    /// Interleaved rounds; the tables show medians over them.
    pub rounds: usize,
}

/// The order in which pages are marked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// Any page as likely as any other, some of them more than once.
    Random,
    /// From the first page on.
    Sequential,
}

/// Everything that was measured.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Pages of the guest.
    pub pages: u64,
    /// One entry for each order and number of dirty pages.
    pub comparisons: Vec<Comparison>,
    /// Marking alone, by one thread and by two.
    pub marks: Marks,
    /// What the tree is held to.
    pub bars: Vec<Bar>,
    /// Whole epochs, of KVM guests and by scans.
    pub epochs: epoch::Report,
}

/// All contenders with the same dirty pages, taken in turns.
#[derive(Debug, Serialize)]
pub struct Comparison {
    /// The order of the marks.
    pub order: Order,
    /// How many marks.
    pub dirty: u64,
    /// Mark, harvest and memory of each contender.
    pub contenders: Vec<SampleSet>,
}

impl Comparison {
    /// A figure of a contender.
    fn of(&self, contender: &str, figure: &str) -> Option<&crate::harness::Samples> {
        self.contenders.iter().find(|set| set.name == contender)?.figure(figure)
    }

    /// How many times `base`'s time another contender takes for the same.
    fn ratio(&self, figure: &str, contender: &str, base: &str) -> Option<f64> {
        Some(self.of(contender, figure)?.ratio_to(self.of(base, figure)?))
    }
}

const MARK: &str = "mark";
const HARVEST: &str = "harvest";
const COLD_HARVEST: &str = "harvest, cold";
const MEMORY: &str = "memory";

const LIST: &str = "list";
const SEED_TREE: &str = "seed's tree";
const SEED_BITMAP: &str = "seed's bitmap";
const FLAT: &str = "flat 64-bit";
const TREE: &str = "tree";
const TREE_ALONE: &str = "tree, alone";
const RUNS: &str = "tree, runs";
const RUNS_ALONE: &str = "tree, runs, alone";
const OWN_BITMAP_TREE: &str = "own bitmap, tree";
const OWN_BITMAP: &str = "own bitmap";
const ATOMIC_BITMAP: &str = "AtomicBitmap";
const ROARING: &str = "roaring";
const HI_SPARSE: &str = "hi_sparse_bitset";

const NAMES: [&str; 12] = [
    LIST,
    SEED_TREE,
    SEED_BITMAP,
    FLAT,
    TREE,
    TREE_ALONE,
    RUNS,
    RUNS_ALONE,
    OWN_BITMAP_TREE,
    ATOMIC_BITMAP,
    ROARING,
    HI_SPARSE,
];

/// Memory that is written before a cold harvest, in bytes: more than a core's own caches hold.
const OTHER_MEMORY_BYTES: usize = 8 << 20;

/// Marks that a round makes at least, so that short runs are repeated.
const MARKS_A_ROUND: u64 = 20_000;

/// Repetitions of a round at least: the first one finds the caches as the contender before has left them.
const LEAST_REPETITIONS: u64 = 3;

/// Measures all orders and numbers, marking alone, and compares with the bars.
///
/// # Errors
/// If an option is zero, empty or too large, or if two contenders list different pages.
pub fn run(options: &Options) -> Result<Report> {
    let Options { pages, dirty, rounds } = options;
    ensure!(*rounds > 0, "--rounds must be at least 1");
    ensure!(
        (1..=HiSparse::MOST_PAGES).contains(pages),
        "--pages must be from 1 to {}, the most that all contenders can hold",
        HiSparse::MOST_PAGES
    );
    ensure!(!dirty.is_empty() && !dirty.contains(&0), "--dirty must be at least 1");
    ensure!(dirty.iter().all(|dirty| dirty <= pages), "--dirty must be at most --pages, {pages}");
    let mut comparisons = Vec::new();
    for order in [Order::Random, Order::Sequential] {
        for dirty in dirty {
            comparisons.push(compare(order, *dirty, *pages, *rounds)?);
        }
    }
    let marks = marks::run(*pages, *rounds)?;
    let bars = bars::of(&comparisons, &marks, *rounds)?;
    let epochs = epoch::run(&epoch::Options { rounds: *rounds, ..epoch::Options::default() })?;
    Ok(Report { pages: *pages, comparisons, marks, bars, epochs })
}

fn compare(order: Order, dirty: u64, pages: u64, rounds: usize) -> Result<Comparison> {
    let repetitions = 2 * (MARKS_A_ROUND / dirty).max(LEAST_REPETITIONS);
    let mut scene = Scene {
        marked: (0..repetitions).map(|seed| pages_in(order, dirty, pages, seed)).collect(),
        lists: Lists::new(dirty as usize),
        other_memory: vec![0; OTHER_MEMORY_BYTES],
    };
    let mut contenders = contenders(pages)?;
    let names: Vec<String> = NAMES.iter().map(ToString::to_string).collect();
    // A round that is thrown away: it faults memory in.
    for contender in &mut contenders {
        scene.measure(contender.as_mut());
    }
    let title = format!("{dirty} of {pages} pages dirty, {order:?}");
    let turn = |who: usize| Ok(scene.measure(contenders[who].as_mut()));
    let contenders = take_turns(&title, rounds, &names, turn)?;
    Ok(Comparison { order, dirty, contenders })
}

/// In the order of [`NAMES`].
fn contenders(pages: u64) -> Result<[Box<dyn Contender>; NAMES.len()]> {
    let count = pages as usize;
    Ok([
        Box::new(List::new(count)),
        Box::new(SeedTree(RadixTree::new(pages))),
        Box::new(SeedBitmap(RadixTree::new(pages))),
        Box::new(Flat::new(count)),
        Box::new(Own::new(pages, Own::SHARED)?),
        Box::new(Own::new(pages, Own::ALONE)?),
        Box::new(Own::new(pages, Own::RUNS)?),
        Box::new(Own::new(pages, Own::RUNS_ALONE)?),
        Box::new(OwnBitmap::new(pages)?),
        Box::new(VmMemory::new(count)),
        Box::new(Roaring::default()),
        Box::new(HiSparse::default()),
    ])
}

/// What all contenders are given.
struct Scene {
    /// The pages of each repetition.
    marked: Vec<Vec<u32>>,
    lists: Lists,
    other_memory: Vec<u8>,
}

impl Scene {
    fn measure(&mut self, contender: &mut dyn Contender) -> Measured {
        let (mut bytes, mut marks) = (0, Vec::new());
        let [mut harvests, mut cold_harvests] = [const { Vec::new() }; 2];
        // First all that are warm: what a cold one writes is in the caches where the next one's list was. Each
        // has pages of its own, or branches would be predicted that never are.
        let (warm, cold) = self.marked.split_at(self.marked.len() / 2);
        let each =
            warm.iter().map(|marked| (marked, false)).chain(cold.iter().map(|it| (it, true)));
        for (marked, is_cold) in each {
            self.lists.clear();
            let (mark, ()) = timed(|| contender.mark(marked));
            bytes = contender.bytes();
            if is_cold {
                self.other_memory.iter_mut().step_by(64).for_each(|byte| *byte ^= 1);
            } else {
                marks.push(mark.as_nanos() as f64 / marked.len() as f64);
            }
            let (harvest, ()) = timed(|| contender.harvest(&mut self.lists));
            let harvests = if is_cold { &mut cold_harvests } else { &mut harvests };
            harvests.push(harvest.as_nanos() as f64 / 1e3);
            contender.settle(marked);
        }
        Measured::new(MARK, "ns/page", median(&marks))
            .and(HARVEST, "µs", median(&harvests))
            .and(COLD_HARVEST, "µs", median(&cold_harvests))
            .and(MEMORY, "KiB", bytes as f64 / 1024.0)
            .checked(self.lists.digest())
    }
}

fn pages_in(order: Order, dirty: u64, pages: u64, seed: u64) -> Vec<u32> {
    match order {
        Order::Random => random_pages(dirty, pages, (dirty + pages) << 20 | seed),
        Order::Sequential => (0..dirty as u32).collect(),
    }
}

/// `count` pages below `pages`, by splitmix64.
fn random_pages(count: u64, pages: u64, seed: u64) -> Vec<u32> {
    let mut state = seed;
    let next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((u128::from(mixed ^ mixed >> 31) * u128::from(pages)) >> 64) as u32
    };
    std::iter::repeat_with(next).take(count as usize).collect()
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for order in [Order::Random, Order::Sequential] {
            for figure in [HARVEST, COLD_HARVEST, MARK, MEMORY] {
                writeln!(f, "{}", self.table(order, figure))?;
            }
        }
        writeln!(f, "{}", self.marks.table())?;
        writeln!(f, "{}", Bar::table(&self.bars))?;
        write!(f, "{}", self.epochs)
    }
}

impl Report {
    fn table(&self, order: Order, figure: &str) -> Table {
        let which: Vec<&Comparison> =
            self.comparisons.iter().filter(|comparison| comparison.order == order).collect();
        let unit = which[0].of(TREE, figure).map_or("", |samples| samples.unit);
        let order = if order == Order::Random { "random" } else { "sequential" };
        let title = format!("{figure}, {unit}: {order} pages of {}", self.pages);
        let mut headings = vec!["pages"];
        headings.extend(NAMES);
        let mut table = Table::new(title, &headings);
        for comparison in which {
            let mut row = vec![comparison.dirty.to_string()];
            row.extend(NAMES.map(|name| {
                let samples = comparison.of(name, figure);
                samples.map_or_else(String::new, |samples| significant(samples.median))
            }));
            table.push(row);
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every contender lists the same pages: [`take_turns`] refuses them otherwise.
    #[test]
    fn all_contenders_agree() {
        let options = Options { pages: 100_000, dirty: vec![10, 5000, 100_000], rounds: 1 };
        let report = run(&options).unwrap();
        assert_eq!(report.comparisons.len(), 6);
        let shown = report.to_string();
        assert!(shown.contains("sequential pages of 100000"), "{shown}");
        for wrong in [
            Options { rounds: 0, ..options.clone() },
            Options { dirty: vec![100_001], ..options.clone() },
            Options { pages: u64::MAX, ..options },
        ] {
            assert!(run(&wrong).is_err());
        }
    }
}
