//! Operators' requests about checkpoints and jobs.

use std::os::fd::OwnedFd;
use std::time::Duration;

use super::control::Desk;
use crate::access::Rights;
use crate::engine::DEFAULT_DOMAIN;
use crate::jobs::{NewJob, Progress};
use crate::keeper::catalogue::{self, Visible};
use crate::keeper::work::{self, Import};
use crate::keeper::{Lease, names, stream};
use crate::protocol::checkpoint::{CheckpointName, ExportKey, Selection};
use crate::protocol::job::{JobKind, JobResult, JobUnit};
use crate::protocol::{Answer, Failure, FailureKind, Request};

/// The longest that a question for a job waits for its end.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// Paths of a pool, as a request names it.
type AskedPool = Option<Vec<String>>;

impl Desk<'_> {
    /// Does what is asked of checkpoints and jobs. `passed` are the descriptors that came with it.
    pub(super) fn keep(
        &self,
        request: Request,
        passed: &mut Vec<OwnedFd>,
    ) -> Result<Answer, Failure> {
        let jobs = &self.shared.jobs;
        match request {
            Request::CheckpointList { pool, guest } => self.list(pool, guest.as_deref()),
            Request::CheckpointShow { pool, checkpoint } => {
                let lease = self.lease(pool)?;
                let found = catalogue::find(&lease, self.rights, &checkpoint)?;
                Ok(Answer::Checkpoint(Box::new(catalogue::detail(&lease, &found)?)))
            }
            Request::CheckpointVerify { pool, select } => {
                let kind = (JobKind::CheckpointVerify, JobUnit::Pages);
                self.start_on(kind, (pool, &select), work::verify)
            }
            Request::CheckpointDelete { pool, select } => {
                require_names(&select)?;
                let kind = (JobKind::CheckpointDelete, JobUnit::Checkpoints);
                self.start_on(kind, (pool, &select), work::delete)
            }
            Request::CheckpointExport { pool, checkpoint, key } => {
                let socket = stream::take(std::mem::take(passed))?;
                self.export(pool, &checkpoint, (socket, key))
            }
            Request::CheckpointImport { pool, guest, name, domain, key, bytes } => {
                let socket = stream::take(std::mem::take(passed))?;
                let import = Import {
                    domain: names::domain(self.uid, domain.as_deref().unwrap_or(DEFAULT_DOMAIN))?,
                    guest: guest.as_deref().map(names::guest).transpose()?,
                    name: name.as_deref().map(names::checkpoint).transpose()?,
                    key: key.as_ref().map(work::key).transpose()?,
                    bytes,
                };
                self.import(pool, socket, import)
            }
            Request::Jobs {} => Ok(Answer::Jobs { jobs: jobs.list(self.rights) }),
            Request::Job { job, wait_ms } => {
                let patience = Duration::from_millis(wait_ms.unwrap_or(0)).min(WAIT_MAX);
                let status = jobs.status(job, self.rights, patience)?;
                Ok(Answer::Job(Box::new(status)))
            }
            Request::JobCancel { job } => Ok(Answer::Job(Box::new(jobs.cancel(job, self.rights)?))),
            _ => unreachable!("the caller does the others"),
        }
    }

    fn lease(&self, pool: AskedPool) -> Result<Lease, Failure> {
        self.shared.keeper.lease(pool.as_deref(), self.rights)
    }

    fn list(&self, pool: AskedPool, guest: Option<&str>) -> Result<Answer, Failure> {
        let lease = self.lease(pool)?;
        let mut visible = catalogue::visible(&lease, self.rights);
        visible.retain(|found| guest.is_none_or(|guest| found.is_of(guest, None, None)));
        Ok(Answer::Checkpoints { checkpoints: visible.iter().map(Visible::info).collect() })
    }

    /// Starts a job on all that is selected.
    fn start_on(
        &self,
        (kind, unit): (JobKind, JobUnit),
        (pool, select): (AskedPool, &Selection),
        work: fn(&Lease, &[Visible], &Progress) -> Result<JobResult, Failure>,
    ) -> Result<Answer, Failure> {
        let lease = self.lease(pool)?;
        let selected = catalogue::select(&lease, self.rights, select)?;
        // A member sees the own user's alone, and the job too where there are none.
        let of_user = match self.rights {
            Rights::Member { uid } => Some(uid),
            _ => user_of(&selected),
        };
        let new = self.new_job((kind, unit), subject(&selected), of_user);
        let body = move |progress: &Progress| work(&lease, &selected, progress);
        self.start(new, body)
    }

    fn export(
        &self,
        pool: AskedPool,
        name: &CheckpointName,
        (socket, key): (OwnedFd, Option<ExportKey>),
    ) -> Result<Answer, Failure> {
        let key = key.as_ref().map(work::key).transpose()?;
        let lease = self.lease(pool)?;
        let found = catalogue::find(&lease, self.rights, name)?;
        let kind = (JobKind::CheckpointExport, JobUnit::Pages);
        let new = self.new_job(kind, name.to_string(), found.uid);
        self.start(new, move |progress| work::export(&lease, &found, (socket, key), progress))
    }

    fn import(&self, pool: AskedPool, socket: OwnedFd, import: Import) -> Result<Answer, Failure> {
        let lease = self.lease(pool)?;
        let part = |name: &Option<_>| {
            name.as_ref()
                .map_or("…".to_owned(), |name: &bindery_checkpoint::Name| name.to_string())
        };
        let subject = format!("{}@{}", part(&import.guest), part(&import.name));
        let kind = (JobKind::CheckpointImport, JobUnit::Bytes);
        let new = self.new_job(kind, subject, Some(self.uid));
        self.start(new, move |progress| work::import(&lease, socket, import, progress))
    }

    fn new_job(
        &self,
        (kind, unit): (JobKind, JobUnit),
        subject: String,
        of_user: Option<u32>,
    ) -> NewJob {
        NewJob { kind, subject, of_user, rights: self.rights, unit }
    }

    fn start(
        &self,
        new: NewJob,
        work: impl FnOnce(&Progress) -> Result<JobResult, Failure> + Send + 'static,
    ) -> Result<Answer, Failure> {
        self.shared.jobs.start(new, work).map(|job| Answer::JobStarted { job })
    }
}

/// Refuses to delete all there is in one word.
fn require_names(select: &Selection) -> Result<(), Failure> {
    if matches!(select, Selection::All {}) {
        let message = "checkpoints to delete are named, or all of one guest but for some";
        return Err(Failure::new(FailureKind::BadRequest, message));
    }
    Ok(())
}

/// Returns the checkpoints in words: the only one by name.
fn subject(selected: &[Visible]) -> String {
    match selected {
        [only] => format!("{}@{}", only.guest, only.summary.name),
        several => format!("{} checkpoints", several.len()),
    }
}

/// Returns the user whose guests all of them are of, if there is one.
fn user_of(selected: &[Visible]) -> Option<u32> {
    let first = selected.first()?.uid?;
    selected.iter().all(|checkpoint| checkpoint.uid == Some(first)).then_some(first)
}
