//! The pool itself: its name, its devices, its catalogue.

use std::sync::{Arc, Mutex, MutexGuard};

use crate::catalogue::{CatalogueError, Contents};
use crate::format::record::{ObjectEntry, Record};
use crate::format::superblock::{DeviceEntry, Residence};
use crate::log::Damage;
use crate::media::SpaceUsage;
use crate::session::superblocks::write_superblocks;
use crate::session::{ChangeError, PoolSession};
use crate::{MediaClass, PoolName};

/// A pool that is open for writing.
///
/// What was taken from it (objects, writers, logs) keeps its devices open, and so keeps others from
/// opening it for writing, after this was dropped.
///
/// It is one process's, and so is what was taken from it. In a child of fork(2) whatever would read or write is
/// refused ([`OtherProcess`](crate::OtherProcess)), what only looks at memory ([`list`](Self::list),
/// [`usage`](Self::usage) and the like) shows what was so when it was forked, and to drop any of it does nothing.
#[derive(Debug)]
pub struct Pool {
    pub(super) session: Arc<PoolSession>,
    /// Blocks that opening has found damaged, and made good.
    healed: Vec<Damage>,
    /// Held while the pool itself is changed: its name, its devices.
    administration: Mutex<()>,
}

impl Pool {
    pub(super) fn of(session: PoolSession, healed: Vec<Damage>) -> Self {
        Self { session: Arc::new(session), healed, administration: Mutex::default() }
    }

    /// Returns the id of the pool, which stays the same wherever it is and whatever it is called.
    #[must_use]
    pub fn id(&self) -> u128 {
        self.session.pool_id
    }

    /// Returns the name of the pool.
    #[must_use]
    pub fn name(&self) -> PoolName {
        self.session.catalogue.contents().name().expect("a pool that is open has a name").clone()
    }

    /// The number of this opening, higher each time.
    #[must_use]
    pub fn opening(&self) -> u64 {
        self.session.opening
    }

    /// Blocks of the catalogue that opening found damaged in one copy, and made good from the other.
    #[must_use]
    pub fn healed(&self) -> &[Damage] {
        &self.healed
    }

    /// Returns the devices, by index.
    #[must_use]
    pub fn devices(&self) -> Vec<DeviceEntry> {
        self.session.pool_devices().iter().map(|pool_device| pool_device.entry()).collect()
    }

    /// Everything that was committed, by id.
    #[must_use]
    pub fn list(&self) -> Vec<ObjectEntry> {
        self.session.catalogue.contents().objects().cloned().collect()
    }

    /// Calls it something else. Blocks for syncs of all devices.
    ///
    /// # Errors
    /// See [`ChangeError`].
    pub fn rename(&self, name: PoolName) -> Result<(), ChangeError> {
        self.change(Record::Name(name))
    }

    /// Closes it, and marks it as one that is to be imported before it is used again.
    ///
    /// # Errors
    /// See [`ChangeError`].
    pub fn export(self) -> Result<(), ChangeError> {
        self.change(Record::Residence(Residence::Exported))
    }

    /// Writes a change of the pool itself to the catalogue, and then to all superblocks.
    pub(super) fn change(&self, record: Record) -> Result<(), ChangeError> {
        let _alone = self.administration()?;
        self.session.catalogue.submit(record)?;
        write_superblocks(&self.session)
    }

    /// The turn to change the pool itself.
    pub(super) fn administration(&self) -> Result<MutexGuard<'_, ()>, CatalogueError> {
        self.session.check_here()?;
        Ok(self.administration.lock().expect("nobody panics while the pool is changed"))
    }

    /// Returns the space on the devices of a class, or, of class archive, of the objects that are there.
    #[must_use]
    pub fn usage(&self, class: MediaClass) -> SpaceUsage {
        if class == MediaClass::Archive {
            return SpaceUsage::of_archived(&self.session.catalogue.contents());
        }
        self.session.devices_of(class).iter().map(|pool_device| pool_device.usage()).sum()
    }

    /// The URL of its archive, if it ever had one.
    #[must_use]
    pub fn archive_url(&self) -> Option<String> {
        self.session.catalogue.contents().archive().map(str::to_owned)
    }

    /// Calls `look` with the contents of the catalogue. Nothing is committed or deleted meanwhile.
    pub fn with_contents<T>(&self, look: impl FnOnce(&Contents) -> T) -> T {
        look(&self.session.catalogue.contents())
    }
}
