//! Opening a pool for writing.

use super::assemble::Assembly;
use super::error::OpenError;
use super::handle::Pool;
use crate::catalogue::{Catalogue, Contents};
use crate::format::record::Record;
use crate::format::superblock::Residence;
use crate::log;
use crate::mdc::Mdc;
use crate::media::AttachedDevice;
use crate::session::superblocks::{new_nonce, write_superblocks};
use crate::session::{ChangeError, PoolSession};

impl Pool {
    /// Opens the pool whose devices these are, for writing. Blocks; reads the catalogue twice, and
    /// writes all superblocks. That nobody else has it open for writing is for whoever opened the
    /// devices to make sure.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open_on(devices: Vec<AttachedDevice>) -> Result<Self, OpenError> {
        let assembly = Assembly::of(devices)?;
        assembly.check_residence()?;
        Self::take_over(assembly)
    }

    /// As [`open_on`](Self::open_on), of a pool that was exported, which is in use here from now on.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn import_on(devices: Vec<AttachedDevice>) -> Result<Self, OpenError> {
        let assembly = Assembly::of(devices)?;
        let (name, was) = (assembly.name(), assembly.contents.residence());
        let pool = Self::take_over(assembly)?;
        if was == Residence::Exported {
            let here = pool.change(Record::Residence(Residence::Here));
            here.map_err(|source| OpenError::Write { name, source })?;
        }
        Ok(pool)
    }

    fn take_over(assembly: Assembly) -> Result<Self, OpenError> {
        let (number, nonce) = (assembly.next_opening(), new_nonce());
        let pool_devices = assembly.pool_devices()?;
        let mdc = Mdc::open(assembly.halves()?, number)?;
        let mut healed: Vec<log::Damage> = mdc.healed().cloned().collect();
        healed.extend(
            assembly.damaged.iter().filter(|damage| !mdc.healed().any(|it| it == *damage)).cloned(),
        );
        let contents =
            Contents::replay(mdc.records().map(|record| record.map_err(OpenError::Log)))?;
        let (pool, places) = (assembly.lead.pool, assembly.lead.catalogue);
        let catalogue = Catalogue::new(mdc, contents);
        let session = PoolSession::new(pool, (number, nonce), places, catalogue, pool_devices);
        let begun = begin(&session, number, nonce);
        begun.map_err(|source| OpenError::Write { name: assembly.name(), source })?;
        for damage in &healed {
            tracing::warn!(%damage, "made good from the other copy");
        }
        Ok(Self::of(session, healed))
    }
}

/// The three steps of an opening: see [`super::assemble`].
fn begin(session: &PoolSession, number: u64, nonce: u64) -> Result<(), ChangeError> {
    session.catalogue.submit(Record::Opening { number, nonce })?;
    write_superblocks(session)?;
    Ok(session.catalogue.submit(Record::Opened { number })?)
}
