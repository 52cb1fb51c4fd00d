//! Contents of the catalogue, all records taken together.

use std::collections::BTreeMap;

use thiserror::Error;

use crate::format::record::{ArchivedEntry, ObjectEntry, Record};
use crate::format::superblock::{DeviceEntry, Residence};
use crate::name::PoolName;
use crate::{DeviceIndex, ObjectId};

/// Bytes that a record takes in a log beside its own, about.
const FRAMING_BYTES: u64 = 16;

/// Bytes by which the record of an mblock is longer on a device than in the archive.
const BRINGING_BACK_BYTES: u64 = 8;

/// State that all records come to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contents {
    name: Option<PoolName>,
    residence: Residence,
    opened: Option<(u64, u64)>,
    /// Openings that began after `opened`, which some superblocks may name.
    begun: Vec<(u64, u64)>,
    devices: BTreeMap<DeviceIndex, DeviceEntry>,
    ids_below: u64,
    objects: BTreeMap<ObjectId, ObjectEntry>,
    root: Option<ObjectId>,
    archive: Option<String>,
    /// About how much of a log all this takes once compacted.
    object_bytes: u64,
}

/// A record that cannot follow those before it.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum Contradiction {
    /// The bytes are no record.
    #[error("{0} bytes that are no record")]
    NoRecord(usize),
    /// The object was there already.
    #[error("object {0} is committed twice")]
    Twice(ObjectId),
    /// The object was not there.
    #[error("object {0} is deleted, but was never committed")]
    Unknown(ObjectId),
    /// There are two roots.
    #[error("object {0} is a second root")]
    SecondRoot(ObjectId),
    /// A moved object must be there, and as long as it was.
    #[error("object {0} is moved, but no such object was committed")]
    Moved(ObjectId),
    /// The opening never began.
    #[error("opening {0} has ended, but never began")]
    NotBegun(u64),
}

impl Default for Contents {
    fn default() -> Self {
        Self {
            name: None,
            residence: Residence::Here,
            opened: None,
            begun: Vec::new(),
            devices: BTreeMap::new(),
            ids_below: 0,
            objects: BTreeMap::new(),
            root: None,
            archive: None,
            object_bytes: 0,
        }
    }
}

impl Contents {
    /// Returns the contents that records, as bytes, come to.
    ///
    /// # Errors
    /// The first that is none, or contradicts those before it.
    pub fn replay<E: From<Contradiction>>(
        records: impl IntoIterator<Item = Result<impl AsRef<[u8]>, E>>,
    ) -> Result<Self, E> {
        let mut contents = Self::default();
        for bytes in records {
            let bytes = bytes?;
            let bytes = bytes.as_ref();
            let record = Record::decode(bytes).ok_or(Contradiction::NoRecord(bytes.len()))?;
            contents.apply(record)?;
        }
        Ok(contents)
    }

    /// Takes one more record.
    ///
    /// # Errors
    /// If it cannot follow; then nothing has changed.
    pub fn apply(&mut self, record: Record) -> Result<(), Contradiction> {
        match record {
            Record::Opening { number, nonce } => self.begun.push((number, nonce)),
            Record::Opened { number } => {
                let begun = self.begun.iter().find(|begun| begun.0 == number);
                self.opened = Some(*begun.ok_or(Contradiction::NotBegun(number))?);
                self.begun.clear();
            }
            Record::Name(name) => self.name = Some(name),
            Record::Residence(residence) => self.residence = residence,
            Record::Device(entry) => {
                self.devices.insert(entry.index, entry);
            }
            Record::Ids { below } => self.ids_below = self.ids_below.max(below),
            Record::Commit(entry) => self.commit(entry)?,
            Record::Delete(id) => {
                let entry = self.objects.remove(&id).ok_or(Contradiction::Unknown(id))?;
                self.object_bytes -= log_bytes(&Record::Commit(entry));
                self.root = self.root.filter(|root| *root != id);
            }
            Record::Archive(url) => self.archive = Some(url),
            Record::Move(entry) => self.replace(entry)?,
        }
        Ok(())
    }

    fn commit(&mut self, entry: ObjectEntry) -> Result<(), Contradiction> {
        let id = entry.id();
        if self.objects.contains_key(&id) {
            return Err(Contradiction::Twice(id));
        }
        if matches!(&entry, ObjectEntry::Mdc(mdc) if mdc.is_root) {
            if self.root.is_some() {
                return Err(Contradiction::SecondRoot(id));
            }
            self.root = Some(id);
        }
        let record = Record::Commit(entry);
        self.object_bytes += log_bytes(&record);
        if let Record::Commit(entry) = record {
            self.objects.insert(id, entry);
        }
        Ok(())
    }

    fn replace(&mut self, entry: ObjectEntry) -> Result<(), Contradiction> {
        let id = entry.id();
        let old = self.objects.get(&id).filter(|old| {
            old.length_bytes().is_some() && old.length_bytes() == entry.length_bytes()
        });
        let old = old.cloned().ok_or(Contradiction::Moved(id))?;
        self.object_bytes -= log_bytes(&Record::Commit(old));
        self.object_bytes += log_bytes(&Record::Commit(entry.clone()));
        self.objects.insert(id, entry);
        Ok(())
    }

    /// The fewest records that come to the same.
    pub fn records(&self) -> impl Iterator<Item = Record> + '_ {
        self.heading().chain(self.objects.values().cloned().map(Record::Commit))
    }

    /// All records but those of objects.
    fn heading(&self) -> impl Iterator<Item = Record> + '_ {
        let begin = |&(number, nonce): &(u64, u64)| Record::Opening { number, nonce };
        let opened = self.opened.iter().flat_map(move |opened| {
            [begin(opened), Record::Opened { number: opened.0 }].into_iter()
        });
        let facts = [Record::Residence(self.residence), Record::Ids { below: self.ids_below }];
        let devices = self.devices.values().copied().map(Record::Device);
        let name = self.name.iter().cloned().map(Record::Name);
        let archive = self.archive.iter().cloned().map(Record::Archive);
        let whole = opened.chain(self.begun.iter().map(begin)).chain(facts).chain(devices);
        whole.chain(name).chain(archive)
    }

    /// About how much of a log [`records`](Self::records) take, in bytes.
    #[must_use]
    pub fn log_bytes(&self) -> u64 {
        self.object_bytes + self.heading().map(|record| log_bytes(&record)).sum::<u64>()
    }

    /// Returns the name of the pool; none if it never was whole.
    #[must_use]
    pub const fn name(&self) -> Option<&PoolName> {
        self.name.as_ref()
    }

    /// Returns the residence of the pool: here, or exported.
    #[must_use]
    pub const fn residence(&self) -> Residence {
        self.residence
    }

    /// Number and nonce of the last opening that every superblock carries; none if the pool was never
    /// whole.
    #[must_use]
    pub const fn opened(&self) -> Option<(u64, u64)> {
        self.opened
    }

    /// The highest number of an opening that at least began.
    #[must_use]
    pub fn last_opening(&self) -> u64 {
        let begun = self.begun.iter().chain(&self.opened).map(|opening| opening.0);
        begun.max().unwrap_or(0)
    }

    /// Returns true if a superblock with these numbers belongs to what is known here.
    #[must_use]
    pub fn knows_opening(&self, number: u64, nonce: u64) -> bool {
        self.opened == Some((number, nonce)) || self.begun.contains(&(number, nonce))
    }

    /// The devices, by index.
    pub fn devices(&self) -> impl ExactSizeIterator<Item = &DeviceEntry> {
        self.devices.values()
    }

    /// The first id that was never given for certain.
    #[must_use]
    pub const fn ids_below(&self) -> u64 {
        self.ids_below
    }

    /// An object.
    #[must_use]
    pub fn object(&self, id: ObjectId) -> Option<&ObjectEntry> {
        self.objects.get(&id)
    }

    /// All objects, by id.
    pub fn objects(&self) -> impl ExactSizeIterator<Item = &ObjectEntry> {
        self.objects.values()
    }

    /// The URL of the archive; none if there never was one.
    #[must_use]
    pub fn archive(&self) -> Option<&str> {
        self.archive.as_deref()
    }

    /// The mblocks that are in the archive, by id.
    pub fn archived(&self) -> impl Iterator<Item = &ArchivedEntry> {
        self.objects.values().filter_map(|entry| match entry {
            ObjectEntry::Archived(entry) => Some(entry),
            _ => None,
        })
    }

    /// The root MDC.
    #[must_use]
    pub const fn root(&self) -> Option<ObjectId> {
        self.root
    }
}

/// About how much of a log a record takes, in bytes. An archived object is counted as it is once it is
/// brought back, for which there must be room in a catalogue that is full.
pub(super) fn log_bytes(record: &Record) -> u64 {
    let is_archived = matches!(record, Record::Commit(ObjectEntry::Archived(_)));
    let to_come = if is_archived { BRINGING_BACK_BYTES } else { 0 };
    record.encode().len() as u64 + FRAMING_BYTES + to_come
}
