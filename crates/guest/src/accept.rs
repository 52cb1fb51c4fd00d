//! The handshake: who is this, and is it taken?

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use bindery_sys::pidfd::PeerProcess;
use bindery_sys::socket::{Peer, peer, refuse_descriptors, wait_readable};
use bindery_wire::channel::{Channel, Received};
use bindery_wire::control::STORE_MAX;
use bindery_wire::control::{FromDaemon, FromShim, STORES_MAX, StoreId, VERSION};

use crate::guest::{Parts, READS_MAX};
use crate::printable::printable;
use crate::{ANSWER_PATIENCE, Guest, GuestError, Identity};

type ShimChannel = Channel<FromDaemon, FromShim>;

/// The longest name of a guest or of a domain, in bytes.
pub const NAME_BYTES_MAX: usize = 64;

/// The most of a command that is kept, in characters.
const COMMAND_CHARS_MAX: usize = 256;

/// A shim that has said who it is and waits for an answer.
#[derive(Debug)]
pub struct Arrival {
    channel: ShimChannel,
    process: PeerProcess,
    /// Who connected, as the kernel says.
    pub peer: Peer,
    /// The name asked for.
    pub name: Option<String>,
    /// The domain asked for, within those of the peer's user.
    pub domain: Option<String>,
    /// The command of the process, safe to print.
    pub command: String,
    /// Drawn by the shim once per process.
    pub instance: u64,
    /// Stores that pages of the guest are still mapped from.
    pub stores: Vec<StoreId>,
}

/// What a guest is given when it is taken.
#[derive(Debug)]
pub struct Welcome {
    /// What the daemon calls it.
    pub id: u32,
    /// Its name, unique among the daemon's guests.
    pub name: String,
    /// Its domain.
    pub domain: String,
    /// The domain's secret.
    pub digest_key: [u8; 32],
    /// Number of slots that the domain's store can ever have.
    pub slots: u32,
    /// Number of slots of each of its segments.
    pub segment_slots: u32,
}

impl Guest {
    /// Reads the first message of a shim whose [`MAGIC`](bindery_wire::control::MAGIC) was
    /// taken off `stream`. Waits for it at most [`ANSWER_PATIENCE`].
    ///
    /// # Errors
    /// [`GuestError`]: the connection is closed. A shim of another version is told why.
    pub fn accept(stream: OwnedFd) -> Result<Arrival, GuestError> {
        let unknown = |error| GuestError::Daemon { doing: "asking who connected", error };
        let peer = peer(&stream).map_err(unknown)?;
        let process = PeerProcess::of(&stream).map_err(unknown)?;
        let mut channel = Channel::new(stream);
        let message = match channel.receive(ANSWER_PATIENCE)? {
            Received::Message(message, _) => message,
            Received::Closed => return Err(GuestError::Gone),
            Received::Nothing => return Err(stalled("to say who it is", ANSWER_PATIENCE)),
        };
        let FromShim::Hello { version, instance, name, domain, command, stores } = message else {
            return Err(GuestError::nonsense("a connection that does not begin with Hello"));
        };
        read_to_the_last_descriptor(&mut channel)?;
        let command = shown(&command);
        let arrival = Arrival { channel, process, peer, name, domain, command, instance, stores };
        if version != VERSION {
            let error = GuestError::Version { theirs: version };
            arrival.refuse(error.to_string());
            return Err(error);
        }
        match arrival.check() {
            Ok(()) => Ok(arrival),
            Err(error) => {
                arrival.refuse(error.to_string());
                Err(error)
            }
        }
    }
}

impl Arrival {
    fn check(&self) -> Result<(), GuestError> {
        let names = [("name", &self.name), ("domain", &self.domain)];
        for (what, name) in names {
            if name.as_deref().is_some_and(|name| !is_name(name)) {
                return Err(GuestError::nonsense(format!(
                    "a {what} that is none: 1 to {NAME_BYTES_MAX} letters, digits and any of -_.:@"
                )));
            }
        }
        let ids = &self.stores;
        let distinct = ids.iter().enumerate().all(|(at, id)| id.0 != 0 && !ids[..at].contains(id));
        if !distinct || ids.len() > STORES_MAX {
            return Err(GuestError::nonsense("stores that are named twice, or too many"));
        }
        if self.free_store_id().is_none() {
            let what = format!("pages merged with the stores of {STORE_MAX} daemons that ended");
            return Err(GuestError::nonsense(what));
        }
        Ok(())
    }

    /// Turns the guest away, and says why. Does not wait for it.
    pub fn refuse(mut self, reason: impl Into<String>) {
        let refused = FromDaemon::Refused { reason: reason.into() };
        // It may have gone already: then nobody is there to be told.
        if let Err(error) = self.channel.send(&refused, &[], Duration::ZERO) {
            tracing::debug!(%error, pid = self.peer.pid, "a refused guest was not told why");
        }
    }

    /// Takes the guest.
    ///
    /// # Errors
    /// [`GuestError`] if it has gone meanwhile, or if descriptors are short.
    pub fn welcome(mut self, welcome: Welcome) -> Result<Arc<Guest>, GuestError> {
        let store = self.free_store_id().expect("checked when the guest arrived");
        let message = FromDaemon::Welcome {
            guest: welcome.id,
            digest_key: welcome.digest_key,
            store,
            slots: welcome.slots,
            segment_slots: welcome.segment_slots,
        };
        self.channel
            .send(&message, &[], ANSWER_PATIENCE)
            .map_err(|error| GuestError::of_socket("welcoming a guest", error))?;
        let doing = "watching a guest's connection";
        let watch = self.channel.as_fd().try_clone_to_owned();
        let watch = watch.map_err(|error| GuestError::Daemon { doing, error })?;
        let identity = Identity {
            id: welcome.id,
            name: welcome.name,
            domain: welcome.domain,
            uid: self.peer.uid,
            pid: self.peer.pid,
            command: self.command,
            instance: self.instance,
        };
        let (channel, process) = (self.channel, self.process);
        let holds_other_stores = !self.stores.is_empty();
        let parts = Parts { identity, store, holds_other_stores, process, channel, watch };
        Ok(Arc::new(Guest::new(parts)))
    }

    /// The smallest id that names none of the stores that the guest has.
    fn free_store_id(&self) -> Option<StoreId> {
        (1..=STORE_MAX).map(StoreId).find(|id| !self.stores.contains(id))
    }
}

/// Takes no descriptors from a shim that has said Hello, and sees that none are left: the connection is
/// read and closed from now on by threads that others wait for.
fn read_to_the_last_descriptor(channel: &mut ShimChannel) -> Result<(), GuestError> {
    let failed = |error| GuestError::of_socket("reading a guest", error);
    refuse_descriptors(channel.as_fd()).map_err(failed)?;
    // What was sent before that.
    for _ in 0..READS_MAX {
        if channel.holds_descriptors() {
            return Err(GuestError::nonsense("descriptors that belong to no message"));
        }
        if !wait_readable(channel.as_fd(), Duration::ZERO).map_err(failed)? {
            return Ok(());
        }
        if !channel.fill()? {
            return Err(GuestError::Gone);
        }
    }
    Err(GuestError::nonsense("words without end before it was welcomed"))
}

pub(crate) fn stalled(request: &'static str, patience: Duration) -> GuestError {
    GuestError::Stalled { request, patience }
}

/// Whether guests and domains may be called so: letters, digits and `-_.:@`, at most
/// [`NAME_BYTES_MAX`] of them. Safe in a terminal, a path and a shell.
#[must_use]
pub fn is_name(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:@".contains(&byte);
    (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(allowed)
}

/// Returns a guest's command as operators are shown it.
fn shown(command: &str) -> String {
    printable(command).chars().take(COMMAND_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_short_and_safe_to_print() {
        assert_eq!(shown("qemu -m 1G"), "qemu -m 1G");
        assert_eq!(shown("a\u{200f}b\u{61c}"), "a\u{fffd}b\u{fffd}");
        assert_eq!(shown(&"é".repeat(1000)).chars().count(), COMMAND_CHARS_MAX);
    }

    #[test]
    fn names_are_plain() {
        assert!(is_name("web-1.example:2@b_c"));
        for bad in ["", "a b", "a/b", "ä", &"x".repeat(65)] {
            assert!(!is_name(bad), "{bad}");
        }
    }
}
