//! Batches of ids that may be used again, as they were deleted.
//!
//! Whoever reclaims, some epochs after a deletion, need not be who deleted: the slots lie in another
//! core's cache, and the memory of the batch is the allocator's for another thread. So it leaves both
//! alone, and only hands the batch to the shard that it was deleted on. Who deletes or allocates there
//! threads its slots together, and uses the memory for another batch.
//!
//! Nobody waits for the lock, but where an index would be full otherwise.

use crate::primitive::{Mutex, MutexGuard};

/// Empty batches that are kept. So many wait for their readers, where nobody is pinned for long.
const SPARE_MAX: usize = 8;

/// What one shard has of them.
#[derive(Default)]
pub(crate) struct Ripe(Mutex<Batches>);

#[derive(Default)]
struct Batches {
    ripe: Vec<Vec<u32>>,
    spare: Vec<Vec<u32>>,
}

impl Ripe {
    /// Adds a batch.
    ///
    /// # Errors
    /// The batch, if another thread is here.
    pub(crate) fn put(&self, batch: Vec<u32>) -> Result<(), Vec<u32>> {
        let Ok(mut batches) = self.0.try_lock() else { return Err(batch) };
        batches.ripe.push(batch);
        Ok(())
    }

    /// The latest batch, unless there is none or another thread is here.
    pub(crate) fn take(&self) -> Option<Vec<u32>> {
        self.0.try_lock().ok()?.ripe.pop()
    }

    /// The latest batch. Waits for other threads that are here, which do nothing else meanwhile.
    pub(crate) fn wait_and_take(&self) -> Option<Vec<u32>> {
        self.lock().ripe.pop()
    }

    /// Room for a batch: of one that was used, if there is any.
    pub(crate) fn room(&self) -> Vec<u32> {
        let spare = self.0.try_lock().ok().and_then(|mut batches| batches.spare.pop());
        spare.unwrap_or_default()
    }

    /// Keeps the memory of a batch that was used.
    pub(crate) fn keep(&self, mut batch: Vec<u32>) {
        batch.clear();
        if let Ok(mut batches) = self.0.try_lock()
            && batches.spare.len() < SPARE_MAX
        {
            batches.spare.push(batch);
        }
    }

    /// Visits all ids. Waits as [`wait_and_take`](Self::wait_and_take) does.
    pub(crate) fn for_each(&self, visit: impl FnMut(u32)) {
        self.lock().ripe.iter().flatten().copied().for_each(visit);
    }

    /// Bytes allocated. Waits as [`wait_and_take`](Self::wait_and_take) does.
    pub(crate) fn allocated_bytes(&self) -> u64 {
        let batches = self.lock();
        let lists = [&batches.ripe, &batches.spare];
        let ids: usize = lists.iter().copied().flatten().map(Vec::capacity).sum();
        let vecs: usize = lists.iter().map(|list| list.capacity()).sum();
        (ids * size_of::<u32>() + vecs * size_of::<Vec<u32>>()) as u64
    }

    /// Does `act` while nobody else can be here.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn hold(&self, act: impl FnOnce()) {
        let _held = self.lock();
        act();
    }

    fn lock(&self) -> MutexGuard<'_, Batches> {
        self.0.lock().expect("no code that panics runs under the lock")
    }
}
