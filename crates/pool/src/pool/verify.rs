//! Reading everything that a pool has, and making good what can be.

use std::fmt;
use std::thread;
use std::time::Duration;

use bindery_sys::direct::Buffer;

use super::assemble::occupied;
use super::error::OpenError;
use super::handle::Pool;
use super::reader::{PoolReader, ReaderError};
use crate::format::record::ObjectEntry;
use crate::format::superblock::NoSuperblock;
use crate::log;
use crate::mblock::Committed;
use crate::media::{PoolDevice, superblock_copies};
use crate::object::{Object, ReadError};
use crate::session::superblocks::write_superblocks;
use crate::session::{ChangeError, FindError};
use crate::{ObjectId, OtherProcess, UNIT_BYTES};

/// Bytes that are read at once.
const READ_BYTES: u64 = 1 << 20;

/// Number of objects that a reader holds at once: for each of so many it reads the catalogue again.
const OBJECTS_AT_ONCE: usize = 64;

/// Number of looks of a reader at what is wrong, and the wait before the second look; twice as
/// long before each one after that, 1.3 s in all. The pool's writer may be between the two writes of a
/// change, for as long as a sync takes.
const LOOKS: u32 = 8;
const FIRST_PAUSE: Duration = Duration::from_millis(10);

/// Something that is not as it should be.
#[derive(Debug)]
pub enum Finding {
    /// A superblock of a device, one of two.
    Superblock {
        /// The device.
        device: String,
        /// Number of the copy.
        copy: usize,
        /// Fault of the superblock.
        what: NoSuperblock,
    },
    /// A block of one copy of the catalogue.
    Catalogue(log::Damage),
    /// The catalogue, in all copies, or a device that holds it.
    CatalogueUnreadable(log::OpenError),
    /// A device that holds superblocks.
    Device {
        /// The device.
        device: String,
        /// Error of the device.
        error: std::io::Error,
    },
    /// Nothing was read: this is a child of the process that opened the pool.
    OtherProcess(OtherProcess),
    /// An object.
    Object(ReadError),
    /// Objects that are in the archive, which is not open.
    ArchiveClosed {
        /// Number of objects.
        objects: u64,
    },
    /// Space that is neither free nor used, or both.
    Space {
        /// The device.
        device: String,
        /// Bytes that are free.
        free_bytes: u64,
        /// Bytes that the catalogue leaves free.
        expected_bytes: u64,
    },
}

impl Finding {
    /// Returns true if something is not as it was written; false if it was not read, because the archive cannot
    /// be reached or this process is the wrong one.
    #[must_use]
    pub fn is_damage(&self) -> bool {
        match self {
            Self::OtherProcess(_) | Self::ArchiveClosed { .. } => false,
            Self::Object(error) => !error.is_unreachable(),
            _ => true,
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Superblock { device, copy, what } => {
                write!(formatter, "{device}, superblock {copy}: {what}; repair it")
            }
            Self::Catalogue(damage) => {
                write!(formatter, "{damage}; the other copy is good, repair it")
            }
            Self::CatalogueUnreadable(error) => error.fmt(formatter),
            Self::Device { device, error } => write!(formatter, "{device}: {error}"),
            Self::OtherProcess(error) => error.fmt(formatter),
            Self::Object(error) => error.fmt(formatter),
            Self::ArchiveClosed { objects } => write!(
                formatter,
                "{objects} objects are in the archive, which is not open, and were not read; connect it"
            ),
            Self::Space { device, free_bytes, expected_bytes } => write!(
                formatter,
                "{free_bytes} bytes of {device} are free, and the catalogue leaves {expected_bytes}; \
                 close the pool and open it again"
            ),
        }
    }
}

/// Result of reading all of a pool.
#[derive(Debug, Default)]
pub struct VerifyReport {
    /// mblocks that were read.
    pub objects: u64,
    /// Bytes that were read of them.
    pub object_bytes: u64,
    /// Faults that were found.
    pub findings: Vec<Finding>,
}

impl Pool {
    /// Reads everything: superblocks, both copies of the catalogue, all objects; and compares what is
    /// free with what is not used. Blocks for as long as the devices take. What is written or deleted
    /// meanwhile is looked at or not; space is only compared while nothing is.
    #[must_use]
    pub fn verify(&self) -> VerifyReport {
        let mut report = VerifyReport::default();
        if let Err(error) = self.session.check_here() {
            report.findings.push(Finding::OtherProcess(error));
            return report;
        }
        self.verify_superblocks(&mut report);
        match self.session.catalogue.scrub() {
            Ok(damages) => report.findings.extend(damages.into_iter().map(Finding::Catalogue)),
            Err(error) => report.findings.push(Finding::CatalogueUnreadable(error)),
        }
        self.verify_space(&mut report);
        let mut closed = 0;
        for entry in self.list() {
            if matches!(entry, ObjectEntry::Mblock(_) | ObjectEntry::Archived(_)) {
                closed += u64::from(self.verify_object(entry.id(), &mut report).is_err());
            }
        }
        if closed > 0 {
            report.findings.push(Finding::ArchiveClosed { objects: closed });
        }
        report
    }

    /// Makes good what has a second copy: superblocks, and blocks of the catalogue. What was wrong.
    ///
    /// # Errors
    /// See [`ChangeError`].
    pub fn repair(&self) -> Result<Vec<Finding>, ChangeError> {
        let _alone = self.administration()?;
        let mut report = VerifyReport::default();
        self.verify_superblocks(&mut report);
        match self.session.catalogue.repair() {
            Ok(damages) => report.findings.extend(damages.into_iter().map(Finding::Catalogue)),
            Err(error) => report.findings.push(Finding::CatalogueUnreadable(error)),
        }
        if report.findings.iter().any(|finding| matches!(finding, Finding::Superblock { .. })) {
            write_superblocks(&self.session)?;
        }
        Ok(report.findings)
    }

    fn verify_superblocks(&self, report: &mut VerifyReport) {
        let pool_devices = self.session.pool_devices();
        report
            .findings
            .extend(pool_devices.iter().flat_map(|pool_device| wrong_superblocks(pool_device)));
    }

    /// Compares what is free with what the catalogue does not name.
    fn verify_space(&self, report: &mut VerifyReport) {
        // While these are held nothing is committed, and nothing deleted that was not already.
        let handles = self.session.handles();
        let contents = self.session.catalogue.contents();
        if !handles.leaving.is_empty() {
            return;
        }
        for pool_device in self.session.pool_devices() {
            let Some((bytes, free)) = pool_device.settled() else { continue };
            let expected = occupied(&contents, &self.session.places)
                .filter(|(_, extent)| extent.device == pool_device.index)
                .try_fold(PoolDevice::unused(bytes), |mut free, (_, extent)| {
                    free.take(extent.offset_bytes, extent.bytes).then_some(free)
                });
            if expected.as_ref() != Some(&free) {
                let expected_bytes = expected.map_or(0, |free| free.free_bytes());
                report.findings.push(Finding::Space {
                    device: pool_device.label.clone(),
                    free_bytes: free.free_bytes(),
                    expected_bytes,
                });
            }
        }
    }

    /// Reads one object, unless it is in the archive and that is not open.
    fn verify_object(&self, id: ObjectId, report: &mut VerifyReport) -> Result<(), Closed> {
        match self.session.find(id) {
            Ok(object) => report.read(&object, |_| {}),
            Err(FindError::Archived(_)) => return Err(Closed),
            // It was deleted since it was listed.
            Err(_) => {}
        }
        Ok(())
    }
}

impl PoolReader {
    /// Reads everything, beside whoever uses the pool, and writes nothing: superblocks, both copies of
    /// the catalogue, all objects. What is deleted meanwhile is left out. `progress` gets the number
    /// of bytes of objects that were read since its last call. Blocks for as long as the devices take.
    ///
    /// # Errors
    /// See [`OpenError`]: so damaged that nothing says what there is.
    pub fn verify(&self, mut progress: impl FnMut(u64)) -> Result<VerifyReport, OpenError> {
        let mut report = self.verify_structure()?;
        let ids: Vec<ObjectId> = self.with_contents(|contents| {
            let is_mblock =
                |it: &&ObjectEntry| matches!(it, ObjectEntry::Mblock(_) | ObjectEntry::Archived(_));
            contents.objects().filter(is_mblock).map(ObjectEntry::id).collect()
        });
        let mut closed = 0;
        for ids in ids.chunks(OBJECTS_AT_ONCE) {
            if let Ok(objects) = self.get_many(ids) {
                objects.iter().for_each(|object| report.read(object, &mut progress));
                continue;
            }
            // One of them cannot be had: which?
            for &id in ids {
                closed += u64::from(self.verify_object(id, &mut report, &mut progress)?.is_err());
            }
        }
        if closed > 0 {
            report.findings.push(Finding::ArchiveClosed { objects: closed });
        }
        Ok(report)
    }

    fn verify_object(
        &self,
        id: ObjectId,
        report: &mut VerifyReport,
        progress: &mut impl FnMut(u64),
    ) -> Result<Result<(), Closed>, OpenError> {
        match self.get(id) {
            Ok(object) => report.read(&object, progress),
            Err(ReaderError::Find(FindError::Archived(_))) => return Ok(Err(Closed)),
            Err(ReaderError::Deleted(_) | ReaderError::Find(_)) => {}
            Err(ReaderError::Catalogue(error)) => return Err(error),
            Err(ReaderError::Read(error)) => report.findings.push(Finding::Object(error)),
            Err(ReaderError::Hold { object, source }) => {
                let error = ReadError::Device { object, offset_bytes: 0, source };
                report.findings.push(Finding::Object(error));
            }
        }
        Ok(Ok(()))
    }

    /// As [`verify`](Self::verify), of all but the objects. What is wrong counts if it still is after
    /// more than a second. A crash can leave the last block of one copy of the catalogue so.
    ///
    /// # Errors
    /// As [`verify`](Self::verify).
    pub fn verify_structure(&self) -> Result<VerifyReport, OpenError> {
        let look = || -> Result<Vec<Finding>, OpenError> {
            self.refresh()?;
            let pool_devices = self.pool_devices();
            let superblocks =
                pool_devices.iter().flat_map(|pool_device| wrong_superblocks(pool_device));
            Ok(superblocks.chain(self.damaged().into_iter().map(Finding::Catalogue)).collect())
        };
        let mut findings = look()?;
        for pause in 0..LOOKS - 1 {
            if findings.is_empty() {
                break;
            }
            thread::sleep(FIRST_PAUSE * (1 << pause));
            let again: Vec<String> = look()?.iter().map(ToString::to_string).collect();
            findings.retain(|finding| again.contains(&finding.to_string()));
        }
        Ok(VerifyReport { findings, ..VerifyReport::default() })
    }
}

impl VerifyReport {
    /// Reads an object, whatever of it can be.
    fn read(&mut self, object: &Committed, mut progress: impl FnMut(u64)) {
        self.objects += 1;
        self.object_bytes += object.length_bytes();
        #[cfg(feature = "archive")]
        if let Some(archived) = object.archived() {
            self.findings.extend(archived.verify().err().map(Finding::Object));
            return progress(archived.length_bytes());
        }
        let units_bytes = object.length_bytes().next_multiple_of(UNIT_BYTES as u64);
        let mut offset_bytes = 0;
        while offset_bytes < units_bytes {
            let bytes = READ_BYTES.min(units_bytes - offset_bytes);
            let mut buffer = Buffer::zeroed(bytes as usize);
            if let Err(error) = object.read(offset_bytes, &mut buffer) {
                let is_hopeless = matches!(error, ReadError::Checksums { .. });
                self.findings.push(Finding::Object(error));
                if is_hopeless {
                    break;
                }
            }
            offset_bytes += bytes;
            progress(bytes);
        }
    }
}

/// Superblocks of a device that are not as they should be.
fn wrong_superblocks(pool_device: &PoolDevice) -> Vec<Finding> {
    let device = || pool_device.label.clone();
    match superblock_copies::read(&*pool_device.device) {
        Err(error) => vec![Finding::Device { device: device(), error }],
        Ok(copies) => {
            let wrong = copies.iter().enumerate();
            let wrong = wrong.filter_map(|(copy, found)| Some((copy, *found.as_ref().err()?)));
            let finding = |(copy, what)| Finding::Superblock { device: device(), copy, what };
            wrong.map(finding).collect()
        }
    }
}

/// An object is in the archive, which is not open.
struct Closed;
