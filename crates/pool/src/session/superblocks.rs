//! Writing the superblocks of all devices of a pool.

use std::sync::Arc;

use uuid::Uuid;

use super::error::ChangeError;
use super::pool_session::PoolSession;
use crate::catalogue::Contents;
use crate::format::superblock::Superblock;
use crate::media::{PoolDevice, superblock_copies};

/// Writes what the catalogue says into all superblocks.
pub(crate) fn write_superblocks(session: &PoolSession) -> Result<(), ChangeError> {
    session.pool_devices().iter().try_for_each(|pool_device| {
        let superblock = superblock_of(session, &session.catalogue.contents(), pool_device);
        let written = superblock_copies::write(&*pool_device.device, &superblock);
        written
            .map_err(|source| ChangeError::Superblock { device: pool_device.label.clone(), source })
    })
}

/// Returns the content of the superblocks of a device.
pub(crate) fn superblock_of(
    session: &PoolSession,
    contents: &Contents,
    pool_device: &Arc<PoolDevice>,
) -> Superblock {
    Superblock {
        copy: 0,
        revision: 0,
        pool: session.pool_id,
        name: contents.name().expect("a pool that is open has a name").clone(),
        residence: contents.residence(),
        device: pool_device.index,
        opening: session.opening,
        nonce: session.nonce,
        catalogue: session.places,
        devices: contents.devices().copied().collect(),
        has_archive: contents.archive().is_some(),
    }
}

/// A number that nobody else draws.
pub(crate) fn new_nonce() -> u64 {
    Uuid::new_v4().as_u128() as u64
}
