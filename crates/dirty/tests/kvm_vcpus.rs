//! The dirty rings of several vCPUs at once: each writes pages that are known, to words of its own, while
//! others write and a reader collects.
#![cfg(not(loom))]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bindery_dirty::source::{KvmRings, Source};
use bindery_sys::kvm::reset_dirty_rings;
use bindery_testkit::kvm::{TinyCpu, Tracking};
use bindery_units::HostAddress;
use common::{Guest, Oracle, StopAtEnd, shifted};
use kvm_ioctls::VmFd;
use proptest::prelude::*;
use rand::{Rng, SeedableRng, rngs::SmallRng};

/// More than the machine has, so that they also lose their turn anywhere.
const CPUS: usize = 3;

/// More than any processor reserves, so that small numbers of pages do not fill it.
const ENTRIES: u32 = 1024;
const RING: Tracking = Tracking::Ring { entries: ENTRIES };

/// How long a ring may stay full, or none be, on a machine that does much else.
const PATIENCE: Duration = Duration::from_secs(20);

fn start(slots_pages: &[usize], first: u32) -> Option<Guest> {
    Guest::with_cpus(slots_pages, first, RING, CPUS)
}

/// Has each CPU do something, all at once.
fn on_all<T: Send>(guest: &mut Guest, run: impl Fn(usize, &mut TinyCpu) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let start = |(at, cpu)| {
            let run = &run;
            scope.spawn(move || run(at, cpu))
        };
        let threads: Vec<_> = guest.tiny.cpus().iter_mut().enumerate().map(start).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// The words of a page that the CPUs add to, each to its own.
fn words(memory: HostAddress, page: u32) -> [u32; CPUS] {
    let words = memory.plus_pages(page).0 as *const [u32; CPUS];
    // SAFETY: the caller's page is in the guest's mapping, which is there as long as the guest; others
    // may write it meanwhile.
    unsafe { words.read_volatile() }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases / 10))]

    #[test]
    fn what_any_of_them_wrote_is_collected_once(
        slots in prop::collection::vec(1_usize..3000, 1..4),
        first in 0_u32..130,
        epochs in prop::collection::vec(
            prop::collection::vec(prop::collection::vec(any::<prop::sample::Index>(), 0..200), CPUS),
            1..8,
        ),
    ) {
        let Some(mut guest) = start(&slots, first) else { return Ok(()) };
        let mut source = guest.rings();
        let pages: usize = slots.iter().sum();
        let oracle = Oracle::new(first + pages as u32);
        for epoch in &epochs {
            let written: Vec<Vec<usize>> =
                epoch.iter().map(|cpu| cpu.iter().map(|at| at.index(pages)).collect()).collect();
            on_all(&mut guest, |at, cpu| {
                cpu.touch(&written[at], &mut || panic!("not so many pages")).unwrap();
            });
            let all: BTreeSet<u32> = written.iter().flatten().map(|page| *page as u32).collect();
            let collected = source.collect(&oracle).unwrap();
            prop_assert_eq!(oracle.take(), shifted(&all, first));
            prop_assert!(collected.pages >= all.len() as u64);
            prop_assert_eq!(reset_dirty_rings(&guest.tiny.vm()).unwrap(), 0);
            prop_assert_eq!(source.collect(&oracle).unwrap().pages, 0);
        }
    }
}

/// Nobody collects but those whose rings are full; what one of them collects makes room for all.
#[test]
fn full_rings_stop_each_until_there_is_room() {
    const EACH: usize = 20_000;
    let Some(mut guest) = start(&[EACH * 2, EACH], 0) else { return };
    let source = Mutex::new(guest.rings());
    let oracle = Oracle::new((CPUS * EACH) as u32);
    let (full, deadline) = (AtomicU32::new(0), Instant::now() + PATIENCE);
    for round in 1..=2 {
        on_all(&mut guest, |at, cpu| {
            // Pages of its own, all over them, none twice: 7919 is no divisor.
            let order: Vec<usize> = (0..EACH).map(|n| at + n * 7919 % EACH * CPUS).collect();
            let mut make_room = || {
                let collected = source.lock().unwrap().make_room(at, &oracle).unwrap();
                assert!(collected.pages <= u64::from(ENTRIES) * CPUS as u64);
                assert!(Instant::now() < deadline, "the ring of vCPU {at} stays full");
                full.fetch_add(1, Ordering::Relaxed);
            };
            cpu.touch(&order, &mut make_room).unwrap();
        });
        source.lock().unwrap().collect(&oracle).unwrap();
        assert_eq!(oracle.take(), (0..(CPUS * EACH) as u32).collect());
        // Each frees all rings at most.
        let least = round * (EACH as u32 / ENTRIES - 1);
        let full = full.load(Ordering::Relaxed);
        assert!(full >= least, "{full} full rings, not {least}");
    }
    for page in 0..CPUS * EACH {
        let expected = std::array::from_fn(|cpu| if cpu == page % CPUS { 2 } else { 0 });
        assert_eq!(words(guest.memory.address(), page as u32), expected, "page {page}");
    }
}

type Rings = KvmRings<Arc<VmFd>>;

/// What the CPUs and the reader share.
#[derive(Default)]
struct Beside {
    marks: Oracle,
    stop: AtomicBool,
    full: AtomicU32,
}

/// Writes pages at random until it is told to stop; returns how often it wrote which.
fn write_on(at: usize, cpu: &mut TinyCpu, source: &Mutex<Rings>, beside: &Beside) -> Vec<u32> {
    let mut random = SmallRng::seed_from_u64(at as u64);
    let mut wrote = vec![0; cpu.pages()];
    let make_room = |deadline| {
        source.lock().unwrap().make_room(at, &beside.marks).unwrap();
        beside.full.fetch_add(1, Ordering::Relaxed);
        assert!(Instant::now() < deadline, "the ring of vCPU {at} stays full");
    };
    while !beside.stop.load(Ordering::Relaxed) {
        let deadline = Instant::now() + PATIENCE;
        let pages: Vec<usize> = (0..500).map(|_| random.random_range(0..cpu.pages())).collect();
        pages.iter().for_each(|page| wrote[*page] += 1);
        cpu.touch(&pages, &mut || make_room(deadline)).unwrap();
    }
    wrote
}

fn wait_for_a_full_ring(beside: &Beside) {
    let (before, deadline) = (beside.full.load(Ordering::Relaxed), Instant::now() + PATIENCE);
    while beside.full.load(Ordering::Relaxed) == before {
        assert!(Instant::now() < deadline, "no ring is full");
        std::thread::yield_now();
    }
}

/// A copy that is made by the marks, page by page after each collection, is the memory in the end. Before
/// every fourth collection the reader waits until a ring was full.
#[test]
fn a_copy_beside_them_is_complete() {
    const SLOTS_PAGES: [usize; 2] = [5000, 2999];
    const EPOCHS: u32 = 80;
    let Some(mut guest) = start(&SLOTS_PAGES, 0) else { return };
    let pages: usize = SLOTS_PAGES.iter().sum();
    let source = Mutex::new(guest.rings());
    let beside = Beside { marks: Oracle::new(pages as u32), ..Beside::default() };
    let memory = guest.memory.address();
    let mut copy = vec![[0; CPUS]; pages];
    let mut epoch = || {
        // And what those marked whose rings were full.
        source.lock().unwrap().collect(&beside.marks).unwrap();
        let found = beside.marks.take();
        found.iter().for_each(|page| copy[*page as usize] = words(memory, *page));
        found.len()
    };
    let (wrote, copied) = std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let _stop = StopAtEnd(&beside.stop);
            let copied = (0..EPOCHS).map(|at| {
                if at % 4 == 3 {
                    wait_for_a_full_ring(&beside);
                }
                epoch()
            });
            copied.sum::<usize>()
        });
        let wrote = on_all(&mut guest, |at, cpu| write_on(at, cpu, &source, &beside));
        (wrote, reader.join().unwrap())
    });
    epoch();
    for page in 0..pages {
        let expected = std::array::from_fn(|cpu| wrote[cpu][page]);
        assert_eq!((words(memory, page as u32), copy[page]), (expected, expected), "page {page}");
    }
    let full = beside.full.into_inner();
    println!("{copied} pages were copied, {full} rings were full");
    assert!(full >= EPOCHS / 4 && copied >= pages, "{full} full rings, {copied} pages copied");
}
