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
const BATCHES: std::ops::RangeInclusive<u32> = 64..=1024;
#[cfg(loom)]
const BATCHES: std::ops::RangeInclusive<u32> = 2..=2;

/// At most a 64th of an index gathers, on all shards together.
const CAPACITY_PER_BATCH: u32 = 64 * SHARDS as u32;

/// What deletions took out: leaves, and the parents that came out with them.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Gathered {
    pub(crate) leaves: Vec<u32>,
    pub(crate) nodes: Vec<u32>,
}

impl Gathered {
    fn add(&mut self, removed: &[Removed]) {
        self.leaves.extend(removed.iter().map(|removed| removed.leaf));
        self.nodes.extend(removed.iter().filter_map(|removed| removed.node));
    }

    fn of(removed: &[Removed]) -> Self {
        let mut gathered = Self::default();
        gathered.add(removed);
        gathered
    }
}

pub(crate) struct Limbo {
    shards: Box<[CachePadded<Mutex<Gathered>>]>,
    /// How many gather; `None` in an index that is too small for that.
    batch: Option<usize>,
}

impl Limbo {
    /// For an index of at most `capacity` keys.
    pub(crate) fn new(capacity: u32) -> Self {
        let shards = (0..SHARDS).map(|_| CachePadded::default()).collect();
        let batch = (capacity / CAPACITY_PER_BATCH).min(*BATCHES.end());
        Self { shards, batch: (batch >= *BATCHES.start()).then_some(batch as usize) }
    }

    /// Adds what was removed, and returns what is to be handed over now, if anything: all that has
    /// gathered if that is a batch, for which `room` gives room for the next one, or what was just
    /// removed if another thread is here or nothing gathers.
    pub(crate) fn gather(
        &self,
        shard: usize,
        removed: &[Removed],
        room: impl FnOnce() -> Gathered,
    ) -> Option<Gathered> {
        let (Some(batch), Ok(mut gathered)) = (self.batch, self.shards[shard].try_lock()) else {
            return Some(Gathered::of(removed));
        };
        gathered.add(removed);
        (gathered.leaves.len() >= batch).then(|| std::mem::replace(&mut *gathered, room()))
    }

    /// Whether as many leaves make a batch.
    pub(crate) fn is_batch(&self, leaves: usize) -> bool {
        self.batch.is_some_and(|batch| leaves >= batch)
    }

    /// All that has gathered on all shards, but for those that another thread is at.
    pub(crate) fn take_all(&self) -> impl Iterator<Item = Gathered> {
        let shards = self.shards.iter().filter_map(|shard| shard.try_lock().ok());
        shards.map(|mut gathered| std::mem::take(&mut *gathered))
    }

    /// Leaves have gathered without the nodes that were taken out with them: their pool is no more.
    pub(crate) fn forget_nodes(&mut self) {
        for shard in &mut self.shards {
            shard.get_mut().expect("no code that panics runs under the lock").nodes.clear();
        }
    }

    /// Bytes allocated, but for what gathers: some 8 KiB a shard that is deleted on.
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
        leaves.map(|leaf| Removed { leaf, node: (leaf % 2 == 0).then_some(leaf + 1000) }).collect()
    }

    /// What `limbo` hands over when these come to `shard`.
    fn gather(limbo: &Limbo, shard: usize, leaves: std::ops::Range<u32>) -> Option<Gathered> {
        limbo.gather(shard, &removed(leaves), Gathered::default)
    }

    fn all_of(leaves: std::ops::Range<u32>) -> Option<Gathered> {
        Some(Gathered::of(&removed(leaves)))
    }

    #[test]
    fn what_was_removed_comes_out_once_in_batches_or_when_all_is_taken() {
        let limbo = Limbo::new(CAPACITY);
        let taken = || -> Vec<u32> { limbo.take_all().flat_map(|all| all.leaves).collect() };
        assert_eq!(gather(&limbo, 0, 0..3), None);
        assert_eq!(gather(&limbo, 1, 900..901), None);
        assert_eq!(gather(&limbo, 0, 3..BATCH + 1), all_of(0..BATCH + 1));
        assert_eq!(gather(&limbo, 0, 600..601), None);
        assert_eq!(taken(), [600, 900]);
        assert!(taken().is_empty());
    }

    #[test]
    fn leaves_and_the_nodes_among_them_come_out_together() {
        let gathered = Gathered::of(&removed(4..7));
        assert_eq!((gathered.leaves, gathered.nodes), (vec![4, 5, 6], vec![1004, 1006]));
    }

    #[test]
    fn the_next_batch_gathers_in_the_room_that_is_given() {
        let limbo = Limbo::new(CAPACITY);
        let room = || Gathered { leaves: Vec::with_capacity(7000), nodes: Vec::new() };
        assert!(limbo.gather(0, &removed(0..BATCH), room).is_some());
        let next = limbo.take_all().next().unwrap();
        assert_eq!((next.leaves.len(), next.leaves.capacity()), (0, 7000));
    }

    #[test]
    fn who_finds_another_there_hands_its_own_over() {
        let limbo = Limbo::new(u32::MAX);
        let held = limbo.shards[0].lock().unwrap();
        assert_eq!(gather(&limbo, 0, 0..2), all_of(0..2));
        assert!(limbo.take_all().all(|gathered| gathered == Gathered::default()));
        drop(held);
        assert_eq!(gather(&limbo, 0, 2..3), None);
    }

    #[test]
    fn in_a_small_index_nothing_gathers() {
        assert_eq!(gather(&Limbo::new(CAPACITY - 1), 0, 0..1), all_of(0..1));
    }

    #[test]
    fn leaves_stay_when_nodes_are_forgotten() {
        let mut limbo = Limbo::new(CAPACITY);
        assert_eq!(gather(&limbo, 5, 6..8), None);
        limbo.forget_nodes();
        let left: Vec<_> = limbo.take_all().filter(|all| !all.leaves.is_empty()).collect();
        assert_eq!(left, [Gathered { leaves: vec![6, 7], nodes: Vec::new() }]);
    }
}
