//! Objects of an object store, looked at one by one.

use super::manifest::{RemoteCheckpoint, RemoteManifest};
use super::object::{RemoteKind, decode_object, kind_of};
use super::pack::RemotePack;
use crate::format_error::FormatError;
use crate::seal::SecretKey;

/// Content of an object that was pushed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PushedObject {
    /// A pack with so many pages, each group of which was verified.
    Pack {
        /// Number of pages.
        pages: u64,
    },
    /// A manifest.
    Manifest {
        /// Summary of the checkpoint.
        checkpoint: RemoteCheckpoint,
        /// Ids of the objects that it needs.
        objects: Vec<u128>,
    },
    /// Another object, and the ids that it lists.
    Other {
        /// Ids of objects.
        objects: Vec<u128>,
    },
}

impl PushedObject {
    /// Reads an object that is all of `bytes`.
    ///
    /// # Errors
    /// See [`FormatError`].
    pub fn decode(bytes: &[u8], key: Option<&SecretKey>) -> Result<Self, FormatError> {
        let (kind, id) = kind_of(bytes)?;
        match kind {
            RemoteKind::Pack => {
                let pages = RemotePack::read(bytes, id, key)?.verify_groups()?;
                Ok(Self::Pack { pages })
            }
            RemoteKind::Manifest => {
                let manifest = RemoteManifest::decode(bytes, key)?;
                let objects = [manifest.pieces, manifest.packs].concat();
                Ok(Self::Manifest { checkpoint: manifest.checkpoint, objects })
            }
            kind => Ok(Self::Other { objects: decode_object(bytes, kind, key)?.list }),
        }
    }
}
