//! MDCs (skeleton).
use thiserror::Error;

use crate::log::{Damage, Identity, OpenError, Place, WriteError};

/// One of the two logs of an MDC.
#[derive(Clone, Debug)]
pub struct Half {
    /// Whose it is.
    pub identity: Identity,
    /// Its copies.
    pub places: Vec<Place>,
}

/// An MDC could not be opened.
#[derive(Debug, Error)]
pub enum MdcError {
    /// One of its logs could not.
    #[error(transparent)]
    Log(#[from] OpenError),
    /// One of its logs could not be erased.
    #[error(transparent)]
    Write(#[from] WriteError),
}

/// An MDC, open for writing.
#[derive(Debug)]
pub struct Mdc {}

/// An MDC, open for reading, as it was when it was opened.
#[derive(Debug)]
pub struct MdcReader {}

/// The records of an MDC, in order.
#[derive(Debug)]
pub struct MdcRecords<'a>(std::marker::PhantomData<&'a ()>);

impl Iterator for MdcRecords<'_> {
    type Item = Result<Vec<u8>, OpenError>;
    fn next(&mut self) -> Option<Self::Item> {
        todo!()
    }
}

/// What writes the other log while an MDC is compacted.
#[derive(Debug)]
pub struct Compaction<'a>(std::marker::PhantomData<&'a ()>);

#[expect(missing_docs, unused_variables, reason = "signatures, for those who build on them")]
impl Compaction<'_> {
    pub fn append(&mut self, record: &[u8]) -> Result<(), WriteError> {
        todo!()
    }
}

#[expect(missing_docs, unused_variables, reason = "signatures, for those who build on them")]
impl Mdc {
    pub fn create(halves: [Half; 2], session: u64) -> Result<Self, MdcError> {
        todo!()
    }
    pub fn open(halves: [Half; 2], session: u64) -> Result<Self, MdcError> {
        todo!()
    }
    pub fn healed(&self) -> impl Iterator<Item = &Damage> {
        [].iter()
    }
    pub fn append(&mut self, record: &[u8]) -> Result<(), WriteError> {
        todo!()
    }
    pub fn sync(&mut self) -> Result<(), WriteError> {
        todo!()
    }
    pub fn compact<E: From<WriteError>>(
        &mut self,
        write: impl FnOnce(&mut Compaction<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        todo!()
    }
    pub fn records(&self) -> MdcRecords<'_> {
        todo!()
    }
    pub fn used_bytes(&self) -> u64 {
        todo!()
    }
    pub fn capacity_bytes(&self) -> u64 {
        todo!()
    }
    pub fn close(self) -> Result<(), WriteError> {
        todo!()
    }
    pub fn scrub(&self) -> Result<Vec<Damage>, OpenError> {
        todo!()
    }
    pub fn repair(&mut self) -> Result<Vec<Damage>, OpenError> {
        todo!()
    }
}

#[expect(missing_docs, unused_variables, reason = "signatures, for those who build on them")]
impl MdcReader {
    pub fn open(halves: [Half; 2]) -> Result<Self, MdcError> {
        todo!()
    }
    pub fn damaged(&self) -> impl Iterator<Item = &Damage> {
        [].iter()
    }
    pub fn records(&self) -> MdcRecords<'_> {
        todo!()
    }
}
