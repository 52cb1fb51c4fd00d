//! Objects that are being written.

use std::fmt;
use std::io::{self, IoSlice};
use std::sync::Arc;

use bindery_sys::direct::Buffer;
use thiserror::Error;

use super::checksum::{table_checksum, unit_checksum, units_in};
use super::committed::Committed;
use super::local::Local;
use crate::catalogue::CatalogueError;
use crate::device::UnderWay;
use crate::format::record::{MblockEntry, ObjectEntry};
use crate::pool::core::Core;
use crate::pool::member::Member;
use crate::{BLOCK_BYTES, Extent, MediaClass, ObjectId, UNIT_BYTES};

/// What is gathered before it is written, in bytes. It is written while the next is gathered.
const PIECE_BYTES: u64 = 512 << 10;

/// Bytes could not be appended to an object.
#[derive(Debug, Error)]
pub enum AppendError {
    /// There is no room for them. Nothing has changed.
    #[error(
        "object {object} was allocated for {capacity_bytes} bytes and has {length_bytes}: {bytes} \
         more do not fit; allocate it larger"
    )]
    BeyondCapacity {
        /// The object.
        object: ObjectId,
        /// What it was allocated for.
        capacity_bytes: u64,
        /// What it has.
        length_bytes: u64,
        /// What was to be appended.
        bytes: u64,
    },
    /// The device failed. The object can only be aborted.
    #[error("object {object} could not be written, and is lost: {source}")]
    Device {
        /// The object.
        object: ObjectId,
        /// What the device said, and which it is.
        source: io::Error,
    },
}

/// An object could not be committed.
#[derive(Debug, Error)]
pub enum CommitError {
    /// It has no bytes. It is aborted.
    #[error("object {0} is empty: append to it before committing it, or abort it")]
    Empty(ObjectId),
    /// It could not be written. It is aborted.
    #[error(transparent)]
    Append(#[from] AppendError),
    /// The device could not make it durable. It is aborted, and so will be every other object of that
    /// device until the pool is opened again.
    #[error(
        "object {object} could not be made durable, and is lost; nothing can be committed on {device} \
         until the pool is opened again: {source}"
    )]
    Sync {
        /// The object.
        object: ObjectId,
        /// The device.
        device: String,
        /// What it said.
        source: Arc<io::Error>,
    },
    /// The catalogue did not take it. Where it is full the object is aborted; where it failed, it is
    /// seen when the pool is opened again whether the object was committed.
    #[error("object {object} could not be committed: {source}")]
    Catalogue {
        /// The object.
        object: ObjectId,
        /// Why.
        source: CatalogueError,
    },
}

/// An mblock that is being written. Nobody else sees it before it is committed; dropping it aborts it.
#[must_use = "an object that is not committed is aborted"]
pub struct Writer {
    core: Arc<Core>,
    member: Arc<Member>,
    id: ObjectId,
    data: Extent,
    table: Extent,
    capacity_bytes: u64,
    length_bytes: u64,
    /// What is gathered, and how many bytes of it there are: fewer than it has room for.
    piece: Option<Buffer>,
    gathered_bytes: usize,
    /// What is being written.
    under_way: UnderWay,
    /// Of all whole units so far.
    checksums: Vec<u32>,
    /// Whether what is on the device is as it should be.
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Whole,
    /// A write failed.
    Broken,
    /// The space is the object's for good, or may be.
    Given,
}

/// How an object comes to be where it was written.
#[derive(Clone, Copy)]
enum Entrance {
    New,
    /// It has its name already, and was somewhere else.
    #[cfg(feature = "archive")]
    Moved,
}

impl Writer {
    pub(crate) fn new(
        core: Arc<Core>,
        member: Arc<Member>,
        id: ObjectId,
        extents: [Extent; 2],
        capacity_bytes: u64,
    ) -> Self {
        let [data, table] = extents;
        let under_way = member.device.under_way();
        Self {
            core,
            member,
            id,
            data,
            table,
            capacity_bytes,
            length_bytes: 0,
            piece: None,
            gathered_bytes: 0,
            under_way,
            checksums: Vec::new(),
            state: State::Whole,
        }
    }

    /// The name that it will have.
    #[must_use]
    pub const fn id(&self) -> ObjectId {
        self.id
    }

    /// The media class that it is in.
    #[must_use]
    pub fn class(&self) -> MediaClass {
        self.member.class
    }

    /// How many bytes were appended.
    #[must_use]
    pub const fn length_bytes(&self) -> u64 {
        self.length_bytes
    }

    /// How many bytes it can have.
    #[must_use]
    pub const fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes
    }

    /// Appends bytes. Copies them; blocks when enough have come together to be written.
    ///
    /// # Errors
    /// See [`AppendError`].
    pub fn append(&mut self, bytes: &[u8]) -> Result<(), AppendError> {
        self.append_vectored(&[IoSlice::new(bytes)])
    }

    /// Appends all of several slices, or none.
    ///
    /// # Errors
    /// See [`AppendError`].
    pub fn append_vectored(&mut self, slices: &[IoSlice<'_>]) -> Result<(), AppendError> {
        let bytes = slices.iter().map(|slice| slice.len() as u64).sum();
        self.check(bytes)?;
        slices.iter().try_for_each(|slice| self.gather(slice))?;
        self.length_bytes += bytes;
        Ok(())
    }

    fn check(&self, bytes: u64) -> Result<(), AppendError> {
        let Self { id: object, capacity_bytes, length_bytes, .. } = *self;
        if self.state == State::Broken {
            let source = io::Error::other("an earlier write failed");
            return Err(AppendError::Device { object, source });
        }
        if bytes > capacity_bytes - length_bytes {
            let error = AppendError::BeyondCapacity { object, capacity_bytes, length_bytes, bytes };
            return Err(error);
        }
        Ok(())
    }

    /// Copies unit by unit, and computes the checksum of each meanwhile: of what is copied, where that
    /// has all of the unit. To read the copy is to wait until its cache lines have come back from the
    /// processor that had the device read what they held before.
    fn gather(&mut self, mut bytes: &[u8]) -> Result<(), AppendError> {
        let piece_bytes = self.data.bytes.min(PIECE_BYTES) as usize;
        while !bytes.is_empty() {
            let mut piece = self.piece.take().unwrap_or_else(|| self.under_way.buffer(piece_bytes));
            let at = self.gathered_bytes;
            let (now, later) = bytes.split_at(bytes.len().min(UNIT_BYTES - at % UNIT_BYTES));
            let end = at + now.len();
            piece[at..end].copy_from_slice(now);
            if now.len() == UNIT_BYTES {
                self.end_unit(now);
            } else if end.is_multiple_of(UNIT_BYTES) {
                self.end_unit(&piece[end - UNIT_BYTES..end]);
            }
            (self.gathered_bytes, bytes) = (end, later);
            if end == piece_bytes {
                self.begin_write(piece)?;
            } else {
                self.piece = Some(piece);
            }
        }
        Ok(())
    }

    fn end_unit(&mut self, unit: &[u8]) {
        self.checksums.push(unit_checksum(self.id, self.checksums.len() as u64, unit));
    }

    /// Begins to write a piece, which ends with the last whole unit so far.
    fn begin_write(&mut self, piece: Buffer) -> Result<(), AppendError> {
        self.gathered_bytes = 0;
        let end = self.data.offset_bytes + (self.checksums.len() * UNIT_BYTES) as u64;
        let place = end - piece.len() as u64;
        let begun = self.member.device.begin_write(&mut self.under_way, place, piece);
        begun.map_err(|error| self.broken(error))
    }

    /// Writes what was gathered, filled up with zeros to whole units: nothing may come behind it. All is
    /// written when this returns.
    fn flush(&mut self) -> Result<(), AppendError> {
        if let Some(piece) = self.piece.take() {
            let rest = self.gathered_bytes;
            // A write takes all of a buffer.
            let mut tail = Buffer::zeroed(rest.next_multiple_of(UNIT_BYTES));
            tail[..rest].copy_from_slice(&piece[..rest]);
            if !rest.is_multiple_of(UNIT_BYTES) {
                let unit = tail.len() - UNIT_BYTES;
                self.end_unit(&tail[unit..]);
            }
            self.begin_write(tail)?;
        }
        let ended = self.member.device.end_writes(&mut self.under_way);
        ended.map_err(|error| self.broken(error))
    }

    fn broken(&mut self, source: io::Error) -> AppendError {
        self.state = State::Broken;
        AppendError::Device { object: self.id, source }
    }

    /// Makes it an object of the pool: durable, visible to all, and never changed again. Blocks for two
    /// syncs, which it shares with others that commit at the same time. What was allocated and not
    /// written is free again.
    ///
    /// # Errors
    /// See [`CommitError`].
    pub fn commit(self) -> Result<Arc<Committed>, CommitError> {
        let (counted, core) = (self.length_bytes, Arc::clone(&self.core));
        let committed = self.enter(Entrance::New)?;
        committed.use_it();
        core.counters.committed(counted);
        Ok(committed)
    }

    /// As [`commit`](Self::commit), of an object that was somewhere else before.
    #[cfg(feature = "archive")]
    pub(crate) fn settle(self) -> Result<Arc<Committed>, CommitError> {
        self.enter(Entrance::Moved)
    }

    fn enter(mut self, entrance: Entrance) -> Result<Arc<Committed>, CommitError> {
        if self.length_bytes == 0 {
            return Err(CommitError::Empty(self.id));
        }
        self.check(0)?;
        self.flush()?;
        let table_checksum = self.write_table()?;
        self.trim();
        let synced = self.member.syncs.sync(&*self.member.device);
        synced.map_err(|source| {
            let (object, device) = (self.id, self.member.label.clone());
            CommitError::Sync { object, device, source }
        })?;
        let Self { id, length_bytes, data, table, .. } = self;
        let entry = MblockEntry { id, length_bytes, data, table, table_checksum };
        self.submit(entry, entrance)
    }

    /// Writes the checksums, and says what theirs is.
    fn write_table(&mut self) -> Result<u32, AppendError> {
        let bytes = self.checksums.len() * size_of::<u32>();
        let mut table = Buffer::zeroed(bytes.next_multiple_of(BLOCK_BYTES));
        let (places, _) = table[..bytes].as_chunks_mut();
        places.iter_mut().zip(&self.checksums).for_each(|(to, from)| *to = from.to_le_bytes());
        let checksum = table_checksum(self.id, &table[..bytes]);
        let written = self.member.device.write(self.table.offset_bytes, &table);
        written.map_err(|error| self.broken(error))?;
        Ok(checksum)
    }

    /// Gives back what was not written.
    fn trim(&mut self) {
        let member = &self.member;
        let keep = |extent: &mut Extent, bytes: u64| {
            let (offset_bytes, rest) = (extent.offset_bytes + bytes, extent.bytes - bytes);
            if rest > 0 {
                member.give_back(Extent { offset_bytes, bytes: rest, ..*extent });
            }
            extent.bytes = bytes;
        };
        keep(&mut self.data, self.length_bytes.next_multiple_of(BLOCK_BYTES as u64));
        keep(&mut self.table, table_bytes(self.length_bytes));
    }

    fn submit(
        mut self,
        entry: MblockEntry,
        entrance: Entrance,
    ) -> Result<Arc<Committed>, CommitError> {
        let checksums = std::mem::take(&mut self.checksums);
        let local = Local::written(entry, Arc::clone(&self.member), checksums);
        let new = Arc::new(Committed::on_device(local, Some(Arc::clone(&self.core.uses))));
        let submitted = match entrance {
            Entrance::New => self.core.commit_as(&new, ObjectEntry::Mblock(entry)),
            #[cfg(feature = "archive")]
            Entrance::Moved => self.core.move_to(ObjectEntry::Mblock(entry)),
        };
        if let Err(source) = submitted {
            if matches!(source, CatalogueError::Failed(_)) {
                // It may be durable: its space is nobody else's before the pool is opened again.
                self.state = State::Given;
            }
            return Err(CommitError::Catalogue { object: self.id, source });
        }
        self.state = State::Given;
        self.member.settle(self.data.bytes + self.table.bytes);
        #[cfg(feature = "archive")]
        if matches!(entrance, Entrance::Moved) {
            self.core.adopt(&new);
        }
        Ok(new)
    }

    /// Undoes it. Dropping does the same.
    pub fn abort(self) {}
}

impl Drop for Writer {
    fn drop(&mut self) {
        if self.state != State::Given {
            // Nothing may be on its way to a place that somebody else is given: this waits.
            drop(std::mem::take(&mut self.under_way));
            self.member.abandon(self.data);
            self.member.abandon(self.table);
            self.core.counters.aborted();
        }
    }
}

impl fmt::Debug for Writer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { id, length_bytes, capacity_bytes, data, .. } = self;
        write!(formatter, "mblock {id} ({length_bytes} of {capacity_bytes} bytes, {data})")
    }
}

/// What the checksums of so many bytes take on a device, in bytes.
pub(crate) const fn table_bytes(length_bytes: u64) -> u64 {
    (units_in(length_bytes) * size_of::<u32>() as u64).next_multiple_of(BLOCK_BYTES as u64)
}
