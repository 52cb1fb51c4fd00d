//! What a pool must hold: the oracle of all lives.

use std::collections::BTreeMap;

use bindery_pool::format::record::ObjectEntry;
use bindery_pool::mblock::Committed;
use bindery_pool::object::Object;
use bindery_pool::{MediaClass, ObjectId, Pool, UNIT_BYTES};
use bindery_sys::direct::Buffer;

/// What an object holds: bytes that follow from its seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Written {
    pub(crate) seed: u64,
    pub(crate) length: usize,
}

impl Written {
    pub(crate) fn bytes(self) -> Vec<u8> {
        let mut state = self.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut bytes = Vec::with_capacity(self.length + 8);
        while bytes.len() < self.length {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            bytes.extend(state.to_le_bytes());
        }
        bytes.truncate(self.length);
        bytes
    }
}

/// What was committed for certain, and what may be.
#[derive(Debug, Default)]
pub(crate) struct Model {
    pub(crate) sure: BTreeMap<ObjectId, Written>,
    /// Committed or deleted when the machine stopped.
    pub(crate) unsure: BTreeMap<ObjectId, Written>,
    /// Records of the root MDC that were synced, and one that may be there behind them.
    pub(crate) root: Option<(ObjectId, Vec<Vec<u8>>)>,
    pub(crate) unsure_record: Option<Vec<u8>>,
    pub(crate) highest_id: u64,
}

impl Model {
    /// Reads everything that a pool holds and compares. What was unsure is sure afterwards.
    pub(crate) fn check(&mut self, pool: &Pool) {
        let report = pool.verify();
        assert!(report.findings.is_empty(), "{:?}", report.findings);
        for class in [MediaClass::Capacity, MediaClass::Staging] {
            let usage = pool.usage(class);
            assert_eq!((usage.held_bytes, usage.limbo_bytes), (0, 0), "space is lost");
        }
        self.check_objects(&pool.list(), |id| pool.get(id).unwrap());
        self.check_root(pool);
    }

    pub(crate) fn check_objects(
        &mut self,
        list: &[ObjectEntry],
        get: impl Fn(ObjectId) -> std::sync::Arc<Committed>,
    ) {
        let mblocks = list.iter().filter(|entry| entry.length_bytes().is_some());
        let mut there: Vec<ObjectId> = mblocks.map(ObjectEntry::id).collect();
        for (id, written) in std::mem::take(&mut self.unsure) {
            if there.contains(&id) {
                self.sure.insert(id, written);
            } else {
                self.sure.remove(&id);
            }
        }
        there.sort();
        assert_eq!(there, self.sure.keys().copied().collect::<Vec<_>>(), "other objects are there");
        for (&id, &written) in &self.sure {
            assert_eq!(read(&get(id)), written.bytes(), "object {id} is another");
        }
    }

    /// Compares the root's records, which are then all synced.
    fn check_root(&mut self, pool: &Pool) {
        let Some((id, records)) = &mut self.root else { return };
        assert_eq!(pool.root(), Some(*id));
        let root = pool.open_mdc(*id).unwrap();
        let there: Vec<Vec<u8>> = root.records().map(|record| record.unwrap()).collect();
        if let Some(record) = self.unsure_record.take()
            && there.len() == records.len() + 1
        {
            records.push(record);
        }
        assert_eq!(&there, records, "the root's records are others");
    }
}

/// All of an object, verified by the pool.
pub(crate) fn read(object: &Committed) -> Vec<u8> {
    let length = object.length_bytes() as usize;
    let mut buffer = Buffer::zeroed(length.next_multiple_of(UNIT_BYTES));
    object.read(0, &mut buffer).unwrap();
    assert!(buffer[length..].iter().all(|byte| *byte == 0), "there is something behind it");
    // Past the pool as well: what is on the device is what was written.
    let mut raw = Buffer::zeroed(buffer.len());
    object.device().read(object.offset_bytes(), &mut raw).unwrap();
    assert!(raw[..] == buffer[..]);
    buffer[..length].to_vec()
}
