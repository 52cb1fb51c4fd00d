//! What operators may ask, and how it is done.

use std::thread;
use std::time::{Duration, Instant};

use bindery_guest::Connection;
use bindery_sys::thread::process_cpu_time;
use std::sync::atomic::Ordering;

use super::Shared;
use super::watch::{Watch, WatchError};
use crate::engine::EngineError;
use crate::operator::Control;
use crate::protocol::{Answer, Failure, FailureKind, Request};
use crate::report::status_bytes;
use crate::status::{HostStatus, State};

/// How long a guest may take to give everything back.
const RELEASE_PATIENCE: Duration = Duration::from_secs(300);

impl Shared {
    fn status(&self) -> HostStatus {
        HostStatus {
            pid: std::process::id(),
            uid: self.uid,
            program_version: env!("CARGO_PKG_VERSION").into(),
            uptime_s: self.started.elapsed().as_secs(),
            settings: self.engine.settings(),
            cpu_ms: process_cpu_time().as_millis() as u64,
            resident_bytes: own_bytes("RssAnon:") + own_bytes("RssFile:"),
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

    /// Finds a guest and has something done to it.
    fn with_guest(
        &self,
        guest: &str,
        act: impl FnOnce(u32) -> Result<u64, Failure>,
    ) -> Result<Answer, Failure> {
        let (name, id) = self.find(guest)?;
        act(id).map(|pages| Answer::Done { guest: name, pages })
    }

    /// Tells what was written to a guest since it was asked for last.
    fn watch(&self, watch: &mut Option<Watch>, guest: &str) -> Result<Answer, Failure> {
        let failed = |error: WatchError| Failure::new(FailureKind::Failed, error.to_string());
        let (name, id) = self.find(guest)?;
        let guest = self.engine.guest(id).ok_or_else(|| failed(WatchError::Gone))?;
        // A guest of the same name that came meanwhile is another one.
        if watch.as_ref().is_none_or(|watch| !watch.is_of(&guest)) {
            *watch = Some(Watch::begin(guest).map_err(failed)?);
        }
        let ended = watch.as_mut().expect("it was just begun").end_epoch(name);
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

impl Control for Shared {
    type Session = Option<Watch>;

    fn perform(&self, watch: &mut Option<Watch>, request: Request) -> Answer {
        let failed = |error: EngineError| Failure::new(FailureKind::Failed, error.to_string());
        let done = match request {
            Request::Status {} => Ok(Answer::Status(Box::new(self.status()))),
            Request::Guests {} => Ok(Answer::Guests { guests: self.engine.guests() }),
            Request::Set { workers, period_ms } => {
                crate::check_settings(workers, period_ms).map(|()| {
                    self.engine.set(workers, period_ms.map(Duration::from_millis));
                    Answer::Settings(self.engine.settings())
                })
            }
            Request::Unmerge { guest } => {
                self.with_guest(&guest, |id| self.engine.unmerge(id).map_err(failed))
            }
            Request::Merge { guest } => {
                self.with_guest(&guest, |id| self.engine.merge(id).map_err(failed))
            }
            Request::Unmanage { guest } => self.with_guest(&guest, |id| self.unmanage(id)),
            Request::Dirty { guest } => self.watch(watch, &guest),
            Request::Stop { unmerge } => {
                self.unmerge_at_exit.fetch_or(unmerge, Ordering::Relaxed);
                self.stopper.stop();
                Ok(Answer::Stopping {})
            }
        };
        done.unwrap_or_else(Answer::Error)
    }
}
