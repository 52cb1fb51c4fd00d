//! The index as its users see it.

use bindery_units::ByteCount;
use crossbeam_utils::CachePadded;

use crate::epoch::{Guard, SHARDS};
use crate::key::{Keys, Searched};
use crate::limbo::Limbo;
use crate::link::ID_LIMIT;
use crate::pool::Pool;
use crate::primitive::{AtomicU64, Ordering};
use crate::slots::Leaf;
use crate::trie::{self, Removed, Trie, Upserted};

/// Most keys that an index holds: 2 TiB of unique pages. Half of all ids, because there may for a
/// moment be more nodes than keys (some wait to be reused), and a quarter of node ids is no node.
const CAPACITY_MAX: u32 = ID_LIMIT / 2;

/// A set of keys, each with a value of 64 bits, shared by any number of threads.
pub struct Index<K: Keys> {
    pub(crate) trie: Trie<K>,
    /// Inserts less deletes, per shard, modulo 2^64: the sum is what counts.
    lengths: Box<[CachePadded<AtomicU64>]>,
}

/// Names a key in the index until it is deleted.
///
/// Then the number is used again, but not before every guard of the moment of deletion is gone. A
/// handle kept beyond that names some other key: whoever keeps handles deletes each once and forgets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(transparent)]
pub struct Handle(u32);

impl Handle {
    /// The handle as a number below 2^30, to be stored.
    #[must_use]
    pub fn to_bits(self) -> u32 {
        self.0
    }

    /// The handle that [`Self::to_bits`] came from.
    #[must_use]
    pub fn from_bits(bits: u32) -> Self {
        Self(bits)
    }
}

/// What an insert came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inserted {
    /// The key is in the index now, under this handle.
    New(Handle),
    /// The key was in the index: its handle and its value.
    Found(Handle, u64),
}

/// The index holds as many keys as it was made for, but for what was deleted lately and waits to be
/// reused ([`Index::flush`]), or there is no memory for more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the index is full: it holds {keys} keys of at most {capacity} and found no memory for \
     another; delete some, or make it larger"
)]
pub struct Full {
    /// Keys it holds.
    pub keys: u64,
    /// Keys it was made for.
    pub capacity: u32,
}

impl<K: Keys> Index<K> {
    /// An empty index with 2^`root_bits` roots and room for 2^29 keys, as far as memory goes.
    ///
    /// [`Self::root_bits_for`] says how many roots suit how many keys.
    ///
    /// # Panics
    /// If `root_bits` is above 28, or there is no memory for so many roots.
    #[must_use]
    pub fn new(root_bits: u32, keys: K) -> Self {
        Self::with_capacity(root_bits, CAPACITY_MAX, keys)
    }

    /// An empty index for at most `capacity` keys. Memory is taken as keys come, but for the roots
    /// and for 16 bytes per 16 Ki of `capacity`.
    ///
    /// # Panics
    /// If `root_bits` is above 28, `capacity` above 2^29, or there is no memory for so many roots.
    /// Start with few: [`Self::reshape`] reports that as an error.
    #[must_use]
    pub fn with_capacity(root_bits: u32, capacity: u32, keys: K) -> Self {
        assert!(capacity <= CAPACITY_MAX, "an index holds at most {CAPACITY_MAX} keys");
        let trie = Trie {
            keys,
            root_bits,
            roots: trie::empty_roots(root_bits).expect("there is memory for the roots"),
            nodes: Pool::new(trie::node_limit(capacity)),
            leaves: Pool::new(capacity),
            limbo: Limbo::new(capacity),
        };
        let lengths = (0..SHARDS).map(|_| CachePadded::new(AtomicU64::new(0))).collect();
        Self { trie, lengths }
    }

    /// Inserts `key` with `value`, unless it is there.
    ///
    /// # Errors
    /// [`Full`], and the index is as it was.
    #[inline]
    pub fn insert(&self, key: &K::Key, value: u64, guard: &Guard) -> Result<Inserted, Full> {
        self.insert_searched(&self.searched(key), value, guard)
    }

    /// The handle and the value of `key`. Never waits and never writes.
    #[inline]
    pub fn query(&self, key: &K::Key, _guard: &Guard) -> Option<(Handle, u64)> {
        self.query_searched(&self.searched(key))
    }

    /// Deletes the key that `handle` names, without searching by content. True for the one caller
    /// that deleted it, false if it was not there any more.
    ///
    /// [`Keys`] must still know the key when this is called, unless its keys are heads alone.
    pub fn delete(&self, handle: Handle, guard: &Guard) -> bool {
        let Some(removed) = self.remove(handle, guard) else { return false };
        self.retire(&[removed], guard);
        true
    }

    /// Hands over for reuse now what was deleted, instead of when more has gathered (at most a 64th of
    /// the capacity), and reuses what is ripe. It ripens when every guard of now is gone, this one too.
    pub fn flush(&self, guard: &Guard) {
        self.trie.retire_gathered(guard);
        guard.flush();
    }

    /// Takes the key out that `handle` names; the caller retires it.
    #[inline]
    pub(crate) fn remove(&self, handle: Handle, guard: &Guard) -> Option<Removed> {
        self.trie.leaves.row_checked(handle.0)?;
        self.trie.remove(handle.0, guard)
    }

    pub(crate) fn retire(&self, removed: &[Removed], guard: &Guard) {
        self.trie.retire(removed, guard);
        // Relaxed: only ever summed.
        self.lengths[guard.shard()].fetch_sub(removed.len() as u64, Ordering::Relaxed);
    }

    /// The value of the key that `handle` names.
    ///
    /// # Panics
    /// If no insert ever gave this handle.
    #[must_use]
    pub fn value(&self, handle: Handle) -> u64 {
        // Acquire: pairs with the Release of `exchange_value`.
        self.value_word(handle).load(Ordering::Acquire)
    }

    /// The first 64 bits of the key that `handle` names: what [`Keys::head`] gave for it.
    ///
    /// # Panics
    /// If no insert ever gave this handle.
    #[must_use]
    pub fn head(&self, handle: Handle) -> u64 {
        // Relaxed: whoever has the handle has it from whoever wrote this.
        self.leaf(handle).head.load(Ordering::Relaxed)
    }

    /// Gives the key that `handle` names the value `new` if it has the value `current`. The new
    /// value must name the same key.
    ///
    /// # Errors
    /// The value that it has, if that is not `current`.
    ///
    /// # Panics
    /// If no insert ever gave this handle.
    pub fn exchange_value(&self, handle: Handle, current: u64, new: u64) -> Result<(), u64> {
        // Release: publishes whatever the caller prepared for `new` to the Acquire of `value`, of
        // queries and of searches that ask for tails.
        self.value_word(handle)
            .compare_exchange(current, new, Ordering::AcqRel, Ordering::Acquire)
            .map(drop)
    }

    /// How many keys there are. Exact when no other thread is at work.
    #[must_use]
    pub fn len(&self) -> u64 {
        // Relaxed: threads at work make any order as good as another.
        let lengths = self.lengths.iter().map(|length| length.load(Ordering::Relaxed));
        // A key may be counted on one shard and discounted on another; for a moment the discount
        // may be seen alone.
        u64::try_from(lengths.fold(0, u64::wrapping_add).cast_signed()).unwrap_or(0)
    }

    /// Whether there is no key.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Roots are 2 to the power of this.
    #[must_use]
    pub fn root_bits(&self) -> u32 {
        self.trie.root_bits
    }

    /// What searches ask for the bits of keys.
    #[must_use]
    pub fn keys(&self) -> &K {
        &self.trie.keys
    }

    /// Memory taken from the allocator: roots, nodes and leaves, those free for reuse included, but not
    /// the lists of those that wait for their readers: up to 8 bytes for each key deleted since the
    /// oldest guard, and some KiB a thread that deletes. Waits for threads that link a batch.
    #[must_use]
    pub fn memory(&self) -> ByteCount {
        let Trie { roots, nodes, leaves, limbo, .. } = &self.trie;
        let lengths = size_of_val(&*self.lengths) + size_of_val(&**roots);
        let pools = nodes.allocated_bytes() + leaves.allocated_bytes();
        ByteCount(lengths as u64 + pools + limbo.allocated_bytes())
    }

    #[inline]
    fn searched<'a>(&'a self, key: &'a K::Key) -> Searched<'a, K> {
        Searched { keys: &self.trie.keys, key, head: self.trie.keys.head(key) }
    }

    #[inline]
    pub(crate) fn query_searched(&self, key: &Searched<'_, K>) -> Option<(Handle, u64)> {
        let handle = Handle(self.trie.find(key)?);
        Some((handle, self.value(handle)))
    }

    #[inline]
    pub(crate) fn insert_searched(
        &self,
        key: &Searched<'_, K>,
        value: u64,
        guard: &Guard,
    ) -> Result<Inserted, Full> {
        let upserted = self.trie.upsert(key, value, guard).or_else(|trie::Exhausted| {
            // Perhaps ids only wait to be reused.
            self.flush(guard);
            self.trie.upsert(key, value, guard)
        });
        match upserted {
            Ok(Upserted::New(leaf)) => {
                // Relaxed: only ever summed.
                self.lengths[guard.shard()].fetch_add(1, Ordering::Relaxed);
                Ok(Inserted::New(Handle(leaf)))
            }
            Ok(Upserted::Found(leaf)) => {
                let handle = Handle(leaf);
                Ok(Inserted::Found(handle, self.value(handle)))
            }
            Err(trie::Exhausted) => {
                Err(Full { keys: self.len(), capacity: self.trie.leaves.capacity() })
            }
        }
    }

    #[inline]
    fn value_word(&self, handle: Handle) -> &AtomicU64 {
        &self.leaf(handle).value
    }

    fn leaf(&self, handle: Handle) -> &Leaf {
        let leaf = self.trie.leaves.row_checked(handle.0);
        leaf.expect("a handle comes from an insert into this index")
    }
}
