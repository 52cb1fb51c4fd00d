//! Operators' requests that come with a socket, over which a checkpoint or parts of one are passed.

use std::os::fd::OwnedFd;

use bindery_checkpoint::{CheckpointId, Name};

use super::checkpoints::AskedPool;
use super::control::Desk;
use crate::engine::DEFAULT_DOMAIN;
use crate::keeper::catalogue;
use crate::keeper::serve::{self, Serve};
use crate::keeper::work::{self, Import};
use crate::keeper::{Lease, names};
use crate::protocol::checkpoint::{CheckpointName, ExportKey};
use crate::protocol::job::{JobKind, JobUnit};
use crate::protocol::{Answer, Failure, FailureKind, Request};

impl Desk<'_> {
    /// Does what is asked of the socket.
    pub(super) fn pass(&self, request: Request, socket: OwnedFd) -> Result<Answer, Failure> {
        match request {
            Request::CheckpointExport { pool, checkpoint, key } => {
                self.export(pool, &checkpoint, (socket, key))
            }
            Request::CheckpointImport { pool, guest, name, domain, key, bytes, base } => {
                let lease = self.lease(pool)?;
                let (base, domain) = self.base(&lease, base.as_ref(), domain.as_deref())?;
                let guest = guest.as_deref().map(names::guest).transpose()?;
                let name = name.as_deref().map(names::checkpoint).transpose()?;
                let key = key.as_ref().map(work::key).transpose()?;
                self.import(lease, socket, Import { domain, guest, name, key, bytes, base })
            }
            Request::CheckpointDeviceState { pool, checkpoint } => {
                let lease = self.lease(pool)?;
                let found = catalogue::find(&lease, self.rights, &checkpoint)?;
                let kind = (JobKind::CheckpointDeviceState, JobUnit::Bytes);
                let new = self.new_job(kind, checkpoint.to_string(), found.uid);
                self.start(new, move |progress| {
                    work::device_state(&lease, &found, socket, progress)
                })
            }
            Request::CheckpointServe { pool, checkpoint, lazy } => {
                let lease = self.lease(pool)?;
                let checkpoint = catalogue::find(&lease, self.rights, &checkpoint)?;
                let time_ns = checkpoint.summary.time_ns;
                let serve = Serve { checkpoint, socket, is_lazy: lazy, uid: self.uid };
                let memory_bytes = serve::serve(lease, &self.shared.sources, serve)?;
                Ok(Answer::Source { memory_bytes, time_ns })
            }
            _ => unreachable!("the caller does the others"),
        }
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
            name.as_ref().map_or("…".to_owned(), |name: &Name| name.to_string())
        };
        let subject = format!("{}@{}", part(&import.guest), part(&import.name));
        let kind = (JobKind::CheckpointImport, JobUnit::Bytes);
        let new = self.new_job(kind, subject, Some(self.uid));
        self.start(new, move |progress| work::import(&lease, socket, import, progress))
    }
}
