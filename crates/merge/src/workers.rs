//! Workers: as many threads as are wanted now, for as long as there is work.
//!
//! A phase is a list of tasks. The thread that starts it works as well; more are started while
//! tasks are left and the number wanted says so, and leave between tasks when it falls. Threads live
//! for one phase: starting one costs some 30 µs, and a phase that has one task starts none.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;

use bindery_sys::thread::cpu_time;

/// The most workers there can be.
pub const WORKERS_MAX: usize = 256;

/// How many workers are wanted, and what they have used.
#[derive(Debug)]
pub(crate) struct Workers {
    wanted: AtomicUsize,
    cpu_ns: AtomicU64,
}

impl Workers {
    pub(crate) fn new(wanted: usize) -> Self {
        let workers = Self { wanted: AtomicUsize::new(1), cpu_ns: AtomicU64::new(0) };
        workers.set_wanted(wanted);
        workers
    }

    pub(crate) fn wanted(&self) -> usize {
        // Relaxed, here and below: counters that order nothing. The phases' results are ordered by
        // the joining of threads.
        self.wanted.load(Ordering::Relaxed)
    }

    /// Changes the number, at once, within `1..=WORKERS_MAX`.
    pub(crate) fn set_wanted(&self, wanted: usize) {
        self.wanted.store(wanted.clamp(1, WORKERS_MAX), Ordering::Relaxed);
    }

    /// CPU time of all workers so far, in nanoseconds, but for the threads that started phases.
    pub(crate) fn cpu_ns(&self) -> u64 {
        self.cpu_ns.load(Ordering::Relaxed)
    }

    /// Does `work` for each of `tasks`, in order but several at a time, each thread with a scratch
    /// of its own. Returns when all are done. Blocks.
    ///
    /// # Panics
    /// If `work` panics.
    pub(crate) fn each<T: Sync, S>(
        &self,
        tasks: &[T],
        scratch: impl Fn() -> S + Sync,
        work: impl Fn(&mut S, &T) + Sync,
    ) {
        let next = AtomicUsize::new(0);
        let take = || tasks.get(next.fetch_add(1, Ordering::Relaxed));
        let help = |number: usize| {
            let before = cpu_time();
            let mut scratch = scratch();
            while number < self.wanted() {
                let Some(task) = take() else { break };
                work(&mut scratch, task);
            }
            let used = cpu_time().saturating_sub(before).as_nanos() as u64;
            self.cpu_ns.fetch_add(used, Ordering::Relaxed);
        };
        thread::scope(|scope| {
            let mut helpers: Vec<thread::ScopedJoinHandle<'_, ()>> = Vec::new();
            let mut own = scratch();
            while let Some(task) = take() {
                helpers.retain(|helper| !helper.is_finished());
                let left = tasks.len().saturating_sub(next.load(Ordering::Relaxed));
                for number in 1 + helpers.len()..self.wanted().min(1 + helpers.len() + left) {
                    let builder = thread::Builder::new().name(format!("merge-{number}"));
                    let help = &help;
                    // Without another thread the work takes longer: no reason to stop.
                    match builder.spawn_scoped(scope, move || help(number)) {
                        Ok(helper) => helpers.push(helper),
                        Err(error) => {
                            tracing::warn!(%error, "cannot start a worker");
                            break;
                        }
                    }
                }
                work(&mut own, task);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;
    use std::time::{Duration, Instant};

    #[test]
    fn every_task_is_done_once_by_any_number_of_workers() {
        for wanted in [1, 2, 7] {
            let workers = Workers::new(wanted);
            let tasks: Vec<u32> = (0..500).collect();
            let done = Mutex::new(Vec::new());
            let work = |count: &mut u32, task: &u32| {
                *count += 1;
                done.lock().unwrap().push(*task);
            };
            workers.each(&tasks, || 0, work);
            let mut done = done.into_inner().unwrap();
            done.sort_unstable();
            assert_eq!(done, tasks);
        }
    }

    #[test]
    fn the_number_changes_while_a_phase_runs() {
        let workers = Workers::new(1);
        let tasks: Vec<u32> = (0..60).collect();
        let threads = Mutex::new(Vec::new());
        workers.each(
            &tasks,
            || (),
            |(), task| {
                match task {
                    20 => workers.set_wanted(3),
                    40 => workers.set_wanted(1),
                    _ => {}
                }
                threads.lock().unwrap().push((*task, thread::current().id()));
                thread::sleep(Duration::from_millis(2));
            },
        );
        let threads = threads.into_inner().unwrap();
        let used = |from: u32, to: u32| {
            let within = threads.iter().filter(|(task, _)| (from..to).contains(task));
            within.map(|(_, thread)| thread).collect::<std::collections::HashSet<_>>().len()
        };
        assert_eq!(used(0, 20), 1);
        assert_eq!(used(24, 38), 3);
        // Whoever was in the middle of a task finishes it.
        assert_eq!(used(46, 60), 1);
    }

    #[test]
    fn helpers_cpu_time_is_counted() {
        let workers = Workers::new(2);
        let spin = |(): &mut (), _: &u32| {
            let start = cpu_time();
            while cpu_time() - start < Duration::from_millis(5) {}
        };
        let start = Instant::now();
        workers.each(&[0, 1, 2, 3], || (), spin);
        assert!(workers.cpu_ns() >= 5_000_000, "in {:?}", start.elapsed());
    }
}
