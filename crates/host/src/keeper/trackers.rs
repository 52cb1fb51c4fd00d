//! Guests whose changes are followed from one checkpoint to the next.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bindery_checkpoint::CheckpointId;
use bindery_transfer::{PlacedBlock, Tracker};

/// Time for which a guest is followed after its last checkpoint. Meanwhile its huge pages are split where they
/// are written, and the next checkpoint reads only what has changed.
const FOLLOWED: Duration = Duration::from_secs(15 * 60);

/// All guests that are followed, by number.
#[derive(Debug, Default)]
pub(crate) struct Trackers {
    guests: Mutex<BTreeMap<u32, Arc<Mutex<Followed>>>>,
}

/// One guest that is or was followed.
#[derive(Default)]
pub(crate) struct Followed {
    /// Pages that have changed since `last`; none if nobody follows the guest.
    pub(crate) tracker: Option<Tracker>,
    /// Last checkpoint of the guest that was finished.
    pub(crate) last: Option<LastCheckpoint>,
    /// Speed at which memory was read, in bytes a second.
    pub(crate) bytes_per_second: Option<u64>,
}

/// Checkpoint that the next one builds upon.
#[derive(Clone, Debug)]
pub(crate) struct LastCheckpoint {
    /// Id of its pool.
    pub(crate) pool: u128,
    pub(crate) id: CheckpointId,
    /// Time of its pause: tells it from one of that number in an older copy of the pool.
    pub(crate) time_ns: u64,
    /// Memory blocks of the guest then.
    pub(crate) blocks: Vec<PlacedBlock>,
    pub(crate) made: Instant,
}

impl Trackers {
    /// Returns the entry of a guest.
    pub(crate) fn of(&self, guest: u32) -> Arc<Mutex<Followed>> {
        let mut guests = self.guests.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(guests.entry(guest).or_default())
    }

    /// Forgets a guest that has left.
    pub(crate) fn leave(&self, guest: u32) {
        self.guests.lock().unwrap_or_else(PoisonError::into_inner).remove(&guest);
    }

    /// Stops following guests whose last checkpoint was long ago, and those of whom none was finished. One of whom a
    /// checkpoint is made keeps its entry, so that no other is made beside it.
    pub(crate) fn expire(&self) {
        let mut guests = self.guests.lock().unwrap_or_else(PoisonError::into_inner);
        guests.retain(|_, guest| {
            if Arc::strong_count(guest) > 1 {
                return true;
            }
            let followed = guest.lock().unwrap_or_else(PoisonError::into_inner);
            followed.last.as_ref().is_some_and(|last| last.made.elapsed() < FOLLOWED)
        });
    }
}

impl std::fmt::Debug for Followed {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = formatter.debug_struct("Followed");
        shown.field("is_followed", &self.tracker.is_some()).field("last", &self.last);
        shown.finish_non_exhaustive()
    }
}
