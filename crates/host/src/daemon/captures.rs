//! Operators' requests to capture guests that run: into a checkpoint, or into a fork.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bindery_checkpoint::PageEncoding;
use bindery_guest::{Connection, Guest, Identity};
use bindery_vmm::{Qemu, QemuSettings, VmmError};

use super::checkpoints::{AskedPool, no_monitor};
use super::control::Desk;
use crate::access::Rights;
use crate::jobs::NewJob;
use crate::keeper::board::KeptGuest;
use crate::keeper::create::{self, CheckpointNames, Create};
use crate::keeper::{fork, names};
use crate::protocol::checkpoint::DiskPolicy;
use crate::protocol::job::{JobKind, JobUnit};
use crate::protocol::{Answer, Failure, FailureKind, Request};

/// Checkpoint that is asked for.
struct Asked {
    guest: String,
    name: Option<String>,
    disks: DiskPolicy,
    monitor: Option<String>,
    pause_max: Option<Duration>,
    compress: bool,
}

impl Desk<'_> {
    /// Does what is asked of guests that run.
    pub(super) fn capture(&self, request: Request) -> Result<Answer, Failure> {
        match request {
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
                self.create(pool, Asked { guest, name, disks, monitor, pause_max, compress })
            }
            Request::Fork { guest, disks, monitor, pause_max_ms } => {
                let pause_max = pause_max_ms.map(Duration::from_millis);
                let name = Some(fork::NAME.to_owned());
                self.fork(Asked { guest, name, disks, monitor, pause_max, compress: false })
            }
            Request::ForkRelease { pool } => self.release_fork(pool),
            _ => unreachable!("the caller does the others"),
        }
    }

    fn create(&self, pool: AskedPool, asked: Asked) -> Result<Answer, Failure> {
        let create = self.prepare(asked)?;
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
    fn prepare(&self, asked: Asked) -> Result<Create, Failure> {
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
        let create = self.prepare(asked)?;
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
}
