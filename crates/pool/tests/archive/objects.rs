//! Objects to be archived, and pools that nobody else uses.

use std::error::Error;
use std::sync::atomic::{AtomicU64, Ordering};

use bindery_pool::ObjectId;
use bindery_pool::archive::{ReadError, Source, Stored, UNIT_BYTES};
use bindery_sys::direct::Buffer;
use rand::rngs::StdRng;
use rand::{RngCore, SeedableRng};
use uuid::Uuid;

/// An object in memory.
#[derive(Clone)]
pub(crate) struct Object {
    pub(crate) id: ObjectId,
    pub(crate) bytes: Vec<u8>,
}

impl Object {
    pub(crate) fn new(id: u64, bytes: usize, seed: u64) -> Self {
        let mut content = vec![0; bytes];
        StdRng::seed_from_u64(seed).fill_bytes(&mut content);
        Self { id: ObjectId(id), bytes: content }
    }

    /// What is at a unit and behind it, with zeros behind the end.
    pub(crate) fn padded(&self, unit: usize, units: usize) -> Vec<u8> {
        let (start, end) = (unit * UNIT_BYTES, (unit + units) * UNIT_BYTES);
        let mut some = self.bytes[start..end.min(self.bytes.len())].to_vec();
        some.resize(end - start, 0);
        some
    }

    pub(crate) fn units(&self) -> usize {
        self.bytes.len().div_ceil(UNIT_BYTES)
    }

    /// Whether it is there, every byte of it.
    pub(crate) fn assert_is(&self, stored: &Stored) {
        assert_eq!(stored.length_bytes(), self.bytes.len() as u64);
        stored.verify().unwrap();
        if self.units() > 0 {
            assert!(read(stored, 0, self.units()).unwrap() == self.padded(0, self.units()));
        }
    }
}

pub(crate) fn read(stored: &Stored, unit: usize, units: usize) -> Result<Vec<u8>, ReadError> {
    let mut buffer = Buffer::zeroed(units * UNIT_BYTES);
    stored.read((unit * UNIT_BYTES) as u64, &mut buffer)?;
    Ok(buffer.to_vec())
}

impl Source for Object {
    fn id(&self) -> ObjectId {
        self.id
    }

    fn length_bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn read(
        &self,
        offset_bytes: u64,
        into: &mut Buffer,
    ) -> Result<(), Box<dyn Error + Send + Sync>> {
        let (unit, units) = (offset_bytes as usize / UNIT_BYTES, into.len() / UNIT_BYTES);
        into.copy_from_slice(&self.padded(unit, units));
        Ok(())
    }
}

pub(crate) fn new_pool() -> Uuid {
    static POOLS: AtomicU64 = AtomicU64::new(1);
    Uuid::from_u128(0xb1d_0000 + u128::from(POOLS.fetch_add(1, Ordering::Relaxed)))
}
