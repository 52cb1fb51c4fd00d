//! Catalogues that nobody wrote.

use std::sync::LazyLock;

use bindery_pool::catalogue::{Contents, Contradiction};
use bindery_pool::format::record::{
    ArchivedEntry, LogEntry, MblockEntry, MdcEntry, ObjectEntry, Record,
};
use bindery_pool::format::superblock::{DeviceEntry, Residence, Superblock};
use bindery_pool::log::{Log, LogCopy};
use bindery_pool::object::Object;
use bindery_pool::{BLOCK_BYTES, DeviceIndex, Extent, LogIdentity, MediaClass, ObjectId, Pool};
use bindery_sys::direct::Buffer;
use libfuzzer_sys::arbitrary::{self, Arbitrary};

use crate::life::{self, Step};
use crate::memory::bounded;
use crate::model::{Model, Written};
use crate::rig::Rig;

/// A place, near those that there are.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub struct Somewhere {
    device: u8,
    block: u16,
    blocks: u16,
}

/// A record, or something like one.
#[derive(Arbitrary, Clone, Debug)]
pub enum Line {
    Raw(Vec<u8>),
    Opening { number: u64, nonce: u64 },
    Opened { number: u64 },
    Name(u8),
    Exported(bool),
    Device { class: u8, index: u8, id: u64, bytes: u64 },
    Ids { below: u64 },
    Mblock { moves: bool, id: u8, length_bytes: u64, data: Somewhere, table: Somewhere },
    Archived { moves: bool, id: u8, length_bytes: u64 },
    Log { id: u8, copies: Vec<Somewhere> },
    Mdc { id: u8, is_root: bool, halves: [Vec<Somewhere>; 2] },
    Delete { id: u8 },
    Archive(String),
}

impl Somewhere {
    fn extent(self) -> Extent {
        let bytes = |blocks: u16| u64::from(blocks) * BLOCK_BYTES as u64;
        let (offset_bytes, length) = (bytes(self.block), bytes(self.blocks));
        Extent { device: DeviceIndex(self.device.into()), offset_bytes, bytes: length }
    }
}

fn extents(places: &[Somewhere]) -> Vec<Extent> {
    places.iter().take(3).map(|place| place.extent()).collect()
}

impl Line {
    fn bytes(&self) -> Vec<u8> {
        let id = |id: &u8| ObjectId(u64::from(*id) + 8);
        let object = |moves: bool, entry| match moves {
            true => Record::Move(entry),
            false => Record::Commit(entry),
        };
        let record = match self {
            Self::Raw(bytes) => return bytes.clone(),
            &Self::Opening { number, nonce } => Record::Opening { number, nonce },
            &Self::Opened { number } => Record::Opened { number },
            Self::Name(number) => Record::Name(format!("pool-{number}").parse().expect("a name")),
            Self::Exported(true) => Record::Residence(Residence::Exported),
            Self::Exported(false) => Record::Residence(Residence::Here),
            Self::Device { class, index, id, bytes } => Record::Device(DeviceEntry {
                index: DeviceIndex((*index).into()),
                id: (*id).into(),
                class: MediaClass::ALL[usize::from(*class) % 3],
                bytes: *bytes,
            }),
            &Self::Ids { below } => Record::Ids { below },
            Self::Mblock { moves, id: number, length_bytes, data, table } => {
                let (data, table) = (data.extent(), table.extent());
                let (id, length_bytes) = (id(number), *length_bytes);
                let entry = MblockEntry { id, length_bytes, data, table, table_checksum: 0 };
                object(*moves, ObjectEntry::Mblock(entry))
            }
            Self::Archived { moves, id: number, length_bytes } => {
                let (id, length_bytes) = (id(number), *length_bytes);
                let entry = ArchivedEntry { id, length_bytes, digest: [7; 32] };
                object(*moves, ObjectEntry::Archived(entry))
            }
            Self::Log { id: number, copies } => {
                let entry = LogEntry { id: id(number), copies: extents(copies) };
                Record::Commit(ObjectEntry::Log(entry))
            }
            Self::Mdc { id: number, is_root, halves } => {
                let halves = [extents(&halves[0]), extents(&halves[1])];
                let entry = MdcEntry { id: id(number), is_root: *is_root, halves };
                Record::Commit(ObjectEntry::Mdc(entry))
            }
            Self::Delete { id: number } => Record::Delete(id(number)),
            Self::Archive(url) => Record::Archive(url.clone()),
        };
        record.encode()
    }
}

/// Decodes records, and takes them together.
///
/// # Panics
/// If one is not encoded as it was, or what is compacted comes to something else.
pub fn replay(lines: &[Line]) {
    let bytes: Vec<Vec<u8>> = lines.iter().map(Line::bytes).collect();
    for record in &bytes {
        if let Some(decoded) = bounded(record.len(), || Record::decode(record)) {
            assert_eq!(&decoded.encode(), record, "{decoded:?}");
        }
    }
    let given = bytes.iter().map(Vec::len).sum::<usize>();
    // An entry in memory is some hundred bytes, and its record can be nine.
    let given = given + bytes.len() * 256;
    let all = || Contents::replay(bytes.iter().map(|record| Ok::<_, Contradiction>(record)));
    let Ok(contents) = bounded(given, all) else { return };
    let again = Contents::replay(contents.records().map(|it| Ok::<_, Contradiction>(it.encode())));
    assert_eq!(again.as_ref(), Ok(&contents), "compacted, it comes to something else");
}

/// The devices of a small pool.
static POOL: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
    let mut rig = rig();
    let (pool, mut model) = (rig.create(), Model::default());
    for seed in 0..4 {
        let written = Written { seed, length: 5000 };
        let step = Step::Commit { class: MediaClass::Capacity, written, capacity: 5000 };
        life::go(&mut rig, &pool, &mut model, step).expect("there is room");
    }
    life::go(&mut rig, &pool, &mut model, Step::Append { number: 1 }).expect("there is room");
    drop(pool);
    rig.machine.devices().iter().map(|device| device.content()).collect()
});

fn rig() -> Rig {
    Rig::new(&[(MediaClass::Capacity, 640 << 10), (MediaClass::Staging, 640 << 10)])
}

/// Appends records to the catalogue of a pool, and opens it.
///
/// # Panics
/// If the pool does.
pub fn forge(lines: &[Line]) {
    let rig = rig();
    for (device, content) in rig.machine.devices().iter().zip(&*POOL) {
        device.replace(content.clone());
    }
    append(&rig, lines);
    if let Ok(reader) = rig.read() {
        for entry in reader.list() {
            if let Ok(object) = reader.get(entry.id()) {
                read(&*object);
            }
        }
        let _ = reader.verify(|_| ());
    }
    let Ok(pool) = rig.open() else { return };
    use_it(&pool);
    drop(pool);
    drop(rig.open());
}

/// As whoever can write the devices would: into the log of the catalogue that counts, the first byte that
/// makes a client's record of it left to the record if it is raw.
fn append(rig: &Rig, lines: &[Line]) {
    let device = rig.device(0).content();
    let superblock =
        Superblock::decode(0, &device[..BLOCK_BYTES]).expect("it is as it was written");
    let attached = rig.attached();
    let copies = superblock.catalogue[0].iter().map(|&extent| {
        let device = attached[usize::from(extent.device.0)].device.clone();
        LogCopy { device, extent }
    });
    let identity = LogIdentity { pool: superblock.pool, log: ObjectId(1) };
    let session = superblock.opening;
    let mut log = Log::open(identity, copies.collect(), session).expect("it is as it was written");
    for line in lines {
        let client = [&[0], &line.bytes()[..]].concat();
        let record = if let Line::Raw(bytes) = line { bytes } else { &client };
        if log.append(record).is_err() {
            break;
        }
    }
    log.close().expect("nothing fails");
}

fn use_it(pool: &Pool) {
    let _ = pool.verify();
    let _ = pool.statistics();
    for entry in pool.list() {
        let id = entry.id();
        if let Ok(object) = pool.get(id) {
            read(&*object);
        }
        drop(pool.open_log(id));
        drop(pool.open_mdc(id));
    }
    if let Ok(mut writer) = pool.allocate_mblock(MediaClass::Capacity, 9000)
        && writer.append(&[1; 9000]).is_ok()
    {
        let _ = writer.commit();
    }
    for entry in pool.list() {
        let _ = pool.delete(entry.id());
    }
    pool.reclaim();
}

fn read(object: &dyn Object) {
    let length = object.length_bytes().min(1 << 20) as usize;
    let mut buffer = Buffer::zeroed(length.next_multiple_of(BLOCK_BYTES));
    let _ = object.read(0, &mut buffer);
}
