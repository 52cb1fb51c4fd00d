//! Records of checkpoints in the root.

use std::fmt;

use bindery_pool::ObjectId;

use super::contents::DomainNumber;
use super::overlay::{DiskOverlay, put_overlay, take_overlay};
use crate::fields::{Fields, put_counted};
use crate::format_error::FormatError;
use crate::manifest::take_name;
use crate::name::Name;
use crate::page_digest::SECRET_BYTES;

const WHAT: &str = "record of checkpoints";

/// Packs that one record names at most, so that a log of few blocks takes it.
pub(super) const RECORD_PACKS: usize = 256;

/// Pause of a guest that was paused before, as it is stored.
const NO_PAUSE: u64 = u64::MAX;

/// Number of a checkpoint, never given twice in a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CheckpointId(pub u64);

impl fmt::Display for CheckpointId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

/// A checkpoint as the catalogue has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointSummary {
    /// Number of the checkpoint.
    pub id: CheckpointId,
    /// Name of the domain.
    pub domain: Name,
    /// Name of the guest.
    pub guest: Name,
    /// Name of the checkpoint among those of the guest.
    pub name: Name,
    /// Time of the pause, in nanoseconds since 1970-01-01 UTC.
    pub time_ns: u64,
    /// Object of its manifest.
    pub manifest: ObjectId,
    /// Number of pages of all memory blocks.
    pub memory_pages: u64,
    /// Number of pages that are not zero.
    pub stored_pages: u64,
    /// Number of pages that no earlier checkpoint had.
    pub new_pages: u64,
    /// Bytes of the objects that were written for it.
    pub new_bytes: u64,
    /// Capture of the guest that it was made by; none of a checkpoint that was imported, or whose record is older
    /// than captures are recorded.
    pub capture: Option<Capture>,
    /// Record of the pages that the last restore touched, if there is one.
    pub touched: Option<ObjectId>,
}

/// Capture of a guest into a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capture {
    /// Time from STOP to RESUME, in microseconds; none if the guest was paused before.
    pub pause_us: Option<u64>,
    /// Number of rounds before that pause.
    pub rounds: u32,
}

impl fmt::Display for CheckpointSummary {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}@{}", self.guest, self.name)
    }
}

/// Protection of a domain's pages.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Protection {
    /// No encryption: the secret of the digests stands here.
    Plain { secret: [u8; SECRET_BYTES] },
    /// A key file. `check` is derived from it and from `salt`, as the secret of the digests is.
    Key { salt: [u8; 32], check: [u8; 32] },
}

impl fmt::Debug for Protection {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(if matches!(self, Self::Plain { .. }) { "Plain" } else { "Key" })
    }
}

/// A domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DomainEntry {
    pub(crate) number: DomainNumber,
    pub(crate) name: Name,
    pub(crate) protection: Protection,
}

/// A change of the catalogue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Record {
    Domain(DomainEntry),
    /// A checkpoint is there, and packs that were written for it.
    Checkpoint {
        domain: DomainNumber,
        summary: CheckpointSummary,
        packs: Vec<ObjectId>,
    },
    /// A checkpoint is gone.
    Removed(CheckpointId),
    /// Packs of a domain are there, whatever they were written for.
    Packs(DomainNumber, Vec<ObjectId>),
    /// Packs are gone.
    PacksRemoved(DomainNumber, Vec<ObjectId>),
    /// The record of touched pages of a checkpoint is another one.
    Touched(CheckpointId, Option<ObjectId>),
    /// No number of a checkpoint below this one is given any more.
    NextId(CheckpointId),
    /// Figures of the capture that a checkpoint was made by.
    Captured(CheckpointId, Capture),
    /// An overlay of a disk is noted, in place of what the domain has of its path.
    Overlay(DomainNumber, DiskOverlay),
    /// A domain's overlay at a path is no longer noted.
    OverlayGone(DomainNumber, Vec<u8>),
}

impl Record {
    /// Returns the records that remove packs.
    pub(crate) fn packs_removed(
        domain: DomainNumber,
        packs: &[ObjectId],
    ) -> impl Iterator<Item = Self> + '_ {
        packs.chunks(RECORD_PACKS).map(move |packs| Self::PacksRemoved(domain, packs.to_vec()))
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        match self {
            Self::Domain(entry) => put_domain(&mut bytes, entry),
            Self::Checkpoint { domain, summary, packs } => {
                put_head(&mut bytes, 2, summary.id.0);
                bytes.extend_from_slice(&domain.0.to_le_bytes());
                put_summary(&mut bytes, summary);
                put_packs(&mut bytes, packs);
            }
            Self::Removed(id) => put_head(&mut bytes, 3, id.0),
            Self::Packs(domain, packs) | Self::PacksRemoved(domain, packs) => {
                let kind = if matches!(self, Self::Packs(..)) { 4 } else { 5 };
                put_head(&mut bytes, kind, domain.0.into());
                put_packs(&mut bytes, packs);
            }
            Self::Touched(id, object) => {
                put_head(&mut bytes, 6, id.0);
                bytes.extend_from_slice(&object.map_or(0, |object| object.0).to_le_bytes());
            }
            Self::NextId(id) => put_head(&mut bytes, 7, id.0),
            Self::Captured(id, Capture { pause_us, rounds }) => {
                put_head(&mut bytes, 8, id.0);
                bytes.extend_from_slice(&pause_us.unwrap_or(NO_PAUSE).to_le_bytes());
                bytes.extend_from_slice(&rounds.to_le_bytes());
            }
            Self::Overlay(domain, overlay) => {
                put_head(&mut bytes, 9, domain.0.into());
                put_overlay(&mut bytes, overlay);
            }
            Self::OverlayGone(domain, path) => {
                put_head(&mut bytes, 10, domain.0.into());
                put_counted(&mut bytes, path);
            }
        }
        bytes
    }

    /// Reads a record. `domain` gives the name of a domain's number.
    pub(crate) fn decode(
        bytes: &[u8],
        domain_name: impl Fn(DomainNumber) -> Option<Name>,
    ) -> Result<Self, FormatError> {
        let mut fields = Fields::new(WHAT, bytes);
        let (kind, number) = (fields.u8()?, fields.u64()?);
        let domain = || u32::try_from(number).map(DomainNumber).map_err(|_| unknown());
        let record = match kind {
            1 => Self::Domain(take_domain(&mut fields, domain()?)?),
            2 => {
                let domain = DomainNumber(fields.u32()?);
                let name = domain_name(domain).ok_or_else(unknown)?;
                let summary = take_summary(&mut fields, CheckpointId(number), name)?;
                Self::Checkpoint { domain, summary, packs: take_packs(&mut fields)? }
            }
            3 => Self::Removed(CheckpointId(number)),
            4 => Self::Packs(domain()?, take_packs(&mut fields)?),
            5 => Self::PacksRemoved(domain()?, take_packs(&mut fields)?),
            6 => {
                let object = Some(fields.u64()?).filter(|object| *object != 0);
                Self::Touched(CheckpointId(number), object.map(ObjectId))
            }
            7 => Self::NextId(CheckpointId(number)),
            8 => {
                let pause_us = Some(fields.u64()?).filter(|pause| *pause != NO_PAUSE);
                let capture = Capture { pause_us, rounds: fields.u32()? };
                Self::Captured(CheckpointId(number), capture)
            }
            9 => {
                let name = domain_name(domain()?).ok_or_else(unknown)?;
                Self::Overlay(domain()?, take_overlay(&mut fields, WHAT, name)?)
            }
            10 => Self::OverlayGone(domain()?, fields.counted()?.to_vec()),
            found => {
                return Err(FormatError::Newer { what: WHAT, found: found.into(), known: 10 });
            }
        };
        fields.end()?;
        Ok(record)
    }
}

/// Encodes records that count together or not at all: each behind its length.
pub(crate) fn encode_change(records: &[Record]) -> Vec<u8> {
    let mut bytes = Vec::new();
    records.iter().for_each(|record| put_counted(&mut bytes, &record.encode()));
    bytes
}

/// Splits a change into its records.
pub(crate) fn split_change(bytes: &[u8]) -> Result<Vec<&[u8]>, FormatError> {
    let mut fields = Fields::new(WHAT, bytes);
    let mut records = Vec::new();
    while fields.end().is_err() {
        records.push(fields.counted()?);
    }
    Ok(records)
}

const fn unknown() -> FormatError {
    FormatError::impossible(WHAT, "a domain that there is not")
}

fn put_head(into: &mut Vec<u8>, kind: u8, number: u64) {
    into.push(kind);
    into.extend_from_slice(&number.to_le_bytes());
}

fn put_domain(into: &mut Vec<u8>, entry: &DomainEntry) {
    put_head(into, 1, entry.number.0.into());
    put_counted(into, entry.name.as_str().as_bytes());
    let (kind, halves): (u8, [&[u8]; 2]) = match &entry.protection {
        Protection::Plain { secret } => (0, [&secret[..32], &secret[32..]]),
        Protection::Key { salt, check } => (1, [salt, check]),
    };
    into.push(kind);
    halves.into_iter().for_each(|half| into.extend_from_slice(half));
}

fn take_domain(fields: &mut Fields<'_>, number: DomainNumber) -> Result<DomainEntry, FormatError> {
    let name = take_name(fields)?;
    let protection = match fields.u8()? {
        0 => Protection::Plain { secret: fields.array()? },
        1 => Protection::Key { salt: fields.array()?, check: fields.array()? },
        _ => return Err(FormatError::impossible(WHAT, "an unknown protection")),
    };
    Ok(DomainEntry { number, name, protection })
}

fn put_summary(into: &mut Vec<u8>, summary: &CheckpointSummary) {
    for name in [&summary.guest, &summary.name] {
        put_counted(into, name.as_str().as_bytes());
    }
    let CheckpointSummary { time_ns, memory_pages, stored_pages, new_pages, new_bytes, .. } =
        summary;
    for number in
        [*time_ns, summary.manifest.0, *memory_pages, *stored_pages, *new_pages, *new_bytes]
    {
        into.extend_from_slice(&number.to_le_bytes());
    }
}

fn take_summary(
    fields: &mut Fields<'_>,
    id: CheckpointId,
    domain: Name,
) -> Result<CheckpointSummary, FormatError> {
    let (guest, name) = (take_name(fields)?, take_name(fields)?);
    Ok(CheckpointSummary {
        id,
        domain,
        guest,
        name,
        time_ns: fields.u64()?,
        manifest: ObjectId(fields.u64()?),
        memory_pages: fields.u64()?,
        stored_pages: fields.u64()?,
        new_pages: fields.u64()?,
        new_bytes: fields.u64()?,
        capture: None,
        touched: None,
    })
}

fn put_packs(into: &mut Vec<u8>, packs: &[ObjectId]) {
    into.extend_from_slice(&(packs.len() as u32).to_le_bytes());
    packs.iter().for_each(|pack| into.extend_from_slice(&pack.0.to_le_bytes()));
}

fn take_packs(fields: &mut Fields<'_>) -> Result<Vec<ObjectId>, FormatError> {
    let count = fields.count(8)?;
    (0..count).map(|_| Ok(ObjectId(fields.u64()?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::OverlayUse;
    use proptest::prelude::*;

    fn name(text: &str) -> Name {
        text.parse().unwrap()
    }

    fn records() -> impl Strategy<Value = Record> {
        let ids = || prop::collection::vec(any::<u64>().prop_map(ObjectId), 0..5);
        let summary = any::<[u64; 8]>().prop_map(|it| CheckpointSummary {
            id: CheckpointId(it[0]),
            domain: name("domain"),
            guest: name("guest"),
            name: name("now"),
            time_ns: it[1],
            manifest: ObjectId(it[2]),
            memory_pages: it[3],
            stored_pages: it[4],
            new_pages: it[5],
            new_bytes: it[6],
            capture: None,
            touched: None,
        });
        let domain = DomainNumber(3);
        let entry = move |protection| {
            Record::Domain(DomainEntry { number: domain, name: name("domain"), protection })
        };
        prop_oneof![
            any::<[u8; 32]>().prop_map(move |salt| entry(Protection::Key { salt, check: salt })),
            any::<u8>().prop_map(move |byte| entry(Protection::Plain { secret: [byte; 64] })),
            (summary, ids()).prop_map(move |(summary, packs)| Record::Checkpoint {
                domain,
                summary,
                packs
            }),
            any::<u64>().prop_map(|id| Record::Removed(CheckpointId(id))),
            ids().prop_map(move |packs| Record::Packs(domain, packs)),
            ids().prop_map(move |packs| Record::PacksRemoved(domain, packs)),
            (any::<u64>(), prop::option::of(1..9_u64))
                .prop_map(|(id, to)| Record::Touched(CheckpointId(id), to.map(ObjectId))),
            any::<u64>().prop_map(|id| Record::NextId(CheckpointId(id))),
            (0..2_u8, prop::collection::vec(any::<u8>(), 0..9)).prop_map(move |(kind, path)| {
                let purpose = [OverlayUse::Restored, OverlayUse::Merging][usize::from(kind)];
                let (guest, below) = (name("guest"), path.clone());
                let overlay = DiskOverlay { domain: name("domain"), guest, purpose, path, below };
                Record::Overlay(domain, overlay)
            }),
            (any::<u32>(), prop::collection::vec(any::<u8>(), 0..9))
                .prop_map(|(domain, path)| Record::OverlayGone(DomainNumber(domain), path)),
            (any::<u64>(), prop::option::of(0..u64::MAX), any::<u32>()).prop_map(
                |(id, pause_us, rounds)| {
                    Record::Captured(CheckpointId(id), Capture { pause_us, rounds })
                }
            ),
        ]
    }

    proptest! {
        #[test]
        fn records_come_back_and_no_part_is_one(record in records()) {
            let bytes = record.encode();
            let decode = |bytes| Record::decode(bytes, |_| Some(name("domain")));
            prop_assert_eq!(decode(&bytes), Ok(record));
            for length in 0..bytes.len() {
                prop_assert!(decode(&bytes[..length]).is_err());
            }
        }

        #[test]
        fn any_bytes_are_a_record_of_one_form_or_none(bytes in prop::collection::vec(0..12_u8, 0..80)) {
            if let Ok(record) = Record::decode(&bytes, |_| Some(name("domain"))) {
                prop_assert_eq!(record.encode(), bytes);
            }
        }
    }
}
