//! Deletes and reinserts as hard as it goes, with few keys: the place of PageONE's own bugs
//! (deleted data reborn, double frees, references lost).

#![cfg(not(loom))]

use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bindery_index::{Audit, Full, Handle, Heads, Index, Inserted, pin};
use rand::{Rng, SeedableRng, rngs::SmallRng};

const ROUNDS: u64 = if cfg!(miri) { 150 } else { 400_000 };

/// Room for what waits to be reused, little enough for the index to be full now and then.
const CAPACITY: usize = if cfg!(miri) { 4096 } else { 1 << 16 };

/// What happened to one key: inserts that were new, deletes that succeeded. A correct index keeps
/// their difference at 0 or 1.
#[derive(Default)]
struct Account {
    born: AtomicU64,
    died: AtomicU64,
}

/// Keys that part at every depth: neighbours in the trie are fought over the most.
fn key_of(number: u64) -> u64 {
    number << 61 | (number >> 3) << 30 | number >> 2 & 1
}

/// A value that says which key it belongs to and which birth it was.
fn value_of(number: u64, thread: u64, birth: u64) -> u64 {
    number << 56 | thread << 48 | birth
}

struct Fight {
    index: Index<Heads>,
    accounts: Vec<Account>,
}

impl Fight {
    fn new(keys: usize, root_bits: u32) -> Self {
        let index = Index::with_capacity(root_bits, CAPACITY as u32, Heads);
        Self { index, accounts: (0..keys).map(|_| Account::default()).collect() }
    }

    fn run(&self, thread: u64, seed: u64) {
        let mut random = SmallRng::seed_from_u64(seed << 8 | thread);
        for round in 0..ROUNDS {
            let number = random.random_range(0..self.accounts.len() as u64);
            let account = &self.accounts[number as usize];
            let guard = pin();
            match random.random_range(0..8) {
                0..3 => {
                    let value = value_of(number, thread, round);
                    match self.index.insert(&key_of(number), value, &guard) {
                        Ok(Inserted::New(_)) => {
                            account.born.fetch_add(1, Ordering::Relaxed);
                        }
                        Ok(Inserted::Found(_, value)) => assert_eq!(value >> 56, number),
                        // A thread that was preempted while pinned holds all ids back.
                        Err(Full { .. }) => std::thread::yield_now(),
                    }
                }
                3..6 => {
                    let Some((handle, value)) = self.index.query(&key_of(number), &guard) else {
                        continue;
                    };
                    assert_eq!(value >> 56, number, "a leaf was reused under a guard");
                    if self.index.delete(handle, &guard) {
                        account.died.fetch_add(1, Ordering::Relaxed);
                    }
                    assert!(!self.index.delete(handle, &guard), "deleted twice");
                    assert_eq!(self.index.value(handle), value, "a leaf was reused under a guard");
                }
                _ => {
                    if let Some((_, value)) = self.index.query(&key_of(number), &guard) {
                        assert_eq!(value >> 56, number);
                    }
                }
            }
        }
    }

    /// Every key that was born once more often than it died is there, and no other.
    fn settle(&self) {
        let guard = pin();
        let mut present = 0;
        for (number, account) in self.accounts.iter().enumerate() {
            let born = account.born.load(Ordering::Relaxed);
            let died = account.died.load(Ordering::Relaxed);
            let found = self.index.query(&key_of(number as u64), &guard);
            assert_eq!(u64::from(found.is_some()), born - died, "key {number}");
            present += u64::from(found.is_some());
        }
        assert_eq!(self.index.len(), present);
    }

    /// After everything has been deleted and the epochs have passed, every id is free, once.
    fn drain(&mut self) {
        {
            let guard = pin();
            for number in 0..self.accounts.len() as u64 {
                if let Some((handle, _)) = self.index.query(&key_of(number), &guard) {
                    assert!(self.index.delete(handle, &guard));
                }
            }
        }
        assert!(self.index.is_empty());
        let nothing = Audit { leaves: 0, nodes: 0, leaves_waiting: 0, nodes_waiting: 0 };
        // Tests beside this one pin too, and may be kept from the CPU meanwhile.
        let deadline = Instant::now() + Duration::from_secs(20);
        while self.index.audit() != nothing {
            let audit = self.index.audit();
            assert!(Instant::now() < deadline, "ids were lost, or wait for ever: {audit:?}");
            pin().flush();
            std::thread::yield_now();
        }
    }
}

fn stress(keys: usize, threads: u64, root_bits: u32) {
    let mut fight = Fight::new(keys, root_bits);
    for seed in 0..3 {
        std::thread::scope(|scope| {
            for thread in 0..threads {
                let fight = &fight;
                scope.spawn(move || fight.run(thread, seed));
            }
        });
        fight.settle();
    }
    fight.drain();
}

#[test]
fn two_threads_two_keys() {
    stress(2, 2, 0);
}

#[test]
fn three_threads_three_keys_one_root() {
    stress(3, 3, 0);
}

#[test]
fn four_threads_sixteen_keys_one_root() {
    stress(16, 4, 0);
}

#[test]
fn four_threads_sixteen_keys_two_roots() {
    stress(16, 4, 1);
}

/// All threads insert the same keys at once, then all delete the same handles at once: each key is
/// born once and dies once, every time.
#[test]
fn of_racing_inserts_one_is_new_and_of_racing_deletes_one_succeeds() {
    const KEYS: u64 = 64;
    const THREADS: usize = 3;
    let rounds = if cfg!(miri) { 2 } else { 1500 };
    // Room for all, even if another test's thread is preempted while it is pinned.
    let index = Index::with_capacity(2, (KEYS * rounds) as u32, Heads);
    let (barrier, born, died) = (Barrier::new(THREADS), AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for round in 1..=rounds {
                    let guard = pin();
                    for number in 0..KEYS {
                        let inserted = index.insert(&key_of(number), 0, &guard);
                        if let Inserted::New(_) = inserted.expect("there is room for all") {
                            born.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                    barrier.wait();
                    assert_eq!(born.load(Ordering::Relaxed), round * KEYS);
                    let handles: Vec<Handle> = (0..KEYS)
                        .map(|number| index.query(&key_of(number), &guard).expect("inserted").0)
                        .collect();
                    barrier.wait();
                    let deleted = handles.iter().filter(|handle| index.delete(**handle, &guard));
                    died.fetch_add(deleted.count() as u64, Ordering::Relaxed);
                    barrier.wait();
                    assert_eq!(died.load(Ordering::Relaxed), round * KEYS);
                    assert!(index.is_empty());
                    guard.flush();
                    barrier.wait();
                }
            });
        }
    });
}

/// A key that is there throughout is found in every search, whatever is done around it.
#[test]
fn a_key_that_stays_is_never_missed() {
    const STAYING: [u64; 3] = [0, 5, 6];
    let index = Index::with_capacity(0, CAPACITY as u32, Heads);
    for number in STAYING {
        assert!(matches!(index.insert(&key_of(number), number, &pin()), Ok(Inserted::New(_))));
    }
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let index = &index;
            scope.spawn(move || {
                let mut random = SmallRng::seed_from_u64(thread);
                for _ in 0..ROUNDS {
                    let number = random.random_range(0..16);
                    let guard = pin();
                    if STAYING.contains(&number) {
                        continue;
                    }
                    if let Ok(Inserted::Found(handle, _)) =
                        index.insert(&key_of(number), number, &guard)
                    {
                        index.delete(handle, &guard);
                    }
                }
            });
        }
        scope.spawn(|| {
            for round in 0..ROUNDS {
                let number = STAYING[round as usize % STAYING.len()];
                let found = index.query(&key_of(number), &pin());
                assert_eq!(found.expect("it stays").1, number);
            }
        });
    });
}
