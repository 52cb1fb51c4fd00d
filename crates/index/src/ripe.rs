//! Batches of ids that may be used again, as they were deleted.
//!
//! Whoever reclaims, some epochs after a deletion, need not be who deleted: the slots lie in another
//! core's cache, and the memory of the batch is the allocator's for another thread. So it leaves both
//! alone, and only hands the batch to the shard that it was handed over on. Who deletes or allocates
//! there links its slots, and uses its memory for another batch.
//!
//! Nobody who deletes or reclaims waits for the lock, and who allocates only where the pool would be
//! full otherwise.

use crate::primitive::{Mutex, MutexGuard};

/// Batches that may be ripe on a shard: more come back after a guard that was held for long, and then
/// who reclaims links their slots.
const RIPE_MAX: usize = 64;

/// Empty batches that are kept. So many wait for their readers, where nobody is pinned for long.
const SPARE_MAX: usize = 8;

/// What one shard has of them.
#[derive(Default)]
pub(crate) struct Ripe(Mutex<Batches>);

#[derive(Default)]
pub(crate) struct Batches {
    ripe: Vec<Vec<u32>>,
    spare: Vec<Vec<u32>>,
}

impl Ripe {
    /// Adds a batch, which is not empty.
    ///
    /// # Errors
    /// The batch, if another thread is here or there are enough.
    pub(crate) fn put(&self, batch: Vec<u32>) -> Result<(), Vec<u32>> {
        match self.0.try_lock() {
            Ok(mut batches) if batches.ripe.len() < RIPE_MAX => {
                batches.ripe.push(batch);
                Ok(())
            }
            _ => Err(batch),
        }
    }

    /// [`Batches::link_latest`], unless another thread is here.
    pub(crate) fn link_latest<T>(&self, link: impl FnOnce(&[u32]) -> T) -> Option<T> {
        self.0.try_lock().ok()?.link_latest(link)
    }

    /// Room for a batch: of one that was used, if there is any.
    pub(crate) fn room(&self) -> Vec<u32> {
        let spare = self.0.try_lock().ok().and_then(|mut batches| batches.spare.pop());
        spare.unwrap_or_default()
    }

    /// The ids. Waits as [`lock`](Self::lock) does.
    pub(crate) fn ids(&self) -> Vec<u32> {
        self.lock().ripe.concat()
    }

    /// Bytes allocated. Waits as [`lock`](Self::lock) does.
    pub(crate) fn allocated_bytes(&self) -> u64 {
        let batches = self.lock();
        let lists = [&batches.ripe, &batches.spare];
        let ids: usize = lists.iter().copied().flatten().map(Vec::capacity).sum();
        let vecs: usize = lists.iter().map(|list| list.capacity()).sum();
        (ids * size_of::<u32>() + vecs * size_of::<Vec<u32>>()) as u64
    }

    /// Waits for another thread that is here, which links one batch at most meanwhile.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Batches> {
        self.0.lock().expect("no code that panics runs under the lock")
    }
}

impl Batches {
    /// Has `link` make the ids of the latest batch free, if there is one, and keeps its memory. Under
    /// the lock, so that whoever has it finds each id in a batch or free.
    pub(crate) fn link_latest<T>(&mut self, link: impl FnOnce(&[u32]) -> T) -> Option<T> {
        let mut batch = self.ripe.pop()?;
        let linked = link(&batch);
        batch.clear();
        if self.spare.len() < SPARE_MAX {
            self.spare.push(batch);
        }
        Some(linked)
    }
}
