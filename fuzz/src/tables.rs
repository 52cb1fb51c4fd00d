//! The example's store on a pool where its objects, its list and its journal are what anybody wrote.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::sync::{Arc, LazyLock};

use bindery_example_tables::{Mapped, Mapper, Options, StoreError, Tables};
use bindery_pool::map::Temperature;
use bindery_pool::object::Object;
use bindery_pool::{MediaClass, ObjectId, Pool, UNIT_BYTES};
use bindery_sys::direct::Buffer;
use bindery_sys::mapped::{MappedFile, View};
use libfuzzer_sys::arbitrary::{self, Arbitrary};

use crate::rig::Rig;

/// Small: opening makes journals of four times a memory table, and the list's logs are 32 MiB.
const OPTIONS: Options = Options {
    memory_table_bytes: 8 << 10,
    root_tables_max: 3,
    table_bytes: 16 << 10,
    shelf_tables: 2,
    class: MediaClass::Capacity,
    temperature: Temperature::Warm,
};

/// Two bytes at a place of something.
type Edit = (u16, u16);

/// What is wrong with a store.
#[derive(Arbitrary, Debug)]
pub struct Script {
    /// Which of the tables there are changed, and how.
    data: Vec<Edit>,
    index: Vec<Edit>,
    manifest: Vec<Edit>,
    has_shelf: bool,
    /// Records of both logs.
    journal: [Vec<Line>; 2],
    /// What is looked for.
    keys: Vec<Vec<u8>>,
}

/// A record of the journal, or something like one.
#[derive(Arbitrary, Debug)]
enum Line {
    Raw(Vec<u8>),
    Entry { number: u8, key: Vec<u8>, value: Option<Vec<u8>> },
    Long { number: u8, key_bytes: u16, value_bytes: u16 },
}

impl Line {
    fn bytes(&self) -> Vec<u8> {
        let entry = |number: u8, key: &[u8], value: Option<&[u8]>| {
            let mut record = u64::from(number).to_le_bytes().to_vec();
            record.extend((key.len() as u16).to_le_bytes());
            record.push(value.is_some().into());
            record.extend(key);
            record.extend(value.unwrap_or_default());
            record
        };
        match self {
            Self::Raw(bytes) => bytes.clone(),
            Self::Entry { number, key, value } => entry(*number, key, value.as_deref()),
            &Self::Long { number, key_bytes, value_bytes } => {
                let (key, value) = (vec![b'k'; key_bytes.into()], vec![b'v'; value_bytes.into()]);
                entry(number, &key, Some(&value))
            }
        }
    }
}

/// The two objects of a table of these entries.
struct Template {
    entries: BTreeMap<Vec<u8>, Vec<u8>>,
    data: Vec<u8>,
    index: Vec<u8>,
}

static TEMPLATE: LazyLock<Template> = LazyLock::new(|| {
    let rig = Rig::new(&[(MediaClass::Capacity, 48 << 20)]);
    let pool = Arc::new(rig.create());
    let store = Tables::open(Arc::clone(&pool), Arc::new(Copies), OPTIONS).expect("there is room");
    let entries: BTreeMap<Vec<u8>, Vec<u8>> =
        (0..60).map(|at| (format!("key {at:03}").into(), vec![at; 170])).collect();
    store.fill(entries.clone().into_iter()).expect("there is room");
    drop(store);
    let mut objects = pool.list().into_iter().filter(|entry| entry.length_bytes().is_some());
    let mut next =
        || read(&*pool.get(objects.next().expect("one table").id()).expect("it is there"));
    let (data, index) = (next(), next());
    assert!(objects.next().is_none());
    Template { entries, data, index }
});

fn read(object: &dyn Object) -> Vec<u8> {
    let length = object.length_bytes() as usize;
    let mut buffer = Buffer::zeroed(length.next_multiple_of(UNIT_BYTES));
    object.read(0, &mut buffer).expect("nothing was damaged");
    buffer[..length].to_vec()
}

/// Maps copies of objects.
struct Copies;

/// With the lengths of the objects, in bytes.
struct Copy(Vec<(MappedFile, usize)>);

impl Mapper for Copies {
    fn map(
        &self,
        objects: &[Arc<dyn Object>],
        _: Temperature,
    ) -> Result<Box<dyn Mapped>, StoreError> {
        let copies = objects.iter().map(|object| {
            let mut file: File = tempfile::tempfile_in("/dev/shm").expect("there is memory");
            file.write_all(&read(&**object)).expect("there is memory");
            let bytes = object.length_bytes() as usize;
            let mapped = MappedFile::map(file.as_fd(), bytes.next_multiple_of(UNIT_BYTES));
            (mapped.expect("there is memory"), bytes)
        });
        Ok(Box::new(Copy(copies.collect())))
    }
}

impl Mapped for Copy {
    fn view(&self, object: usize, offset_bytes: u64, bytes: usize) -> Result<View<'_>, StoreError> {
        let (mapped, length) = &self.0[object];
        let end = usize::try_from(offset_bytes).ok().and_then(|start| start.checked_add(bytes));
        match end {
            Some(end) if end <= *length => Ok(mapped.view(offset_bytes as usize, bytes)),
            _ => Err(StoreError::Other("there is no such place in the object".into())),
        }
    }
}

fn edited(bytes: &[u8], edits: &[Edit]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for &(at, value) in edits.iter().take(32) {
        let at = usize::from(at) % (bytes.len() - 1);
        bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
    }
    bytes
}

fn write(pool: &Pool, bytes: &[u8]) -> ObjectId {
    let writer = pool.allocate_mblock(MediaClass::Capacity, bytes.len() as u64);
    let mut writer = writer.expect("there is room");
    writer.append(bytes).expect("there is room");
    writer.commit().expect("there is room").id()
}

/// The list of tables: two logs, and one table, in the root or on a shelf (`manifest.rs`).
fn manifest(logs: [ObjectId; 2], table: [ObjectId; 2], has_shelf: bool) -> Vec<u8> {
    let id = |id: ObjectId| id.0.to_le_bytes().to_vec();
    let number = |number: u32| number.to_le_bytes().to_vec();
    let logs = [id(logs[0]), id(logs[1])].concat();
    let table = [number(1), id(table[0]), id(table[1])].concat();
    match has_shelf {
        true => [logs, number(0), number(1), table].concat(),
        false => [logs, table, number(0)].concat(),
    }
}

/// Opens such a store, reads it, and has it merge.
///
/// # Panics
/// If the store does, or it reads other entries though nothing was changed.
pub fn open(script: &Script) {
    let rig = Rig::new(&[(MediaClass::Capacity, 2 << 20)]);
    let pool = Arc::new(rig.create());
    let data = write(&pool, &edited(&TEMPLATE.data, &script.data));
    let index = write(&pool, &edited(&TEMPLATE.index, &script.index));
    let logs = [0, 1].map(|at| {
        let log = pool.create_log(MediaClass::Capacity, 256 << 10, 1);
        let mut log = log.expect("there is room");
        for line in &script.journal[at] {
            let _ = log.append(&line.bytes());
        }
        log.sync().expect("nothing fails");
        log.id()
    });
    let mut root = pool.create_root(MediaClass::Capacity, 64 << 10, 2).expect("there is room");
    let manifest = manifest(logs, [data, index], script.has_shelf);
    root.append(&edited(&manifest, &script.manifest)).expect("there is room");
    root.sync().expect("nothing fails");
    drop(root);

    let Ok(store) = Tables::open(pool, Arc::new(Copies), OPTIONS) else { return };
    let edits = [&script.data, &script.index, &script.manifest];
    let is_whole = edits.into_iter().all(Vec::is_empty) && script.journal.iter().all(Vec::is_empty);
    look(&store, script, is_whole);
    let settled = store.settle();
    assert!(settled.is_ok() || !is_whole, "{settled:?}");
    look(&store, script, is_whole);
}

fn look(store: &Tables, script: &Script, is_whole: bool) {
    let get = |key: &[u8]| {
        let mut value = Vec::new();
        store.get(key, &mut value).map(|is_there| is_there.then_some(value))
    };
    for key in script.keys.iter().take(8) {
        let found = get(key);
        if is_whole {
            let expected = TEMPLATE.entries.get(key);
            assert_eq!(found.expect("nothing was changed").as_ref(), expected);
        }
    }
    for (key, value) in TEMPLATE.entries.iter().step_by(7) {
        let found = get(key);
        assert!(!is_whole || found.expect("nothing was changed").as_ref() == Some(value));
    }
}
