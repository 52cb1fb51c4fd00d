//! Objects that are being written.

use std::fmt;
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::thread;

use bindery_sys::direct::Buffer;
use thiserror::Error;

use super::checksum::{table_checksum, unit_checksum, units_in};
use super::committed::Committed;
use super::local::Local;
use crate::catalogue::CatalogueError;
use crate::device::Write;
use crate::format::record::{MblockEntry, ObjectEntry};
use crate::pool::core::Core;
use crate::pool::member::Member;
use crate::{BLOCK_BYTES, Extent, MediaClass, ObjectId, UNIT_BYTES};

/// What is gathered before it is written, in bytes: so many buffers, at once.
const BUFFER_BYTES: usize = 1 << 20;
const BUFFERS: usize = 4;

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
    /// What is not written yet, from the front; all of the first are full.
    buffers: Vec<Buffer>,
    buffered_bytes: usize,
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
        Self {
            core,
            member,
            id,
            data,
            table,
            capacity_bytes,
            length_bytes: 0,
            buffers: Vec::new(),
            buffered_bytes: 0,
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

    fn gather(&mut self, mut bytes: &[u8]) -> Result<(), AppendError> {
        let most = self.data.bytes.min(BUFFER_BYTES as u64) as usize;
        while !bytes.is_empty() {
            let (buffer, at) = (self.buffered_bytes / most, self.buffered_bytes % most);
            if buffer == self.buffers.len() {
                if buffer == BUFFERS {
                    self.flush()?;
                    continue;
                }
                self.buffers.push(Buffer::zeroed(most));
            }
            let count = bytes.len().min(most - at);
            let (now, later) = bytes.split_at(count);
            self.buffers[buffer][at..at + count].copy_from_slice(now);
            self.buffered_bytes += count;
            bytes = later;
        }
        if self.buffered_bytes == BUFFERS * most { self.flush() } else { Ok(()) }
    }

    /// Writes what was gathered; if that is not whole blocks, nothing may come behind it.
    fn flush(&mut self) -> Result<(), AppendError> {
        let most = self.data.bytes.min(BUFFER_BYTES as u64) as usize;
        if self.buffered_bytes == 0 {
            return Ok(());
        }
        let last = (self.buffered_bytes - 1) / most;
        let rest = self.buffered_bytes - last * most;
        let whole = rest.next_multiple_of(BLOCK_BYTES);
        if whole < most {
            // A write takes all of a buffer.
            let mut tail = Buffer::zeroed(whole);
            tail[..rest].copy_from_slice(&self.buffers[last][..rest]);
            self.buffers[last] = tail;
        } else {
            self.buffers[last][rest..].fill(0);
        }
        let (id, first) = (self.id, self.checksums.len() as u64);
        let start = self.data.offset_bytes + first * UNIT_BYTES as u64;
        let used = &self.buffers[..=last];
        let writes = (0..).zip(used);
        let writes: Vec<Write<'_>> = writes
            .map(|(at, from)| Write { offset_bytes: start + at * most as u64, from })
            .collect();
        let device = &self.member.device;
        let (written, checksums) = if last == 0 {
            (device.write_many(&writes), checksums_of(id, first, used))
        } else {
            // The processor has something to do while the device writes.
            thread::scope(|scope| {
                let checksums = scope.spawn(|| checksums_of(id, first, used));
                (device.write_many(&writes), checksums.join().expect("checksums do not panic"))
            })
        };
        self.checksums.extend(checksums);
        self.buffered_bytes = 0;
        written.map_err(|error| self.broken(error))
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

/// The checksums of all units in `buffers`, of which the first is number `first` of the object.
fn checksums_of(id: ObjectId, first: u64, buffers: &[Buffer]) -> Vec<u32> {
    let units = buffers.iter().flat_map(|buffer| buffer.chunks_exact(UNIT_BYTES));
    (first..).zip(units).map(|(unit, bytes)| unit_checksum(id, unit, bytes)).collect()
}

/// What the checksums of so many bytes take on a device, in bytes.
pub(crate) const fn table_bytes(length_bytes: u64) -> u64 {
    (units_in(length_bytes) * size_of::<u32>() as u64).next_multiple_of(BLOCK_BYTES as u64)
}
