//! Opening a pool for writing.

use std::sync::Arc;

use uuid::Uuid;

use super::Pool;
use super::assemble::Assembly;
use super::core::Core;
use super::error::{ChangeError, OpenError};
use super::member::{Attached, Member};
use super::superblocks;
use crate::catalogue::{Catalogue, Contents};
use crate::format::record::Record;
use crate::format::superblock::{Residence, Superblock};
use crate::log;
use crate::mdc::Mdc;

impl Pool {
    /// Opens the pool whose devices these are, for writing. Blocks; reads the catalogue twice, and
    /// writes all superblocks. That nobody else has it open for writing is for whoever opened the
    /// devices to make sure.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open_on(devices: Vec<Attached>) -> Result<Self, OpenError> {
        let assembly = Assembly::of(devices)?;
        assembly.check_residence()?;
        Self::take_over(assembly)
    }

    /// As [`open_on`](Self::open_on), of a pool that was exported, which is in use here from now on.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn import_on(devices: Vec<Attached>) -> Result<Self, OpenError> {
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
        let members = assembly.members()?;
        let mdc = Mdc::open(assembly.halves()?, number)?;
        let mut healed: Vec<log::Damage> = mdc.healed().cloned().collect();
        healed.extend(
            assembly.damaged.iter().filter(|damage| !mdc.healed().any(|it| it == *damage)).cloned(),
        );
        let contents =
            Contents::replay(mdc.records().map(|record| record.map_err(OpenError::Log)))?;
        let (pool, places) = (assembly.lead.pool, assembly.lead.catalogue);
        let catalogue = Catalogue::new(mdc, contents);
        let core = Core::new(pool, (number, nonce), places, catalogue, members);
        let begun = begin(&core, number, nonce);
        begun.map_err(|source| OpenError::Write { name: assembly.name(), source })?;
        for damage in &healed {
            tracing::warn!(%damage, "made good from the other copy");
        }
        Ok(Self::of(core, healed))
    }
}

/// The three steps of an opening: see [`super::assemble`].
fn begin(core: &Core, number: u64, nonce: u64) -> Result<(), ChangeError> {
    core.catalogue.submit(Record::Opening { number, nonce })?;
    write_superblocks(core)?;
    Ok(core.catalogue.submit(Record::Opened { number })?)
}

/// Writes what the catalogue says into all superblocks.
pub(super) fn write_superblocks(core: &Core) -> Result<(), ChangeError> {
    core.members().iter().try_for_each(|member| {
        let superblock = superblock_of(core, &core.catalogue.contents(), member);
        let written = superblocks::write(&*member.device, &superblock);
        written.map_err(|source| ChangeError::Superblock { device: member.label.clone(), source })
    })
}

/// What the superblocks of a device are to say.
pub(super) fn superblock_of(core: &Core, contents: &Contents, member: &Arc<Member>) -> Superblock {
    Superblock {
        copy: 0,
        revision: 0,
        pool: core.pool,
        name: contents.name().expect("a pool that is open has a name").clone(),
        residence: contents.residence(),
        device: member.index,
        opening: core.opening,
        nonce: core.nonce,
        catalogue: core.places,
        devices: contents.devices().copied().collect(),
        has_archive: contents.archive().is_some(),
    }
}

/// A number that nobody else draws.
pub(super) fn new_nonce() -> u64 {
    Uuid::new_v4().as_u128() as u64
}
