//! Marks and harvests from several threads, and not one lost.
//!
//! A page's oracle is its content: a writer makes it newer, then marks the page; a harvester that is
//! given the page reads it. When all are through, whatever was read last must be what was written
//! last, for every page. That is the promise that a migration rests on, and it includes that no mark
//! is lost; that none is made up is checked by pages that nobody writes. Each writer has a part of the
//! page to itself, which it writes by plain stores, as guests do: an atomic addition would order what
//! it wrote before the mark, and hide what a mark itself must do.
//!
//! `BINDERY_DIRTY_OPERATIONS` sets the number of marks.

#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "what a test does not expect fails it")]

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use bindery_dirty::marks::Drain;
use bindery_dirty::{BitmapMarker, BitmapReader, Tree, bitmap};
use bindery_units::{PageIndex, PageRange};
use rand::{Rng, SeedableRng, rngs::SmallRng};

const SHORT: u64 = if cfg!(miri) { 400 } else { 40_000_000 };
const MARKERS: usize = 3;
const HARVESTERS: u64 = 2;

fn operations() -> u64 {
    let asked = std::env::var("BINDERY_DIRTY_OPERATIONS").ok();
    asked.map_or(SHORT, |number| number.parse().expect("BINDERY_DIRTY_OPERATIONS is a number"))
}

struct Guest {
    tree: Tree,
    /// What each page holds, by marker, and what was read of it last.
    written: Vec<[AtomicU32; MARKERS]>,
    read: Vec<[AtomicU32; MARKERS]>,
    /// Pages below are written by nobody.
    clean: u64,
    is_over: AtomicBool,
    harvested: AtomicU64,
}

impl Guest {
    fn new(pages: u64) -> Self {
        let contents = || (0..pages).map(|_| Default::default()).collect();
        Self {
            tree: Tree::new(pages).unwrap(),
            written: contents(),
            read: contents(),
            clean: pages / 7,
            is_over: AtomicBool::new(false),
            harvested: AtomicU64::new(0),
        }
    }

    fn write(&self, page: u64, marker: usize) {
        let own = &self.written[page as usize][marker];
        own.store(own.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// Writes so many pages, run by run, and has them marked.
    fn write_and_mark(
        &self,
        marks: u64,
        marker: usize,
        mut mark: impl FnMut(u64, u64, &mut SmallRng),
    ) {
        let mut random = SmallRng::seed_from_u64(marker as u64);
        let pages = self.tree.pages();
        let mut left = marks;
        while left > 0 {
            // Most marks go where others do.
            let hot = random.random_bool(0.5);
            let end = if hot { (self.clean + 200).min(pages) } else { pages };
            let page = random.random_range(self.clean..end);
            let most = (pages - page).min(left);
            let count = match random.random_range(0..100) {
                0 => random.random_range(1..=most.min(700)),
                1..4 => random.random_range(1..=most.min(70)),
                _ => 1,
            };
            (page..page + count).for_each(|page| self.write(page, marker));
            mark(page, count, &mut random);
            left -= count;
        }
    }

    /// Marks pages in the tree, in any way.
    fn mark(&self, page: u64, count: u64, random: &mut SmallRng) {
        match (count, random.random_range(0..8)) {
            (1, 0) => {
                let word = 1_u64 << (page % 64);
                self.tree.mark_words((page / 64) as usize, &[word]).unwrap();
            }
            (1, 1) => self.tree.mark_pages(page, &[PageIndex(0)]).unwrap(),
            (1, _) => self.tree.mark(page).unwrap(),
            _ => self.tree.mark_range(page, count).unwrap(),
        }
    }

    /// Pages of the tree's whole or of a part, or as many as fit into a small buffer.
    fn harvest(&self, random: &mut SmallRng, pages: &mut Vec<PageIndex>) {
        let all = self.tree.pages() as u32;
        let first = random.random_range(0..all);
        let part = PageRange::new(PageIndex(first), random.random_range(0..=all - first));
        let whole = PageRange::new(PageIndex(0), all);
        pages.clear();
        match random.random_range(0..4) {
            0 | 1 => self.tree.harvest_into(whole, pages).unwrap(),
            2 => self.tree.harvest_into(part, pages).unwrap(),
            _ => {
                pages.resize(random.random_range(0..300), PageIndex(0));
                let harvest = self.tree.harvest_some(whole, pages).unwrap();
                pages.truncate(harvest.pages);
            }
        }
    }

    /// Only the newest is kept: two harvesters may have read the same page.
    fn read_all(&self, pages: &[PageIndex]) {
        for page in pages {
            assert!(u64::from(page.0) >= self.clean, "{page:?} was harvested and never marked");
            for (written, read) in self.written[page.at()].iter().zip(&self.read[page.at()]) {
                read.fetch_max(written.load(Ordering::Relaxed), Ordering::Relaxed);
            }
        }
        self.harvested.fetch_add(pages.len() as u64, Ordering::Relaxed);
    }

    fn harvest_until_over(&self, bitmaps: &[BitmapReader], seed: u64) {
        let mut random = SmallRng::seed_from_u64(seed);
        let mut pages = Vec::new();
        while !self.is_over.load(Ordering::Acquire) {
            for bitmap in bitmaps.iter().filter(|_| random.random_bool(0.7)) {
                bitmap.drain(&self.tree);
            }
            self.harvest(&mut random, &mut pages);
            // A checkpoint that fails gives everything back unread.
            if random.random_bool(0.05) {
                self.tree.mark_pages(0, &pages).unwrap();
            } else {
                self.read_all(&pages);
            }
            if cfg!(miri) {
                std::thread::yield_now();
            }
        }
    }

    fn settle(&self, bitmaps: &[BitmapReader]) {
        bitmaps.iter().for_each(|bitmap| _ = bitmap.drain(&self.tree));
        assert!(self.tree.is_sound());
        let mut pages = Vec::new();
        let whole = PageRange::new(PageIndex(0), self.tree.pages() as u32);
        self.tree.harvest_into(whole, &mut pages).unwrap();
        self.read_all(&pages);
        assert!(self.tree.is_empty());
        for (page, (written, read)) in self.written.iter().zip(&self.read).enumerate() {
            for (marker, (written, read)) in written.iter().zip(read).enumerate() {
                let (written, read) =
                    (written.load(Ordering::Relaxed), read.load(Ordering::Relaxed));
                assert_eq!(
                    read, written,
                    "the last write of marker {marker} to page {page} was lost"
                );
            }
        }
    }
}

/// Every marker by itself in the tree, or all by bitmaps of their own.
fn stress(pages: u64, marks: u64, by_bitmaps: bool) {
    let guest = Guest::new(pages);
    let bitmaps = (0..MARKERS).map(|_| bitmap(pages).unwrap()).collect::<Vec<_>>();
    let (markers, bitmaps): (Vec<_>, Vec<_>) = bitmaps.into_iter().unzip();
    std::thread::scope(|scope| {
        let (guest, bitmaps, each) = (&guest, &bitmaps, marks / MARKERS as u64);
        let by_bitmap = |mut bitmap: BitmapMarker| {
            move |page, count, _: &mut SmallRng| match count {
                1 => bitmap.mark(page).unwrap(),
                _ => bitmap.mark_range(page, count).unwrap(),
            }
        };
        let mark = |(marker, bitmap)| {
            scope.spawn(move || match by_bitmaps {
                true => guest.write_and_mark(each, marker, by_bitmap(bitmap)),
                false => guest.write_and_mark(each, marker, |page, count, random| {
                    guest.mark(page, count, random);
                }),
            })
        };
        let markers: Vec<_> = (0..).zip(markers).map(mark).collect();
        for seed in 0..HARVESTERS {
            scope.spawn(move || guest.harvest_until_over(bitmaps, 100 + seed));
        }
        let ended: Vec<_> = markers.into_iter().map(|marker| marker.join()).collect();
        guest.is_over.store(true, Ordering::Release);
        assert!(ended.iter().all(Result::is_ok), "a marker has failed");
    });
    guest.settle(&bitmaps);
    assert!(guest.harvested.load(Ordering::Relaxed) > 0);
}

#[test]
fn nothing_is_lost_in_bitmaps() {
    stress(if cfg!(miri) { 5000 } else { 100_000 }, operations() / 4, true);
}

#[test]
fn nothing_is_lost_in_two_levels() {
    stress(3000, operations() / 4, false);
}

#[test]
fn nothing_is_lost_in_three_levels() {
    stress(if cfg!(miri) { 5000 } else { 20_000 }, operations() / 4, false);
}

#[test]
fn nothing_is_lost_in_four_levels() {
    stress(if cfg!(miri) { 5000 } else { 300_000 }, operations() / 2, false);
}
