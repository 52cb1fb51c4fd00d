//! Making written objects durable, then visible, one alone or several with the same syncs.

use std::io;
use std::sync::Arc;

use bindery_sys::direct::Buffer;
use thiserror::Error;

use super::writer::{AppendError, Writer};
use crate::catalogue::CatalogueError;
use crate::format::record::MblockEntry;
#[cfg(feature = "archive")]
use crate::format::record::ObjectEntry;
use crate::mblock::checksum::table_checksum;
use crate::mblock::{Committed, Local};
use crate::media::PoolDevice;
use crate::object::Object;
use crate::{BLOCK_BYTES, ObjectId};

/// An object could not be committed.
#[derive(Debug, Error)]
pub enum CommitError {
    /// The object has no bytes. It is aborted.
    #[error("object {0} is empty: append to it before committing it, or abort it")]
    Empty(ObjectId),
    /// The object could not be written. It is aborted.
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
        /// Error of the device.
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

/// Outcome of the commit of an object.
pub(super) type Outcome = Result<Arc<Committed>, CommitError>;

/// Outcome of a sync of a device.
type Synced = Result<(), Arc<io::Error>>;

/// An object of which everything, its checksums too, is on its way to the device.
#[derive(Debug)]
pub(super) struct Sealed {
    writer: Writer,
    entry: MblockEntry,
}

/// An object of which everything is on the device, though a crash may still take it.
#[derive(Debug)]
pub(super) struct Written(Sealed);

/// An object that a crash leaves where it is, and that nobody can find yet.
struct Durable {
    sealed: Sealed,
    new: Arc<Committed>,
}

impl Writer {
    /// Makes it an object of the pool: durable, visible to all, and never changed again. Blocks for two
    /// syncs, which it shares with others that commit at the same time. What was allocated and not
    /// written is free again.
    ///
    /// Who writes one object after the other, and waits for each, leaves the device idle for the length
    /// of two syncs between them: see [`Committer`](super::Committer).
    ///
    /// # Errors
    /// See [`CommitError`].
    pub fn commit(self) -> Result<Arc<Committed>, CommitError> {
        let written = self.seal()?.end()?;
        commit_all(vec![written]).pop().expect("there is an outcome for each object")
    }

    /// As [`commit`](Self::commit), of an object that was somewhere else before.
    #[cfg(feature = "archive")]
    pub(crate) fn settle(self) -> Result<Arc<Committed>, CommitError> {
        let written = self.seal()?.end()?;
        let pool_device = &written.0.writer.pool_device;
        let synced = pool_device.syncs.sync(&*pool_device.device);
        let durable = written.after(&synced)?;
        let session = Arc::clone(&durable.sealed.writer.session);
        let moved = session.move_to(ObjectEntry::Mblock(durable.sealed.entry));
        let new = durable.entered(moved)?;
        session.adopt(&new);
        Ok(new)
    }

    /// Begins to write what is left of it, and gives back what is not needed.
    pub(super) fn seal(mut self) -> Result<Sealed, CommitError> {
        self.check(0)?;
        if self.length_bytes == 0 {
            return Err(CommitError::Empty(self.id));
        }
        self.begin_tail()?;
        let table_checksum = self.begin_table()?;
        self.trim();
        let Self { id, length_bytes, data, table, .. } = self;
        let entry = MblockEntry { id, length_bytes, data, table, table_checksum };
        Ok(Sealed { writer: self, entry })
    }

    /// Begins to write the checksums, and says what theirs is.
    fn begin_table(&mut self) -> Result<u32, AppendError> {
        let bytes = self.checksums.len() * size_of::<u32>();
        let mut table = Buffer::zeroed(bytes.next_multiple_of(BLOCK_BYTES));
        let (places, _) = table[..bytes].as_chunks_mut();
        places.iter_mut().zip(&self.checksums).for_each(|(to, from)| *to = from.to_le_bytes());
        let checksum = table_checksum(self.id, &table[..bytes]);
        self.begin_write(self.table.offset_bytes, table.into())?;
        Ok(checksum)
    }
}

impl Sealed {
    /// Returns the length, in bytes.
    pub(super) fn length_bytes(&self) -> u64 {
        self.entry.length_bytes
    }

    /// Waits until all of it is written.
    pub(super) fn end(mut self) -> Result<Written, CommitError> {
        self.writer.end_writes()?;
        Ok(Written(self))
    }
}

impl Written {
    /// Returns the durable object after a sync of its device that began since, or the sync's error.
    fn after(self, synced: &Synced) -> Result<Durable, CommitError> {
        let Self(mut sealed) = self;
        let Sealed { writer, entry } = &mut sealed;
        if let Err(source) = synced {
            let (object, device) = (entry.id, writer.pool_device.label.clone());
            return Err(CommitError::Sync { object, device, source: Arc::clone(source) });
        }
        let checksums = std::mem::take(&mut writer.checksums);
        let local = Local::written(*entry, Arc::clone(&writer.pool_device), checksums);
        let new = Arc::new(Committed::on_device(local, Some(Arc::clone(&writer.session.uses))));
        Ok(Durable { sealed, new })
    }
}

impl Durable {
    /// Returns the outcome, once the catalogue has taken the record or has not.
    fn entered(self, submitted: Result<(), CatalogueError>) -> Outcome {
        let Self { sealed: Sealed { mut writer, entry }, new } = self;
        if let Err(source) = submitted {
            if matches!(source, CatalogueError::Failed(_)) {
                // It may be durable: its space is nobody else's before the pool is opened again.
                writer.keep_space();
            }
            return Err(CommitError::Catalogue { object: entry.id, source });
        }
        writer.keep_space();
        new.settle();
        Ok(new)
    }
}

/// Commits objects of one pool: with one sync of each device that has any of them, and one of the
/// catalogue. The outcomes, in no particular order.
pub(super) fn commit_all(group: Vec<Written>) -> Vec<Outcome> {
    let mut outcomes = Vec::with_capacity(group.len());
    let mut durable = Vec::with_capacity(group.len());
    let mut synced: Vec<(Arc<PoolDevice>, Synced)> = Vec::new();
    for written in group {
        let pool_device = &written.0.writer.pool_device;
        let at = synced.iter().position(|(other, _)| Arc::ptr_eq(other, pool_device));
        let at = at.unwrap_or_else(|| {
            let outcome = pool_device.syncs.sync(&*pool_device.device);
            synced.push((Arc::clone(pool_device), outcome));
            synced.len() - 1
        });
        match written.after(&synced[at].1) {
            Ok(written) => durable.push(written),
            Err(error) => outcomes.push(Err(error)),
        }
    }
    let Some(first) = durable.first() else { return outcomes };
    let session = Arc::clone(&first.sealed.writer.session);
    let entered = session.commit_all(durable.iter().map(|durable| &durable.new));
    outcomes.extend(durable.into_iter().zip(entered).map(|(durable, entered)| {
        let new = durable.entered(entered)?;
        new.use_it();
        session.counters.committed(new.length_bytes());
        Ok(new)
    }));
    outcomes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{DeviceAccess, DeviceOptions, FileDevice, IoEngine};
    use crate::{AttachedDevice, CreateOptions, MediaClass, NewDevice, Pool};

    /// A pool on a file without a name, whose device does one thing at a time.
    fn pool() -> Pool {
        let directory = tempfile::tempdir().unwrap();
        let options = DeviceOptions {
            engine: Some(IoEngine::Threads),
            ..DeviceOptions::new(DeviceAccess::Write)
        };
        let path = directory.path().join("disk");
        let device = Arc::new(FileDevice::create(&path, 16 << 20, &options).unwrap());
        let attached = AttachedDevice { label: "disk".into(), device };
        let new = NewDevice { attached, class: MediaClass::Capacity };
        let options = CreateOptions { force: false, catalogue_bytes: Some(64 << 10) };
        Pool::create_on("guests".parse().unwrap(), vec![new], &options).unwrap()
    }

    fn written(pool: &Pool, bytes: usize) -> Written {
        let mut writer = pool.allocate_mblock(MediaClass::Capacity, bytes as u64).unwrap();
        writer.append(&vec![3; bytes]).unwrap();
        writer.seal().unwrap().end().unwrap()
    }

    /// Up to 1024 of them wait for a sync.
    #[test]
    fn what_is_written_has_no_memory_to_write_from() {
        let pool = pool();
        let written: Vec<Written> = (0..2).map(|_| written(&pool, 5 << 20)).collect();
        for Written(Sealed { writer, .. }) in &written {
            assert_eq!(format!("{:?}", writer.under_way), "UnderWay(None, 0 gathered, 0 spare)");
        }
    }

    #[test]
    fn what_is_deleted_before_its_writer_knows_that_it_is_there_is_accounted_for_once() {
        let pool = pool();
        let before = pool.usage(MediaClass::Capacity);
        let durable = written(&pool, 8 << 20).after(&Ok(())).unwrap();
        let (session, id) = (Arc::clone(&durable.sealed.writer.session), durable.sealed.entry.id);
        let mut entered = session.commit_all([&durable.new].into_iter());
        // Another thread lists the pool here.
        pool.delete(id).unwrap();
        let usage = pool.usage(MediaClass::Capacity);
        assert_eq!((usage.used_bytes, usage.held_bytes), (before.used_bytes, 0), "{usage:?}");
        drop(durable.entered(entered.remove(0)).unwrap());
        pool.reclaim();
        assert_eq!(pool.usage(MediaClass::Capacity), before);
        assert!(pool.verify().findings.is_empty());
    }
}
