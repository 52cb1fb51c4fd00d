//! mlogs (skeleton).
mod error;
mod place;

pub use error::{Damage, DeviceError, OpenError, WriteError};
pub use place::Place;

use crate::id::ObjectId;

/// Whose a log is; every block of it says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The pool's id.
    pub pool: u128,
    /// The log's id in it.
    pub log: ObjectId,
}

/// A log, open for writing.
#[derive(Debug)]
pub struct Log {}

/// A log, open for reading, as it was when it was opened.
#[derive(Debug)]
pub struct Reader {}

/// The records of a log, in order.
#[derive(Debug)]
pub struct Records<'a>(std::marker::PhantomData<&'a ()>);

impl Iterator for Records<'_> {
    type Item = Result<Vec<u8>, OpenError>;
    fn next(&mut self) -> Option<Self::Item> {
        todo!()
    }
}

/// The least blocks that a log lies in.
pub const LEAST_BLOCKS: u64 = 4;

#[expect(missing_docs, unused_variables, reason = "signatures, for those who build on them")]
impl Log {
    pub fn create(identity: Identity, places: Vec<Place>, session: u64) -> Result<Self, OpenError> {
        todo!()
    }
    pub fn open(identity: Identity, places: Vec<Place>, session: u64) -> Result<Self, OpenError> {
        todo!()
    }
    /// Copies of blocks that opening found damaged or left behind by a crash, and has made good.
    pub fn healed(&self) -> &[Damage] {
        todo!()
    }
    pub fn append(&mut self, record: &[u8]) -> Result<(), WriteError> {
        todo!()
    }
    pub fn sync(&mut self) -> Result<(), WriteError> {
        todo!()
    }
    pub fn erase(&mut self) -> Result<(), WriteError> {
        todo!()
    }
    pub fn close(self) -> Result<(), WriteError> {
        todo!()
    }
    /// What was synced.
    pub fn records(&self) -> Records<'_> {
        todo!()
    }
    pub fn used_bytes(&self) -> u64 {
        todo!()
    }
    pub fn capacity_bytes(&self) -> u64 {
        todo!()
    }
    /// Reads all copies of what is durable.
    pub fn scrub(&self) -> Result<Vec<Damage>, OpenError> {
        todo!()
    }
    /// Scrubs, and writes good copies over damaged ones. What was repaired.
    pub fn repair(&mut self) -> Result<Vec<Damage>, OpenError> {
        todo!()
    }
}

#[expect(missing_docs, unused_variables, reason = "signatures, for those who build on them")]
impl Reader {
    pub fn open(identity: Identity, places: Vec<Place>) -> Result<Self, OpenError> {
        todo!()
    }
    pub fn damaged(&self) -> &[Damage] {
        todo!()
    }
    pub fn records(&self) -> Records<'_> {
        todo!()
    }
}
