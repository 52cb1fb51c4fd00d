//! What a run does: fill, query, a mixture, delete; each on all threads at once.
//!
//! Ids come in *rows* of [`CLASSES`], one id a class, and are handled in groups of [`GROUP_PAGES`]. Each
//! thread has the groups of its own rows, so that what a run computes does not depend on how
//! threads interleave: pages that are queried are never deleted beside it, nor inserted. Which ids
//! a group has is scattered, so that pages asked about together are neighbours neither in any
//! index nor in the caller's tables. But all are of one *part* of the rows, and a part is one
//! thread's: what a caller keeps of each page lies in lines that no two threads write in a phase,
//! as with workers of which each has pages that follow one another.

use crate::harness::Measured;

use super::contender::{Contender, GROUP_PAGES, Setting};
use super::memory::{clear_away, clear_away_and_back};
use super::pages::{CLASSES, scramble};
use super::phase::{GROUPS_A_ROW, Hand, LONG_ENOUGH, PARTS, Phase, Step, Steps};

/// Ids of one kind: `rows` rows from `first_row` on.
#[derive(Clone, Copy)]
struct Span {
    first_row: u64,
    rows: u64,
    /// For a part with the fewest rows, and for one with one more: a number that has no factor in
    /// common with that.
    strides: [u64; 2],
    /// Which ids are groups.
    grouping: u64,
}

impl Span {
    fn new(first_row: u64, rows: u64) -> Self {
        let stride = |rows: u64| {
            // About the golden ratio of the rows, so that neighbours in time are far apart.
            let start = (rows as f64 * 0.618) as u64 | 1;
            (start..).find(|stride| gcd(*stride, rows) == 1).unwrap_or(1)
        };
        let fewest = rows / PARTS;
        let strides = [stride(fewest), stride(fewest + 1)];
        Self { first_row, rows, strides, grouping: 0 }
    }

    /// The same ids in other groups, each in the same part: what is filled in by these lies scattered
    /// for the others.
    fn regrouped(self) -> Self {
        Self { grouping: self.grouping + 1, ..self }
    }

    /// The `number`-th group of the span in a scattered order without repetition, if `number` is
    /// below the span's groups. Its rows are of the part `number / GROUPS_A_ROW % PARTS`.
    fn group(self, number: u64) -> [u64; GROUP_PAGES] {
        let (turn, half) = (number / GROUPS_A_ROW, number % GROUPS_A_ROW);
        let (part, turn) = (turn % PARTS, turn / PARTS);
        let longer = u64::from(part < self.rows % PARTS);
        let (rows, stride) = (self.rows / PARTS + longer, self.strides[longer as usize]);
        std::array::from_fn(|at| {
            let class = half * GROUP_PAGES as u64 + at as u64;
            // Each class visits each row once, in an order of its own.
            let start = scramble(self.grouping << 32 | class) >> 32;
            let row = part + PARTS * ((turn * stride + start) % rows);
            (self.first_row + row) * CLASSES as u64 + class
        })
    }

    fn groups(self) -> u64 {
        self.rows * GROUPS_A_ROW
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// How many of what a run does.
#[derive(Clone, Copy)]
pub(super) struct Plan {
    /// Filled in first. Of the first half some are deleted while mixing; the second half is queried,
    /// and as many as a phase does are deleted at the end.
    keys: u64,
    /// Groups a phase after the filling, over all threads.
    groups: u64,
}

impl Plan {
    /// A plan over `keys` keys, rounded to whole rows, with about `operations` operations in each
    /// phase after the filling.
    pub(super) fn new(keys: u64, operations: u64) -> Self {
        const ROW: u64 = CLASSES as u64;
        let keys = keys.next_multiple_of(8 * ROW);
        // A phase never deletes more than half of the keys.
        Self {
            keys,
            groups: operations.next_multiple_of(4 * ROW).min(keys / 2) / GROUP_PAGES as u64,
        }
    }

    /// Most keys that are in the index at once, and more.
    pub(super) fn keys(self) -> u64 {
        self.keys
    }

    /// All ids are below this.
    pub(super) fn ids(self) -> u64 {
        (self.added().first_row + self.added().rows) * CLASSES as u64
    }

    fn rows(self) -> u64 {
        self.keys / CLASSES as u64
    }

    fn filled(self) -> Span {
        Span::new(0, self.rows())
    }

    fn fleeting(self) -> Span {
        Span::new(0, self.rows() / 2)
    }

    fn staying(self) -> Span {
        Span::new(self.rows() / 2, self.rows() / 2)
    }

    /// Those that are deleted at the end, as many as a phase does.
    fn leaving(self) -> Span {
        Span::new(self.rows() / 2, self.groups * GROUP_PAGES as u64 / CLASSES as u64)
    }

    /// Never inserted.
    fn strange(self) -> Span {
        Span::new(self.rows(), self.rows())
    }

    /// Inserted while mixing.
    fn added(self) -> Span {
        let rows = (self.groups * GROUP_PAGES as u64 / 4).div_ceil(CLASSES as u64);
        Span::new(2 * self.rows(), rows)
    }
}

/// What is measured with each number of threads, in this order.
pub(super) const FIGURES: [&str; 4] = ["insert", "query", "mixed", "delete"];

/// Millions of operations a second, and what proves that they were done.
type Outcome = (f64, u64);

/// Runs `plan` with each of these numbers of threads: all phases but the last in a fresh index each, and
/// the last one in turns in the index of the last of them. Then they take turns to fill fresh ones, until
/// that was long enough. Figures are millions of operations a second, over all threads: all of
/// [`FIGURES`] for one number of threads after the other.
pub(super) fn run<C: Contender>(
    plan: Plan,
    setting: &Setting<'_>,
    threads: &[u64],
    fresh: impl Fn() -> C,
) -> Measured {
    let (mut fills, mut between, mut last) = (Vec::new(), Vec::new(), None);
    for threads in threads {
        drop(last.take());
        clear_away_and_back(plan.keys);
        let run = Run { plan, setting, index: last.insert(fresh()) };
        fills.push(Fills(vec![run.fill(*threads)]));
        between.push(run.ask_and_mix(*threads));
    }
    let index = last.as_ref().expect("there is a number of threads");
    let deleted = Run { plan, setting, index }.delete(threads);

    // Nothing is free for long between these.
    drop(last.take());
    while !fills.iter().all(|of| of.are_enough(plan)) {
        for (fills, threads) in fills.iter_mut().zip(threads) {
            clear_away();
            fills.0.push(Run { plan, setting, index: &fresh() }.fill(*threads));
        }
    }
    let filled = fills.iter().map(Fills::all);
    let outcomes: Vec<[Outcome; FIGURES.len()]> = filled
        .zip(between)
        .zip(deleted)
        .map(|((filled, [queried, mixed]), deleted)| [filled, queried, mixed, deleted])
        .collect();
    let check =
        |of: &[Outcome; FIGURES.len()]| of.iter().fold(0, |all, (_, check)| scramble(all ^ check));
    let checks: Vec<u64> = outcomes.iter().map(check).collect();
    assert!(checks.iter().all(|of| *of == checks[0]), "threads change what is found: {checks:x?}");
    let rates = outcomes.iter().flatten().map(|(rate, _)| *rate);
    let figures = FIGURES.into_iter().cycle().zip(rates);
    figures
        .fold(Measured::default(), |measured, (name, rate)| measured.and(name, "Mop/s", rate))
        .checked(checks[0])
}

/// How often an index is filled at most: to make it takes longer than to fill it.
const FILLS: usize = 5;

/// What was measured of threads that filled fresh indexes, one after the other: at least one.
struct Fills(Vec<Outcome>);

impl Fills {
    fn are_enough(&self, plan: Plan) -> bool {
        let took_us: f64 = self.0.iter().map(|(rate, _)| plan.keys as f64 / rate).sum();
        self.0.len() >= FILLS || took_us >= LONG_ENOUGH.as_micros() as f64
    }

    /// The rate over all of them.
    fn all(&self) -> Outcome {
        let (_, check) = self.0[0];
        assert!(self.0.iter().all(|(_, other)| *other == check), "fresh indexes fill otherwise");
        let each: f64 = self.0.iter().map(|(rate, _)| rate.recip()).sum();
        (self.0.len() as f64 / each, check)
    }
}

/// `plan` in one index.
struct Run<'a, C> {
    plan: Plan,
    setting: &'a Setting<'a>,
    index: &'a C,
}

impl<C: Contender> Run<'_, C> {
    fn phase(
        &self,
        teams: &[u64],
        steps: Steps,
        step: Step<'_>,
        undo: Option<Step<'_>>,
    ) -> Vec<Outcome> {
        // A thread that asks for the first time sets up what it needs for that: some of the 20 ms that a
        // phase may take.
        let strange = self.plan.strange();
        let enter = |hand: &mut Hand<'_>| {
            let found = self.index.query(&hand.take(strange.group(0)));
            assert_eq!(found, 0, "nobody inserts these");
        };
        Phase { enter: &enter, steps, step, undo }.run(self.setting.pages, teams)
    }

    fn team(&self, threads: u64, all: u64, kinds: u64, step: Step<'_>) -> Outcome {
        self.phase(&[threads], Steps { all, kinds }, step, None)[0]
    }

    fn fill(&self, threads: u64) -> Outcome {
        let (index, filled) = (self.index, self.plan.filled());
        self.team(threads, filled.groups(), 1, &|hand, number| {
            index.insert(&hand.take(filled.group(number)))
        })
    }

    fn ask_and_mix(&self, threads: u64) -> [Outcome; 2] {
        let Self { plan, index, .. } = self;
        let (fleeting, staying) = (plan.fleeting(), plan.staying());
        let (strange, added) = (plan.strange(), plan.added());
        [
            // Half of them are there.
            self.team(threads, plan.groups, 2, &|hand, number| {
                let span = if number % 2 == 0 { staying } else { strange };
                index.query(&hand.take(span.group(number / 2 % span.groups())))
            }),
            // A quarter each: there, not there, new, gone.
            self.team(threads, plan.groups, 4, &|hand, number| match number % 4 {
                0 => index.query(&hand.take(staying.group(number / 4))),
                1 => index.query(&hand.take(strange.group(number / 4))),
                2 => index.insert(&hand.take(added.group(number / 4))),
                _ => index.delete(&fleeting.group(number / 4)),
            }),
        ]
    }

    fn delete(&self, threads: &[u64]) -> Vec<Outcome> {
        let (index, leaving) = (self.index, self.plan.leaving());
        self.phase(
            threads,
            Steps { all: leaving.groups(), kinds: 1 },
            &|_, number| index.delete(&leaving.group(number)),
            Some(&|hand, number| index.insert(&hand.take(leaving.regrouped().group(number)))),
        )
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::super::pages::Pages;
    use super::*;

    #[test]
    fn spans_have_each_of_their_ids_once_and_groups_one_of_each_class() {
        for rows in [1, 2, 4, 10, 97, 128] {
            let span = Span::new(7, rows);
            let groups: Vec<_> = (0..span.groups()).map(|number| span.group(number)).collect();
            let ids: HashSet<u64> = groups.iter().flatten().copied().collect();
            assert_eq!(ids.len() as u64, rows * CLASSES as u64);
            assert!(ids.iter().all(|id| (7..7 + rows).contains(&(id / CLASSES as u64))));
            let regrouped = (0..span.groups()).map(|number| span.regrouped().group(number));
            assert_eq!(regrouped.flatten().collect::<HashSet<u64>>(), ids);
            for group in groups {
                let classes: HashSet<usize> = group.iter().map(|id| Pages::class(*id)).collect();
                assert_eq!(classes.len(), GROUP_PAGES);
            }
        }
    }

    #[test]
    fn an_index_is_filled_until_that_was_long_enough() {
        let plan = Plan::new(1_000_000, 1);
        let times = |rate: f64| {
            (1..).find(|times| Fills(vec![(rate, 7); *times]).are_enough(plan)).unwrap()
        };
        // A million in 1 s, 250 ms, 100 ms, and in 10 ms.
        assert_eq!([1.0, 4.0, 9.9, 100.0].map(times), [1, 2, 5, FILLS]);
        let (rate, check) = Fills(vec![(10.0, 7), (30.0, 7)]).all();
        assert!((rate - 15.0).abs() < 1e-9, "two million in 133 ms are {rate} a microsecond");
        assert_eq!(check, 7);
    }

    #[test]
    fn phases_stay_within_their_ids() {
        for (keys, operations) in [(1, 1), (1000, 300), (5000, 1 << 20)] {
            let plan = Plan::new(keys, operations);
            assert!(plan.groups <= plan.staying().groups());
            assert_eq!(plan.groups, plan.leaving().groups());
            assert!(plan.groups.div_ceil(4) <= plan.fleeting().groups());
            assert!(plan.groups.div_ceil(4) <= plan.added().groups());
        }
    }
}
