//! Operators' requests about checkpoints and jobs.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bindery_checkpoint::{CheckpointId, Name, PageEncoding};
use bindery_guest::{Connection, Guest, Identity};
use bindery_vmm::{Qemu, QemuSettings, VmmError};

use super::control::Desk;
use crate::access::Rights;
use crate::engine::DEFAULT_DOMAIN;
use crate::jobs::{NewJob, Progress};
use crate::keeper::board::KeptGuest;
use crate::keeper::catalogue::{self, Visible};
use crate::keeper::create::{self, CheckpointNames, Create};
use crate::keeper::disks::RunningVmm;
use crate::keeper::fork;
use crate::keeper::restore::{self, Restore};
use crate::keeper::serve::{self, Serve};
use crate::keeper::work::{self, Import};
use crate::keeper::{Lease, names, stream};
use crate::protocol::checkpoint::{CheckpointName, DiskPolicy, ExportKey, Selection};
use crate::protocol::job::{JobKind, JobResult, JobUnit};
use crate::protocol::{Answer, Failure, FailureKind, Request};

/// The longest that a question for a job waits for its end.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// Paths of a pool, as a request names it.
type AskedPool = Option<Vec<String>>;

/// Checkpoint that is asked for.
struct Asked {
    guest: String,
    name: Option<String>,
    disks: DiskPolicy,
    monitor: Option<String>,
    pause_max: Option<Duration>,
    compress: bool,
}

fn no_monitor() -> Failure {
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
            Request::CheckpointCreate {
                pool,
                guest,
                name,
                disks,
                monitor,
                pause_max_ms,
                compress,
            } => {
                let pause_max = pause_max_ms.map(Duration::from_millis);
                let asked = Asked { guest, name, disks, monitor, pause_max, compress };
                self.create(pool, asked)
            }
            Request::CheckpointRestore { pool, checkpoint, guest, paused } => {
                self.restore(pool, &checkpoint, &guest, paused)
            }
            Request::Fork { guest, disks, monitor, pause_max_ms } => {
                let pause_max = pause_max_ms.map(Duration::from_millis);
                let name = Some(fork::NAME.to_owned());
                self.fork(Asked { guest, name, disks, monitor, pause_max, compress: false })
            }
            Request::ForkRelease { pool } => self.release_fork(pool),
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
            Request::CheckpointExport { pool, checkpoint, key } => {
                let socket = stream::take(std::mem::take(passed))?;
                self.export(pool, &checkpoint, (socket, key))
            }
            Request::CheckpointImport { pool, guest, name, domain, key, bytes, base } => {
                let socket = stream::take(std::mem::take(passed))?;
                let lease = self.lease(pool)?;
                let (base, domain) = self.base(&lease, base.as_ref(), domain.as_deref())?;
                let import = Import {
                    domain,
                    guest: guest.as_deref().map(names::guest).transpose()?,
                    name: name.as_deref().map(names::checkpoint).transpose()?,
                    key: key.as_ref().map(work::key).transpose()?,
                    bytes,
                    base,
                };
                self.import(lease, socket, import)
            }
            Request::CheckpointDeviceState { pool, checkpoint } => {
                let socket = stream::take(std::mem::take(passed))?;
                let lease = self.lease(pool)?;
                let found = catalogue::find(&lease, self.rights, &checkpoint)?;
                let kind = (JobKind::CheckpointDeviceState, JobUnit::Bytes);
                let new = self.new_job(kind, checkpoint.to_string(), found.uid);
                self.start(new, move |progress| {
                    work::device_state(&lease, &found, socket, progress)
                })
            }
            Request::CheckpointServe { pool, checkpoint, lazy } => {
                let socket = stream::take(std::mem::take(passed))?;
                let lease = self.lease(pool)?;
                let checkpoint = catalogue::find(&lease, self.rights, &checkpoint)?;
                let time_ns = checkpoint.summary.time_ns;
                let serve = Serve { checkpoint, socket, is_lazy: lazy, uid: self.uid };
                let memory_bytes = serve::serve(lease, &self.shared.sources, serve)?;
                Ok(Answer::Source { memory_bytes, time_ns })
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

    fn create(&self, pool: AskedPool, asked: Asked) -> Result<Answer, Failure> {
        let create = self.capture(asked)?;
        let lease = self.lease(pool)?;
        let followed = self.shared.trackers.of(create.guest.identity().id);
        let new = self.new_capture(JobKind::CheckpointCreate, &create);
        let Identity { uid, name, domain, .. } = create.guest.identity().clone();
        let kept = KeptGuest { guest: name, domain, uid: Some(uid) };
        let board = Arc::clone(self.shared.keeper.board());
        let (sources, pauses) = (Arc::clone(&self.shared.sources), Arc::clone(&self.shared.pauses));
        self.start(new, move |progress| {
            let whole = sources.await_whole(&create.guest, progress);
            let created = whole.and_then(|()| {
                create::create(&lease, &followed, (&sources, &pauses), create, progress)
            });
            if created.as_ref().is_err_and(|failure| failure.kind != FailureKind::Cancelled) {
                board.count_failure(kept);
            }
            created
        })
    }

    /// Prepares what is captured.
    fn capture(&self, asked: Asked) -> Result<Create, Failure> {
        let guest = self.guest(&asked.guest)?;
        let Identity { uid, name, domain, .. } = guest.identity().clone();
        let checkpoint = asked
            .name
            .unwrap_or_else(|| humantime::format_rfc3339_seconds(SystemTime::now()).to_string());
        let names = CheckpointNames {
            guest: names::guest(&name)?,
            name: names::checkpoint(&checkpoint)?,
            domain: names::domain(uid, &domain)?,
        };
        let (qemu, monitor) = self.monitor(&guest, asked.monitor.as_deref())?;
        let (disks, pause_max) = (asked.disks, asked.pause_max);
        let encoding = if asked.compress { PageEncoding::Compressed } else { PageEncoding::Raw };
        Ok(Create { guest, qemu, monitor, names, disks, pause_max, encoding })
    }

    fn new_capture(&self, kind: JobKind, create: &Create) -> NewJob {
        let Identity { uid, name, .. } = create.guest.identity();
        let subject = format!("{name}@{}", create.names.name);
        self.new_job((kind, JobUnit::Pages), subject, Some(*uid))
    }

    /// Captures a guest into a pool in memory.
    fn fork(&self, asked: Asked) -> Result<Answer, Failure> {
        let create = self.capture(asked)?;
        let Identity { id, uid, ref name, .. } = *create.guest.identity();
        if uid != self.uid {
            let message = format!(
                "{name} is a guest of user {uid}, and its children would be of user {}: fork it as user {uid}",
                self.uid
            );
            return Err(Failure::new(FailureKind::Refused, message));
        }
        let merged = self.shared.engine.counts(id).map_or(0, |counts| counts.pages_merged);
        let bytes = fork::content_bytes(&create.guest, merged);
        let pool = self.shared.memory_pools.make(name, bytes)?;
        let lease = self.lease(Some(pool.paths().into()))?;
        let followed = self.shared.trackers.of(id);
        let new = self.new_capture(JobKind::Fork, &create);
        let (sources, pauses) = (Arc::clone(&self.shared.sources), Arc::clone(&self.shared.pauses));
        self.start(new, move |progress| {
            sources.await_whole(&create.guest, progress)?;
            fork::fork((&lease, &pool), &followed, (&sources, &pauses), create, progress)
        })
    }

    /// Lets go of a pool in memory. Its path is known to nobody but whoever forked, and to owners.
    fn release_fork(&self, pool: String) -> Result<Answer, Failure> {
        if self.shared.memory_pools.release(Path::new(&pool)) {
            return Ok(Answer::Done { guest: pool, pages: 0 });
        }
        let message = "there is no such pool in memory: it is gone already";
        Err(Failure::new(FailureKind::NoPool, message))
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
    fn guest(&self, guest: &str) -> Result<Arc<Guest>, Failure> {
        let (name, id) = self.find(guest)?;
        self.shared.engine.guest(id).ok_or_else(|| {
            let message = format!("{name} has lost its connection to this daemon: try again");
            Failure::new(FailureKind::Failed, message)
        })
    }

    /// Connects to the QEMU of a guest, and makes sure that it is this guest's.
    fn monitor(&self, guest: &Guest, asked: Option<&str>) -> Result<(Qemu, PathBuf), Failure> {
        let Identity { uid, pid, .. } = *guest.identity();
        let monitor = match asked {
            Some(path) => PathBuf::from(path),
            None => self.shared.monitors.of(uid, pid as u32).ok_or_else(no_monitor)?,
        };
        let failed = |error: VmmError| Failure::new(FailureKind::Failed, error.to_string());
        let qemu = Qemu::connect(&monitor, QemuSettings::default()).map_err(failed)?;
        if qemu.pid() == pid {
            return Ok((qemu, monitor));
        }
        // Somebody else made the socket, as libvirt does: only owners may say whose it is.
        if asked.is_none() || self.rights != Rights::Owner {
            let message = format!(
                "{} is not the monitor of process {pid}, but of {}",
                monitor.display(),
                qemu.pid()
            );
            return Err(Failure::new(FailureKind::Refused, message));
        }
        drop(qemu);
        let settings = QemuSettings { pid: Some(pid), ..QemuSettings::default() };
        Ok((Qemu::connect(&monitor, settings).map_err(failed)?, monitor))
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

    /// Finds the base of an import, and the domain that the import is to be of.
    fn base(
        &self,
        lease: &Lease,
        base: Option<&CheckpointName>,
        domain: Option<&str>,
    ) -> Result<(Option<CheckpointId>, Name), Failure> {
        let base = base.map(|name| catalogue::find(lease, self.rights, name)).transpose()?;
        let Some(base) = base else {
            return Ok((None, names::domain(self.uid, domain.unwrap_or(DEFAULT_DOMAIN))?));
        };
        if base.uid != Some(self.uid) {
            let message =
                "the base is a checkpoint of another user: what is imported becomes yours";
            return Err(Failure::new(FailureKind::Refused, message));
        }
        let domain = match domain {
            Some(domain) => names::domain(self.uid, domain)?,
            None => base.summary.domain.clone(),
        };
        Ok((Some(base.summary.id), domain))
    }

    fn import(&self, lease: Lease, socket: OwnedFd, import: Import) -> Result<Answer, Failure> {
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
