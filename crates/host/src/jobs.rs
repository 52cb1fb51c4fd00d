//! Jobs: work that takes longer than an operator's connection is to wait.
//!
//! A request starts a job and is answered with its number; the job has a thread of its own, outlives the
//! connection and is asked for by its number. Whoever may see the guest may see and cancel its jobs; to others
//! there is no such job. Their number is bounded, and members of the group cannot take all of it. A job that
//! has ended is forgotten after [`REMEMBERED`], or earlier if its user has ended many others since.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bindery_sys::thread::spawn_without_signals;

use crate::access::Rights;
use crate::protocol::job::{JobKind, JobOutcome, JobResult, JobStatus, JobUnit};
use crate::protocol::{Failure, FailureKind};

/// Time for which a job is remembered that has ended.
const REMEMBERED: Duration = Duration::from_secs(10 * 60);

/// Most jobs that one user has ended and that are remembered.
const ENDED_MAX: usize = 64;

/// Most jobs at once.
const RUNNING_MAX: usize = 16;

/// Most jobs at once of members of the group, so that some are left to the daemon's user and root.
const MEMBERS_MAX: usize = 12;

/// Most jobs at once of one member.
const MEMBER_MAX: usize = 4;

/// A job that is to be started.
#[derive(Clone, Debug)]
pub(crate) struct NewJob {
    pub(crate) kind: JobKind,
    /// Checkpoint or guest that it is about, in words.
    pub(crate) subject: String,
    /// User whose guests it is about; none if it is about those of several: then only owners see it.
    pub(crate) of_user: Option<u32>,
    /// Rights of the operator that starts it.
    pub(crate) rights: Rights,
    /// Unit in which its progress is counted.
    pub(crate) unit: JobUnit,
}

/// Progress of a job, shared by its thread and those who ask.
#[derive(Debug)]
pub(crate) struct Progress {
    phase: Mutex<&'static str>,
    done: AtomicU64,
    /// All that there is to do; 0 while it is not known.
    total: AtomicU64,
    is_cancelled: AtomicBool,
}

impl Progress {
    pub(crate) fn new() -> Self {
        let phase = Mutex::new("starting");
        let (done, total) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { phase, done, total, is_cancelled: AtomicBool::new(false) }
    }

    /// Begins a phase in which there is so much to do, as far as that is known.
    pub(crate) fn begin(&self, phase: &'static str, total: Option<u64>) {
        *self.phase.lock().unwrap_or_else(PoisonError::into_inner) = phase;
        self.done.store(0, Ordering::Relaxed);
        self.total.store(total.unwrap_or(0), Ordering::Relaxed);
    }

    /// Adds to what is done.
    pub(crate) fn add(&self, done: u64) {
        self.done.fetch_add(done, Ordering::Relaxed);
    }

    /// Sets the phase, and how far it is.
    pub(crate) fn set(&self, phase: &'static str, done: u64, total: u64) {
        *self.phase.lock().unwrap_or_else(PoisonError::into_inner) = phase;
        self.done.store(done, Ordering::Relaxed);
        self.total.store(total, Ordering::Relaxed);
    }

    /// Returns the flag that is set once the job is to end before it is done.
    pub(crate) const fn cancel_flag(&self) -> &AtomicBool {
        &self.is_cancelled
    }

    /// Returns true once the job is to end before it is done.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.is_cancelled.load(Ordering::Relaxed)
    }

    /// Fails once the job is to end before it is done.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        if self.is_cancelled() { Err(cancelled()) } else { Ok(()) }
    }
}

/// Failure of a job that was cancelled.
pub(crate) fn cancelled() -> Failure {
    Failure::new(FailureKind::Cancelled, "the job was cancelled before it was done")
}

/// One job.
#[derive(Debug)]
struct Job {
    number: u64,
    new: NewJob,
    started: Instant,
    progress: Progress,
    end: Mutex<Option<(Instant, JobOutcome)>>,
}

impl Job {
    fn end(&self) -> MutexGuard<'_, Option<(Instant, JobOutcome)>> {
        // One assignment: a panic elsewhere leaves it whole.
        self.end.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_running(&self) -> bool {
        self.end().is_none()
    }

    fn is_visible_to(&self, rights: Rights) -> bool {
        match self.new.of_user {
            Some(uid) => rights.cover_guests_of(uid),
            None => rights == Rights::Owner,
        }
    }

    fn status(&self) -> JobStatus {
        let Progress { phase, done, total, .. } = &self.progress;
        let end = self.end().clone();
        let until = end.as_ref().map_or_else(Instant::now, |(ended, _)| *ended);
        let total = total.load(Ordering::Relaxed);
        JobStatus {
            job: self.number,
            kind: self.new.kind,
            subject: self.new.subject.clone(),
            phase: (*phase.lock().unwrap_or_else(PoisonError::into_inner)).to_owned(),
            unit: self.new.unit,
            done: done.load(Ordering::Relaxed),
            total: (total > 0).then_some(total),
            elapsed_ms: until.duration_since(self.started).as_millis() as u64,
            is_cancelled: self.progress.is_cancelled(),
            outcome: end.map(|(_, outcome)| outcome),
        }
    }
}

/// All jobs of a daemon.
#[derive(Debug, Default)]
pub(crate) struct Jobs {
    table: Mutex<Table>,
    /// Notified when a job has ended.
    ended: Condvar,
}

#[derive(Debug, Default)]
struct Table {
    last: u64,
    jobs: BTreeMap<u64, Arc<Job>>,
}

impl Jobs {
    fn lock(&self) -> MutexGuard<'_, Table> {
        // Each change is one insertion or removal: a panic elsewhere leaves the table whole.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a job on a thread of its own, and returns its number. `work` ends soon once its progress is
    /// cancelled.
    ///
    /// # Errors
    /// `Busy` if too many go on; `Failed` if threads are short.
    pub(crate) fn start(
        self: &Arc<Self>,
        new: NewJob,
        work: impl FnOnce(&Progress) -> Result<JobResult, Failure> + Send + 'static,
    ) -> Result<u64, Failure> {
        let job = self.lock().enter(new, Instant::now())?;
        let number = job.number;
        let mut running = Running { jobs: Arc::clone(self), job, outcome: None };
        let started = spawn_without_signals("job", move || {
            let outcome = match work(&running.job.progress) {
                Ok(result) => JobOutcome::Done(Box::new(result)),
                Err(failure) => JobOutcome::Failed(failure),
            };
            running.end_with(outcome);
        });
        match started {
            Ok(_) => Ok(number),
            Err(error) => {
                self.lock().jobs.remove(&number);
                let message = format!("cannot start a thread for the job: {error}; try again");
                Err(Failure::new(FailureKind::Failed, message))
            }
        }
    }

    fn find(&self, number: u64, rights: Rights) -> Result<Arc<Job>, Failure> {
        let mut table = self.lock();
        table.forget(Instant::now());
        let found = table.jobs.get(&number).filter(|job| job.is_visible_to(rights));
        found.cloned().ok_or_else(|| {
            let message = format!(
                "there is no job {number}: it was another daemon's, or has ended more than {} minutes ago",
                REMEMBERED.as_secs() / 60
            );
            Failure::new(FailureKind::NoSuchJob, message)
        })
    }

    /// Returns the state of a job, once it has ended or after `patience`.
    ///
    /// # Errors
    /// `NoSuchJob`, also where it is about another user's guest.
    pub(crate) fn status(
        &self,
        number: u64,
        rights: Rights,
        patience: Duration,
    ) -> Result<JobStatus, Failure> {
        let job = self.find(number, rights)?;
        let waited = self.ended.wait_timeout_while(self.lock(), patience, |_| job.is_running());
        drop(waited);
        Ok(job.status())
    }

    /// Returns the state of all jobs that may be seen.
    pub(crate) fn list(&self, rights: Rights) -> Vec<JobStatus> {
        let mut table = self.lock();
        table.forget(Instant::now());
        let visible = table.jobs.values().filter(|job| job.is_visible_to(rights));
        visible.map(|job| job.status()).collect()
    }

    /// Asks a job to end.
    ///
    /// # Errors
    /// `NoSuchJob`.
    pub(crate) fn cancel(&self, number: u64, rights: Rights) -> Result<JobStatus, Failure> {
        let job = self.find(number, rights)?;
        job.progress.is_cancelled.store(true, Ordering::Relaxed);
        Ok(job.status())
    }

    /// Asks all jobs to end, and waits for them for at most `patience`.
    pub(crate) fn end_all(&self, patience: Duration) {
        let table = self.lock();
        table
            .jobs
            .values()
            .for_each(|job| job.progress.is_cancelled.store(true, Ordering::Relaxed));
        let any_runs = |table: &mut Table| table.jobs.values().any(|job| job.is_running());
        drop(self.ended.wait_timeout_while(table, patience, any_runs));
    }
}

impl Table {
    fn enter(&mut self, new: NewJob, now: Instant) -> Result<Arc<Job>, Failure> {
        self.forget(now);
        let running = self.jobs.values().filter(|job| job.is_running());
        let running: Vec<Rights> = running.map(|job| job.new.rights).collect();
        let members = running.iter().filter(|rights| matches!(rights, Rights::Member { .. }));
        let is_full = running.len() >= RUNNING_MAX
            || matches!(new.rights, Rights::Member { .. })
                && (members.count() >= MEMBERS_MAX
                    || running.iter().filter(|rights| **rights == new.rights).count()
                        >= MEMBER_MAX);
        if is_full {
            let message = "as many jobs go on as may at once: wait until one has ended";
            return Err(Failure::new(FailureKind::Busy, message));
        }
        self.last += 1;
        let job = Arc::new(Job {
            number: self.last,
            new,
            started: now,
            progress: Progress::new(),
            end: Mutex::default(),
        });
        self.jobs.insert(job.number, Arc::clone(&job));
        Ok(job)
    }

    /// Forgets jobs that ended long ago, and the oldest of a user who has ended many.
    fn forget(&mut self, now: Instant) {
        self.jobs.retain(|_, job| {
            let ended = job.end().as_ref().map(|(ended, _)| *ended);
            ended.is_none_or(|ended| now.saturating_duration_since(ended) < REMEMBERED)
        });
        let mut newer: Vec<Rights> = Vec::new();
        let mut excess = Vec::new();
        for job in self.jobs.values().rev().filter(|job| !job.is_running()) {
            if newer.iter().filter(|rights| **rights == job.new.rights).count() >= ENDED_MAX {
                excess.push(job.number);
            }
            newer.push(job.new.rights);
        }
        excess.iter().for_each(|number| _ = self.jobs.remove(number));
    }
}

/// A job whose thread runs. Ends it when dropped, however the thread ends.
struct Running {
    jobs: Arc<Jobs>,
    job: Arc<Job>,
    outcome: Option<JobOutcome>,
}

impl Running {
    /// Sets the outcome that the job has once this is dropped.
    fn end_with(&mut self, outcome: JobOutcome) {
        self.outcome = Some(outcome);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let outcome = self.outcome.take().unwrap_or_else(|| {
            let message = "the job has failed (a bug: see the daemon's log)";
            JobOutcome::Failed(Failure::new(FailureKind::Failed, message))
        });
        if let JobOutcome::Failed(failure) = &outcome {
            let NewJob { kind, subject, .. } = &self.job.new;
            tracing::warn!(job = self.job.number, ?kind, subject, "a job has failed: {failure}");
        }
        // Under the table's lock, so that nobody waits who has just seen it run.
        let table = self.jobs.lock();
        *self.job.end() = Some((Instant::now(), outcome));
        drop(table);
        self.jobs.ended.notify_all();
    }
}

#[cfg(test)]
mod tests;
