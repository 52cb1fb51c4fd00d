//! Marking alone: one thread, two, and ranges.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use anyhow::Result;
use bindery_dirty::Tree;
use bindery_units::{PageIndex, PageRange};
use serde::Serialize;

use super::contender::{Contender, Flat, Lists, OwnBitmap, VmMemory, mark_bitmap};
use super::{ATOMIC_BITMAP, FLAT, OWN_BITMAP, TREE, random_pages};
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
    let mut scene = Scene::new(pages)?;
    let names = WHO.map(|(name, how)| format!("{name}, {how}")).to_vec();
    let mut turn = |who: usize| {
        let time = scene.mark(WHO[who], &all, &halves);
        scene.settle();
        let marks = if WHO[who].1 == ONE { MARKS } else { 2 * MARKS };
        Measured::new("mark", "ns/page", time.as_nanos() as f64 / marks as f64)
    };
    (0..names.len()).for_each(|who| _ = turn(who));
    take_turns("marks of pages", rounds, &names, |who| Ok(turn(who)))
}

/// Who marks random pages, and how. Two threads that mark plain words have words of their own each: what the
/// machine itself gives.
const WHO: [(&str, &str); 8] = [
    (FLAT, ONE),
    (TREE, ONE),
    (OWN_BITMAP, ONE),
    (ATOMIC_BITMAP, ONE),
    (FLAT, TWO),
    (TREE, TWO),
    (OWN_BITMAP, TWO),
    (ATOMIC_BITMAP, TWO),
];

/// The sets, each touched and empty whenever a turn begins.
struct Scene {
    flats: [Flat; 2],
    tree: Tree,
    own: [OwnBitmap; 2],
    bitmap: VmMemory,
    lists: Lists,
}

impl Scene {
    fn new(pages: u64) -> Result<Self> {
        let count = pages as usize;
        Ok(Self {
            flats: [Flat::new(count), Flat::new(count)],
            tree: Tree::new(pages)?,
            own: [OwnBitmap::new(pages)?, OwnBitmap::new(pages)?],
            bitmap: VmMemory::new(count),
            lists: Lists::new(count),
        })
    }

    fn mark(&mut self, who: (&str, &str), all: &[u32], halves: &[Vec<u32>; 2]) -> Duration {
        let Self { flats: [flat, other_flat], tree, own: [own, other_own], bitmap, .. } = self;
        let set_bit = |page: &u32| bitmap.bitmap.set_bit(*page as usize);
        match who {
            (FLAT, ONE) => timed(|| flat.mark(all)).0,
            (TREE, ONE) => timed(|| mark_tree(tree, all)).0,
            (OWN_BITMAP, ONE) => timed(|| own.mark(all)).0,
            (_, ONE) => timed(|| all.iter().for_each(set_bit)).0,
            (FLAT, _) => by_two(halves, |pages| flat.mark(pages), |pages| other_flat.mark(pages)),
            (TREE, _) => {
                by_two(halves, |pages| mark_tree(tree, pages), |pages| mark_tree(tree, pages))
            }
            (OWN_BITMAP, _) => {
                let (one, other) = (&mut own.marker, &mut other_own.marker);
                by_two(halves, |pages| mark_bitmap(one, pages), |pages| mark_bitmap(other, pages))
            }
            _ => {
                let set_all = |pages: &[u32]| pages.iter().for_each(set_bit);
                by_two(halves, set_all, set_all)
            }
        }
    }

    /// Empties what a turn has marked, and lists it: the next one finds all sets in the same state.
    fn settle(&mut self) {
        self.flats.iter_mut().for_each(|flat| flat.harvest(&mut self.lists));
        self.own.iter_mut().for_each(|own| own.harvest(&mut self.lists));
        self.bitmap.bitmap.reset();
        let whole = PageRange::new(PageIndex(0), self.tree.pages() as u32);
        self.tree.harvest_into(whole, &mut self.lists.narrow).expect("the pages are the tree's");
        self.lists.clear();
    }
}

fn mark_tree(tree: &Tree, pages: &[u32]) {
    pages.iter().for_each(|page| tree.mark(*page).expect("the page is the tree's"));
}

/// Two threads, each with its own pages: from when both have begun until both are through.
fn by_two(
    [own, others]: &[Vec<u32>; 2],
    mark: impl FnOnce(&[u32]),
    mark_too: impl FnOnce(&[u32]) + Send,
) -> Duration {
    let start = &Barrier::new(2);
    let spans = std::thread::scope(|scope| {
        let other = scope.spawn(|| span_of(start, || mark_too(others)));
        [span_of(start, || mark(own)), other.join().expect("marking does not panic")]
    });
    spans[0].1.max(spans[1].1) - spans[0].0.min(spans[1].0)
}

/// When work began that waits for the start, and when it was through.
fn span_of(start: &Barrier, work: impl FnOnce()) -> (Instant, Instant) {
    start.wait();
    let began = Instant::now();
    work();
    (began, Instant::now())
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
    let mut list = Lists::new(pages as usize).narrow;
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
        let whole = PageRange::new(PageIndex(0), pages as u32);
        tree.harvest_into(whole, &mut list).expect("the pages are the tree's");
        bitmap.bitmap.reset();
        Measured::new("mark", "ns/range", time.as_nanos() as f64 / RANGES as f64)
    };
    (0..names.len()).for_each(|who| _ = turn(who));
    take_turns("marks of ranges", rounds, &names, |who| Ok(turn(who)))
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
