//! An MDC for those who only read it.

use super::error::MdcError;
use super::half::{Half, State, read, which};
use crate::log::{Damage, OpenError, Reader};

/// Most erases of the logs while they are read, before reading is given up.
const ATTEMPTS: u32 = 16;

/// The records of an MDC as they were when it was opened, in memory. Others may read it, and one write
/// it, meanwhile.
#[derive(Debug)]
pub struct MdcReader {
    records: Vec<Vec<u8>>,
    damaged: Vec<Damage>,
}

impl MdcReader {
    /// Reads an MDC. Blocks; reads all copies of both logs.
    ///
    /// # Errors
    /// If there is none, if what was synced is damaged in all copies, or if it is compacted so often
    /// that no log could be read to its end.
    pub fn open(halves: &[Half; 2]) -> Result<Self, MdcError> {
        let mut attempt = 1;
        loop {
            let read = Self::read(halves);
            let overtaken = matches!(
                &read,
                Err(MdcError::Neither(..)
                    | MdcError::Both(..)
                    | MdcError::Log(OpenError::Erased(_)))
            );
            if !overtaken || attempt == ATTEMPTS {
                return read;
            }
            attempt += 1;
        }
    }

    fn read(halves: &[Half; 2]) -> Result<Self, MdcError> {
        let mut damaged = Vec::new();
        let mut load = |half: &Half| -> Result<(State, Vec<Vec<u8>>), MdcError> {
            let log = Reader::open(half.identity, half.places.clone())?;
            damaged.extend_from_slice(log.damaged());
            let mut records = Vec::new();
            let each = |record: &[u8]| records.push(record.to_vec());
            let state = read(half.identity.log, log.records(), each)?;
            Ok((state, records))
        };
        let (first, second) = (load(&halves[0])?, load(&halves[1])?);
        let logs = [halves[0].identity.log, halves[1].identity.log];
        let (active, _) = which(logs, [first.0, second.0])?;
        let records = if active == 0 { first.1 } else { second.1 };
        Ok(Self { records, damaged })
    }

    /// As [`Reader::damaged`], of both logs.
    #[must_use]
    pub fn damaged(&self) -> &[Damage] {
        &self.damaged
    }

    /// The client's records, in order.
    pub fn records(&self) -> impl Iterator<Item = &[u8]> {
        self.records.iter().map(Vec::as_slice)
    }
}
