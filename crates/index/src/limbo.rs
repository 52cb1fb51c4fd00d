//! Where deleted ids gather before they are handed over to the epochs, many at a time.
//!
//! Handing over costs exchanges on words that threads share: who reclaims, some epochs later, need not
//! be who deleted. Paid for each id, that is a third of what a deletion costs, and what two threads
//! gain least from. An id that gathers here is out of the tree and waits for its readers in any case;
//! a later hand-over only makes it wait longer.
//!
//! Nobody waits for a lock: who finds another thread of its shard here hands its own ids over at once.

use crossbeam_utils::CachePadded;

use crate::epoch::SHARDS;
use crate::primitive::Mutex;
use crate::trie::Removed;

/// Deletions that are handed over together. Fewer would not pay for what comes with each hand-over;
/// of more, what they took out would have left the cache by when it comes back.
#[cfg(not(loom))]
const BATCHES: std::ops::RangeInclusive<u32> = 64..=512;
#[cfg(loom)]
const BATCHES: std::ops::RangeInclusive<u32> = 2..=2;

/// At most a 64th of an index gathers, on all shards together.
const CAPACITY_PER_BATCH: u32 = 64 * SHARDS as u32;

pub(crate) struct Limbo {
    shards: Box<[CachePadded<Mutex<Vec<Removed>>>]>,
    /// How many gather; `None` in an index that is too small for that.
    batch: Option<usize>,
}

impl Limbo {
    /// For an index of at most `capacity` keys.
    pub(crate) fn new(capacity: u32) -> Self {
        let shards = (0..SHARDS).map(|_| CachePadded::new(Mutex::new(Vec::new()))).collect();
        let batch = (capacity / CAPACITY_PER_BATCH).min(*BATCHES.end());
        Self { shards, batch: (batch >= *BATCHES.start()).then_some(batch as usize) }
    }

    /// Adds what was removed, and returns what is to be handed over now: all that has gathered if that
    /// is a batch, or what was just removed if another thread is here or nothing gathers.
    pub(crate) fn gather(&self, shard: usize, removed: &[Removed]) -> Vec<Removed> {
        let Some(batch) = self.batch else { return removed.to_vec() };
        let Ok(mut gathered) = self.shards[shard].try_lock() else { return removed.to_vec() };
        gathered.extend_from_slice(removed);
        if gathered.len() < batch { Vec::new() } else { std::mem::take(&mut *gathered) }
    }

    /// Whether as many make a batch.
    pub(crate) fn is_batch(&self, removed: usize) -> bool {
        self.batch.is_some_and(|batch| removed >= batch)
    }

    /// All that has gathered on all shards, but for those that another thread is at.
    pub(crate) fn take_all(&self) -> Vec<Removed> {
        let shards = self.shards.iter().filter_map(|shard| shard.try_lock().ok());
        shards.flat_map(|mut gathered| std::mem::take(&mut *gathered)).collect()
    }

    /// Leaves have gathered without the nodes that were taken out with them: their pool is no more.
    pub(crate) fn forget_nodes(&mut self) {
        for shard in &mut self.shards {
            let gathered = shard.get_mut().expect("no code that panics runs under the lock");
            gathered.iter_mut().for_each(|removed| removed.node = None);
        }
    }

    /// Bytes allocated, but for what gathers: at most 12 KiB a shard that is deleted on.
    pub(crate) fn allocated_bytes(&self) -> u64 {
        size_of_val(&*self.shards) as u64
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// The smallest capacity of which deletions gather, and the fewest that do.
    const BATCH: u32 = *BATCHES.start();
    const CAPACITY: u32 = BATCH * CAPACITY_PER_BATCH;

    fn removed(leaves: std::ops::Range<u32>) -> Vec<Removed> {
        leaves.map(|leaf| Removed { leaf, node: Some(leaf) }).collect()
    }

    #[test]
    fn what_was_removed_comes_out_once_in_batches_or_when_all_is_taken() {
        let limbo = Limbo::new(CAPACITY);
        let (some, rest) = (removed(0..3), removed(4..BATCH + 1));
        assert_eq!(limbo.gather(0, &some), []);
        assert_eq!(limbo.gather(1, &removed(3..4)), []);
        assert_eq!(limbo.gather(0, &rest), [some, rest].concat());
        assert_eq!(limbo.gather(0, &removed(600..601)), []);
        assert_eq!(limbo.take_all(), [removed(600..601), removed(3..4)].concat());
        assert_eq!(limbo.take_all(), []);
    }

    #[test]
    fn who_finds_another_there_hands_its_own_over() {
        let limbo = Limbo::new(u32::MAX);
        let held = limbo.shards[0].lock().unwrap();
        assert_eq!(limbo.gather(0, &removed(0..2)), removed(0..2));
        assert_eq!(limbo.take_all(), []);
        drop(held);
        assert_eq!(limbo.gather(0, &removed(2..3)), []);
    }

    #[test]
    fn in_a_small_index_nothing_gathers() {
        assert_eq!(Limbo::new(CAPACITY - 1).gather(0, &removed(0..1)), removed(0..1));
    }

    #[test]
    fn leaves_stay_when_nodes_are_forgotten() {
        let mut limbo = Limbo::new(CAPACITY);
        assert_eq!(limbo.gather(5, &removed(7..8)), []);
        limbo.forget_nodes();
        assert_eq!(limbo.take_all(), [Removed { leaf: 7, node: None }]);
    }
}
