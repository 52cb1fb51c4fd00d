//! Pinning: while a [`Guard`] lives, no id that its holder may have read is given out again.
//!
//! Reclamation is crossbeam-epoch's (Fraser, *Practical lock-freedom*, 2004). The guard is wrapped
//! for three reasons: every user of an index is pinned in the same collector, which a caller's own
//! `crossbeam_epoch::Guard` would not promise; it carries the number of the thread's shard of the
//! free lists; and loom can put a model in its place.
//!
//! What is reclaimed is ids, never memory: a chunk of the tree lives as long as the index, so even
//! a mistake here could not make anyone read freed memory.

#[cfg(not(loom))]
pub use real::{Guard, pin};

#[cfg(loom)]
pub use model::{Guard, pin};

/// Free lists and counters are split into so many shards.
#[cfg(not(loom))]
pub(crate) const SHARDS: usize = 16;
#[cfg(loom)]
pub(crate) const SHARDS: usize = 2;

#[cfg(not(loom))]
mod real {
    use std::cell::Cell;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::SHARDS;

    static THREADS: AtomicUsize = AtomicUsize::new(0);

    thread_local! {
        // Relaxed: the count only spreads threads over shards.
        static SHARD: Cell<usize> =
            Cell::new(THREADS.fetch_add(1, Ordering::Relaxed) % SHARDS);
    }

    /// Keeps whatever its thread reads from an index from being reused. Bound to its thread.
    ///
    /// A guard held for long holds back the reuse of everything deleted meanwhile, in all indexes
    /// of the process: take one for a batch of operations, not for a thread's life, or
    /// [`repin`](Self::repin) it.
    pub struct Guard {
        pinned: crossbeam_epoch::Guard,
        shard: usize,
    }

    /// Pins the thread. Costs a fence, some 10 ns; nested pins cost less.
    #[must_use]
    pub fn pin() -> Guard {
        Guard { pinned: crossbeam_epoch::pin(), shard: SHARD.get() }
    }

    impl Guard {
        /// Lets go of everything read under this guard, and pins anew.
        pub fn repin(&mut self) {
            self.pinned.repin();
        }

        /// Hands over what indexes have retired on this thread now, instead of when more has come
        /// together, and reuses what is ripe. [`Index::flush`](crate::Index::flush) does so with what
        /// gathers in that index, too.
        pub fn flush(&self) {
            self.pinned.flush();
        }

        pub(crate) fn shard(&self) -> usize {
            self.shard
        }

        /// Runs `reclaim` once every thread that is pinned now has been unpinned.
        pub(crate) fn defer(&self, reclaim: impl FnOnce() + Send + 'static) {
            self.pinned.defer(reclaim);
        }
    }
}

/// Under loom, whatever is retired is reclaimed at the first instant at which no thread is pinned.
/// That is stricter than an epoch never reclaiming, and unlike crossbeam's own code under loom it
/// adds few interleavings.
#[cfg(loom)]
mod model {
    use loom::sync::Mutex;

    use super::SHARDS;

    #[derive(Default)]
    struct Collector {
        pinned: usize,
        pins: usize,
        garbage: Vec<Box<dyn FnOnce() + Send>>,
    }

    loom::lazy_static! {
        static ref COLLECTOR: Mutex<Collector> = Mutex::new(Collector::default());
    }

    /// Keeps whatever its thread reads from an index from being reused.
    pub struct Guard {
        shard: usize,
    }

    /// Pins the thread.
    #[must_use]
    pub fn pin() -> Guard {
        let mut collector = COLLECTOR.lock().expect("no model panics while it holds the lock");
        collector.pinned += 1;
        collector.pins += 1;
        Guard { shard: collector.pins % SHARDS }
    }

    impl Guard {
        /// Nothing is ripe before all guards are gone.
        pub(crate) fn flush(&self) {}

        pub(crate) fn shard(&self) -> usize {
            self.shard
        }

        pub(crate) fn defer(&self, reclaim: impl FnOnce() + Send + 'static) {
            let mut collector = COLLECTOR.lock().expect("no model panics while it holds the lock");
            collector.garbage.push(Box::new(reclaim));
        }
    }

    impl Drop for Guard {
        fn drop(&mut self) {
            let mut collector = COLLECTOR.lock().expect("no model panics while it holds the lock");
            collector.pinned -= 1;
            if collector.pinned == 0 {
                // Run under the lock: whoever pins next sees the ids free.
                for reclaim in std::mem::take(&mut collector.garbage) {
                    reclaim();
                }
            }
        }
    }
}
