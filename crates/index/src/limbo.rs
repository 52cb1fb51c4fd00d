//! Where deleted ids gather before they are handed over to the epochs, many at a time.
//!
//! Handing over costs exchanges on words that threads share: who reclaims, some epochs later, need not
//! be who deleted. Paid for each id, that is half of what a deletion costs, and what two threads gain
//! least from. An id that gathers here is out of the tree and waits for its readers in any case; a
//! later hand-over only makes it wait longer.
//!
//! Nobody waits for a lock: who finds another thread of its shard here hands its own ids over at once.

use std::sync::TryLockError;

use crossbeam_utils::CachePadded;

use crate::epoch::SHARDS;
use crate::primitive::Mutex;
use crate::trie::Removed;

/// Most deletions that are handed over together: few enough that what they took out is in a cache yet
/// when it comes back.
const BATCH_MAX: u32 = 512;

/// At most a 64th of an index gathers, on all shards together.
const CAPACITY_PER_BATCH: u32 = 64 * SHARDS as u32;

pub(crate) struct Limbo {
    shards: Box<[CachePadded<Mutex<Vec<Removed>>>]>,
    batch: usize,
}

impl Limbo {
    /// For an index of at most `capacity` keys.
    pub(crate) fn new(capacity: u32) -> Self {
        let shards = (0..SHARDS).map(|_| CachePadded::new(Mutex::new(Vec::new()))).collect();
        let batch = (capacity / CAPACITY_PER_BATCH).clamp(1, BATCH_MAX) as usize;
        Self { shards, batch }
    }

    /// Adds what was removed, and returns what is to be handed over now: all that has gathered if that
    /// is a batch, or what was just removed if another thread is here.
    pub(crate) fn gather(&self, shard: usize, removed: &[Removed]) -> Vec<Removed> {
        let Ok(mut gathered) = self.shards[shard].try_lock() else { return removed.to_vec() };
        gathered.extend_from_slice(removed);
        if gathered.len() < self.batch {
            return Vec::new();
        }
        let next = Vec::with_capacity(gathered.capacity());
        std::mem::replace(&mut *gathered, next)
    }

    /// All that has gathered on all shards, but for those that another thread is at.
    pub(crate) fn take_all(&self) -> Vec<Removed> {
        let mut all = Vec::new();
        for shard in &self.shards {
            match shard.try_lock() {
                Ok(mut gathered) => all.append(&mut gathered),
                // What a panic left is whole: ids are added one by one.
                Err(TryLockError::Poisoned(gathered)) => all.append(&mut gathered.into_inner()),
                Err(TryLockError::WouldBlock) => {}
            }
        }
        all
    }

    /// Bytes allocated, but for what gathers: at most a few KiB a shard that is deleted on.
    pub(crate) fn allocated_bytes(&self) -> u64 {
        size_of_val(&*self.shards) as u64
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn removed(leaves: std::ops::Range<u32>) -> Vec<Removed> {
        leaves.map(|leaf| Removed { leaf, node: None }).collect()
    }

    #[test]
    fn what_was_removed_comes_out_once_in_batches_or_when_all_is_taken() {
        let limbo = Limbo::new(4 * CAPACITY_PER_BATCH);
        assert_eq!(limbo.gather(0, &removed(0..3)), []);
        assert_eq!(limbo.gather(1, &removed(3..4)), []);
        assert_eq!(limbo.gather(0, &removed(4..6)), [removed(0..3), removed(4..6)].concat());
        assert_eq!(limbo.gather(0, &removed(6..7)), []);
        assert_eq!(limbo.take_all(), [removed(6..7), removed(3..4)].concat());
        assert_eq!(limbo.take_all(), []);
    }

    #[test]
    fn who_finds_another_there_keeps_its_own() {
        let limbo = Limbo::new(u32::MAX);
        let held = limbo.shards[0].lock().unwrap();
        assert_eq!(limbo.gather(0, &removed(0..2)), removed(0..2));
        assert_eq!(limbo.take_all(), []);
        drop(held);
        assert_eq!(limbo.gather(0, &removed(2..3)), []);
    }

    #[test]
    fn a_small_index_gathers_nothing() {
        assert_eq!(Limbo::new(CAPACITY_PER_BATCH).gather(0, &removed(0..1)), removed(0..1));
    }
}
