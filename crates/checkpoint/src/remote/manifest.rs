//! Manifests in an object store: what a checkpoint is, and the objects that it needs.

use super::object::{RemoteKind, RemoteObject, decode_object, encode_object};
use crate::fields::{Fields, put_counted};
use crate::format_error::FormatError;
use crate::manifest::take_name;
use crate::name::Name;
use crate::seal::SecretKey;

const WHAT: &str = "pushed manifest";

/// A checkpoint in an object store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteCheckpoint {
    /// Name of the guest.
    pub guest: Name,
    /// Name of the checkpoint among those of the guest.
    pub name: Name,
    /// Name of the domain that it was of.
    pub domain: Name,
    /// Time of the pause, in nanoseconds since 1970-01-01 UTC.
    pub time_ns: u64,
    /// Number of pages of all memory blocks.
    pub memory_pages: u64,
    /// Number of pages that are not zero.
    pub stored_pages: u64,
    /// Number of those pages that no earlier push had sent.
    pub sent_pages: u64,
    /// Bytes of the packs that were sent for it.
    pub sent_bytes: u64,
}

impl std::fmt::Display for RemoteCheckpoint {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}@{}", self.guest, self.name)
    }
}

/// A checkpoint, and the objects that it needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RemoteManifest {
    pub(super) checkpoint: RemoteCheckpoint,
    /// Length of the details, in bytes.
    pub(super) details_bytes: u64,
    /// Pieces of the details, in order.
    pub(super) pieces: Vec<u128>,
    /// Packs, in the order of the first run that names each.
    pub(super) packs: Vec<u128>,
}

impl RemoteManifest {
    pub(super) fn encode(&self, id: u128, key: Option<&SecretKey>) -> Vec<u8> {
        let RemoteCheckpoint { guest, name, domain, .. } = &self.checkpoint;
        let mut body = Vec::new();
        [guest, name, domain]
            .into_iter()
            .for_each(|name| put_counted(&mut body, name.as_str().as_bytes()));
        let RemoteCheckpoint {
            time_ns, memory_pages, stored_pages, sent_pages, sent_bytes, ..
        } = self.checkpoint;
        for number in
            [time_ns, memory_pages, stored_pages, sent_pages, sent_bytes, self.details_bytes]
        {
            body.extend_from_slice(&number.to_le_bytes());
        }
        body.extend_from_slice(&(self.pieces.len() as u32).to_le_bytes());
        let list = [&self.pieces[..], &self.packs].concat();
        encode_object((RemoteKind::Manifest, id), key, &list, body).0
    }

    pub(super) fn decode(bytes: &[u8], key: Option<&SecretKey>) -> Result<Self, FormatError> {
        let RemoteObject { mut list, body, end, .. } =
            decode_object(bytes, RemoteKind::Manifest, key)?;
        if end != bytes.len() {
            return Err(FormatError::impossible(WHAT, "it goes on behind its end"));
        }
        let mut fields = Fields::new(WHAT, &body);
        let checkpoint = RemoteCheckpoint {
            guest: take_name(&mut fields)?,
            name: take_name(&mut fields)?,
            domain: take_name(&mut fields)?,
            time_ns: fields.u64()?,
            memory_pages: fields.u64()?,
            stored_pages: fields.u64()?,
            sent_pages: fields.u64()?,
            sent_bytes: fields.u64()?,
        };
        let (details_bytes, pieces) = (fields.u64()?, fields.u32()? as usize);
        fields.end()?;
        if pieces > list.len() {
            return Err(FormatError::impossible(WHAT, "it names fewer objects than it has pieces"));
        }
        let packs = list.split_off(pieces);
        Ok(Self { checkpoint, details_bytes, pieces: list, packs })
    }
}
