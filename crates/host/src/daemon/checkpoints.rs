//! Operators' requests about checkpoints and jobs.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use bindery_guest::{Connection, Guest, Identity};

use super::control::Desk;
use crate::access::Rights;
use crate::jobs::{NewJob, Progress};
use crate::keeper::catalogue::{self, Visible};
use crate::keeper::disks::RunningVmm;
use crate::keeper::restore::{self, Restore};
use crate::keeper::work;
use crate::keeper::{Lease, stream};
use crate::protocol::checkpoint::{CheckpointName, Selection};
use crate::protocol::job::{JobKind, JobResult, JobUnit};
use crate::protocol::{Answer, Failure, FailureKind, Request};

/// The longest that a question for a job waits for its end.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// Paths of a pool, as a request names it.
pub(super) type AskedPool = Option<Vec<String>>;

pub(super) fn no_monitor() -> Failure {
    let message = "the guest has no monitor of Bindery's: start it with `bindery run`, which gives a QEMU one, or \
                   name a QMP socket of it that nobody else uses with --qmp";
    Failure::new(FailureKind::Refused, message)
}

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
            Request::CheckpointRestore { pool, checkpoint, guest, paused } => {
                self.restore(pool, &checkpoint, &guest, paused)
            }
            Request::CheckpointCreate { .. }
            | Request::Fork { .. }
            | Request::ForkRelease { .. } => self.capture(request),
            Request::CheckpointVerify { pool, select } => {
                let kind = (JobKind::CheckpointVerify, JobUnit::Pages);
                self.start_on(kind, (pool, &select), work::verify)
            }
            Request::CheckpointDelete { pool, select, force } => {
                require_names(&select)?;
                let kind = (JobKind::CheckpointDelete, JobUnit::Checkpoints);
                let sources = Arc::clone(&self.shared.sources);
                let vmms = self.running_vmms();
                let delete = move |lease: &Lease, selected: &[Visible], progress: &Progress| {
                    work::delete(lease, selected, (&sources, &vmms, force), progress)
                };
                self.start_on(kind, (pool, &select), delete)
            }
            Request::CheckpointExport { .. }
            | Request::CheckpointImport { .. }
            | Request::CheckpointDeviceState { .. }
            | Request::CheckpointServe { .. } => {
                self.pass(request, stream::take(std::mem::take(passed))?)
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

    pub(super) fn lease(&self, pool: AskedPool) -> Result<Lease, Failure> {
        self.shared.keeper.lease(pool.as_deref(), self.rights)
    }

    fn list(&self, pool: AskedPool, guest: Option<&str>) -> Result<Answer, Failure> {
        let lease = self.lease(pool)?;
        let mut visible = catalogue::visible(&lease, self.rights);
        visible.retain(|found| guest.is_none_or(|guest| found.is_of(guest, None, None)));
        Ok(Answer::Checkpoints { checkpoints: visible.iter().map(Visible::info).collect() })
    }

    fn restore(
        &self,
        pool: AskedPool,
        name: &CheckpointName,
        guest: &str,
        is_paused: bool,
    ) -> Result<Answer, Failure> {
        let guest = self.guest(guest)?;
        let Identity { uid, pid, .. } = *guest.identity();
        let leases = (self.lease(pool.clone())?, self.lease(pool)?);
        let lease = &leases.0;
        let checkpoint = catalogue::find(lease, self.rights, name)?;
        if checkpoint.uid != Some(uid) {
            let message = "the checkpoint is of another user than the guest that waits: export it, and import it \
                           as that user";
            return Err(Failure::new(FailureKind::Refused, message));
        }
        // After this daemon the guest's word is all there is for the pool.
        self.shared.keeper.check_finds(lease, self.shared.access.rights_of_user(uid))?;
        let monitor = self.shared.monitors.of(uid, pid as u32).ok_or_else(no_monitor)?;
        let qemu = restore::connect(&monitor, pid)?;
        let kind = (JobKind::CheckpointRestore, JobUnit::Pages);
        let new = self.new_job(kind, name.to_string(), Some(uid));
        let sources = Arc::clone(&self.shared.sources);
        let (board, kept) = (Arc::clone(self.shared.keeper.board()), checkpoint.kept_guest());
        let restore = Restore { guest, qemu, checkpoint, is_paused };
        self.start(new, move |progress| {
            let restored = restore::restore(leases, &sources, restore, progress)?;
            board.count_restore(kept);
            Ok(restored)
        })
    }

    /// Returns the VMMs with monitors of guests that run.
    fn running_vmms(&self) -> Vec<RunningVmm> {
        let guests = self.shared.guests.ids().into_iter();
        let vmms = guests.filter_map(|id| {
            let guest = self.shared.engine.guest(id)?;
            let Identity { uid, pid, name, .. } = guest.identity().clone();
            let monitor = self.shared.monitors.of(uid, pid as u32)?;
            Some(RunningVmm { guest: name, uid, pid, monitor })
        });
        vmms.collect()
    }

    /// Finds a guest that the operator may handle, and that is connected.
    pub(super) fn guest(&self, guest: &str) -> Result<Arc<Guest>, Failure> {
        let (name, id) = self.find(guest)?;
        self.shared.engine.guest(id).ok_or_else(|| {
            let message = format!("{name} has lost its connection to this daemon: try again");
            Failure::new(FailureKind::Failed, message)
        })
    }

    /// Starts a job on all that is selected.
    fn start_on(
        &self,
        (kind, unit): (JobKind, JobUnit),
        (pool, select): (AskedPool, &Selection),
        work: impl FnOnce(&Lease, &[Visible], &Progress) -> Result<JobResult, Failure> + Send + 'static,
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

    pub(super) fn new_job(
        &self,
        (kind, unit): (JobKind, JobUnit),
        subject: String,
        of_user: Option<u32>,
    ) -> NewJob {
        NewJob { kind, subject, of_user, rights: self.rights, unit }
    }

    pub(super) fn start(
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
