//! A guest's connection, from its first message to its end.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use bindery_guest::{Connection, Guest};
use bindery_sys::socket::Peer;

use super::{SHORTAGE_PAUSE, Shared};
use crate::engine::EngineError;

/// How often a guest's thread looks whether the daemon ends.
const LOOK_EVERY: Duration = Duration::from_secs(1);

impl Shared {
    pub(super) fn serve_guest(&self, stream: OwnedFd, peer: Peer) {
        let pid = peer.pid;
        match self.welcome(stream, peer) {
            Ok(Some(guest)) => {
                let identity = guest.identity();
                let (id, name) = (identity.id, identity.name.clone());
                tracing::info!(name, pid, domain = identity.domain, "a guest has come");
                let end = self.attend_guest(&guest);
                self.engine.remove(id);
                self.guests.leave(id);
                tracing::info!(name, pid, "a guest has left: {end}");
            }
            Ok(None) => {}
            Err(error) => tracing::warn!(pid, "a guest was turned away: {error}"),
        }
    }

    /// Takes a guest, or tells it why not.
    fn welcome(&self, stream: OwnedFd, peer: Peer) -> Result<Option<Arc<Guest>>, EngineError> {
        let rights = self.access.rights(&stream, peer);
        let arrival = Guest::accept(stream)?;
        if !self.access.takes_guest(peer, rights) {
            tracing::warn!(pid = peer.pid, uid = peer.uid, "refused a guest of another user");
            arrival.refuse(self.access.refusal_of_guest(peer));
            return Ok(None);
        }
        let (pid, instance) = (arrival.peer.pid, arrival.instance);
        let entered = self.guests.enter(arrival.name.as_deref(), &arrival.command, pid, instance);
        match entered {
            Ok((id, name)) => {
                let added = self.engine.add(arrival, id, name);
                if added.is_err() {
                    self.guests.leave(id);
                }
                Ok(Some(added?))
            }
            Err(taken) => {
                tracing::warn!(pid, "refused a guest: {taken}");
                arrival.refuse(taken.to_string());
                Ok(None)
            }
        }
    }

    /// Listens to a guest until its connection ends or the daemon does. Returns why.
    fn attend_guest(&self, guest: &Guest) -> String {
        loop {
            match guest.wait_events(LOOK_EVERY) {
                // Its last message, and then the connection's end, may have come as one.
                _ if guest.has_released() => return "it is no longer managed".into(),
                Ok(_) if self.stopping.is_set() => return "the daemon ends".into(),
                Err(error) if error.is_fatal() => return error.to_string(),
                Ok(_) => {}
                Err(error) => {
                    tracing::warn!(pid = guest.identity().pid, "a guest's connection: {error}");
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
