//! Devices that objects are stored on: blocks that are read, written, and made durable.
//!
//! Everything above speaks to devices through [`Device`] alone, so that a device which loses, tears
//! and reorders what was not synced can stand in for a real one.

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;

use bindery_sys::direct::{Buffer, Source};
use bindery_sys::lock::RangeLock;

use crate::OtherProcess;

mod device_options;
mod error;
mod failing;
mod file;
mod io_engine;
mod open;
mod sync_gate;
mod under_way;

pub use self::device_options::{DeviceAccess, DeviceOptions};
pub use self::error::{IoError, OpenError, Operation};
pub use self::failing::{Failing, Fault};
pub use self::file::FileDevice;
pub use self::io_engine::{IoEngine, UnknownIoEngine};
pub use self::under_way::UnderWay;

/// A read of whole blocks.
#[derive(Debug)]
pub struct Read<'a> {
    /// From where; a multiple of [`BLOCK_BYTES`](crate::BLOCK_BYTES).
    pub offset_bytes: u64,
    /// All of it is filled.
    pub into: &'a mut Buffer,
}

/// A write of whole blocks.
#[derive(Clone, Copy, Debug)]
pub struct Write<'a> {
    /// To where; a multiple of [`BLOCK_BYTES`](crate::BLOCK_BYTES).
    pub offset_bytes: u64,
    /// All of it is written.
    pub from: &'a Buffer,
}

/// A block device, a file, or something that behaves like one.
///
/// Offsets and lengths are multiples of [`BLOCK_BYTES`](crate::BLOCK_BYTES), within
/// [`bytes`](Self::bytes); implementations panic otherwise, for the caller miscounted. Calls block,
/// and come from any number of threads.
///
/// What a write has written is durable after a [`sync`](Self::sync) that began after it ended; until
/// then any part of it may be lost or torn by a crash, in any order.
pub trait Device: Send + Sync + fmt::Debug {
    /// Returns the current length, in bytes.
    fn bytes(&self) -> u64;

    /// Refuses a child of the process that opened the device, which shares the device and must not use it.
    ///
    /// # Errors
    /// [`OtherProcess`], in such a child.
    fn check_here(&self) -> Result<(), OtherProcess> {
        Ok(())
    }

    /// Reads blocks. What was never written reads as anything.
    ///
    /// # Errors
    /// The device's. A device that ends early is `UnexpectedEof`.
    fn read(&self, offset_bytes: u64, into: &mut Buffer) -> io::Result<()>;

    /// Writes blocks, all or an error after which their content is unknown.
    ///
    /// # Errors
    /// The device's; `StorageFull` where the file system has no room.
    fn write(&self, offset_bytes: u64, from: &Buffer) -> io::Result<()>;

    /// Makes all that was written durable, the length of a file included.
    ///
    /// # Errors
    /// The device's. After one, what had not been synced before may be lost, whatever a later call
    /// says (fsync(2)).
    fn sync(&self) -> io::Result<()>;

    /// Gives up the content of a range. What the range reads as afterwards is anything; a device
    /// that cannot do it does nothing.
    ///
    /// # Errors
    /// The device's.
    fn discard(&self, offset_bytes: u64, bytes: u64) -> io::Result<()>;

    /// Makes a file longer, or learns that a block device has become so. The new length, which may be
    /// less than asked for where a block device has no more.
    ///
    /// # Errors
    /// The device's; `StorageFull` where the file system has no room.
    fn grow(&self, bytes: u64) -> io::Result<u64>;

    /// Learns that another process has made it longer. Its length, then and now.
    ///
    /// # Errors
    /// The device's.
    fn measure(&self) -> io::Result<u64> {
        Ok(self.bytes())
    }

    /// Reads many ranges, as many at once as the device takes.
    ///
    /// # Errors
    /// As [`read`](Self::read), of the first that failed; the others may have been read.
    fn read_many(&self, reads: &mut [Read<'_>]) -> io::Result<()> {
        reads.iter_mut().try_for_each(|read| self.read(read.offset_bytes, read.into))
    }

    /// Writes many ranges, as many at once as the device takes, in any order.
    ///
    /// # Errors
    /// As [`write`](Self::write), of the first that failed; the others may have been written.
    fn write_many(&self, writes: &[Write<'_>]) -> io::Result<()> {
        writes.iter().try_for_each(|write| self.write(write.offset_bytes, write.from))
    }

    /// Returns what a caller needs for [`begin_write`](Self::begin_write).
    fn under_way(&self) -> UnderWay {
        UnderWay::default()
    }

    /// Begins to write blocks, and returns while that goes on, or waits for an earlier write first. A
    /// buffer that was owned comes back from [`UnderWay::buffer`] at some later time; of one that is
    /// shared the device has a share until then, at the latest until [`end_writes`](Self::end_writes).
    ///
    /// # Errors
    /// As [`write`](Self::write), of this write or an earlier one. [`end_writes`](Self::end_writes) has
    /// to be called nevertheless.
    fn begin_write(
        &self,
        under_way: &mut UnderWay,
        offset_bytes: u64,
        from: Source,
    ) -> io::Result<()> {
        match under_way.gather(offset_bytes, from) {
            true => write_gathered(self, under_way),
            false => Ok(()),
        }
    }

    /// Waits for all writes that were begun: none is under way afterwards, whatever this returns.
    ///
    /// # Errors
    /// As [`write`](Self::write), of the first that failed.
    fn end_writes(&self, under_way: &mut UnderWay) -> io::Result<()> {
        write_gathered(self, under_way)
    }

    /// Keeps the owner of the device, another process, from using a range for something else as long as
    /// the hold lives. None where the owner has the range for itself at this moment. What this process
    /// owns it need not hold.
    ///
    /// # Errors
    /// The device's, when locks are short; `InvalidInput` if part of the range is held already as part
    /// of another one.
    fn hold(&self, _offset_bytes: u64, _bytes: u64) -> io::Result<Option<Hold>> {
        Ok(Some(Hold { _lock: None }))
    }

    /// Returns true if another process holds any part of a range.
    ///
    /// # Errors
    /// The device's.
    fn is_held(&self, _offset_bytes: u64, _bytes: u64) -> io::Result<bool> {
        Ok(false)
    }

    /// The file behind it, opened for cached reading, for those who map it; none where there is none.
    fn file(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// Writes at once what a caller's earlier writes have gathered.
fn write_gathered<D: Device + ?Sized>(device: &D, under_way: &mut UnderWay) -> io::Result<()> {
    let gathered = under_way.take_gathered();
    let writes =
        gathered.iter().map(|(offset_bytes, from)| Write { offset_bytes: *offset_bytes, from });
    let writes: Vec<Write<'_>> = writes.collect();
    let written = device.write_many(&writes);
    gathered.into_iter().for_each(|(_, source)| under_way.give_back(source));
    written
}

/// A range that its owner leaves alone for as long as this lives. Ends with the process at the latest.
#[derive(Debug)]
#[must_use = "the range is let go when this is dropped"]
pub struct Hold {
    _lock: Option<RangeLock>,
}
