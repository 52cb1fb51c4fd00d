//! The pool's own metadata: an MDC whose records say what devices, what objects and what openings
//! there are, and what all of them come to, in memory.
//!
//! Records are made durable in groups: whoever comes while a group is being written waits, and one of
//! those who wait writes all that came, with one sync (group commit). A record counts, and is seen,
//! once it is durable.

mod contents;

pub use contents::{Contents, Contradiction};

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, RwLock, RwLockReadGuard};

use bindery_sys::process::Origin;
use thiserror::Error;

use crate::format::record::Record;
use crate::log::{Damage, OpenError, WriteError};
use crate::mdc::Mdc;
use crate::process::{self, OtherProcess};
use crate::{BLOCK_BYTES, ObjectId};

/// Bytes of each log that new objects may not use, so that there is always room to delete, rename and open.
const RESERVE_BYTES: u64 = 8 * BLOCK_BYTES as u64;

/// Why the catalogue did not take a record.
#[derive(Clone, Debug, Error)]
pub enum CatalogueError {
    /// This is a child of the process that opened the pool.
    #[error(transparent)]
    OtherProcess(#[from] OtherProcess),
    /// There are as many objects as it can name. Nothing has changed.
    #[error(
        "the catalogue is full: its {objects} objects take {live_bytes} of {capacity_bytes} bytes; \
         delete some, or make a pool with a larger catalogue"
    )]
    Full {
        /// Number of objects that the catalogue names.
        objects: usize,
        /// Bytes that the objects take.
        live_bytes: u64,
        /// Bytes that there are.
        capacity_bytes: u64,
    },
    /// A device failed while it was written. Whether the record is durable is not known until the pool
    /// is opened again; until then the pool can be read, not changed.
    #[error(
        "the catalogue could not be written, the pool takes no changes until it is opened again: {0}"
    )]
    Failed(Arc<WriteError>),
}

/// The catalogue of a pool that is open for writing.
#[derive(Debug)]
pub struct Catalogue {
    origin: Origin,
    contents: RwLock<Contents>,
    /// MDC of the catalogue, for its leader alone; there until this is dropped.
    mdc: Mutex<Option<Mdc>>,
    queue: Mutex<Queue>,
    progress: Condvar,
    counters: Counters,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: Vec<Submission>,
    is_led: bool,
    failed: Option<CatalogueError>,
}

/// A record, and what became of it.
#[derive(Debug)]
struct Submission {
    record: Record,
    outcome: Arc<OnceLock<Result<(), CatalogueError>>>,
}

#[derive(Debug, Default)]
struct Counters {
    records: AtomicU64,
    syncs: AtomicU64,
    compactions: AtomicU64,
}

/// Counts of what a catalogue has done since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CatalogueStatistics {
    /// Records that were made durable.
    pub records: u64,
    /// Number of syncs that made the records durable.
    pub syncs: u64,
    /// Number of compactions.
    pub compactions: u64,
    /// Bytes that are used of the log that is written.
    pub used_bytes: u64,
    /// Bytes that the log has.
    pub capacity_bytes: u64,
}

impl Catalogue {
    /// Continues a catalogue where `contents` ends, which is what `mdc` holds.
    #[must_use]
    pub fn new(mdc: Mdc, contents: Contents) -> Self {
        Self {
            origin: Origin::here(),
            contents: RwLock::new(contents),
            mdc: Mutex::new(Some(mdc)),
            queue: Mutex::default(),
            progress: Condvar::new(),
            counters: Counters::default(),
        }
    }

    /// Returns the durable contents. Nothing becomes visible while they are held.
    ///
    /// In a child of the process that opened the pool they are as they were when it was forked.
    ///
    /// # Panics
    /// If a thread panicked while it changed them; in a child, if one was changing them at that moment.
    pub fn contents(&self) -> RwLockReadGuard<'_, Contents> {
        if let Err(error) = process::check(self.origin) {
            // Who changed them is not there to end it.
            return self.contents.try_read().unwrap_or_else(|_| panic!("{error}"));
        }
        self.contents.read().expect("the contents are whole")
    }

    /// Makes a record durable, then visible. Blocks for a sync, or two where one is under way.
    ///
    /// # Errors
    /// See [`CatalogueError`].
    ///
    /// # Panics
    /// If the record contradicts what is there: the caller must have made sure that it does not.
    pub fn submit(&self, record: Record) -> Result<(), CatalogueError> {
        self.submit_all([record]).pop().expect("there is an outcome for each record")
    }

    /// As [`submit`](Self::submit), of several, with the same sync. Each has an outcome of its own.
    ///
    /// # Panics
    /// As [`submit`](Self::submit).
    pub fn submit_all(
        &self,
        records: impl IntoIterator<Item = Record>,
    ) -> Vec<Result<(), CatalogueError>> {
        if let Err(error) = process::check(self.origin) {
            return records.into_iter().map(|_| Err(error.into())).collect();
        }
        let mut outcomes: Vec<Arc<OnceLock<_>>> = Vec::new();
        let mut queue = self.queue();
        for record in records {
            let outcome = Arc::new(OnceLock::new());
            outcomes.push(Arc::clone(&outcome));
            queue.waiting.push(Submission { record, outcome });
        }
        loop {
            if let Some(outcomes) = outcomes.iter().map(|outcome| outcome.get().cloned()).collect()
            {
                return outcomes;
            }
            if queue.is_led {
                queue = self.progress.wait(queue).expect("a queue is whole at any time");
                continue;
            }
            queue.is_led = true;
            let batch = std::mem::take(&mut queue.waiting);
            let failed = queue.failed.clone();
            drop(queue);
            let lead = Lead(self);
            let failed = self.lead(batch, failed);
            self.queue().failed = failed;
            drop(lead);
            queue = self.queue();
        }
    }

    /// Writes a group. What makes the catalogue take nothing more, if something does.
    fn lead(
        &self,
        batch: Vec<Submission>,
        failed: Option<CatalogueError>,
    ) -> Option<CatalogueError> {
        let mut mdc = self.mdc();
        let mdc = open(&mut mdc);
        let mut taken = Vec::new();
        let mut failed = failed;
        for submission in batch {
            let outcome = match &failed {
                Some(error) => Err(error.clone()),
                None => self.append(mdc, &taken, &submission.record),
            };
            match outcome {
                Ok(()) => taken.push(submission),
                Err(error) => {
                    if matches!(error, CatalogueError::Failed(_)) {
                        failed = Some(error.clone());
                    }
                    settle(&submission, Err(error));
                }
            }
        }
        if !taken.is_empty() && failed.is_none() {
            failed = mdc.sync().err().map(|error| CatalogueError::Failed(Arc::new(error)));
            self.counters.syncs.fetch_add(1, Ordering::Relaxed);
        }
        if failed.is_none() {
            self.show(&taken);
        }
        let outcome = failed.clone().map_or(Ok(()), Err);
        taken.iter().for_each(|submission| settle(submission, outcome.clone()));
        failed
    }

    /// Makes durable records visible.
    fn show(&self, taken: &[Submission]) {
        let mut contents = self.contents.write().expect("the contents are whole");
        for submission in taken {
            let applied = contents.apply(submission.record.clone());
            applied.expect("whoever submits a record has made sure that it fits");
        }
        self.counters.records.fetch_add(taken.len() as u64, Ordering::Relaxed);
    }

    /// Appends one record behind those `taken` already, and compacts where there is no room for it.
    fn append(
        &self,
        mdc: &mut Mdc,
        taken: &[Submission],
        record: &Record,
    ) -> Result<(), CatalogueError> {
        let capacity_bytes = mdc.capacity_bytes();
        // What moves takes no more than before: see `contents::log_bytes`.
        let is_growth =
            matches!(record, Record::Commit(_) | Record::Device(_) | Record::Archive(_));
        let limit = capacity_bytes.saturating_sub(if is_growth { RESERVE_BYTES } else { 0 });
        let needed = contents::log_bytes(record);
        // The block that the last sync has ended, and the one that the next will.
        let is_tight = mdc.used_bytes() + needed + 2 * BLOCK_BYTES as u64 > limit;
        if !is_tight {
            match mdc.append(&record.encode()) {
                Err(WriteError::Full { .. }) => {}
                other => return other.map_err(|error| CatalogueError::Failed(Arc::new(error))),
            }
        }
        let contents = self.contents();
        let taken_bytes: u64 = taken.iter().map(|other| contents::log_bytes(&other.record)).sum();
        let live_bytes = contents.log_bytes() + taken_bytes;
        // What compaction is to gain at least: or each change would cost one.
        if is_growth && live_bytes + needed > limit - limit / 8 {
            let objects = contents.objects().len();
            return Err(CatalogueError::Full { objects, live_bytes, capacity_bytes });
        }
        self.counters.compactions.fetch_add(1, Ordering::Relaxed);
        let written = mdc.compact::<WriteError>(|log| {
            let taken = taken.iter().map(|other| other.record.clone());
            contents.records().chain(taken).try_for_each(|record| log.append(&record.encode()))
        });
        let appended = written.and_then(|()| mdc.append(&record.encode()));
        appended.map_err(|error| CatalogueError::Failed(Arc::new(error)))
    }

    /// Returns the counts since the catalogue was opened.
    pub fn statistics(&self) -> CatalogueStatistics {
        let mut mdc = self.mdc();
        let mdc = open(&mut mdc);
        CatalogueStatistics {
            records: self.counters.records.load(Ordering::Relaxed),
            syncs: self.counters.syncs.load(Ordering::Relaxed),
            compactions: self.counters.compactions.load(Ordering::Relaxed),
            used_bytes: mdc.used_bytes(),
            capacity_bytes: mdc.capacity_bytes(),
        }
    }

    /// Reads all copies of both logs. What is damaged.
    ///
    /// # Errors
    /// If a device fails, or nothing good is left.
    pub fn scrub(&self) -> Result<Vec<Damage>, OpenError> {
        open(&mut self.mdc()).scrub()
    }

    /// As [`scrub`](Self::scrub), and writes good copies over damaged ones.
    ///
    /// # Errors
    /// As [`scrub`](Self::scrub).
    pub fn repair(&self) -> Result<Vec<Damage>, OpenError> {
        open(&mut self.mdc()).repair()
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().expect("a queue is whole at any time")
    }

    fn mdc(&self) -> MutexGuard<'_, Option<Mdc>> {
        self.mdc.lock().expect("whoever wrote the catalogue did not panic")
    }
}

fn open(mdc: &mut Option<Mdc>) -> &mut Mdc {
    mdc.as_mut().expect("it is open until it is dropped")
}

impl Drop for Catalogue {
    /// Notes that all is durable, so that damage of the last block is not taken for a crash.
    fn drop(&mut self) {
        if !self.origin.is_here() {
            return;
        }
        // If a thread panicked while it wrote, nothing is known of what was written.
        let Ok(Some(mdc)) = self.mdc.get_mut().map(Option::take) else { return };
        if let Err(error) = mdc.close() {
            tracing::debug!(%error, "the catalogue was not closed, which costs nothing but a note");
        }
    }
}

fn settle(submission: &Submission, outcome: Result<(), CatalogueError>) {
    submission.outcome.set(outcome).expect("a record is settled once");
}

/// Lets the next one lead, also where this one panicked: those who wait then find the catalogue's
/// lock poisoned, and panic rather than wait for ever.
struct Lead<'a>(&'a Catalogue);

impl Drop for Lead<'_> {
    fn drop(&mut self) {
        self.0.queue().is_led = false;
        self.0.progress.notify_all();
    }
}

/// The ids of the logs of the catalogue.
pub const CATALOGUE_LOGS: [ObjectId; 2] = [ObjectId(1), ObjectId(2)];

/// The first id that objects get.
pub const FIRST_ID: u64 = 16;
