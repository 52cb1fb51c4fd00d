//! A guest's connection, from its first message to its end.

use std::fmt::Display;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use bindery_guest::{Connection, Guest, GuestError};
use bindery_merge::guest_of;
use bindery_sys::socket::Peer;

use super::{SHORTAGE_PAUSE, Shared};
use crate::engine::EngineError;
use crate::keeper::sources::AGAIN_AFTER;

/// Time after which a guest's thread wakes up though nothing came. The daemon's end closes the connection.
const LOOK_EVERY: Duration = Duration::from_secs(60);

/// How a guest's connection ended.
enum End {
    /// As it should, with the reason.
    Left(String),
    /// The daemon hung up.
    Failed(GuestError),
}

impl Shared {
    pub(super) fn serve_guest(&self, stream: OwnedFd, peer: Peer) {
        let pid = peer.pid;
        match self.welcome(stream, peer) {
            Ok(Some(guest)) => {
                let identity = guest.identity();
                let (id, name) = (identity.id, identity.name.clone());
                // One that is in trouble, and hung up on, may come several times a second.
                if self.engine.troubles().stands(guest_of(pid)) {
                    tracing::debug!(name, pid, "a guest has come again");
                } else {
                    tracing::info!(name, pid, domain = identity.domain, "a guest has come");
                }
                self.pauses.let_run(pid);
                let end = self.attend_guest(&guest);
                self.trackers.leave(id);
                self.sources.leave(guest.identity().instance);
                self.engine.remove(id);
                self.monitors.sweep();
                self.guests.leave(id);
                self.log_end(&name, pid, end);
            }
            Ok(None) => {}
            Err(error) if self.is_news(pid, &error) => {
                tracing::warn!(pid, "a guest was turned away: {error}");
            }
            Err(error) => tracing::debug!(pid, "a guest was turned away again: {error}"),
        }
    }

    fn is_news(&self, pid: i32, reason: impl Display) -> bool {
        self.engine.troubles().note(guest_of(pid), reason)
    }

    fn log_end(&self, name: &str, pid: i32, end: End) {
        match end {
            End::Failed(error) if self.is_news(pid, &error) => {
                tracing::warn!(name, pid, "a guest was hung up on: {error}");
            }
            End::Failed(error) => tracing::debug!(name, pid, "a guest was hung up on: {error}"),
            End::Left(why) => tracing::info!(name, pid, "a guest has left: {why}"),
        }
    }

    /// Takes a guest, or tells it why not.
    fn welcome(&self, stream: OwnedFd, peer: Peer) -> Result<Option<Arc<Guest>>, EngineError> {
        let rights = self.access.rights(&stream, peer);
        let arrival = Guest::accept(stream)?;
        if !self.access.takes_guest(peer, rights) {
            let reason = "refused a guest of another user";
            if self.is_news(peer.pid, reason) {
                tracing::warn!(pid = peer.pid, uid = peer.uid, "{reason}");
            }
            arrival.refuse(self.access.refusal_of_guest(peer));
            return Ok(None);
        }
        let (pid, instance) = (arrival.peer.pid, arrival.instance);
        let asked = arrival.name.as_deref();
        let is_in_use = |id| self.engine.knows(id);
        let entered = self.guests.enter(asked, &arrival.command, (pid, instance), is_in_use);
        match entered {
            Ok((id, name)) => {
                let added = self.engine.add(arrival, id, name);
                if added.is_err() {
                    self.guests.leave(id);
                }
                Ok(Some(added?))
            }
            Err(taken) => {
                if self.is_news(pid, &taken) {
                    tracing::warn!(pid, "refused a guest: {taken}");
                }
                arrival.refuse(taken.to_string());
                Ok(None)
            }
        }
    }

    /// Listens to a guest until its connection ends or the daemon does. Returns why.
    fn attend_guest(&self, guest: &Guest) -> End {
        loop {
            // A source that broke may be there again, and nothing comes to say so.
            let patience = if guest.lost_source().is_some() { AGAIN_AFTER } else { LOOK_EVERY };
            // Who comes when the daemon has closed all others' connections is not among them.
            let waited =
                if self.stopping.is_set() { Ok(false) } else { guest.wait_events(patience) };
            match waited {
                // Its last message, and then the connection's end, may have come as one.
                _ if guest.has_released() => return End::Left("it is no longer managed".into()),
                _ if self.stopping.is_set() => return End::Left("the daemon ends".into()),
                Err(GuestError::Gone) => return End::Left(GuestError::Gone.to_string()),
                Err(error) if error.is_fatal() => return End::Failed(error),
                Ok(_) => {
                    let rights = self.access.rights_of_user(guest.identity().uid);
                    self.sources.go_on(&self.keeper, guest, rights);
                }
                Err(error) => {
                    let pid = guest.identity().pid;
                    if self.is_news(pid, &error) {
                        tracing::warn!(pid, "a guest's connection: {error}");
                    }
                    thread::sleep(SHORTAGE_PAUSE);
                }
            }
        }
    }

    pub(super) fn unmerge_all(&self) {
        for id in self.guests.ids() {
            if let Err(error) = self.engine.unmerge(id) {
                tracing::warn!("a guest keeps merged pages: {error}");
            }
        }
    }
}
