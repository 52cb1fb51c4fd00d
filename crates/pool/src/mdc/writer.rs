//! Appending to an MDC, and compacting it.

use super::error::MdcError;
use super::half::{Half, State, read, which};
use crate::LogIdentity;
use crate::format::mdc_record::{Entry, encode, into_client};
use crate::log::{Damage, Log, OpenError, Records, WriteError};

/// An MDC, open for writing. One at a time has it.
#[derive(Debug)]
pub struct Mdc {
    logs: [Log; 2],
    identities: [LogIdentity; 2],
    /// Index of the log that counts.
    active: usize,
    /// Number of the last compaction.
    number: u64,
}

impl Mdc {
    /// Makes an empty MDC in places whose content does not count. It is durable when this returns.
    ///
    /// # Errors
    /// If its logs cannot lie there, or a device fails.
    pub fn create(halves: [Half; 2], session: u64) -> Result<Self, MdcError> {
        let identities = [halves[0].identity, halves[1].identity];
        let [first, second] = halves.map(|half| Log::create(half.identity, half.places, session));
        let mut mdc = Self { logs: [first?, second?], identities, active: 0, number: 1 };
        let log = &mut mdc.logs[0];
        log.append(&encode(Entry::Begin(1)))?;
        log.append(&encode(Entry::End(1)))?;
        log.sync()?;
        Ok(mdc)
    }

    /// Opens an MDC for appending; `session` as in [`Log::open`]. A compaction that did not end does
    /// not count, and what is left of it is erased by the next one. Blocks; reads all copies of both logs.
    ///
    /// # Errors
    /// If there is none, if what was synced is damaged in all copies, or if a device fails.
    pub fn open(halves: [Half; 2], session: u64) -> Result<Self, MdcError> {
        let identities = [halves[0].identity, halves[1].identity];
        let [first, second] = halves.map(|half| Log::open(half.identity, half.places, session));
        let logs = [first?, second?];
        let states = [state(&logs[0], identities[0])?, state(&logs[1], identities[1])?];
        let (active, number) = which([identities[0].log, identities[1].log], states)?;
        Ok(Self { logs, identities, active, number })
    }

    /// As [`Log::healed`], of both logs.
    pub fn healed(&self) -> impl Iterator<Item = &Damage> {
        self.logs.iter().flat_map(Log::healed)
    }

    /// As [`Log::torn`], of both logs.
    pub fn torn(&self) -> impl Iterator<Item = &Damage> {
        self.logs.iter().filter_map(Log::torn)
    }

    /// The log that counts now.
    #[must_use]
    pub const fn active(&self) -> LogIdentity {
        self.identities[self.active]
    }

    /// As [`Log::append`].
    ///
    /// # Errors
    /// If it does not fit, and it is time to compact; or if a device fails.
    pub fn append(&mut self, record: &[u8]) -> Result<(), WriteError> {
        self.logs[self.active].append(&encode(Entry::Client(record)))
    }

    /// As [`Log::sync`].
    ///
    /// # Errors
    /// If a device fails.
    pub fn sync(&mut self) -> Result<(), WriteError> {
        self.logs[self.active].sync()
    }

    /// Replaces all records by those that `write` appends. They are durable when this returns; after
    /// a crash meanwhile, either the old ones are there or the new ones. What was appended before and
    /// not synced counts until then as before.
    ///
    /// # Errors
    /// Of `write`, or if they do not fit, or if a device fails: then the old records still count. But
    /// if it is the erasing of the old log that fails, the new ones do; then it will not be compacted
    /// again until it was opened again.
    pub fn compact<E: From<WriteError>>(
        &mut self,
        write: impl FnOnce(&mut Compaction<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let (other, number) = (1 - self.active, self.number + 1);
        let log = &mut self.logs[other];
        if log.used_bytes() > 0 {
            // What an attempt that failed has left, or one whose old log was not erased any more.
            log.erase()?;
        }
        log.append(&encode(Entry::Begin(number)))?;
        write(&mut Compaction { log })?;
        log.append(&encode(Entry::End(number)))?;
        log.sync()?;
        let old = std::mem::replace(&mut self.active, other);
        self.number = number;
        Ok(self.logs[old].erase()?)
    }

    /// Returns the synced records, read from the devices.
    #[must_use]
    pub fn records(&self) -> MdcRecords<'_> {
        MdcRecords(self.logs[self.active].records())
    }

    /// Returns the used part of [`capacity_bytes`](Self::capacity_bytes), by what counts and by what does
    /// not any more.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        self.logs[self.active].used_bytes()
    }

    /// Returns the capacity of the log that counts, in bytes.
    #[must_use]
    pub const fn capacity_bytes(&self) -> u64 {
        self.logs[self.active].capacity_bytes()
    }

    /// As [`Log::scrub`], of both logs.
    ///
    /// # Errors
    /// If something is damaged in all copies.
    pub fn scrub(&self) -> Result<Vec<Damage>, OpenError> {
        Ok([self.logs[0].scrub()?, self.logs[1].scrub()?].concat())
    }

    /// As [`Log::repair`], of both logs.
    ///
    /// # Errors
    /// If something is damaged in all copies, or still is after it was written.
    pub fn repair(&mut self) -> Result<Vec<Damage>, OpenError> {
        Ok([self.logs[0].repair()?, self.logs[1].repair()?].concat())
    }

    /// As [`Log::close`].
    ///
    /// # Errors
    /// If a device fails.
    pub fn close(self) -> Result<(), WriteError> {
        let active = self.active;
        let [first, second] = self.logs;
        let log = if active == 0 { first } else { second };
        log.close()
    }
}

fn state(log: &Log, identity: LogIdentity) -> Result<State, MdcError> {
    read(identity.log, log.records(), |_| {})
}

/// Takes the records that are to count.
#[derive(Debug)]
pub struct Compaction<'a> {
    log: &'a mut Log,
}

impl Compaction<'_> {
    /// As [`Mdc::append`].
    ///
    /// # Errors
    /// If it does not fit, or a device fails.
    pub fn append(&mut self, record: &[u8]) -> Result<(), WriteError> {
        self.log.append(&encode(Entry::Client(record)))
    }
}

/// The client's records of an MDC, in order; after an error, none.
#[derive(Debug)]
pub struct MdcRecords<'a>(Records<'a>);

impl Iterator for MdcRecords<'_> {
    type Item = Result<Vec<u8>, OpenError>;

    fn next(&mut self) -> Option<Self::Item> {
        // Those around a compaction are not the client's; others were refused at opening.
        self.0.find_map(|record| record.map(into_client).transpose())
    }
}
