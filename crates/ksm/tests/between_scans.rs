//! The seed's second objection: "We want to recompute this after each scan completes, so the new
//! parameter is in effect for the next scan and to avoid we have to partially deal with new values in
//! the middle".
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use bindery_advisor::Mode;
use bindery_ksm::{Event, Meter, Timing};
use common::{Memory, Piloted, ksm, settings};

/// New values that are looked at.
const CHANGES: usize = 8;

/// Scans within which there must have been so many.
const SCANS_MAX: usize = 100;

/// Where ksmd rested: what `pages_scanned` was then, by the number of full scans.
type Rests = BTreeMap<u64, Vec<u64>>;

/// Notes where ksmd rests, as one who is not the pilot.
struct Witness {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Rests>,
}

impl Witness {
    fn start() -> Self {
        let meter = Meter::new().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let is_over = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut rests = Rests::new();
            while !is_over.load(Ordering::Relaxed) {
                if let Some((full_scans, pages)) = rest(&meter) {
                    let seen = rests.entry(full_scans).or_default();
                    if seen.last() != Some(&pages) {
                        seen.push(pages);
                    }
                }
                std::thread::sleep(Duration::from_millis(2));
            }
            rests
        });
        Self { stop, thread }
    }

    fn end(self) -> Rests {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

/// Where ksmd rests now, if it does: it sleeps, and has done nothing between two looks.
fn rest(meter: &Meter) -> Option<(u64, u64)> {
    let before = meter.sample().unwrap();
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", meter.ksmd_pid())).unwrap();
    let sleeps = stat.rsplit_once(')')?.1.split_whitespace().next() == Some("S");
    let after = meter.sample().unwrap();
    let same = before.cpu_us == after.cpu_us && before.full_scans == after.full_scans;
    let pages = after.pages_scanned.filter(|_| before.pages_scanned == after.pages_scanned)?;
    (sleeps && same).then_some((after.full_scans, pages))
}

/// Whether all of `rests` lie at the ends of whole batches from `at` on, which are of the first of
/// `sizes`, and from some batch on of the next.
fn is_walk(mut at: u64, rests: &[u64], sizes: &[u64]) -> bool {
    // Of which sizes the last batch can have been.
    let mut last = BTreeSet::from([0]);
    for rest in rests {
        let is_way = |from: usize, to: usize| is_made_of(rest - at, &sizes[from..=to]);
        let later = |from: usize| (from..sizes.len()).filter(move |to| is_way(from, *to));
        last = last.into_iter().flat_map(later).collect();
        at = *rest;
    }
    !last.is_empty()
}

/// Whether so many pages are whole batches of these sizes.
fn is_made_of(pages: u64, sizes: &[u64]) -> bool {
    let Some((size, others)) = sizes.split_first() else { return pages == 0 };
    (0..=pages / size).any(|batches| is_made_of(pages - batches * size, others))
}

#[test]
fn walks_are_of_whole_batches() {
    assert!(is_walk(10, &[20, 40, 50], &[10]));
    assert!(!is_walk(10, &[20, 45], &[10]));
    assert!(is_walk(10, &[20, 55, 90], &[10, 35]), "one switch, seen as it happens");
    assert!(is_walk(10, &[20, 65, 100], &[10, 35]), "one that happened between two looks");
    assert!(!is_walk(10, &[55, 65], &[10, 35]), "and none back");
}

#[test]
fn a_new_value_takes_effect_between_scans() {
    let test = "a_new_value_takes_effect_between_scans";
    let Some(_ksm) = ksm(test) else { return };
    if Meter::new().unwrap().sample().unwrap().pages_scanned.is_none() {
        return bindery_testkit::skipped!("{test}: this kernel does not count pages_scanned");
    }
    let _memory = Memory::offer(20_000);
    let witness = Witness::start();
    // A ceiling so low that nothing is held, and a target that asks for about 450 pages a batch.
    let pilot = Piloted::start(settings(Mode::Steady, 1));
    // What each scan was to go at, if that was set before it began, and what it was raised to within it.
    let mut exact: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    let (mut late, mut raised) = (0, 0);
    let mut under_way = 0;
    let mut more = None;
    let mut scans = 0;
    while exact.len() < CHANGES {
        assert!(scans < SCANS_MAX, "{} changes in {scans} scans, {late} late", exact.len());
        let (scan, pages, timing) = pilot.next(|event| match event {
            Event::KsmAdvisor { full_scans, pages_to_scan, timing, .. } => {
                Some((*full_scans, *pages_to_scan, *timing))
            }
            Event::Raised { pages_to_scan, .. } => {
                exact.entry(under_way).and_modify(|sizes| sizes.push(*pages_to_scan));
                raised += 1;
                None
            }
            _ => None,
        });
        under_way = scan;
        match timing {
            Timing::BetweenScans => drop(exact.insert(scan, vec![pages])),
            Timing::Late => late += 1,
            Timing::Unchanged => {}
        }
        scans += 1;
        // Something to adapt to, after every second scan: what is offered below where ksmd is at work
        // is not met before the next one.
        if scans % 2 == 0 {
            more = if more.is_some() { None } else { Some(Memory::offer(20_000)) };
        }
    }
    // The last of them must have been scanned at.
    pilot.next(|event| match event {
        Event::KsmAdvisor { timing, .. } => {
            late += u64::from(*timing == Timing::Late);
            Some(())
        }
        Event::Raised { pages_to_scan, .. } => {
            exact.entry(under_way).and_modify(|sizes| sizes.push(*pages_to_scan));
            None
        }
        _ => None,
    });
    let totals = pilot.end();
    let rests = witness.end();
    let mut seen = 0;
    for (scan, sizes) in &exact {
        let Some([end, batches @ ..]) = rests.get(scan).map(Vec::as_slice) else { continue };
        // From the end of the last scan on, whole batches of the new size and nothing else, until the
        // pilot itself raises it.
        assert!(is_walk(*end, batches, sizes), "scan {scan}: {sizes:?} from {end}, {batches:?}");
        seen += usize::from(!batches.is_empty());
    }
    println!("{} new values in time, {seen} witnessed, {late} late, {raised} raised", exact.len());
    assert!(seen * 2 >= exact.len(), "the witness saw {seen} of {}", exact.len());
    assert_eq!(totals.late_changes, late);
    assert!(totals.changes >= CHANGES as u64 + late);
}
