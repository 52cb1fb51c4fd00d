//! What the tree is held to, as ratios within a run.

use anyhow::Result;
use bindery_dirty::Tree;
use bindery_units::{PageIndex, PageRange};

use super::marks::{Marks, ONE, RANGE, TWO};
use super::{
    ATOMIC_BITMAP, COLD_HARVEST, Comparison, FLAT, HARVEST, LIST, OWN_BITMAP, Order, RUNS,
    RUNS_ALONE, SEED_TREE, TREE, TREE_ALONE, random_pages,
};
use crate::harness::{Bar, median, timed};

/// Those bars for which the run has the figures.
pub(super) fn of(comparisons: &[Comparison], marks: &Marks, rounds: usize) -> Result<Vec<Bar>> {
    let find = |order, dirty| {
        comparisons.iter().find(|found| found.order == order && found.dirty == dirty)
    };
    let full = comparisons.iter().map(|comparison| comparison.dirty).max().unwrap_or(0);
    let mut bars = Vec::new();
    let columns = [TREE, TREE_ALONE, RUNS, RUNS_ALONE];
    for (tree, figure) in columns.iter().flat_map(|of| [(*of, HARVEST), (*of, COLD_HARVEST)]) {
        let ratio = |order, dirty, contender| find(order, dirty)?.ratio(figure, contender, tree);
        let beside_flat = comparisons.iter().filter_map(|found| found.ratio(figure, tree, FLAT));
        let list = [
            (ratio(Order::Random, 100, SEED_TREE), "100 random, seed's tree ÷ it", 14.0, true),
            (ratio(Order::Sequential, 100_000, LIST), "100000 sequential, list ÷ it", 3.0, true),
            (beside_flat.reduce(f64::max), "any density, it ÷ flat 64-bit", 1.05, false),
            (ratio(Order::Sequential, full, LIST), "all sequential, list ÷ it", 4.0, true),
        ];
        for (found, name, wanted, at_least) in list {
            let name = format!("{figure}, {tree}: {name}");
            bars.extend(found.map(|found| bar(name, found, wanted, at_least)));
        }
    }
    let by = |contender, how| marks.of(contender, how);
    let mark = |a: Option<&crate::harness::Samples>, b: Option<&crate::harness::Samples>| {
        Some(a?.ratio_to(b?))
    };
    let list = [
        (
            mark(by(OWN_BITMAP, ONE), by(FLAT, ONE)),
            "mark, random: own bitmap ÷ plain store",
            2.0,
            false,
        ),
        (mark(by(TREE, ONE), by(FLAT, ONE)), "mark, random: tree ÷ plain store", 2.0, false),
        (
            mark(by(OWN_BITMAP, ONE), by(OWN_BITMAP, TWO)),
            "mark, random: one own bitmap ÷ two",
            1.9,
            true,
        ),
        (mark(by(TREE, ONE), by(TREE, TWO)), "mark, random, tree: one thread ÷ two", 1.9, true),
        (
            mark(by(ATOMIC_BITMAP, RANGE), by(TREE, RANGE)),
            "mark, 2 MiB: AtomicBitmap ÷ tree",
            50.0,
            true,
        ),
    ];
    for (found, name, wanted, at_least) in list {
        bars.extend(found.map(|found| bar(name, found, wanted, at_least)));
    }
    bars.push(Bar::at_most("harvest of 16 pages of 16 GiB, µs", few_of_many(rounds)?, 1.0));
    Ok(bars)
}

fn bar(name: impl Into<String>, found: f64, wanted: f64, at_least: bool) -> Bar {
    Bar { name: name.into(), found, wanted, at_least }
}

/// What a harvest of 16 random pages of a guest of 16 GiB takes, in µs.
fn few_of_many(rounds: usize) -> Result<f64> {
    const PAGES: u64 = 4 << 20;
    let tree = Tree::new(PAGES)?;
    let whole = PageRange::new(PageIndex(0), PAGES as u32);
    let mut buffer = vec![PageIndex(0); 8192];
    let mut times = Vec::new();
    for seed in 0..200 * rounds as u64 {
        let mut marked = random_pages(16, PAGES, seed);
        for page in &marked {
            tree.mark(*page)?;
        }
        let (time, harvest) = timed(|| tree.harvest_some(whole, &mut buffer));
        marked.sort_unstable();
        marked.dedup();
        let harvested = buffer[..harvest?.pages].iter().map(|page| page.0);
        anyhow::ensure!(harvested.eq(marked), "other pages were harvested than marked");
        times.push(time.as_nanos() as f64 / 1e3);
    }
    Ok(median(&times))
}
