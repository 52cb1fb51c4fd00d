//! What was synced is there after whatever ended the store, and nobody is told that it is when it is not.
#![expect(clippy::unwrap_used, reason = "a test: what fails is to be seen where it fails")]

mod common;

use std::io::{self, BufRead, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use bindery_example_tables::{Options, StoreError, Tables};
use bindery_pool::device::{
    Device, DeviceAccess, DeviceOptions, Failing, Fault, FileDevice, Operation,
};
use bindery_pool::map::{Maps, Temperature};
use bindery_pool::{AttachedDevice, CreateOptions, MediaClass, NewDevice, Pool};
use common::{Await, Syncing};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// Everything happens often.
const SMALL: Options = Options {
    memory_table_bytes: 32 << 10,
    root_tables_max: 3,
    table_bytes: 64 << 10,
    shelf_tables: 4,
    class: MediaClass::Capacity,
    temperature: Temperature::Warm,
};

const DEVICE_BYTES: u64 = 256 << 20;

const DEADLINE: Duration = Duration::from_secs(20);

/// A sync takes its time, so that what must wait for it is seen not to.
#[derive(Debug)]
struct Slowly;

impl Await for Slowly {
    fn await_it(&self) {
        thread::sleep(Duration::from_millis(3));
    }
}

fn file(path: &Path) -> FileDevice {
    let options = DeviceOptions::new(DeviceAccess::Write);
    if path.exists() {
        FileDevice::open(path, &options).unwrap()
    } else {
        FileDevice::create(path, DEVICE_BYTES, &options).unwrap()
    }
}

fn attached(device: Arc<dyn Device>) -> AttachedDevice {
    AttachedDevice { label: "the device".into(), device }
}

fn create(device: Arc<dyn Device>) -> Arc<Pool> {
    let device = NewDevice { attached: attached(device), class: MediaClass::Capacity };
    let options = CreateOptions::default();
    Arc::new(Pool::create_on("tables".parse().unwrap(), vec![device], &options).unwrap())
}

fn open(path: &Path) -> Arc<Pool> {
    Arc::new(Pool::open_on(vec![attached(Arc::new(file(path)))]).unwrap())
}

fn tables(pool: Arc<Pool>, options: Options) -> Tables {
    Tables::open(pool, Arc::new(Maps::default()), options).unwrap()
}

fn value_of(tables: &Tables, key: &[u8]) -> Option<Vec<u8>> {
    let mut value = Vec::new();
    tables.get(key, &mut value).unwrap().then_some(value)
}

/// Does something that must end.
fn in_time(what: &str, work: impl FnOnce() + Send + 'static) {
    let (done, is_done) = mpsc::channel();
    let worker = thread::spawn(move || {
        work();
        done.send(()).unwrap();
    });
    match is_done.recv_timeout(DEADLINE) {
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("{what} does not end"),
        _ => worker.join().unwrap(),
    }
}

#[test]
fn tables_that_are_frozen_while_the_one_before_is_written_keep_their_logs() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = directory.path().join("pool");
    let mut pool = create(Arc::new(Syncing(file(&path), Slowly)));
    for round in 0..8_u64 {
        let store = tables(pool, SMALL);
        let newest: Vec<u64> = thread::scope(|scope| {
            let putters: Vec<_> = (0..3_u64)
                .map(|putter| {
                    let store = &store;
                    scope.spawn(move || {
                        let mut random = SmallRng::seed_from_u64(round * 3 + putter);
                        let puts = random.random_range(300..600_u64);
                        for number in 0..puts {
                            let key = [putter, number].map(u64::to_be_bytes).concat();
                            store.put(&key, &[round as u8; 200]).unwrap();
                            // Now slower than tables are written, now faster.
                            thread::sleep(Duration::from_micros(
                                random.random_range(0..60) * round,
                            ));
                        }
                        puts
                    })
                })
                .collect();
            putters.into_iter().map(|putter| putter.join().unwrap()).collect()
        });
        drop(store);
        let store = tables(open(&path), SMALL);
        for (putter, puts) in (0_u64..).zip(newest) {
            for number in 0..puts {
                let key = [putter, number].map(u64::to_be_bytes).concat();
                let value = value_of(&store, &key);
                assert_eq!(value, Some(vec![round as u8; 200]), "{putter} {number} of {round}");
            }
        }
        drop(store);
        pool = Arc::new(
            Pool::open_on(vec![attached(Arc::new(Syncing(file(&path), Slowly)))]).unwrap(),
        );
    }
}

#[test]
fn no_sync_succeeds_after_one_that_lost_entries() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let device = Arc::new(Failing::new(file(&directory.path().join("pool"))));
    let store = tables(create(Arc::<Failing<FileDevice>>::clone(&device)), SMALL);
    store.put(b"before", b"durable").unwrap();
    store.sync().unwrap();
    let (operation, kind) = (Some(Operation::Write), io::ErrorKind::Other);
    device.set(Some(Fault { operation, after: 0, lasts: true, kind }));
    store.put(b"after", b"lost").unwrap();
    // The store's own thread meets the fault, and not whoever syncs.
    let start = Instant::now();
    while !device.has_failed() {
        assert!(start.elapsed() < DEADLINE, "nothing is written");
        thread::sleep(Duration::from_millis(1));
    }
    device.set(None);
    assert!(store.sync().is_err());
    assert!(store.sync().is_err());
}

#[test]
fn a_log_does_not_overflow_by_one_key() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let store =
        tables(create(Arc::new(Syncing(file(&directory.path().join("pool")), Slowly))), SMALL);
    for number in 0..20_000_u64 {
        store.put(b"the only key", &number.to_be_bytes().repeat(12)).unwrap();
    }
    store.sync().unwrap();
    assert_eq!(value_of(&store, b"the only key"), Some(19_999_u64.to_be_bytes().repeat(12)));
}

#[test]
fn a_log_does_not_overflow_by_syncs() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let store = tables(create(Arc::new(file(&directory.path().join("pool")))), SMALL);
    for number in 0..300_u64 {
        store.put(b"key", &number.to_be_bytes()).unwrap();
        store.sync().unwrap();
    }
    assert_eq!(value_of(&store, b"key"), Some(299_u64.to_be_bytes().to_vec()));
}

#[test]
fn a_table_of_the_smallest_entries_has_all_of_them() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let store = tables(
        create(Arc::new(file(&directory.path().join("pool")))),
        Options { memory_table_bytes: 256 << 10, table_bytes: 16 << 10, ..SMALL },
    );
    for number in 0..70_000_u32 {
        store.put(&number.to_be_bytes(), b"").unwrap();
    }
    store.settle().unwrap();
    for number in 0..70_000_u32 {
        assert_eq!(value_of(&store, &number.to_be_bytes()), Some(Vec::new()), "{number}");
    }
}

#[test]
fn settling_ends_when_others_put_meanwhile() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let store = Arc::new(tables(
        create(Arc::new(Syncing(file(&directory.path().join("pool")), Slowly))),
        Options { root_tables_max: 100, ..SMALL },
    ));
    for round in 0..5_u64 {
        let theirs = Arc::clone(&store);
        let putter = thread::spawn(move || {
            for number in 0..400_u64 {
                theirs.put(&(round * 1_000 + number).to_be_bytes(), &[1; 300]).unwrap();
            }
        });
        let ours = Arc::clone(&store);
        in_time("settling", move || ours.settle().unwrap());
        putter.join().unwrap();
    }
}

#[test]
fn a_root_without_a_record_is_a_store_that_was_not_finished() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let pool = create(Arc::new(file(&directory.path().join("pool"))));
    drop(pool.create_root(MediaClass::Capacity, 8 << 20, 2).unwrap());
    let store = tables(Arc::clone(&pool), SMALL);
    store.put(b"key", b"value").unwrap();
    drop(store);
    assert_eq!(value_of(&tables(pool, SMALL), b"key"), Some(b"value".to_vec()));
}

#[test]
fn what_waits_ends_when_the_store_has_stopped() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let device = Arc::new(Failing::new(file(&directory.path().join("pool"))));
    let store = tables(create(Arc::<Failing<FileDevice>>::clone(&device)), SMALL);
    let (operation, kind) = (Some(Operation::Write), io::ErrorKind::Other);
    device.set(Some(Fault { operation, after: 20, lasts: true, kind }));
    in_time("putting", move || {
        let mut puts = (0_u64..).map(|number| store.put(&number.to_be_bytes(), &[0; 100]));
        let error = puts.find_map(Result::err).unwrap();
        assert!(matches!(error, StoreError::Stopped(_)), "{error}");
        assert!(store.settle().is_err() && store.sync().is_err());
    });
}

/// Whichever of its threads has failed: here the one that makes tables, while the logs have everything.
#[test]
fn each_sync_of_a_store_that_has_stopped_fails() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let device = Arc::new(Failing::new(file(&directory.path().join("pool"))));
    let store = tables(create(Arc::<Failing<FileDevice>>::clone(&device)), SMALL);
    store.put(b"key", b"value").unwrap();
    store.sync().unwrap();
    let (operation, kind) = (Some(Operation::Write), io::ErrorKind::Other);
    device.set(Some(Fault { operation, after: 0, lasts: true, kind }));
    assert!(matches!(store.settle(), Err(StoreError::Stopped(_))));
    device.set(None);
    for _ in 0..2 {
        let error = store.sync().unwrap_err();
        assert!(matches!(error, StoreError::Stopped(_)), "{error}");
    }
    drop((store, device));
    let store = tables(open(&directory.path().join("pool")), SMALL);
    assert_eq!(value_of(&store, b"key"), Some(b"value".to_vec()));
}

const CHILD: &str = "BINDERY_TABLES_CRASH";

/// How many keys the child puts over and over.
const KEYS: u64 = 400;

/// The child of the test below; alone, it does nothing.
#[test]
fn puts_until_it_is_killed() {
    let Some(path) = std::env::var_os(CHILD) else { return };
    let store = tables(open(Path::new(&path)), SMALL);
    let mut out = io::stdout();
    let start = value_of(&store, &(KEYS - 1).to_be_bytes());
    let start = start.map_or(0, |value| u64::from_be_bytes(value[..8].try_into().unwrap()));
    for put in start + 1.. {
        store.put(&(put % KEYS).to_be_bytes(), &put.to_be_bytes().repeat(20)).unwrap();
        if put % 64 == 0 {
            store.sync().unwrap();
            writeln!(out, "synced {put}").unwrap();
        }
    }
}

#[test]
fn what_was_synced_outlives_a_kill() {
    let rounds = std::env::var("BINDERY_TABLES_KILLS").map_or(6, |kills| kills.parse().unwrap());
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = directory.path().join("pool");
    drop(create(Arc::new(file(&path))));
    let mut random = SmallRng::seed_from_u64(11);
    for round in 0..rounds {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["puts_until_it_is_killed", "--exact", "--nocapture"])
            .env(CHILD, &path)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let synced = |line: String| line.strip_prefix("synced ").map(|put| put.parse().unwrap());
        let syncs = random.random_range(5..60);
        let before = lines.by_ref().filter_map(synced).take(syncs).last();
        thread::sleep(Duration::from_micros(random.random_range(0..5_000)));
        child.kill().unwrap();
        child.wait().unwrap();
        let synced: u64 = lines.filter_map(synced).last().or(before).unwrap();
        let store = tables(open(&path), SMALL);
        for put in synced.saturating_sub(KEYS - 1).max(1)..=synced {
            let value = value_of(&store, &(put % KEYS).to_be_bytes());
            let found = value.map(|value| u64::from_be_bytes(value[..8].try_into().unwrap()));
            let is_right = found.is_some_and(|found| found >= put && found % KEYS == put % KEYS);
            assert!(is_right, "round {round}: {put} of {synced} is {found:?}");
        }
    }
}
