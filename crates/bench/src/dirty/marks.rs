//! Marking alone: one thread, two, and ranges.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use anyhow::Result;
use bindery_dirty::Tree;
use serde::Serialize;

use super::contender::{Contender, Flat, VmMemory};
use super::{ATOMIC_BITMAP, FLAT, TREE, random_pages};
use crate::harness::{Measured, SampleSet, Table, take_turns, timed};

/// Marks of a round.
const MARKS: u64 = 1_000_000;

/// Pages of a range: 2 MiB.
const RANGE_PAGES: u64 = 512;

/// Ranges of a round.
const RANGES: u64 = 2000;

pub(super) const ONE: &str = "one thread";
pub(super) const TWO: &str = "two threads";
pub(super) const RANGE: &str = "range";

/// What marks cost.
#[derive(Debug, Serialize)]
pub struct Marks {
    /// A million random pages, each contender by one thread, and by two on a half each.
    pub pages: Vec<SampleSet>,
    /// Ranges of 2 MiB at random places.
    pub ranges: Vec<SampleSet>,
}

pub(super) fn run(pages: u64, rounds: usize) -> Result<Marks> {
    Ok(Marks { pages: run_pages(pages, rounds)?, ranges: run_ranges(pages, rounds)? })
}

fn run_pages(pages: u64, rounds: usize) -> Result<Vec<SampleSet>> {
    let all = random_pages(MARKS, pages, 1);
    let half = pages.div_ceil(2) as u32;
    let halves = [all.iter().map(|page| page % half).collect::<Vec<_>>(), {
        let upper = |page: &u32| (page % half + half).min(pages as u32 - 1);
        all.iter().map(upper).collect()
    }];
    let names = turn_names();
    let mut flat = Flat::new(pages as usize);
    let tree = Tree::new(pages)?;
    let mut bitmap = VmMemory::new(pages as usize);
    // What the last turn has marked is unmarked by setting it to zero, page by page of memory: all
    // are in the same state, touched and empty.
    let mut lists = super::Lists::new(pages as usize);
    let mut turn = |who: usize| {
        lists.clear();
        let time = match who {
            0 => timed(|| flat.mark(&all)).0,
            1 => timed(|| mark_tree(&tree, &all)).0,
            2 => timed(|| bitmap.mark(&all)).0,
            3 => by_two(&halves, |pages| mark_tree(&tree, pages)),
            _ => by_two(&halves, |pages| {
                pages.iter().for_each(|page| bitmap.bitmap.set_bit(*page as usize));
            }),
        };
        flat.harvest(&mut lists);
        bitmap.bitmap.reset();
        let whole = bindery_units::PageRange::new(bindery_units::PageIndex(0), pages as u32);
        tree.harvest_into(whole, &mut lists.narrow).expect("the pages are the tree's");
        let marks = if who < 3 { MARKS } else { 2 * MARKS };
        Measured::new("mark", "ns/page", time.as_nanos() as f64 / marks as f64)
    };
    (0..names.len()).for_each(|who| _ = turn(who));
    take_turns(rounds, &names, |who| Ok(turn(who)))
}

fn turn_names() -> Vec<String> {
    let one = [FLAT, TREE, ATOMIC_BITMAP].map(|name| format!("{name}, {ONE}"));
    let two = [TREE, ATOMIC_BITMAP].map(|name| format!("{name}, {TWO}"));
    one.into_iter().chain(two).collect()
}

fn mark_tree(tree: &Tree, pages: &[u32]) {
    pages.iter().for_each(|page| tree.mark(*page).expect("the page is the tree's"));
}

/// Two threads, each with its own pages: from when both have begun until both are through.
fn by_two(halves: &[Vec<u32>; 2], mark: impl Fn(&[u32]) + Sync) -> Duration {
    let start = Barrier::new(2);
    let work = |pages: &[u32]| {
        start.wait();
        let began = Instant::now();
        mark(pages);
        (began, Instant::now())
    };
    let spans = std::thread::scope(|scope| {
        let other = scope.spawn(|| work(&halves[1]));
        [work(&halves[0]), other.join().expect("marking does not panic")]
    });
    spans[0].1.max(spans[1].1) - spans[0].0.min(spans[1].0)
}

fn run_ranges(pages: u64, rounds: usize) -> Result<Vec<SampleSet>> {
    let range_pages = RANGE_PAGES.min(pages);
    let firsts: Vec<u64> = random_pages(RANGES, pages / range_pages, 2)
        .into_iter()
        .map(|range| u64::from(range) * range_pages)
        .collect();
    let names = [TREE, ATOMIC_BITMAP].map(|name| format!("{name}, {RANGE}"));
    let tree = Tree::new(pages)?;
    let bitmap = VmMemory::new(pages as usize);
    let mut list = super::Lists::new(pages as usize).narrow;
    let mut turn = |who: usize| {
        list.clear();
        let (time, ()) = timed(|| match who {
            0 => firsts.iter().for_each(|first| {
                tree.mark_range(*first, range_pages).expect("the pages are the tree's");
            }),
            _ => firsts.iter().for_each(|first| {
                bitmap
                    .bitmap
                    .set_addr_range((first * 4096) as usize, (range_pages * 4096) as usize);
            }),
        });
        let whole = bindery_units::PageRange::new(bindery_units::PageIndex(0), pages as u32);
        tree.harvest_into(whole, &mut list).expect("the pages are the tree's");
        bitmap.bitmap.reset();
        Measured::new("mark", "ns/range", time.as_nanos() as f64 / RANGES as f64)
    };
    (0..names.len()).for_each(|who| _ = turn(who));
    take_turns(rounds, &names, |who| Ok(turn(who)))
}

impl Marks {
    /// The samples of a contender.
    pub(super) fn of(&self, contender: &str, how: &str) -> Option<&crate::harness::Samples> {
        let name = format!("{contender}, {how}");
        self.pages.iter().chain(&self.ranges).find(|set| set.name == name)?.figure("mark")
    }

    /// All of it.
    pub(super) fn table(&self) -> Table {
        let mut table = Table::new("marks alone", &["", "time", "unit", "min..max"]);
        for set in self.pages.iter().chain(&self.ranges) {
            let figure = &set.figures[0];
            let [median, min, max] =
                [figure.median, figure.min, figure.max].map(crate::harness::significant);
            let range = format!("{min}..{max}");
            table.push(vec![set.name.clone(), median, figure.unit.to_owned(), range]);
        }
        table
    }
}
