//! What all threads do at once, and how long they take.
//!
//! Each thread stays on one processor. A phase may take 20 ms, which is less than the kernel takes
//! to see that it has woken two threads on one. Deletions take that little, and are done again and
//! again, with insertions in between that are not timed: what two threads gain within 20 ms is told
//! by how busy the machine's other users are just then.

use std::sync::Barrier;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use crate::harness::timed;

use super::contender::{Group, LANES};
use super::pages::{CLASSES, Page, Pages};
use super::processors;

pub(super) const GROUPS_A_ROW: u64 = (CLASSES / LANES) as u64;

/// Parts that the rows of a span are dealt into, one by one.
pub(super) const PARTS: u64 = 64;

/// A thread's buffers for pages in hand.
pub(super) struct Hand<'a> {
    pages: &'a Pages,
    buffers: Vec<Page>,
}

impl Hand<'_> {
    /// Writes the pages of `ids` out, each into the buffer of its class.
    pub(super) fn take(&mut self, ids: [u64; LANES]) -> Group<'_> {
        for id in ids {
            self.pages.take_in_hand(id, &mut self.buffers[Pages::class(id)]);
        }
        Group { pages: ids.map(|id| &self.buffers[Pages::class(id)]), ids }
    }
}

/// How many steps a phase has, over all threads, and how many kinds of them take turns: step
/// `number` is about group `number / kinds` of the span of its kind.
#[derive(Clone, Copy)]
pub(super) struct Steps {
    pub(super) all: u64,
    pub(super) kinds: u64,
}

impl Steps {
    /// The steps that are `thread`'s: those of all kinds in its parts of the spans.
    fn of(self, thread: u64, threads: u64) -> impl Iterator<Item = u64> {
        let part = move |number: u64| number / self.kinds / GROUPS_A_ROW % PARTS;
        (0..self.all).filter(move |number| part(*number) % threads == thread)
    }
}

/// What a step does, by its number.
pub(super) type Step<'a> = &'a (dyn Fn(&mut Hand<'_>, u64) -> u64 + Sync);

/// What all threads do at once.
pub(super) struct Phase<'a> {
    /// What each thread does before anything is timed.
    pub(super) enter: &'a (dyn Fn(&mut Hand<'_>) + Sync),
    /// Dealt out to the threads.
    pub(super) steps: Steps,
    pub(super) step: Step<'a>,
    /// All of them undo all steps. If they can be undone, all is done up to [`PASSES`] times, until it
    /// has taken [`LONG_ENOUGH`].
    pub(super) undo: Option<Step<'a>>,
}

/// What is told of a phase that takes less is how busy the machine's other users were meanwhile.
const LONG_ENOUGH: Duration = Duration::from_millis(150);

/// With so few keys that these do not take as long, nothing is told anyway.
const PASSES: usize = 8;

/// What a thread has done: how long all its steps took, and the sum of what they returned.
type Done = (Duration, u64);

/// A thread, as who leads them all sees it.
struct Worker<'a> {
    orders: Sender<Step<'a>>,
    /// One for having entered, and one for each order; no more of a thread that panicked.
    done: Receiver<Done>,
    operations: u64,
}

impl<'a> Phase<'a> {
    /// Millions of operations a second, and the sum of what the steps returned. Each thread is timed
    /// by itself: the rate is the sum of the threads' rates, so that one that ends early does not
    /// count as idle.
    pub(super) fn run(&self, pages: &Pages, threads: u64) -> (f64, u64) {
        let barrier = Barrier::new(threads as usize);
        std::thread::scope(|scope| {
            let start = |thread: u64| {
                let ((orders, ordered), (report, done)) = (channel(), channel());
                // Before the time begins: looking through all steps is no less work for two threads
                // than for one.
                let own: Vec<u64> = self.steps.of(thread, threads).collect();
                let operations = own.len() as u64 * LANES as u64;
                let barrier = &barrier;
                scope.spawn(move || {
                    processors::stay(thread);
                    self.work(pages, &own, barrier, &ordered, &report);
                });
                Worker { orders, done, operations }
            };
            let workers: Vec<Worker<'_>> = (0..threads).map(start).collect();
            // Where a thread has panicked, so does the scope, as soon as the others have no leader.
            lead(&workers, self.step, self.undo).unwrap_or_default()
        })
    }

    /// Does all of a thread's own steps, together with the other threads, as often as it is told to.
    fn work(
        &self,
        pages: &Pages,
        own: &[u64],
        barrier: &Barrier,
        orders: &Receiver<Step<'a>>,
        report: &Sender<Done>,
    ) {
        let mut hand = Hand { pages, buffers: pages.buffers() };
        (self.enter)(&mut hand);
        let mut done = (Duration::ZERO, 0);
        while report.send(done).is_ok() {
            let Ok(step) = orders.recv() else { break };
            barrier.wait();
            done = timed(|| {
                own.iter().fold(0_u64, |sum, number| sum.wrapping_add(step(&mut hand, *number)))
            });
        }
    }
}

/// Has all steps done, and undone and done again until that is long enough, and says what
/// [`Phase::run`] does. `None` if a thread has panicked.
fn lead<'a>(workers: &[Worker<'a>], step: Step<'a>, undo: Option<Step<'a>>) -> Option<(f64, u64)> {
    results(workers)?;
    let (mut elapsed, mut checks) = (vec![Duration::ZERO; workers.len()], Vec::new());
    loop {
        let done = have_done(workers, step)?;
        elapsed.iter_mut().zip(&done).for_each(|(elapsed, (took, _))| *elapsed += *took);
        checks.push(done.iter().fold(0, |all: u64, (_, check)| all.wrapping_add(*check)));
        let enough = checks.len() == PASSES || elapsed.iter().all(|took| *took >= LONG_ENOUGH);
        match undo {
            Some(undo) if !enough => have_done(workers, undo)?,
            _ => break,
        };
    }
    assert!(checks.iter().all(|check| *check == checks[0]), "what was undone is done otherwise");
    let rates = workers.iter().zip(elapsed).map(|(worker, elapsed)| {
        (worker.operations * checks.len() as u64) as f64 / elapsed.as_secs_f64() / 1e6
    });
    Some((rates.sum(), checks[0]))
}

fn have_done<'a>(workers: &[Worker<'a>], step: Step<'a>) -> Option<Vec<Done>> {
    workers.iter().try_for_each(|worker| worker.orders.send(step)).ok()?;
    results(workers)
}

fn results(workers: &[Worker<'_>]) -> Option<Vec<Done>> {
    workers.iter().map(|worker| worker.done.recv().ok()).collect()
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::super::pages::Content;
    use super::*;

    const STEPS: Steps = Steps { all: 1000, kinds: 1 };

    fn run(threads: u64, step: Step<'_>, undo: Option<Step<'_>>) -> (f64, u64) {
        let pages = Pages::new(Content::Easy, CLASSES);
        Phase { enter: &|_| (), steps: STEPS, step, undo }.run(&pages, threads)
    }

    #[test]
    fn what_can_be_undone_is_done_several_times_and_counted_once() {
        let (done, undone) = (AtomicU64::new(0), AtomicU64::new(0));
        let count = |steps: &AtomicU64| steps.fetch_add(1, Ordering::Relaxed);
        let step: Step<'_> = &|_, number| {
            count(&done);
            number
        };
        let sum = STEPS.all * (STEPS.all - 1) / 2;
        assert_eq!(run(3, step, None).1, sum);
        assert_eq!(done.swap(0, Ordering::Relaxed), STEPS.all);
        assert_eq!(run(3, step, Some(&|_, _| count(&undone))).1, sum);
        let (done, undone) = (done.into_inner(), undone.into_inner());
        assert_eq!(done, undone + STEPS.all);
        assert!((1..PASSES as u64).contains(&(undone / STEPS.all)));
    }

    #[test]
    fn nobody_waits_for_a_thread_that_has_panicked() {
        let panics_at = |failing: u64| {
            let step: Step<'_> = &|_, number| {
                assert_ne!(number, failing, "the test wants it");
                number
            };
            catch_unwind(AssertUnwindSafe(|| run(2, step, Some(step)))).is_err()
        };
        assert!(panics_at(500));
        assert!(!panics_at(STEPS.all));
    }
}
