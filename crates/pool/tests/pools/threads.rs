//! Many threads at one pool.

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use bindery_pool::device::{Device, Read, Write};
use bindery_pool::{AttachedDevice, CreateOptions, MediaClass, NewDevice, ObjectId, Pool};
use bindery_sys::direct::Buffer;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::model::{Written, read};
use crate::rig::{CATALOGUE_BYTES, MIB, Rig};

/// What somebody committed, and nobody may have deleted yet.
type Shared = Mutex<BTreeMap<ObjectId, Written>>;

fn write_some(pool: &Pool, shared: &Shared, seed: u64, count: u64) {
    let mut random = StdRng::seed_from_u64(seed);
    for number in 0..count {
        let it = Written { seed: seed * 1000 + number, length: random.random_range(1..60_000) };
        let class = if random.random() { MediaClass::Capacity } else { MediaClass::Staging };
        let Ok(mut writer) = pool.allocate_mblock(class, it.length as u64 + 5000) else { continue };
        writer.append(&it.bytes()).unwrap();
        if random.random_ratio(1, 8) {
            continue;
        }
        let object = writer.commit().unwrap();
        assert_eq!(read(&object), it.bytes());
        shared.lock().unwrap().insert(object.entry().id(), it);
    }
}

fn delete_some(pool: &Pool, shared: &Shared, ended: &AtomicBool) {
    loop {
        // Looked at first: what the last of them committed is deleted, too.
        let has_ended = ended.load(Ordering::Acquire);
        let taken = {
            let mut shared = shared.lock().unwrap();
            if shared.len() > 8 { shared.pop_first() } else { None }
        };
        let Some((id, it)) = taken else {
            if has_ended {
                return;
            }
            std::thread::yield_now();
            continue;
        };
        let object = pool.get(id).unwrap();
        pool.delete(id).unwrap();
        assert_eq!(read(&object), it.bytes(), "deleted under its holder");
    }
}

/// Reads what there is; it may be deleted in between, never be another.
fn read_some(pool: &Pool, shared: &Shared, ended: &AtomicBool) {
    let mut random = StdRng::seed_from_u64(77);
    while !ended.load(Ordering::Acquire) {
        let chosen = {
            let shared = shared.lock().unwrap();
            let nth = random.random_range(0..shared.len().max(1));
            shared.iter().nth(nth).map(|(&id, &it)| (id, it))
        };
        let Some((id, it)) = chosen else { continue };
        if let Ok(object) = pool.get(id) {
            assert_eq!(read(&object), it.bytes());
        }
    }
}

#[test]
fn writers_readers_and_deleters_do_not_disturb_each_other() {
    let devices = [(MediaClass::Capacity, 6 * MIB), (MediaClass::Staging, 3 * MIB)];
    let rig = Rig::new(&devices);
    let pool = rig.create();
    let (shared, ended) = (Shared::default(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let writers: Vec<_> = (1..=4)
            .map(|seed| {
                scope.spawn({
                    let (pool, shared) = (&pool, &shared);
                    move || write_some(pool, shared, seed, 60)
                })
            })
            .collect();
        scope.spawn(|| delete_some(&pool, &shared, &ended));
        scope.spawn(|| delete_some(&pool, &shared, &ended));
        scope.spawn(|| read_some(&pool, &shared, &ended));
        let outcomes: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
        ended.store(true, Ordering::Release);
        outcomes.into_iter().for_each(|outcome| outcome.unwrap());
    });
    let statistics = pool.statistics();
    assert!(statistics.committed > 100 && statistics.deleted > 50, "{statistics:?}");
    drop(pool);
    let pool = rig.open().unwrap();
    let kept = shared.into_inner().unwrap();
    assert_eq!(pool.list().len(), kept.len());
    for (id, it) in kept {
        assert_eq!(read(&pool.get(id).unwrap()), it.bytes());
    }
    assert!(pool.verify().findings.is_empty());
}

/// A device whose syncs take their time, as those of disks do.
#[derive(Debug)]
struct Slow {
    inner: Arc<dyn Device>,
    syncs: AtomicU64,
    /// Who has written.
    writers: Mutex<HashSet<ThreadId>>,
    /// A sync takes until so many have.
    wanted: AtomicU64,
}

impl Slow {
    fn has_all(&self) -> bool {
        self.writers.lock().unwrap().len() as u64 >= self.wanted.load(Ordering::SeqCst)
    }
}

impl Device for Slow {
    fn bytes(&self) -> u64 {
        self.inner.bytes()
    }

    fn read(&self, offset_bytes: u64, into: &mut Buffer) -> io::Result<()> {
        self.inner.read(offset_bytes, into)
    }

    fn write(&self, offset_bytes: u64, from: &Buffer) -> io::Result<()> {
        self.writers.lock().unwrap().insert(std::thread::current().id());
        self.inner.write(offset_bytes, from)
    }

    fn sync(&self) -> io::Result<()> {
        self.syncs.fetch_add(1, Ordering::SeqCst);
        let deadline = Instant::now() + Duration::from_secs(20);
        while !self.has_all() && Instant::now() < deadline {
            std::thread::yield_now();
        }
        std::thread::sleep(Duration::from_millis(3));
        self.inner.sync()
    }

    fn discard(&self, offset_bytes: u64, bytes: u64) -> io::Result<()> {
        self.inner.discard(offset_bytes, bytes)
    }

    fn grow(&self, bytes: u64) -> io::Result<u64> {
        self.inner.grow(bytes)
    }

    fn read_many(&self, reads: &mut [Read<'_>]) -> io::Result<()> {
        self.inner.read_many(reads)
    }

    fn write_many(&self, writes: &[Write<'_>]) -> io::Result<()> {
        self.writers.lock().unwrap().insert(std::thread::current().id());
        self.inner.write_many(writes)
    }
}

/// A pool on one slow device.
fn slow_pool(rig: &Rig, catalogue_bytes: u64) -> (Pool, Arc<Slow>) {
    let inner = rig.attached().remove(0).device;
    let slow = Arc::new(Slow {
        inner,
        syncs: AtomicU64::new(0),
        writers: Mutex::default(),
        wanted: AtomicU64::new(0),
    });
    let device = Arc::clone(&slow) as Arc<dyn Device>;
    let attached = AttachedDevice { label: "slow".into(), device };
    let new = NewDevice { attached, class: MediaClass::Capacity };
    let options = CreateOptions { force: false, catalogue_bytes: Some(catalogue_bytes) };
    (Pool::create_on("shared".parse().unwrap(), vec![new], &options).unwrap(), slow)
}

/// Each of several threads commits objects; all begin at once.
fn commit_at_once(pool: &Pool, threads: u64, each: u64) {
    let start = Barrier::new(threads as usize);
    std::thread::scope(|scope| {
        for seed in 0..threads {
            let start = &start;
            scope.spawn(move || {
                for _ in 0..each {
                    let mut writer = pool.allocate_mblock(MediaClass::Capacity, 4096).unwrap();
                    writer.append(&Written { seed, length: 4000 }.bytes()).unwrap();
                    start.wait();
                    writer.commit().unwrap();
                }
            });
        }
    });
}

#[test]
fn commits_of_several_threads_share_syncs() {
    const THREADS: u64 = 16;
    let rig = Rig::new(&[(MediaClass::Capacity, 8 * MIB)]);
    // Large enough not to be compacted.
    let (pool, slow) = slow_pool(&rig, 512 << 10);
    pool.allocate_mblock(MediaClass::Capacity, 1).unwrap().abort();
    let before = slow.syncs.load(Ordering::SeqCst);
    // The first sync takes until all the others have something to be synced, however busy the machine.
    slow.writers.lock().unwrap().clear();
    slow.wanted.store(THREADS, Ordering::SeqCst);
    commit_at_once(&pool, THREADS, 1);
    let syncs = slow.syncs.load(Ordering::SeqCst) - before;
    // Each alone: one for the data, one for each copy of the catalogue.
    assert!(syncs < 3 * THREADS / 2, "{syncs} syncs for {THREADS} commits");
    assert_eq!(pool.list().len() as u64, THREADS);
    assert!(pool.statistics().catalogue.syncs < THREADS);
}

#[test]
fn objects_that_are_handed_in_share_syncs_and_nobody_waits_for_them() {
    const OBJECTS: u64 = 64;
    let rig = Rig::new(&[(MediaClass::Capacity, 8 * MIB)]);
    let (pool, slow) = slow_pool(&rig, 512 << 10);
    pool.allocate_mblock(MediaClass::Capacity, 1).unwrap().abort();
    let before = slow.syncs.load(Ordering::SeqCst);
    let committer = pool.committer().unwrap();
    let mut outcomes = Vec::new();
    for seed in 0..OBJECTS {
        let mut writer = pool.allocate_mblock(MediaClass::Capacity, 4096).unwrap();
        writer.append(&Written { seed, length: 4000 }.bytes()).unwrap();
        committer.commit(writer).unwrap();
        outcomes.extend(committer.outcomes());
    }
    outcomes.extend(committer.finish());
    assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count() as u64, OBJECTS);
    let syncs = slow.syncs.load(Ordering::SeqCst) - before;
    // Each alone: two.
    assert!(syncs < OBJECTS, "{syncs} syncs for {OBJECTS} objects");
    assert_eq!(pool.list().len() as u64, OBJECTS);
}

#[test]
fn commits_that_meet_a_compaction_are_not_lost() {
    let rig = Rig::new(&[(MediaClass::Capacity, 8 * MIB)]);
    let (pool, _) = slow_pool(&rig, CATALOGUE_BYTES);
    commit_at_once(&pool, 16, 12);
    let statistics = pool.statistics().catalogue;
    assert!(statistics.compactions > 3 && statistics.syncs < 16 * 12, "{statistics:?}");
    let listed = pool.list();
    drop(pool);
    assert_eq!(rig.open().unwrap().list(), listed);
}

/// A device that takes its time to discard, and says that it is at it.
#[derive(Debug)]
struct SlowToDiscard {
    inner: Arc<dyn Device>,
    discarding: AtomicBool,
}

impl Device for SlowToDiscard {
    fn bytes(&self) -> u64 {
        self.inner.bytes()
    }

    fn read(&self, offset_bytes: u64, into: &mut Buffer) -> io::Result<()> {
        self.inner.read(offset_bytes, into)
    }

    fn write(&self, offset_bytes: u64, from: &Buffer) -> io::Result<()> {
        self.inner.write(offset_bytes, from)
    }

    fn sync(&self) -> io::Result<()> {
        self.inner.sync()
    }

    fn discard(&self, offset_bytes: u64, bytes: u64) -> io::Result<()> {
        self.discarding.store(true, Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(100));
        self.inner.discard(offset_bytes, bytes)
    }

    fn grow(&self, bytes: u64) -> io::Result<u64> {
        self.inner.grow(bytes)
    }
}

#[test]
fn room_that_somebody_else_is_just_discarding_is_waited_for() {
    let rig = Rig::new(&[(MediaClass::Capacity, 2 * MIB)]);
    let inner = rig.attached().remove(0).device;
    let slow = Arc::new(SlowToDiscard { inner, discarding: AtomicBool::new(false) });
    let device = Arc::clone(&slow) as Arc<dyn Device>;
    let attached = AttachedDevice { label: "slow".into(), device };
    let new = NewDevice { attached, class: MediaClass::Capacity };
    let options = CreateOptions { force: false, catalogue_bytes: Some(CATALOGUE_BYTES) };
    let pool = Pool::create_on("slow".parse().unwrap(), vec![new], &options).unwrap();
    let large = || pool.allocate_mblock(MediaClass::Capacity, MIB);
    let mut writer = large().unwrap();
    writer.append(&[1; 1 << 20]).unwrap();
    writer.abort();
    std::thread::scope(|scope| {
        scope.spawn(|| pool.reclaim());
        while !slow.discarding.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        drop(large().unwrap());
    });
}
