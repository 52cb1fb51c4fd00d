//! What operators may ask, and how it is done.

use std::os::fd::OwnedFd;
use std::thread;
use std::time::{Duration, Instant};

use bindery_guest::Connection;
use bindery_sys::thread::process_cpu_time;
use std::sync::atomic::Ordering;

use super::Shared;
use super::watch::{Watch, WatchError};
use crate::access::Rights;
use crate::daemon_settings::Change;
use crate::engine::EngineError;
use crate::operator::Control;
use crate::protocol::{Answer, Failure, FailureKind, Request};
use crate::report::status_bytes;
use crate::status::{HostStatus, State};

/// How long a guest may take to give everything back.
const RELEASE_PATIENCE: Duration = Duration::from_secs(300);

impl Shared {
    pub(super) fn status(&self) -> HostStatus {
        HostStatus {
            pid: std::process::id(),
            uid: self.access.uid(),
            program_version: env!("CARGO_PKG_VERSION").into(),
            uptime_s: self.started.elapsed().as_secs(),
            settings: self.engine.settings(),
            advisor: self.engine.advisor(),
            phases: self.engine.phases(),
            cpu_ms: process_cpu_time().as_millis() as u64,
            merge_cpu_us: self.engine.merge_cpu_us(),
            resident_bytes: own_bytes("RssAnon:") + own_bytes("RssFile:"),
            http: self.http,
            state: self.state(),
            domains: self.engine.domains(),
        }
    }

    fn state(&self) -> State {
        if self.is_short.load(Ordering::Relaxed) {
            let advice = "connections wait: descriptors, threads or memory are short. Raise the \
                          limits of the daemon (LimitNOFILE=, TasksMax=), or run fewer guests";
            return State { name: "short-of-resources".into(), advice: Some(advice.into()) };
        }
        if self.engine.is_idle() {
            let advice = "memory is not short: merging waits until it is. Have it merge all the same \
                          with `bindery set run_when=always`";
            return State { name: "idle".into(), advice: Some(advice.into()) };
        }
        State { name: "running".into(), advice: None }
    }

    /// The name and the number of a guest.
    fn find(&self, guest: &str) -> Result<(String, u32), Failure> {
        let found = self.guests.find(guest).map(|(name, entry)| (name, entry.id));
        found.ok_or_else(|| {
            let message = format!("no guest has the name or process id {guest}; see `bindery ps`");
            Failure::new(FailureKind::NoSuchGuest, message)
        })
    }

    /// Tells what was written to a guest since it was asked for last.
    fn watch(
        &self,
        watch: &mut Option<Watch>,
        (name, id): (String, u32),
    ) -> Result<Answer, Failure> {
        let failed =
            |error: WatchError| Failure::new(FailureKind::Failed, format!("{name}: {error}"));
        let guest = self.engine.guest(id).ok_or_else(|| failed(WatchError::Gone))?;
        // A guest of the same name that came meanwhile is another one.
        if watch.as_ref().is_none_or(|watch| !watch.is_of(&guest)) {
            *watch = Some(Watch::begin(guest).map_err(failed)?);
        }
        let ended = watch.as_mut().expect("it was just begun").end_epoch(name.clone());
        if ended.is_err() {
            // The guest, its seat and its descriptors are let go.
            *watch = None;
        }
        ended.map(|epoch| Answer::Dirty(Box::new(epoch))).map_err(failed)
    }

    /// Has a guest give everything back, and waits until it has.
    fn unmanage(&self, id: u32) -> Result<u64, Failure> {
        let failed = |message: String| Failure::new(FailureKind::Failed, message);
        let guest = self.engine.release(id).map_err(|error| failed(error.to_string()))?;
        let deadline = Instant::now() + RELEASE_PATIENCE;
        // Its own thread hears its answer, and takes it out.
        while self.guests.ids().contains(&id) {
            if Instant::now() > deadline {
                return Err(failed(format!(
                    "the guest has not stepped aside within {} s; it was told to, see the VMM's log",
                    RELEASE_PATIENCE.as_secs()
                )));
            }
            thread::sleep(Duration::from_millis(20));
        }
        if guest.has_released() || guest.has_ended() {
            return Ok(0);
        }
        let message = "the guest could not step aside, or its connection failed before it had: see \
                       the VMM's log, and repeat once it is listed again";
        Err(failed(message.into()))
    }
}

/// A part of the daemon's own memory. The pages of stores are counted with their domains.
fn own_bytes(field: &str) -> u64 {
    status_bytes("self", field).unwrap_or(0)
}

/// Where one operator is served.
pub(super) struct Desk<'a> {
    pub(super) shared: &'a Shared,
    /// What the operator may do.
    pub(super) rights: Rights,
    /// User of the operator.
    pub(super) uid: u32,
}

impl Desk<'_> {
    /// Refuses whoever may not do what concerns all guests.
    fn require_owner(&self, what: &str) -> Result<(), Failure> {
        match self.rights {
            Rights::Owner => Ok(()),
            _ => Err(refused(format!(
                "{what} concerns the guests of all users: only root and the daemon's user may, \
                 members of its group may look and handle guests of their own"
            ))),
        }
    }

    /// Finds a guest that the operator may handle: its name and number.
    pub(super) fn find(&self, guest: &str) -> Result<(String, u32), Failure> {
        let (name, id) = self.shared.find(guest)?;
        if self.rights == Rights::Owner {
            return Ok((name, id));
        }
        // A number is given again only after all others: whose guest it is cannot change after this.
        let uid = self.shared.engine.guest(id).map(|guest| guest.identity().uid);
        match uid.is_some_and(|uid| self.rights.cover_guests_of(uid)) {
            true => Ok((name, id)),
            false => Err(refused(format!("{name} is another user's guest: ask root"))),
        }
    }

    /// Finds a guest and has something done to it.
    fn with_guest(
        &self,
        guest: &str,
        act: impl FnOnce(u32) -> Result<u64, Failure>,
    ) -> Result<Answer, Failure> {
        let (name, id) = self.find(guest)?;
        act(id).map(|pages| Answer::Done { guest: name, pages })
    }

    fn stop(&self, unmerge: bool) -> Answer {
        self.shared.unmerge_at_exit.fetch_or(unmerge, Ordering::Relaxed);
        self.shared.stopper.stop();
        Answer::Stopping {}
    }
}

fn refused(message: String) -> Failure {
    Failure::new(FailureKind::Refused, message)
}

impl Control for Desk<'_> {
    type Session = Option<Watch>;

    fn perform(
        &self,
        watch: &mut Option<Watch>,
        request: Request,
        passed: &mut Vec<OwnedFd>,
    ) -> Answer {
        let failed = |error: EngineError| Failure::new(FailureKind::Failed, error.to_string());
        let settings = |settings| Answer::Settings(Box::new(settings));
        let Self { shared, .. } = self;
        let done = match request {
            Request::Status {} => Ok(Answer::Status(Box::new(shared.status()))),
            Request::Guests {} => Ok(Answer::Guests { guests: shared.engine.guests() }),
            // Settings are shown by a change of nothing.
            Request::Set(change) if *change == Change::default() => {
                Ok(settings(shared.engine.settings()))
            }
            Request::Set(change) => self.require_owner("changing settings").and_then(|()| {
                let set = shared.engine.set(&change).map(settings);
                set.map_err(|refused| Failure::new(FailureKind::BadSetting, refused.message))
            }),
            Request::Reload {} => self.require_owner("reading settings again").and_then(|()| {
                let read = shared.reload().map(settings);
                read.map_err(|message| Failure::new(FailureKind::BadFile, message))
            }),
            Request::Unmerge { guest } => {
                self.with_guest(&guest, |id| shared.engine.unmerge(id).map_err(failed))
            }
            Request::Merge { guest } => {
                self.with_guest(&guest, |id| shared.engine.merge(id).map_err(failed))
            }
            Request::Unmanage { guest } => self.with_guest(&guest, |id| shared.unmanage(id)),
            Request::Dirty { guest } => {
                self.find(&guest).and_then(|found| shared.watch(watch, found))
            }
            Request::Stop { unmerge } => {
                self.require_owner("ending the daemon").map(|()| self.stop(unmerge))
            }
            of_checkpoints => self.keep(of_checkpoints, passed),
        };
        done.unwrap_or_else(Answer::Error)
    }
}
