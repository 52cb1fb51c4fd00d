//! Appending to a log.

use bindery_sys::direct::Buffer;

use super::chain::Position;
use super::error::{Damage, DeviceError, OpenError, WriteError};
use super::find::find;
use super::heads;
use super::log_copies::{CHUNK_BLOCKS, HEADS, LogCopies};
use super::log_copy::LogCopy;
use super::records::Records;
use super::repair;
use crate::format::log_block::{self, Header, Kind};
use crate::format::piece;
use crate::{BLOCK_BYTES, LogIdentity};

/// A log, open for writing. One at a time has it.
///
/// What was appended and not synced is lost when this is dropped.
#[derive(Debug)]
pub struct Log {
    pub(super) copies: LogCopies,
    /// The opening of the pool.
    session: u64,
    /// Behind the last block that was made.
    pub(super) end: Position,
    /// Behind the last block that is durable.
    synced: Position,
    /// Of the block that is being filled.
    payload: Vec<u8>,
    /// Blocks that were made and not yet written.
    made: Vec<u8>,
    failed: bool,
    healed: Vec<Damage>,
    torn: Option<Damage>,
}

impl Log {
    /// Makes an empty log in places whose content does not count. It is durable when this returns.
    ///
    /// `session` is the opening of the pool, as in [`open`](Self::open).
    ///
    /// # Errors
    /// If a log cannot lie there, or a device fails.
    pub fn create(
        identity: LogIdentity,
        places: Vec<LogCopy>,
        session: u64,
    ) -> Result<Self, OpenError> {
        let copies = LogCopies::new(identity, places)?;
        // It may have been made before, by somebody who could not remember it.
        let generation = heads::generation(&copies).unwrap_or(0) + 1;
        heads::write(&copies, generation, session)?;
        Ok(Self::at(copies, session, Position::start(generation, session)))
    }

    /// Opens a log for appending. `session` is the number of this opening of the pool, higher than
    /// those of all before: blocks that they left behind the end are known by it.
    ///
    /// The copies are equal afterwards, and all that was found is durable. Blocks; reads all copies of
    /// all of it, and syncs once or more.
    ///
    /// # Errors
    /// If there is no such log, if what was synced is damaged in all copies, or if a device fails.
    pub fn open(
        identity: LogIdentity,
        places: Vec<LogCopy>,
        session: u64,
    ) -> Result<Self, OpenError> {
        let copies = LogCopies::new(identity, places)?;
        let found = find(&copies)?;
        if found.end.session > session {
            let (log, found) = (identity.log, found.end.session);
            return Err(OpenError::Session { log, found, given: session });
        }
        repair::heal(&copies, &found.end, session, &found.defects)?;
        repair::settle(&copies, &found.end)?;
        let mut log = Self::at(copies, session, found.end);
        log.mark()?;
        log.healed = found.defects.into_iter().map(|it| it.damage).collect();
        log.torn = found.torn;
        Ok(log)
    }

    const fn at(copies: LogCopies, session: u64, end: Position) -> Self {
        Self {
            copies,
            session,
            end,
            synced: end,
            payload: Vec::new(),
            made: Vec::new(),
            failed: false,
            healed: Vec::new(),
            torn: None,
        }
    }

    /// Blocks that a copy had lost when the log was opened, because of damage or because a crash left
    /// the last ones so, and that were written anew from another copy.
    #[must_use]
    pub fn healed(&self) -> &[Damage] {
        &self.healed
    }

    /// As [`Reader::torn`](super::Reader::torn).
    #[must_use]
    pub const fn torn(&self) -> Option<&Damage> {
        self.torn.as_ref()
    }

    /// Returns the number of erases, and one.
    #[must_use]
    pub const fn generation(&self) -> u64 {
        self.end.generation
    }

    /// Returns the capacity, in bytes of blocks: records cost their length, 4 bytes, and 4 for each block
    /// that they touch; each sync ends a block.
    #[must_use]
    pub const fn capacity_bytes(&self) -> u64 {
        self.record_blocks() * BLOCK_BYTES as u64
    }

    /// Returns the used part of [`capacity_bytes`](Self::capacity_bytes); with a mark in the last block, one
    /// block more than there is.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        (self.end.sequence + u64::from(!self.payload.is_empty())) * BLOCK_BYTES as u64
    }

    /// Blocks that records may use. The last one is kept for a mark.
    const fn record_blocks(&self) -> u64 {
        self.copies.blocks() - HEADS - 1
    }

    /// Appends a record, in memory mostly; [`sync`](Self::sync) makes it durable. An empty one is one.
    ///
    /// # Errors
    /// If it does not fit, or a device fails.
    pub fn append(&mut self, record: &[u8]) -> Result<(), WriteError> {
        self.check()?;
        self.check_room(piece::stored_bytes(record))?;
        self.make_room()?;
        let stored = piece::stored(record, self.end.generation, self.end.sequence);
        let mut rest = piece::put(&mut self.payload, true, &stored);
        while !rest.is_empty() {
            self.make_room()?;
            rest = piece::put(&mut self.payload, false, rest);
        }
        Ok(())
    }

    /// Makes durable what was appended: all of it survives whatever happens, once this has returned.
    /// Blocks; syncs each device once, or none if there is nothing new.
    ///
    /// # Errors
    /// If a device fails.
    pub fn sync(&mut self) -> Result<(), WriteError> {
        self.check()?;
        if !self.payload.is_empty() {
            self.make(Kind::Records)?;
        }
        Ok(self.sync_made()?)
    }

    /// Forgets all records. Durable when it returns; after a crash meanwhile, either all records are
    /// there or none.
    ///
    /// # Errors
    /// If a device fails.
    pub fn erase(&mut self) -> Result<(), WriteError> {
        self.check()?;
        let (generation, session) = (self.end.generation + 1, self.session);
        self.attempt(|copies| heads::write(copies, generation, session))?;
        self.end = Position::start(generation, session);
        self.synced = self.end;
        self.payload.clear();
        self.made.clear();
        Ok(())
    }

    /// Syncs, and notes that all is durable, so that damage of the last block will not be taken for its
    /// never having been finished.
    ///
    /// # Errors
    /// If a device fails.
    pub fn close(mut self) -> Result<(), WriteError> {
        self.sync()?;
        Ok(self.mark()?)
    }

    /// Returns the synced records, read from the devices.
    #[must_use]
    pub fn records(&self) -> Records<'_> {
        Records::new(&self.copies, &self.synced)
    }

    /// Reads all copies of what was synced; what is damaged in some and good in another.
    ///
    /// # Errors
    /// If something is damaged in all copies, or the heads cannot be read.
    pub fn scrub(&self) -> Result<Vec<Damage>, OpenError> {
        let defects = repair::scrub(&self.copies, &self.synced)?;
        Ok(defects.into_iter().map(|it| it.damage).collect())
    }

    /// Scrubs, writes good copies over damaged ones, syncs, and scrubs again. What was repaired.
    ///
    /// # Errors
    /// If something is damaged in all copies, or still is after it was written.
    pub fn repair(&mut self) -> Result<Vec<Damage>, OpenError> {
        let defects = repair::scrub(&self.copies, &self.synced)?;
        repair::heal(&self.copies, &self.synced, self.session, &defects)?;
        match repair::scrub(&self.copies, &self.synced)?.pop() {
            Some(still) => Err(OpenError::Damaged(still.damage)),
            None => Ok(defects.into_iter().map(|it| it.damage).collect()),
        }
    }

    fn check(&self) -> Result<(), WriteError> {
        if self.failed { Err(WriteError::Failed(self.copies.identity.log)) } else { Ok(()) }
    }

    fn check_room(&self, stored_bytes: usize) -> Result<(), WriteError> {
        let behind = stored_bytes.saturating_sub(piece::room(&self.payload));
        let open = u64::from(!self.payload.is_empty());
        let needed = (1 - open) + behind.div_ceil(piece::MOST_BYTES) as u64;
        let blocks = self.record_blocks();
        let left = blocks.saturating_sub(self.end.sequence + open);
        if needed <= left {
            return Ok(());
        }
        Err(WriteError::Full { log: self.copies.identity.log, needed, left, blocks })
    }

    /// Ends the block that is being filled if nothing more goes into it.
    fn make_room(&mut self) -> Result<(), DeviceError> {
        if piece::room(&self.payload) > 0 {
            return Ok(());
        }
        self.make(Kind::Records)
    }

    /// Makes a block of the payload.
    fn make(&mut self, kind: Kind) -> Result<(), DeviceError> {
        let header = Header {
            identity: self.copies.identity,
            generation: self.end.generation,
            session: self.session,
            sequence: self.end.sequence,
            durable: self.synced.sequence,
            previous: self.end.previous,
            kind,
        };
        let at = self.made.len();
        self.made.resize(at + BLOCK_BYTES, 0);
        let checksum = log_block::encode(&header, &self.payload, &mut self.made[at..]);
        self.payload.clear();
        self.end.step(&header, checksum);
        if self.made.len() as u64 >= CHUNK_BLOCKS * BLOCK_BYTES as u64 {
            self.write_made()?;
        }
        Ok(())
    }

    fn write_made(&mut self) -> Result<(), DeviceError> {
        if self.made.is_empty() {
            return Ok(());
        }
        let mut blocks = Buffer::zeroed(self.made.len());
        blocks.copy_from_slice(&self.made);
        let first = HEADS + self.end.sequence - (self.made.len() / BLOCK_BYTES) as u64;
        self.attempt(|copies| copies.write_all(first, &blocks))?;
        self.made.clear();
        Ok(())
    }

    fn sync_made(&mut self) -> Result<(), DeviceError> {
        self.write_made()?;
        if self.end.sequence > self.synced.sequence {
            self.attempt(LogCopies::sync)?;
            self.synced = self.end;
        }
        Ok(())
    }

    /// Notes that all blocks are durable, which they are, in one more, unless the last one does.
    fn mark(&mut self) -> Result<(), DeviceError> {
        let noted = matches!(self.end.last, Kind::Head | Kind::Mark);
        if noted || self.end.sequence + HEADS == self.copies.blocks() {
            return Ok(());
        }
        self.make(Kind::Mark)?;
        self.sync_made()
    }

    /// Does something to the devices after whose failure nobody knows what they hold.
    fn attempt(
        &mut self,
        act: impl FnOnce(&LogCopies) -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        let acted = act(&self.copies);
        self.failed |= acted.is_err();
        acted
    }
}
