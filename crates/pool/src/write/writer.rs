//! Objects that are being written.

use std::fmt;
use std::io::{self, IoSlice};
use std::sync::Arc;

use bindery_sys::direct::{Buffer, Source};
use bindery_sys::mapping::HUGE_PAGE_BYTES;
use thiserror::Error;

use crate::device::UnderWay;
use crate::mblock::checksum::{table_bytes, unit_checksum};
use crate::media::PoolDevice;
use crate::session::PoolSession;
use crate::{BLOCK_BYTES, Extent, MediaClass, ObjectId, OtherProcess, UNIT_BYTES};

/// Bytes that are gathered before they are written, unless the caller says otherwise: one huge page, which the
/// device gets as one piece of memory. It is written while the next is gathered.
const PIECE_BYTES: usize = HUGE_PAGE_BYTES;

/// Bytes could not be appended to an object.
#[derive(Debug, Error)]
pub enum AppendError {
    /// This is a child of the process that opened the pool.
    #[error(transparent)]
    OtherProcess(#[from] OtherProcess),
    /// There is no room for them. Nothing has changed.
    #[error(
        "object {object} was allocated for {capacity_bytes} bytes and has {length_bytes}: {bytes} \
         more do not fit; allocate it larger"
    )]
    BeyondCapacity {
        /// The object.
        object: ObjectId,
        /// Length that the object was allocated for, in bytes.
        capacity_bytes: u64,
        /// Length of the object, in bytes.
        length_bytes: u64,
        /// Bytes that were to be appended.
        bytes: u64,
    },
    /// The device failed. The object can only be aborted.
    #[error("object {object} could not be written, and is lost: {source}")]
    Device {
        /// The object.
        object: ObjectId,
        /// Error of the device, which names it.
        source: io::Error,
    },
}

/// An mblock that is being written. Nobody else sees it before it is committed; dropping it aborts it.
#[must_use = "an object that is not committed is aborted"]
pub struct Writer {
    pub(super) session: Arc<PoolSession>,
    pub(super) pool_device: Arc<PoolDevice>,
    pub(super) id: ObjectId,
    pub(super) data: Extent,
    pub(super) table: Extent,
    capacity_bytes: u64,
    pub(super) length_bytes: u64,
    piece_bytes: usize,
    /// Bytes that are gathered, and their number: fewer than the buffer has room for.
    piece: Option<Buffer>,
    gathered_bytes: usize,
    /// Writes on their way.
    pub(super) under_way: UnderWay,
    /// Of all whole units so far.
    pub(super) checksums: Vec<u32>,
    /// State of what is on the device.
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

impl Writer {
    pub(crate) fn new(
        session: Arc<PoolSession>,
        pool_device: Arc<PoolDevice>,
        id: ObjectId,
        extents: [Extent; 2],
        capacity_bytes: u64,
    ) -> Self {
        let [data, table] = extents;
        let under_way = pool_device.device.under_way();
        Self {
            session,
            pool_device,
            id,
            data,
            table,
            capacity_bytes,
            length_bytes: 0,
            piece_bytes: PIECE_BYTES.min(data.bytes as usize),
            piece: None,
            gathered_bytes: 0,
            under_way,
            checksums: Vec::new(),
            state: State::Whole,
        }
    }

    /// Gathers `bytes` before they are written, instead of 2 MiB: less where others wait for small reads of the
    /// device meanwhile, which share it with each piece.
    ///
    /// # Panics
    /// If bytes were appended already, or `bytes` is not a positive multiple of [`UNIT_BYTES`].
    #[must_use = "the writer is returned"]
    pub fn in_pieces_of(mut self, bytes: usize) -> Self {
        assert!(self.length_bytes == 0, "pieces are of one length");
        assert!(bytes > 0 && bytes.is_multiple_of(UNIT_BYTES), "pieces are whole units");
        self.piece_bytes = bytes.min(self.data.bytes as usize);
        self
    }

    /// The name that it will have.
    #[must_use]
    pub const fn id(&self) -> ObjectId {
        self.id
    }

    /// The media class that it is in.
    #[must_use]
    pub fn class(&self) -> MediaClass {
        self.pool_device.class
    }

    /// Returns the number of bytes that were appended.
    #[must_use]
    pub const fn length_bytes(&self) -> u64 {
        self.length_bytes
    }

    /// Returns the most bytes that the object can have.
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

    /// Appends all of a buffer, which is written from where it is: it is copied only where less than a
    /// whole piece was gathered from [`append`](Self::append) before. Its checksums are computed while
    /// it is written. Blocks while as much is under way as the device takes.
    ///
    /// The object has a share of the buffer until it is committed or aborted at the latest, and nobody
    /// can change what is shared: [`Arc::get_mut`] says whether it is the caller's again.
    ///
    /// # Errors
    /// See [`AppendError`].
    pub fn append_shared(&mut self, buffer: &Arc<Buffer>) -> Result<(), AppendError> {
        if self.gathered_bytes > 0 {
            return self.append(buffer);
        }
        let bytes = buffer.len() as u64;
        self.check(bytes)?;
        let place = self.data.offset_bytes + self.length_bytes;
        self.begin_write(place, Arc::clone(buffer).into())?;
        buffer.chunks_exact(UNIT_BYTES).for_each(|unit| self.end_unit(unit));
        self.length_bytes += bytes;
        Ok(())
    }

    pub(super) fn check(&self, bytes: u64) -> Result<(), AppendError> {
        self.session.check_here()?;
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
        let piece_bytes = self.piece_bytes;
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
                self.begin_piece(piece)?;
            } else {
                self.piece = Some(piece);
            }
        }
        Ok(())
    }

    fn end_unit(&mut self, unit: &[u8]) {
        self.checksums.push(unit_checksum(self.id, self.checksums.len() as u64, unit));
    }

    /// Begins to write what was gathered, filled up with zeros to whole units: nothing may come behind
    /// it.
    pub(super) fn begin_tail(&mut self) -> Result<(), AppendError> {
        let Some(piece) = self.piece.take() else { return Ok(()) };
        let rest = self.gathered_bytes;
        // A write takes all of a buffer.
        let mut tail = Buffer::zeroed(rest.next_multiple_of(UNIT_BYTES));
        tail[..rest].copy_from_slice(&piece[..rest]);
        if !rest.is_multiple_of(UNIT_BYTES) {
            let unit = tail.len() - UNIT_BYTES;
            self.end_unit(&tail[unit..]);
        }
        self.begin_piece(tail)
    }

    /// Begins to write a piece, which ends with the last whole unit so far.
    fn begin_piece(&mut self, piece: Buffer) -> Result<(), AppendError> {
        self.gathered_bytes = 0;
        let end = self.data.offset_bytes + (self.checksums.len() * UNIT_BYTES) as u64;
        self.begin_write(end - piece.len() as u64, piece.into())
    }

    pub(super) fn begin_write(&mut self, place: u64, from: Source) -> Result<(), AppendError> {
        let begun = self.pool_device.device.begin_write(&mut self.under_way, place, from);
        begun.map_err(|error| self.broken(error))
    }

    /// Waits until all is written that was begun. Nothing more will be: what it was written with is given
    /// back, however long the object waits for a sync.
    pub(super) fn end_writes(&mut self) -> Result<(), AppendError> {
        let mut under_way = std::mem::take(&mut self.under_way);
        let ended = self.pool_device.device.end_writes(&mut under_way);
        ended.map_err(|error| self.broken(error))
    }

    fn broken(&mut self, source: io::Error) -> AppendError {
        self.state = State::Broken;
        AppendError::Device { object: self.id, source }
    }

    /// Gives back what was not written, and never will be.
    pub(super) fn trim(&mut self) {
        let pool_device = &self.pool_device;
        let keep = |extent: &mut Extent, bytes: u64| {
            let (offset_bytes, rest) = (extent.offset_bytes + bytes, extent.bytes - bytes);
            if rest > 0 {
                pool_device.give_back(Extent { offset_bytes, bytes: rest, ..*extent });
            }
            extent.bytes = bytes;
        };
        keep(&mut self.data, self.length_bytes.next_multiple_of(BLOCK_BYTES as u64));
        keep(&mut self.table, table_bytes(self.length_bytes));
    }

    /// Leaves the space to the object when the writer is dropped.
    pub(super) fn keep_space(&mut self) {
        self.state = State::Given;
    }

    /// Undoes it. Dropping does the same.
    pub fn abort(self) {}
}

impl Drop for Writer {
    fn drop(&mut self) {
        if self.state != State::Given && self.session.check_here().is_ok() {
            // Nothing may be on its way to a place that somebody else is given: this waits.
            drop(std::mem::take(&mut self.under_way));
            self.pool_device.abandon(self.data);
            self.pool_device.abandon(self.table);
            self.session.counters.aborted();
        }
    }
}

impl fmt::Debug for Writer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { id, length_bytes, capacity_bytes, data, .. } = self;
        write!(formatter, "mblock {id} ({length_bytes} of {capacity_bytes} bytes, {data})")
    }
}
