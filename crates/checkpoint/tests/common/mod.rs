//! A pool on simulated devices, guests whose memory an array knows, and checkpoints of them.
#![allow(dead_code, reason = "not every test program needs all of it")]

#[path = "../../../pool/tests/simulated/mod.rs"]
pub(crate) mod simulated;

use std::sync::Arc;

use bindery_checkpoint::{
    CheckpointError, CheckpointId, CheckpointReader, CheckpointSummary, CheckpointWriter,
    Description, MemoryBlock, Name, NewCheckpoint, PageEncoding, Store, StoreOptions, Vmm,
};
use bindery_pool::device::Device;
use bindery_pool::format::record::ObjectEntry;
use bindery_pool::{AttachedDevice, CreateOptions, MediaClass, NewDevice, ObjectId, Pool};
use bindery_units::{PAGE_BYTES, PageIndex, PageRange};

use simulated::Machine;

pub(crate) type Page = [u8; PAGE_BYTES];

/// A machine with one device and a pool on it.
pub(crate) struct Rig {
    pub(crate) machine: Machine,
    pub(crate) options: StoreOptions,
}

impl Rig {
    pub(crate) fn new(bytes: u64) -> Self {
        let mut machine = Machine::new();
        machine.device(bytes);
        let options =
            StoreOptions { catalogue_bytes: 64 << 10, pack_pages: 24, ..StoreOptions::default() };
        let rig = Self { machine, options };
        let device = NewDevice { attached: rig.attached(), class: MediaClass::Capacity };
        let options = CreateOptions { force: false, catalogue_bytes: Some(64 << 10) };
        drop(Pool::create_on("guests".parse().unwrap(), vec![device], &options).unwrap());
        rig
    }

    fn attached(&self) -> AttachedDevice {
        let device = Arc::clone(&self.machine.devices()[0]) as Arc<dyn Device>;
        AttachedDevice { label: "disk".into(), device }
    }

    pub(crate) fn pool(&self) -> Arc<Pool> {
        Arc::new(Pool::open_on(vec![self.attached()]).unwrap())
    }

    pub(crate) fn open(&self) -> Store {
        Store::open(self.pool(), self.options).unwrap()
    }

    pub(crate) fn try_open(&self) -> Option<Store> {
        let pool = Pool::open_on(vec![self.attached()]).ok()?;
        Store::open(Arc::new(pool), self.options).ok()
    }
}

pub(crate) fn name(text: &str) -> Name {
    text.parse().unwrap()
}

/// Content that is told by a number: 0 is zero, odd ones compress.
pub(crate) fn content(number: u64) -> Page {
    let mut page = [0; PAGE_BYTES];
    let mut state = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for word in page.chunks_exact_mut(8).take(if number == 0 { 0 } else { 512 }) {
        if number.is_multiple_of(2) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
        }
        word.copy_from_slice(&state.to_le_bytes());
    }
    page
}

/// Memory of a guest: a number for the content of each page of each block.
pub(crate) type Memory = Vec<Vec<u64>>;

pub(crate) fn describe(
    domain: &str,
    guest: &str,
    checkpoint: &str,
    memory: &Memory,
) -> Description {
    let block = |(number, pages): (usize, &Vec<u64>)| MemoryBlock {
        name: format!("block{number}"),
        bytes: (pages.len() * PAGE_BYTES) as u64,
    };
    Description {
        guest: name(guest),
        name: name(checkpoint),
        domain: name(domain),
        time_ns: 7,
        vmm: Vmm { kind: "test".into(), version: "1".into(), ..Vmm::default() },
        blocks: memory.iter().enumerate().map(block).collect(),
        disks: Vec::new(),
        device_state: format!("state of {guest}@{checkpoint}").into_bytes(),
    }
}

pub(crate) fn begin(
    store: &Store,
    description: Description,
    base: Option<CheckpointId>,
    encoding: PageEncoding,
) -> Result<CheckpointWriter, CheckpointError> {
    store.create(NewCheckpoint { description, base, encoding })
}

/// Makes a checkpoint of all memory.
pub(crate) fn checkpoint(
    store: &Store,
    (domain, guest, name): (&str, &str, &str),
    memory: &Memory,
    encoding: PageEncoding,
) -> Result<CheckpointSummary, CheckpointError> {
    let mut writer = begin(store, describe(domain, guest, name, memory), None, encoding)?;
    for (block, pages) in memory.iter().enumerate() {
        let bytes: Vec<u8> = pages.iter().flat_map(|number| content(*number)).collect();
        writer.put(block, PageIndex(0), &bytes)?;
    }
    writer.finish()
}

/// Compares a checkpoint with what the memory was.
pub(crate) fn check(store: &Store, id: CheckpointId, memory: &Memory) {
    let reader = store.reader(id).unwrap();
    check_reader(&reader, memory);
    let report = store.verify(id).unwrap();
    assert!(report.is_whole() && report.touched.is_none(), "{report:?}");
    assert_eq!(report.pages, reader.manifest().stored_pages());
}

pub(crate) fn check_reader(reader: &CheckpointReader, memory: &Memory) {
    for (block, pages) in memory.iter().enumerate() {
        let mut bytes = vec![0xee; pages.len() * PAGE_BYTES];
        reader.read(block, PageIndex(0), &mut bytes).unwrap();
        for (page, (found, number)) in bytes.chunks(PAGE_BYTES).zip(pages).enumerate() {
            assert!(found == content(*number), "page {page} of block {block}");
            let is_stored = reader.manifest().pages[block].find(PageIndex(page as u32)).is_some();
            assert_eq!(is_stored, *number != 0, "page {page} of block {block}");
        }
    }
}

/// Objects of the pool beside its root.
pub(crate) fn objects(store: &Store) -> Vec<ObjectId> {
    let entries = store.pool().list();
    let mblocks = entries.iter().filter(|entry| matches!(entry, ObjectEntry::Mblock(_)));
    mblocks.map(ObjectEntry::id).collect()
}

pub(crate) fn range(first: u32, count: u32) -> PageRange {
    PageRange::new(PageIndex(first), count)
}
