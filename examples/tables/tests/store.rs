//! The store against a map, through full memory tables, merges and reopenings.
#![expect(clippy::unwrap_used, reason = "a test: what fails is to be seen where it fails")]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bindery_example_tables::{Options, StoreError, Tables};
use bindery_pool::device::{DeviceAccess, DeviceOptions, FileDevice};
use bindery_pool::map::Maps;
use bindery_pool::{AttachedDevice, CreateOptions, MediaClass, NewDevice, Pool};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// Everything happens often.
const SMALL: Options = Options {
    memory_table_bytes: 64 << 10,
    root_tables_max: 3,
    table_bytes: 64 << 10,
    shelf_tables: 4,
    class: MediaClass::Capacity,
    temperature: bindery_pool::map::Temperature::Warm,
};

const DEVICE_BYTES: u64 = 256 << 20;

fn attached(path: &Path, device: FileDevice) -> AttachedDevice {
    AttachedDevice { label: path.display().to_string(), device: Arc::new(device) }
}

fn create(path: &Path) -> Arc<Pool> {
    let device =
        FileDevice::create(path, DEVICE_BYTES, &DeviceOptions::new(DeviceAccess::Write)).unwrap();
    let device = NewDevice { attached: attached(path, device), class: MediaClass::Capacity };
    let options = CreateOptions::default();
    Arc::new(Pool::create_on("tables".parse().unwrap(), vec![device], &options).unwrap())
}

fn open(path: &Path) -> Arc<Pool> {
    let device = FileDevice::open(path, &DeviceOptions::new(DeviceAccess::Write)).unwrap();
    Arc::new(Pool::open_on(vec![attached(path, device)]).unwrap())
}

fn tables(pool: Arc<Pool>) -> Tables {
    Tables::open(pool, Arc::new(Maps::default()), SMALL).unwrap()
}

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn key(random: &mut SmallRng) -> Vec<u8> {
    let number: u32 = random.random_range(0..3_000);
    // Some are the beginnings of others.
    number.to_string().into_bytes()
}

fn change(tables: &Tables, model: &mut Model, random: &mut SmallRng, times: usize) {
    for _ in 0..times {
        let key = key(random);
        if random.random_range(0..4) == 0 {
            tables.delete(&key).unwrap();
            model.remove(&key);
        } else {
            let value = vec![random.random(); random.random_range(0..300)];
            tables.put(&key, &value).unwrap();
            model.insert(key, value);
        }
    }
}

fn compare(tables: &Tables, model: &Model) {
    for number in 0..3_000_u32 {
        let key = number.to_string().into_bytes();
        let mut value = Vec::new();
        let is_there = tables.get(&key, &mut value).unwrap();
        assert_eq!(is_there.then_some(&value), model.get(&key), "key {number}");
    }
}

#[test]
fn it_says_what_a_map_says() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = directory.path().join("pool");
    let (mut model, mut random) = (Model::new(), SmallRng::seed_from_u64(7));
    let mut pool = create(&path);
    for round in 0..6 {
        let tables = tables(Arc::clone(&pool));
        compare(&tables, &model);
        change(&tables, &mut model, &mut random, 4_000);
        compare(&tables, &model);
        if round % 2 == 1 {
            tables.settle().unwrap();
            compare(&tables, &model);
        }
        drop(tables);
        if round % 3 == 2 {
            drop(pool);
            pool = open(&path);
        }
    }
}

#[test]
fn readers_see_every_key_while_tables_are_made_and_merged() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let tables = tables(create(&directory.path().join("pool")));
    let entries = (0..3_000_u32).map(|number| (number.to_be_bytes().to_vec(), vec![0; 100]));
    tables.fill(entries).unwrap();
    let has_ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for seed in 0..2 {
            let (tables, has_ended) = (&tables, &has_ended);
            scope.spawn(move || {
                let mut random = SmallRng::seed_from_u64(seed);
                let mut newest = vec![0; 3_000];
                while !has_ended.load(Ordering::Relaxed) {
                    let number: u32 = random.random_range(0..3_000);
                    let mut value = Vec::new();
                    assert!(tables.get(&number.to_be_bytes(), &mut value).unwrap(), "{number}");
                    assert!(value.iter().all(|byte| *byte == value[0]), "{number} is torn");
                    let newest = &mut newest[number as usize];
                    assert!(value[0] >= *newest, "{number} went back in time");
                    *newest = value[0];
                }
            });
        }
        for generation in 1..=12 {
            for number in 0..3_000_u32 {
                tables.put(&number.to_be_bytes(), &[generation; 100]).unwrap();
            }
        }
        tables.settle().unwrap();
        has_ended.store(true, Ordering::Relaxed);
    });
}

#[test]
fn what_does_not_fit_is_refused() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let tables = tables(create(&directory.path().join("pool")));
    tables.put(b"key", &[7; 4_000]).unwrap();
    let error = tables.put(b"key", &[7; 4_096]).unwrap_err();
    assert!(matches!(error, StoreError::TooLong { bytes: 4_099 }), "{error}");
    let error = tables.fill(std::iter::empty()).unwrap_err();
    assert!(matches!(error, StoreError::NotEmpty), "{error}");
}
