//! What all threads do at once, and how long they take.
//!
//! Each thread stays on one processor. A phase may take 20 ms, which is less than the kernel takes
//! to see that it has woken two threads on one. Deletions take that little, and wait for one line of
//! memory after another, so that their rates tell how busy the machine's other users are just then.
//! They are done again and again, with insertions in between that are not timed, and by one thread
//! and by several in turns, in the same index.

use std::sync::Barrier;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use crate::harness::timed;

use super::contender::{GROUP_PAGES, Group};
use super::pages::{CLASSES, Page, Pages};
use super::processors;

pub(super) const GROUPS_A_ROW: u64 = (CLASSES / GROUP_PAGES) as u64;

/// Parts that the rows of a span are dealt into, one by one.
pub(super) const PARTS: u64 = 64;

/// A thread's buffers for pages in hand.
pub(super) struct Hand<'a> {
    pages: &'a Pages,
    buffers: Vec<Page>,
}

impl Hand<'_> {
    /// Writes the pages of `ids` out, each into the buffer of its class.
    pub(super) fn take(&mut self, ids: [u64; GROUP_PAGES]) -> Group<'_> {
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
    /// has taken each team [`LONG_ENOUGH`], and once before that for nothing: what was done long ago
    /// lies otherwise than what was done and undone.
    pub(super) undo: Option<Step<'a>>,
}

/// What is told of a phase that takes less is how busy the machine's other users were meanwhile.
pub(super) const LONG_ENOUGH: Duration = Duration::from_millis(500);

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
    /// How long all passes that count took.
    elapsed: Duration,
}

impl<'a> Phase<'a> {
    /// Has teams of so many threads take turns; each does all steps. For each team millions of
    /// operations a second, and the sum of what the steps returned. Each thread is timed by itself:
    /// the rate is the sum of the threads' rates, so that one that ends early does not count as idle.
    ///
    /// # Panics
    /// If one team's steps return another sum than another's, or there are several teams and what the
    /// first did is not undone.
    pub(super) fn run(&self, pages: &Pages, teams: &[u64]) -> Vec<(f64, u64)> {
        assert!(
            teams.len() == 1 || self.undo.is_some(),
            "each team finds what the others did undone"
        );
        let barriers: Vec<Barrier> = teams.iter().map(|of| Barrier::new(*of as usize)).collect();
        std::thread::scope(|scope| {
            let start = |thread: u64, threads: u64, barrier| {
                let ((orders, ordered), (report, done)) = (channel(), channel());
                // Before the time begins: looking through all steps is no less work for two threads
                // than for one.
                let own: Vec<u64> = self.steps.of(thread, threads).collect();
                let operations = own.len() as u64 * GROUP_PAGES as u64;
                scope.spawn(move || {
                    processors::stay(thread);
                    self.work(pages, &own, barrier, &ordered, &report);
                });
                Worker { orders, done, operations, elapsed: Duration::ZERO }
            };
            let team = |(of, barrier): (&u64, _)| Team {
                workers: (0..*of).map(|at| start(at, *of, barrier)).collect(),
                passes: 0,
            };
            let teams: Vec<Team<'_>> = teams.iter().zip(&barriers).map(team).collect();
            // Where a thread has panicked, so does the scope, as soon as the others have no leader.
            lead(teams, self.step, self.undo).unwrap_or_default()
        })
    }

    /// Does all of a thread's own steps, together with its team's other threads, as often as it is told to.
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

/// Threads that do all steps together.
struct Team<'a> {
    workers: Vec<Worker<'a>>,
    /// Those that count.
    passes: usize,
}

impl<'a> Team<'a> {
    /// Does all steps once, and counts it. What the steps returned, summed; `None`, here and below, if a
    /// thread has panicked.
    fn pass(&mut self, step: Step<'a>) -> Option<u64> {
        let done = self.have_done(step)?;
        self.passes += 1;
        self.workers.iter_mut().zip(&done).for_each(|(worker, (took, _))| worker.elapsed += *took);
        Some(done.iter().fold(0, |sum: u64, (_, returned)| sum.wrapping_add(*returned)))
    }

    fn have_done(&self, step: Step<'a>) -> Option<Vec<Done>> {
        self.workers.iter().try_for_each(|worker| worker.orders.send(step)).ok()?;
        self.results()
    }

    fn results(&self) -> Option<Vec<Done>> {
        self.workers.iter().map(|worker| worker.done.recv().ok()).collect()
    }

    fn has_done_enough(&self) -> bool {
        self.passes >= PASSES || self.workers.iter().all(|worker| worker.elapsed >= LONG_ENOUGH)
    }

    /// Millions of operations a second.
    fn rate(&self) -> f64 {
        let of = |worker: &Worker<'_>| worker.operations as f64 / worker.elapsed.as_secs_f64();
        self.passes as f64 * self.workers.iter().map(of).sum::<f64>() / 1e6
    }
}

/// Has the teams do all steps, and undo and do them again until that is long enough, in turns. Says what
/// [`Phase::run`] does.
fn lead<'a>(
    mut teams: Vec<Team<'a>>,
    step: Step<'a>,
    undo: Option<Step<'a>>,
) -> Option<Vec<(f64, u64)>> {
    for team in &teams {
        team.results()?;
    }
    if let Some(undo) = undo {
        teams[0].have_done(step)?;
        teams[0].have_done(undo)?;
    }
    let mut checks = Vec::new();
    loop {
        for team in &mut teams {
            checks.push(team.pass(step)?);
            if let Some(undo) = undo {
                team.have_done(undo)?;
            }
        }
        if undo.is_none() || teams.iter().all(Team::has_done_enough) {
            break;
        }
    }
    assert!(checks.iter().all(|check| *check == checks[0]), "what was undone is done otherwise");
    Some(teams.iter().map(|team| (team.rate(), checks[0])).collect())
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::super::pages::Content;
    use super::*;

    const STEPS: Steps = Steps { all: 1000, kinds: 1 };

    fn run(teams: &[u64], step: Step<'_>, undo: Option<Step<'_>>) -> Vec<u64> {
        let pages = Pages::new(Content::Easy, CLASSES);
        let done = Phase { enter: &|_| (), steps: STEPS, step, undo }.run(&pages, teams);
        done.into_iter().map(|(_, check)| check).collect()
    }

    #[test]
    fn what_can_be_undone_is_done_by_each_team_several_times_and_counted_once() {
        let (done, undone) = (AtomicU64::new(0), AtomicU64::new(0));
        let count = |steps: &AtomicU64| steps.fetch_add(1, Ordering::Relaxed);
        let step: Step<'_> = &|_, number| {
            count(&done);
            number
        };
        let sum = STEPS.all * (STEPS.all - 1) / 2;
        assert_eq!(run(&[3], step, None), [sum]);
        assert_eq!(done.swap(0, Ordering::Relaxed), STEPS.all);
        assert_eq!(run(&[1, 3], step, Some(&|_, _| count(&undone))), [sum, sum]);
        let (done, undone) = (done.into_inner(), undone.into_inner());
        assert_eq!(done, undone);
        // One that does not count, and as many of each team.
        let passes = done / STEPS.all - 1;
        assert!(passes.is_multiple_of(2), "{passes} passes");
        assert!((1..=PASSES as u64).contains(&(passes / 2)), "{passes} passes");
    }

    #[test]
    fn a_team_that_finds_what_another_did_not_undo_is_refused() {
        let changes = AtomicU64::new(0);
        let step: Step<'_> = &|_, _| changes.fetch_add(1, Ordering::Relaxed);
        let refused = |teams: &[u64], undo| {
            catch_unwind(AssertUnwindSafe(|| run(teams, step, undo))).is_err()
        };
        assert!(refused(&[1, 2], None));
        assert!(refused(&[1], Some(&|_, _| 0)));
        assert!(!refused(&[1], None));
    }

    #[test]
    fn nobody_waits_for_a_thread_that_has_panicked() {
        let panics_at = |failing: u64| {
            let step: Step<'_> = &|_, number| {
                assert_ne!(number, failing, "the test wants it");
                number
            };
            catch_unwind(AssertUnwindSafe(|| run(&[1, 2], step, Some(step)))).is_err()
        };
        assert!(panics_at(500));
        assert!(!panics_at(STEPS.all));
    }
}
