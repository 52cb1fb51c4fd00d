//! Jobs that go on, as clients get them: without results, which are their operators' alone.

use serde::Serialize;

use crate::protocol::job::{JobKind, JobStatus, JobUnit};

/// A job that goes on.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct JobInProgress {
    job: u64,
    kind: JobKind,
    /// Checkpoint or guest that it is about, in words.
    subject: String,
    phase: String,
    unit: JobUnit,
    done: u64,
    total: Option<u64>,
    elapsed_ms: u64,
    is_cancelled: bool,
}

/// Returns those of `jobs` that have not ended.
pub(super) fn in_progress(jobs: Vec<JobStatus>) -> Vec<JobInProgress> {
    let running = jobs.into_iter().filter(|job| job.outcome.is_none());
    let shown = running.map(|status| {
        let JobStatus { job, kind, subject, phase, unit, done, total, elapsed_ms, .. } = status;
        let is_cancelled = status.is_cancelled;
        JobInProgress { job, kind, subject, phase, unit, done, total, elapsed_ms, is_cancelled }
    });
    shown.collect()
}
