//! Ids given out and taken back: what leaves and nodes are allocated from.
//!
//! Every thread works on one of a few shards. A shard has a free list (a Treiber stack linked
//! through the free slots themselves, so that it costs nothing), a block of ids that nobody has
//! used yet, and batches that are [ripe](Ripe), which go to the free list one at a time: when it and
//! the block are empty, or as more is deleted on the shard. Blocks are cut off the arena, one after
//! another. Only when all are empty and the arena is used up does a thread look into other shards;
//! only when those are empty too is the pool full.
//!
//! Ids come back in two ways: at once if nobody else can have seen them
//! ([`give_back`](Pool::give_back)), or through the [`shard`](Pool::shard) when every guard of now
//! is gone. Garbage that waits holds its shard, and with it the arena, alive: it may outlive the
//! index. Shards are counted one by one because threads would meet on a common count.
//!
//! The stack's head carries a tag that counts changes, against the ABA problem of a pop that was
//! overtaken by a pop, a pop and a push.

use std::sync::Arc;

use crossbeam_utils::CachePadded;

use crate::arena::Arena;
use crate::block::Zeroable;
use crate::epoch::SHARDS;
use crate::primitive::{AtomicU64, Ordering};
use crate::ripe::Ripe;

/// Ids that a shard takes from the arena at a time. 64 leaves are a kibibyte.
#[cfg(not(any(loom, miri)))]
const BLOCK: u32 = 64;
#[cfg(any(loom, miri))]
const BLOCK: u32 = 2;

/// The fewest ids that are worth a list: fewer are linked at once.
#[cfg(not(any(loom, miri)))]
const BATCH_MIN: usize = 64;
#[cfg(any(loom, miri))]
const BATCH_MIN: usize = 2;

/// Ripe batches that are linked for each one that is handed over: so they get fewer.
const LINKED_AT_ONCE: usize = 2;

/// Rows that hold slots, each slot with a number and with a word that is unused while it is free.
pub(crate) trait Slots: Zeroable + 'static {
    /// Slots of a row.
    const PER_ROW: u32;
    /// Bits of an id that number the slot within its row.
    const SLOT_BITS: u32;

    /// The word of a free slot that may hold the link to the next free one.
    fn free_link(&self, slot: u32) -> &AtomicU64;
}

/// The row of `id`, and the slot in it.
#[inline]
pub(crate) fn place_of<S: Slots>(id: u32) -> (u32, u32) {
    (id >> S::SLOT_BITS, id & ((1 << S::SLOT_BITS) - 1))
}

/// The `ordinal`-th id: ids leave out the slot numbers that a row does not have.
fn id_of<S: Slots>(ordinal: u32) -> u32 {
    ((ordinal / S::PER_ROW) << S::SLOT_BITS) | (ordinal % S::PER_ROW)
}

/// One thread's part of a pool, or several threads'.
pub(crate) struct Shard<S: Slots> {
    /// tag:32 | id + 1:32, 0 for the empty list.
    free: AtomicU64,
    /// end:32 | next:32, ordinals that have never been used.
    fresh: AtomicU64,
    ripe: Ripe,
    arena: Arc<Arena<S>>,
}

pub(crate) struct Pool<S: Slots> {
    arena: Arc<Arena<S>>,
    shards: Box<[Arc<CachePadded<Shard<S>>>]>,
    /// The first ordinal that no shard has taken.
    uncut: CachePadded<AtomicU64>,
    /// Ordinals that may be used.
    limit: u64,
}

impl<S: Slots> Pool<S> {
    /// A pool of at most `limit` ids, not counting the first of all, which is never given out.
    pub(crate) fn new(limit: u32) -> Self {
        let ordinals = limit.checked_add(1).expect("ids are 30 bits");
        let arena = Arc::new(Arena::new(ordinals.div_ceil(S::PER_ROW)));
        let shard = || Shard {
            free: AtomicU64::new(0),
            fresh: AtomicU64::new(0),
            ripe: Ripe::default(),
            arena: Arc::clone(&arena),
        };
        let shards = (0..SHARDS).map(|_| Arc::new(CachePadded::new(shard()))).collect();
        let uncut = CachePadded::new(AtomicU64::new(1));
        Self { arena, shards, uncut, limit: u64::from(ordinals) }
    }

    #[inline]
    pub(crate) fn row(&self, row: u32) -> &S {
        self.arena.get(row)
    }

    pub(crate) fn row_checked(&self, row: u32) -> Option<&S> {
        self.arena.get_checked(row)
    }

    /// An id that nobody else has, or `None` if all are in use or no memory is left.
    pub(crate) fn allocate(&self, shard: usize) -> Option<u32> {
        let own = &self.shards[shard];
        let all = || self.shards.iter().cycle().skip(shard + 1).take(SHARDS);
        own.allocate()
            .or_else(|| self.cut_block(own))
            .or_else(|| all().find_map(|other| other.pop().or_else(|| other.take_fresh())))
            .or_else(|| all().find_map(|other| other.give_to(own)))
    }

    /// Takes back an id that was never published.
    pub(crate) fn give_back(&self, shard: usize, id: u32) {
        self.shards[shard].take_back(id);
    }

    /// The shard, for a [`Shard::take_back_batch`] that has to wait until nobody can be looking at the
    /// id any more. That may be after the pool is gone.
    pub(crate) fn shard(&self, shard: usize) -> &Arc<CachePadded<Shard<S>>> {
        &self.shards[shard]
    }

    /// Ids that may be in use at once.
    pub(crate) fn capacity(&self) -> u32 {
        self.limit as u32 - 1
    }

    /// Ids that have been given out at least once or lie in a free list.
    pub(crate) fn used(&self) -> usize {
        // Relaxed, here and below: for those who have the pool to themselves.
        let cut = self.uncut.load(Ordering::Relaxed) - 1;
        let fresh = self.shards.iter().map(|shard| {
            let block = shard.fresh.load(Ordering::Relaxed);
            (block >> 32) - u64::from(block as u32)
        });
        (cut - fresh.sum::<u64>()) as usize
    }

    /// Visits the ids that are ripe or in the free lists; for those who have the pool to themselves.
    pub(crate) fn for_each_free(&self, mut visit: impl FnMut(u32)) {
        for shard in &self.shards {
            shard.ripe.ids().into_iter().for_each(&mut visit);
            // Acquire: pairs with the Release of `push`.
            let mut head = shard.free.load(Ordering::Acquire) as u32;
            while let Some(id) = head.checked_sub(1) {
                visit(id);
                head = shard.link(id).load(Ordering::Relaxed) as u32;
            }
        }
    }

    pub(crate) fn allocated_bytes(&self) -> u64 {
        let shards = SHARDS * size_of::<CachePadded<Shard<S>>>();
        let ripe: u64 = self.shards.iter().map(|shard| shard.ripe.allocated_bytes()).sum();
        self.arena.allocated_bytes() + shards as u64 + ripe
    }

    /// Cuts a block off the arena for `shard`, and allocates from it.
    #[cold]
    fn cut_block(&self, shard: &Shard<S>) -> Option<u32> {
        // Relaxed: ordinals are numbers; what lies in their rows is published by `ensure`.
        let mut start = self.uncut.load(Ordering::Relaxed);
        let end = loop {
            let end = (start + u64::from(BLOCK)).min(self.limit);
            // Before the cut, so that a block that finds no memory stays where it is. Its ends are enough.
            const { assert!(BLOCK.div_ceil(S::PER_ROW) <= Arena::<S>::CHUNK_ROWS) };
            let rows = [start, end - 1].map(|ordinal| ordinal as u32 / S::PER_ROW);
            if start == end || !rows.iter().all(|row| self.arena.ensure(*row)) {
                return None;
            }
            match self.uncut.compare_exchange(start, end, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => break end,
                Err(current) => start = current,
            }
        };
        shard.stock(start as u32 + 1, end as u32);
        // A row that two cuts share is the first one's.
        let [first, after] = [start, end].map(|ordinal| (ordinal as u32).div_ceil(S::PER_ROW));
        self.arena.ensure_ahead(first..after);
        Some(id_of::<S>(start as u32))
    }
}

impl<S: Slots> Shard<S> {
    fn allocate(&self) -> Option<u32> {
        let ripe = || self.ripe.link_latest(|batch| self.link_but_one(batch));
        self.pop().or_else(|| self.take_fresh()).or_else(ripe)
    }

    /// An id for `other`, which also gets the rest of the batch that it comes from. Waits for another
    /// thread that links a batch: where nothing else is left, that is not to look like nothing.
    #[cold]
    fn give_to(&self, other: &Self) -> Option<u32> {
        let mut batches = self.ripe.lock();
        batches.link_latest(|batch| other.link_but_one(batch)).or_else(|| self.pop())
    }

    /// Makes all of a batch free, but for the one that is returned.
    fn link_but_one(&self, batch: &[u32]) -> u32 {
        let (one, others) = batch.split_first().expect("no batch is empty");
        self.take_back_many(others);
        *one
    }

    /// Makes ripe batches free. Whoever deletes on the shard has their slots in its cache. Not all of
    /// them, for there may be many.
    pub(crate) fn link_ripe(&self) {
        for _ in 0..LINKED_AT_ONCE {
            self.ripe.link_latest(|batch| self.take_back_many(batch));
        }
    }

    /// Room for a batch.
    pub(crate) fn room(&self) -> Vec<u32> {
        self.ripe.room()
    }

    fn pop(&self) -> Option<u32> {
        // Acquire, here and on failure: pairs with the Release of `push`, so that the link read
        // below is the pushed one, and so that the slot's past is over before it is written anew.
        let mut head = self.free.load(Ordering::Acquire);
        loop {
            let id = (head as u32).checked_sub(1)?;
            // Relaxed: read after the Acquire above. If another thread has popped the slot
            // meanwhile this is nonsense, and the tag makes the exchange fail.
            let next = self.link(id).load(Ordering::Relaxed);
            let popped = retag(head, next as u32);
            match self.free.compare_exchange_weak(head, popped, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => return Some(id),
                Err(current) => head = current,
            }
        }
    }

    /// Makes the id free. Only when nobody can be looking at it any more.
    pub(crate) fn take_back(&self, id: u32) {
        self.push(id, id);
    }

    /// Makes all of a batch free, or ripe, which touches none of its slots, if they are many.
    pub(crate) fn take_back_batch(&self, batch: Vec<u32>) {
        let left = if batch.len() < BATCH_MIN { Err(batch) } else { self.ripe.put(batch) };
        if let Err(batch) = left {
            self.take_back_many(&batch);
        }
    }

    /// Makes all `ids` free, with one exchange.
    fn take_back_many(&self, ids: &[u32]) {
        let [bottom, others @ ..] = ids else { return };
        let top = others.iter().fold(*bottom, |below, id| {
            // Relaxed: published by the exchange that puts all of them on the list.
            self.link(*id).store(u64::from(below + 1), Ordering::Relaxed);
            *id
        });
        self.push(*bottom, top);
    }

    /// Puts slots that are linked from `top` down to `bottom` on the free list.
    fn push(&self, bottom: u32, top: u32) {
        // Relaxed: the exchange below reads it again if it was old.
        let mut head = self.free.load(Ordering::Relaxed);
        loop {
            self.link(bottom).store(u64::from(head as u32), Ordering::Relaxed);
            // Release: publishes the links and ends the slots' past; pairs with Acquire in `pop`.
            match self.free.compare_exchange_weak(
                head,
                retag(head, top + 1),
                Ordering::Release,
                Ordering::Relaxed,
            ) {
                Ok(_) => return,
                Err(current) => head = current,
            }
        }
    }

    fn take_fresh(&self) -> Option<u32> {
        // Acquire: pairs with the Release of `stock`, after which the rows exist.
        let mut block = self.fresh.load(Ordering::Acquire);
        loop {
            let (next, end) = (block as u32, (block >> 32) as u32);
            if next == end {
                return None;
            }
            match self.fresh.compare_exchange_weak(
                block,
                block + 1,
                Ordering::Acquire,
                Ordering::Acquire,
            ) {
                Ok(_) => return Some(id_of::<S>(next)),
                Err(current) => block = current,
            }
        }
    }

    /// Gives the shard the ordinals `next..end`, whose rows exist.
    fn stock(&self, next: u32, end: u32) {
        let block = u64::from(end) << 32 | u64::from(next);
        let empty = self.fresh.load(Ordering::Relaxed);
        // Release: the rows were ensured before; pairs with Acquire in `take_fresh`. Blocks of one
        // pool are all different, so an empty one that came back cannot be mistaken for this one.
        let stocked = empty as u32 == (empty >> 32) as u32
            && self
                .fresh
                .compare_exchange(empty, block, Ordering::Release, Ordering::Relaxed)
                .is_ok();
        if !stocked {
            // Another thread of this shard was faster: what it did not need goes to the free list.
            (next..end).for_each(|ordinal| self.take_back(id_of::<S>(ordinal)));
        }
    }

    fn link(&self, id: u32) -> &AtomicU64 {
        let (row, slot) = place_of::<S>(id);
        self.arena.get(row).free_link(slot)
    }
}

/// The stack's head `id_plus_one`, with the tag after that of `head`.
fn retag(head: u64, id_plus_one: u32) -> u64 {
    ((head >> 32) + 1) << 32 | u64::from(id_plus_one)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::HashSet;

    use super::*;

    struct Pair([AtomicU64; 2]);

    // SAFETY: zeroes are valid atomics, which have no drop glue.
    unsafe impl Zeroable for Pair {}

    impl Slots for Pair {
        const PER_ROW: u32 = 2;
        const SLOT_BITS: u32 = 2;

        fn free_link(&self, slot: u32) -> &AtomicU64 {
            &self.0[slot as usize]
        }
    }

    #[test]
    fn every_id_is_given_out_once_and_never_the_first() {
        let pool = Pool::<Pair>::new(1000);
        let ids: HashSet<u32> = std::iter::from_fn(|| pool.allocate(0)).collect();
        assert_eq!(ids.len(), 1000);
        assert!(!ids.contains(&0));
        assert!(ids.iter().all(|id| place_of::<Pair>(*id).1 < 2));
    }

    #[test]
    fn what_one_shard_frees_another_finds_when_nothing_else_is_left() {
        let pool = Pool::<Pair>::new(10);
        let ids: Vec<u32> = std::iter::from_fn(|| pool.allocate(0)).collect();
        pool.give_back(3, ids[4]);
        pool.shard(5).take_back(ids[7]);
        let again: HashSet<u32> = std::iter::from_fn(|| pool.allocate(1)).collect();
        assert_eq!(again, HashSet::from([ids[4], ids[7]]));
    }

    /// All ids of a pool of `many`, out of shard 0.
    fn exhausted(many: u32) -> (Pool<Pair>, Vec<u32>) {
        let pool = Pool::new(many);
        let ids = std::iter::from_fn(|| pool.allocate(0)).collect();
        (pool, ids)
    }

    fn allocate_all(pool: &Pool<Pair>, shard: usize) -> Vec<u32> {
        let mut ids: Vec<u32> = std::iter::from_fn(|| pool.allocate(shard)).collect();
        ids.sort_unstable();
        ids
    }

    #[test]
    fn a_batch_that_came_back_is_given_out_again_on_its_shard_and_on_others() {
        let (pool, ids) = exhausted(3 * BATCH_MIN as u32);
        for allocating in [4, 5] {
            pool.shard(4).take_back_batch(ids.clone());
            assert_eq!(pool.shard(4).pop(), None, "it is not linked yet");
            let mut free = Vec::new();
            pool.for_each_free(|id| free.push(id));
            assert_eq!(free, ids);
            assert_eq!(allocate_all(&pool, allocating), ids);
        }
    }

    #[test]
    fn ripe_batches_are_linked_two_at_a_time_and_their_memory_is_room() {
        let (pool, ids) = exhausted(3 * BATCH_MIN as u32);
        let shard = pool.shard(2);
        for some in ids.chunks(BATCH_MIN) {
            let mut batch = Vec::with_capacity(5000);
            batch.extend_from_slice(some);
            shard.take_back_batch(batch);
        }
        shard.link_ripe();
        assert_eq!(shard.ripe.ids(), ids[..BATCH_MIN]);
        let capacities = [(); 3].map(|()| shard.room().capacity());
        assert_eq!(capacities, [5000, 5000, 0]);
        assert_eq!(allocate_all(&pool, 2), ids);
    }

    #[test]
    fn few_ids_and_those_that_find_another_there_or_enough_are_free_at_once() {
        let (pool, ids) = exhausted(99 * BATCH_MIN as u32);
        let (few, many) = ids.split_at(BATCH_MIN - 1);
        let shard = pool.shard(0);
        shard.take_back_batch(few.to_vec());
        assert_eq!(shard.ripe.ids(), [0_u32; 0]);
        let held = shard.ripe.lock();
        shard.take_back_batch(many[..BATCH_MIN].to_vec());
        drop(held);
        assert_eq!(shard.ripe.ids(), [0_u32; 0]);
        many[BATCH_MIN..].chunks(BATCH_MIN).for_each(|batch| shard.take_back_batch(batch.to_vec()));
        assert!((2..98).contains(&(shard.ripe.ids().len() / BATCH_MIN)));
        assert_eq!(allocate_all(&pool, 0), ids);
    }

    #[test]
    fn threads_never_share_an_id_nor_miss_one() {
        const IDS: u32 = 4 * BATCH_MIN as u32;
        let (pool, ids) = exhausted(IDS);
        pool.shard(0).take_back_batch(ids);
        let rounds = if cfg!(miri) { 50 } else { 20_000 };
        std::thread::scope(|scope| {
            for thread in 0..4_u64 {
                let pool = &pool;
                scope.spawn(move || {
                    for round in 0..rounds {
                        // All on one shard, to collide; now some, now as many as are worth a list.
                        let wanted = if round % 2 == 0 { BATCH_MIN } else { 2 };
                        let ids: Vec<u32> = (0..wanted)
                            .map(|_| pool.allocate(0).expect("there are as many for each thread"))
                            .collect();
                        let mark = (thread << 32 | round) + 1;
                        let word = |id| {
                            let (row, slot) = place_of::<Pair>(id);
                            pool.row(row).free_link(slot)
                        };
                        ids.iter().for_each(|id| word(*id).store(mark, Ordering::Relaxed));
                        std::hint::spin_loop();
                        ids.iter()
                            .for_each(|id| assert_eq!(word(*id).load(Ordering::Relaxed), mark));
                        if round % 3 == 0 {
                            pool.shard(0).link_ripe();
                        }
                        pool.shard(0).take_back_batch(ids);
                    }
                });
            }
        });
        assert_eq!(allocate_all(&pool, 0).len() as u32, IDS);
    }
}
