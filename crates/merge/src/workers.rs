//! Workers: as many threads as are wanted now, for as long as there is work.
//!
//! A phase is a list of tasks. The thread that starts it works as well; more are started while
//! tasks are left and the number wanted says so, and leave between tasks when it falls. Threads live
//! for one phase: starting one costs some 30 µs, and a phase that has one task starts none.
//!
//! Between tasks each of them rests while all together, and the guests' threads that work for them, are
//! above their [`Limit`].

use std::cell::Cell;
use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use bindery_sys::thread::cpu_time;

use crate::limit::Limit;
use crate::meter::Meter;
use crate::phases::{PhaseName, PhaseRun, Phases};
use crate::stop::Stop;
use crate::troubles::Troubles;

/// Rests shorter than this are left for the next time.
const REST_MIN_US: u64 = 1000;

/// The longest rest before the limit is looked at again: it may have been raised.
const REST_MAX_US: u64 = 100_000;

/// The most workers there can be.
pub const WORKERS_MAX: usize = 256;

thread_local! {
    /// The thread's CPU clock as far as it is metered. A worker's begins with the thread.
    static METERED_NS: Cell<u64> = const { Cell::new(0) };
    /// How long the thread has rested below a ceiling so far.
    static RESTED: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// How many workers are wanted, and what they may use.
#[derive(Debug)]
pub(crate) struct Workers {
    wanted: AtomicUsize,
    limit: Mutex<Limit>,
    meter: Arc<Meter>,
    phases: Phases,
    troubles: Arc<Troubles>,
    stop: Arc<Stop>,
}

impl Workers {
    pub(crate) fn new(
        wanted: usize,
        meter: Arc<Meter>,
        stop: Arc<Stop>,
        troubles: Arc<Troubles>,
    ) -> Self {
        let workers = Self {
            wanted: AtomicUsize::new(1),
            limit: Mutex::default(),
            meter,
            phases: Phases::default(),
            troubles,
            stop,
        };
        workers.set_wanted(wanted);
        workers
    }

    /// Holds the CPU time of all below so many percent of one CPU, from now on; `None`: no ceiling. With `spare` it is
    /// held below what all CPUs have left instead.
    pub(crate) fn set_limit(&self, percent: Option<u64>, spare: bool) {
        let mut limit = self.limit.lock().expect("no worker panics with it");
        match limit.set(percent, spare, self.meter.total_us()) {
            Ok(()) => drop(self.troubles.is_over("spare CPU time")),
            Err(error) => self.note_unknown_spare(&error),
        }
    }

    fn note_unknown_spare(&self, error: &io::Error) {
        if self.troubles.note("spare CPU time", error) {
            tracing::warn!(%error, "cannot tell what CPU time is left: merging uses next to none");
        }
    }

    /// The calling thread works for the engine from now on: what it has used before is not metered.
    pub(crate) fn begin(&self) {
        METERED_NS.set(cpu_time_ns());
    }

    /// Meters what the calling thread has used since it was last metered.
    pub(crate) fn lap(&self) {
        let now = cpu_time_ns();
        self.meter.add_thread(now.saturating_sub(METERED_NS.replace(now)));
    }

    /// How long the calling thread has rested so far, because of a ceiling.
    pub(crate) fn rested(&self) -> Duration {
        RESTED.get()
    }

    /// Meters the calling thread, then rests until all are below the ceiling again, or the engine is
    /// stopped. For workers, between tasks and within long ones.
    pub(crate) fn breathe(&self) {
        self.lap();
        let start = Instant::now();
        while !self.stop.is_set() {
            let mut limit = self.limit.lock().expect("no worker panics with it");
            let rest_us = limit.rest_us(self.meter.total_us());
            drop(limit);
            if rest_us < REST_MIN_US {
                break;
            }
            self.stop.sleep(Duration::from_micros(rest_us.min(REST_MAX_US)));
        }
        RESTED.set(RESTED.get() + start.elapsed());
    }

    /// Whether the engine is stopped: what has not begun need not begin.
    pub(crate) fn are_stopping(&self) -> bool {
        self.stop.is_set()
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

    /// Returns the meter of the phases.
    pub(crate) const fn phases(&self) -> &Phases {
        &self.phases
    }

    /// Does a phase, or a part of one, that is one task, on the calling thread.
    pub(crate) fn alone<T>(&self, phase: PhaseName, work: impl FnOnce() -> T) -> T {
        let watch = Watch::start();
        let result = work();
        self.phases.note(phase, PhaseRun::of_one(watch.time()));
        result
    }

    /// Does `work` for each of `tasks`, in order but several at a time, each thread with a scratch
    /// of its own. Returns when all are done. Blocks.
    ///
    /// # Panics
    /// If `work` panics.
    pub(crate) fn each<T: Sync, S>(
        &self,
        name: PhaseName,
        tasks: &[T],
        scratch: impl Fn() -> S + Sync,
        work: impl Fn(&mut S, &T) + Sync,
    ) {
        if tasks.is_empty() {
            return;
        }
        let watch = Watch::start();
        let phase = Phase::of(tasks);
        let help = |number: usize| {
            let mut scratch = scratch();
            while number < self.wanted()
                && let Some(task) = phase.take()
            {
                phase.meter(|| work(&mut scratch, task));
                // Whoever starts the next phase rests for all, and is not kept from it.
                if phase.tasks_left() > 0 {
                    self.breathe();
                }
            }
            self.lap();
        };
        thread::scope(|scope| {
            let mut helpers = Vec::new();
            let mut own = scratch();
            while let Some(task) = phase.take() {
                self.start_helpers(scope, &mut helpers, &phase, &help);
                phase.meter(|| work(&mut own, task));
                self.breathe();
            }
        });
        self.phases.note(name, phase.run(watch.time()));
    }

    /// Starts as many helpers as are wanted now and have tasks; none where no thread can be had.
    fn start_helpers<'scope, T>(
        &self,
        scope: &'scope Scope<'scope, '_>,
        helpers: &mut Vec<ScopedJoinHandle<'scope, ()>>,
        phase: &Phase<'_, T>,
        help: &'scope (impl Fn(usize) + Sync),
    ) {
        helpers.retain(|helper| !helper.is_finished());
        let first = 1 + helpers.len();
        for number in first..self.wanted().min(first + phase.tasks_left()) {
            let builder = thread::Builder::new().name(format!("merge-{number}"));
            match builder.spawn_scoped(scope, move || help(number)) {
                Ok(helper) => helpers.push(helper),
                // Without another thread the work takes longer: no reason to stop.
                Err(error) => return self.note_start_failure(&error),
            }
        }
        // Over only once all that were wanted have started.
        if helpers.len() >= first && self.troubles.is_over("workers") {
            tracing::info!("workers can be started again");
        }
    }

    fn note_start_failure(&self, error: &io::Error) {
        if self.troubles.note("workers", error) {
            tracing::warn!(%error, "cannot start a worker");
        }
    }
}

/// The tasks of a phase, taken in order.
struct Phase<'a, T> {
    tasks: &'a [T],
    next: AtomicUsize,
    work_ns: AtomicU64,
    longest_ns: AtomicU64,
}

impl<'a, T> Phase<'a, T> {
    fn of(tasks: &'a [T]) -> Self {
        let (work_ns, longest_ns) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { tasks, next: AtomicUsize::new(0), work_ns, longest_ns }
    }

    /// Does a task and takes in how long it takes.
    fn meter(&self, work: impl FnOnce()) {
        let watch = Watch::start();
        work();
        let ns = watch.time().as_nanos() as u64;
        self.work_ns.fetch_add(ns, Ordering::Relaxed);
        self.longest_ns.fetch_max(ns, Ordering::Relaxed);
    }

    /// Returns what it took, all in all.
    fn run(self, time: Duration) -> PhaseRun {
        let [work, longest] =
            [self.work_ns, self.longest_ns].map(|ns| Duration::from_nanos(ns.into_inner()));
        PhaseRun { time, tasks: self.tasks.len(), work, longest }
    }

    /// Returns the next task, which nobody else is given.
    fn take(&self) -> Option<&'a T> {
        self.tasks.get(self.next.fetch_add(1, Ordering::Relaxed))
    }

    /// Returns how many tasks nobody has taken yet.
    fn tasks_left(&self) -> usize {
        self.tasks.len().saturating_sub(self.next.load(Ordering::Relaxed))
    }
}

/// Stopwatch of a thread, which stands still while the thread rests below a ceiling.
struct Watch {
    start: Instant,
    rested: Duration,
}

impl Watch {
    fn start() -> Self {
        Self { start: Instant::now(), rested: RESTED.get() }
    }

    fn time(&self) -> Duration {
        self.start.elapsed().saturating_sub(RESTED.get() - self.rested)
    }
}

/// CPU time of the calling thread so far.
fn cpu_time_ns() -> u64 {
    cpu_time().as_nanos() as u64
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    fn workers(wanted: usize) -> Workers {
        Workers::new(wanted, Arc::default(), Arc::default(), Arc::default())
    }

    #[test]
    fn every_task_is_done_once_by_any_number_of_workers() {
        for wanted in [1, 2, 7] {
            let workers = workers(wanted);
            let tasks: Vec<u32> = (0..500).collect();
            let done = Mutex::new(Vec::new());
            let work = |count: &mut u32, task: &u32| {
                *count += 1;
                done.lock().unwrap().push(*task);
            };
            workers.each(PhaseName::Apply, &tasks, || 0, work);
            let mut done = done.into_inner().unwrap();
            done.sort_unstable();
            assert_eq!(done, tasks);
        }
    }

    /// Waits until `holds`.
    fn wait_until(holds: impl Fn() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while !holds() {
            assert!(Instant::now() < deadline, "it never came to this");
            thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn the_number_changes_while_a_phase_runs() {
        let workers = workers(1);
        let tasks: Vec<u32> = (0..60).collect();
        let (threads, fewer) = (Mutex::new(Vec::new()), AtomicBool::new(false));
        let used = |from: u32| {
            let threads = threads.lock().unwrap();
            let later = threads.iter().filter(|(task, _)| *task >= from);
            later.map(|(_, thread)| *thread).collect::<std::collections::HashSet<_>>().len()
        };
        workers.each(
            PhaseName::Apply,
            &tasks,
            || (),
            |(), task| {
                threads.lock().unwrap().push((*task, thread::current().id()));
                match task {
                    0..20 => assert_eq!(used(0), 1),
                    20 => workers.set_wanted(3),
                    // Nobody ends a task before all three have one.
                    21..40 => wait_until(|| used(21) == 3),
                    40 => {
                        workers.set_wanted(1);
                        fewer.store(true, Ordering::SeqCst);
                    }
                    // However late whoever has that one gets to it.
                    _ => wait_until(|| fewer.load(Ordering::SeqCst)),
                }
            },
        );
        let threads = threads.into_inner().unwrap();
        let own = thread::current().id();
        let others = threads.iter().filter(|(task, thread)| *task > 40 && *thread != own);
        // Whoever was in the middle of a task finishes it, and may have been about to take another.
        assert!(others.count() <= 4, "{threads:?}");
    }

    /// Uses 5 ms of CPU time.
    fn spin() {
        let start = cpu_time();
        while cpu_time() - start < Duration::from_millis(5) {}
    }

    #[test]
    fn cpu_time_of_all_threads_is_counted() {
        let workers = workers(2);
        let start = Instant::now();
        workers.begin();
        workers.each(PhaseName::Apply, &[0, 1, 2, 3], || (), |(), _| spin());
        let used_us = workers.meter.threads_us();
        assert!((20_000..60_000).contains(&used_us), "{used_us} µs in {:?}", start.elapsed());
    }

    #[test]
    fn all_together_stay_below_the_ceiling() {
        let workers = workers(3);
        workers.set_limit(Some(20), false);
        let (own, busy) = (thread::current().id(), Mutex::new(Duration::ZERO));
        let start = Instant::now();
        workers.begin();
        let work = |(): &mut (), _: &i32| {
            let start = Instant::now();
            spin();
            if thread::current().id() == own {
                *busy.lock().unwrap() += start.elapsed();
            }
        };
        workers.each(PhaseName::Apply, &[0; 60], || (), work);
        let time = start.elapsed();
        let share = workers.meter.total_us() as f64 / time.as_micros() as f64;
        // 300 ms of work at 20% takes 1.5 s, but for what is under way when it begins to count.
        assert!(share < 0.21, "{share}");
        // Nobody rests for longer than that, and what is no rest is work, however long a CPU is waited
        // for in it.
        let (rested, busy) = (workers.rested(), busy.into_inner().unwrap());
        assert!(rested < Duration::from_secs(3), "{rested:?}");
        assert!(rested < time && rested > (time - busy) / 2, "{rested:?} of {time:?}, {busy:?}");
    }

    #[test]
    fn beside_those_who_want_every_cpu_next_to_nothing_is_used() {
        let workers = workers(2);
        workers.set_limit(None, true);
        let ended = AtomicBool::new(false);
        thread::scope(|scope| {
            for _ in 0..crate::limit::cpus() {
                scope.spawn(|| {
                    while !ended.load(Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                });
            }
            // Until then CPUs were idle.
            thread::sleep(Duration::from_millis(500));
            workers.begin();
            workers.breathe();
            let (start, before_us) = (Instant::now(), workers.meter.total_us());
            while start.elapsed() < Duration::from_secs(2) {
                spin();
                workers.breathe();
            }
            let used_us = workers.meter.total_us() - before_us;
            let share = used_us as f64 / start.elapsed().as_micros() as f64;
            ended.store(true, Ordering::Relaxed);
            assert!(share < 0.1, "{share}");
        });
    }

    #[test]
    fn a_guests_threads_count_and_stopping_ends_rests() {
        let stop = Arc::new(Stop::default());
        let workers = Workers::new(1, Arc::default(), Arc::clone(&stop), Arc::default());
        workers.set_limit(Some(1), false);
        workers.meter.add_lane(3_600_000_000_000);
        let start = Instant::now();
        thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(Duration::from_millis(20));
                stop.set();
            });
            workers.breathe();
        });
        assert!(start.elapsed() >= Duration::from_millis(20));
        assert!(start.elapsed() < Duration::from_secs(60), "an hour's work at 1% takes 100 hours");
    }
}
