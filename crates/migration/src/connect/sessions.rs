//! Sessions at a destination: several connections of one migration, joined by a secret.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ring::rand::{SecureRandom, SystemRandom};

use super::greet::Peer;
use crate::format::{Join, MigrationId, SECRET_BYTES, Secret};

/// Returns so many random bytes.
///
/// # Panics
/// If the kernel has none, which it has since it booted.
#[must_use]
pub fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    SystemRandom::new()
        .fill(&mut bytes)
        .expect("getrandom(2) gives bytes once the machine has booted");
    bytes
}

struct Session {
    secret: Secret,
    peer: Peer,
    /// Streams that have not come yet.
    awaited: Vec<u16>,
}

/// Sessions that further connections may join.
#[derive(Default)]
pub struct Sessions(Mutex<HashMap<MigrationId, Session>>);

impl std::fmt::Debug for Sessions {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Sessions").field("count", &self.lock().len()).finish()
    }
}

impl Sessions {
    /// Opens a session of so many connections, the first of which is there. Returns its secret; `None` if there is
    /// a session of that migration.
    pub fn open(&self, id: MigrationId, peer: &Peer, streams: u16) -> Option<Secret> {
        let secret = Secret::new(random::<SECRET_BYTES>().to_vec());
        let session =
            Session { secret: secret.clone(), peer: peer.clone(), awaited: (1..streams).collect() };
        let mut sessions = self.lock();
        if sessions.contains_key(&id) {
            return None;
        }
        sessions.insert(id, session);
        Some(secret)
    }

    /// Returns the migration that a connection may join. Each stream joins once, and only as the peer that has opened
    /// the session.
    pub fn join(&self, join: &Join, peer: &Peer) -> Option<MigrationId> {
        let mut sessions = self.lock();
        // All are looked at, so that the time says nothing.
        let found: Vec<_> = sessions
            .iter()
            .filter(|(_, it)| it.secret.is(&join.secret))
            .map(|(id, _)| *id)
            .collect();
        let id = *found.first()?;
        let session = sessions.get_mut(&id).filter(|it| it.peer == *peer)?;
        let at = session.awaited.iter().position(|stream| *stream == join.stream)?;
        session.awaited.swap_remove(at);
        Some(id)
    }

    /// Ends a session.
    pub fn close(&self, id: MigrationId) {
        self.lock().remove(&id);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<MigrationId, Session>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Bound of the connections that have not said yet what they want.
#[derive(Clone, Debug)]
pub struct Door {
    inside: Arc<AtomicUsize>,
    most: usize,
}

/// Place of one connection. Dropping it makes room.
#[derive(Debug)]
pub struct DoorPlace(Arc<AtomicUsize>);

impl Door {
    /// Makes a door that so many can stand in.
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self { inside: Arc::default(), most }
    }

    /// Returns a place; `None` if all are taken: the connection is to be closed.
    #[must_use]
    pub fn enter(&self) -> Option<DoorPlace> {
        // A count; it orders nothing.
        let entered = self.inside.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |inside| {
            (inside < self.most).then_some(inside + 1)
        });
        entered.ok().map(|_| DoorPlace(Arc::clone(&self.inside)))
    }
}

impl Drop for DoorPlace {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_joins_once_with_the_secret_and_as_the_same_peer() {
        let (sessions, id) = (Sessions::default(), MigrationId([1; 16]));
        let peer = Peer::Named("one".into());
        let secret = sessions.open(id, &peer, 3).unwrap();
        assert!(sessions.open(id, &peer, 3).is_none());
        let join = |stream, secret: &Secret| Join { secret: secret.clone(), stream };
        assert_eq!(sessions.join(&join(1, &Secret::new(vec![0; 32])), &peer), None);
        assert_eq!(sessions.join(&join(1, &secret), &Peer::Local), None);
        assert_eq!(sessions.join(&join(3, &secret), &peer), None);
        assert_eq!(sessions.join(&join(1, &secret), &peer), Some(id));
        assert_eq!(sessions.join(&join(1, &secret), &peer), None);
        sessions.close(id);
        assert_eq!(sessions.join(&join(2, &secret), &peer), None);
    }

    #[test]
    fn a_full_door_is_closed() {
        let door = Door::new(2);
        let places = [door.enter(), door.enter()];
        assert!(places.iter().all(Option::is_some) && door.enter().is_none());
        drop(places);
        assert!(door.enter().is_some());
    }
}
