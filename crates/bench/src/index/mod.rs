//! `bindery-bench index`: Bindery's index beside other ways to find equal pages.
//!
//! All contenders answer the same questions about the same pages, and are charged for all that it
//! takes: digesting the page in hand (with Bindery's own keyed digest, for all who need one), the
//! look-up, and comparing the bytes of a hit. `pages` says which memory is read where; it is the
//! same for all. Contenders by digest delete by what their user can keep at no cost of reading: a
//! handle, or the digest.
//!
//! Bindery takes part three times: by digest, one call a page; by digest with calls that take many
//! pages; and by content alone, PageONE's own case, which has nothing to digest.
//!
//! Beside them stands what none of them can save (`bound`): how near an index comes to it, and how
//! far the machine itself lets rates grow with threads.

mod bound;
mod contender;
mod hashed;
mod memory;
mod ordered;
mod pages;
mod phase;
mod processors;
mod sd;
mod workload;

use std::fmt;

use anyhow::{Result, ensure};
use bindery_page::DigestKey;
use serde::Serialize;

use crate::choice;
use crate::harness::{Measured, SampleSet, Table, median, significant, take_turns};

use self::bound::Bound;
use self::contender::{Contender, Setting};
use self::hashed::{Congee, Hashed, PassState};
pub use self::pages::Content;
use self::pages::{CLASSES, Pages};
use self::workload::{FIGURES, Plan};

/// What to measure, and how often.
#[derive(Clone, Debug)]
pub struct Options {
    /// Data sets.
    pub contents: Vec<Content>,
    /// Numbers of keys.
    pub keys: Vec<u64>,
    /// Numbers of threads.
    pub threads: Vec<u64>,
    /// Interleaved rounds; the tables show medians over them.
    pub rounds: usize,
    /// Operations of each phase after the filling; at most half as many as keys are done.
    pub operations: u64,
    /// Pages in which the stored ones lie.
    pub pool_pages: usize,
}

impl Default for Options {
    /// A million keys, one, two and four threads, 256 MiB of stored pages: some minutes.
    fn default() -> Self {
        Self {
            contents: vec![Content::Easy, Content::ZeroPrefix, Content::LastWord],
            keys: vec![1_000_000],
            threads: vec![1, 2, 4],
            rounds: 5,
            operations: 1_000_000,
            pool_pages: 1 << 16,
        }
    }
}

/// Everything that was measured.
#[derive(Debug, Serialize)]
pub struct Report {
    /// One entry for each data set and number of keys.
    pub comparisons: Vec<Comparison>,
}

/// All contenders with all numbers of threads, taken in turns.
#[derive(Debug, Serialize)]
pub struct Comparison {
    /// The data set.
    pub content: Content,
    /// Keys filled in.
    pub keys: u64,
    /// One entry for each number of threads.
    pub runs: Vec<Threads>,
}

/// All contenders with one number of threads.
#[derive(Debug, Serialize)]
pub struct Threads {
    /// How many threads.
    pub threads: u64,
    /// Nanoseconds that a cache line takes from the first thread's processor to the second's and
    /// back: the median over the runs, if there are two.
    pub line_round_trip_ns: Option<f64>,
    /// Rates of each contender, in the order of the tables.
    pub contenders: Vec<SampleSet>,
    /// Rates of what no index can save: digesting pages and comparing them.
    pub bounds: Vec<SampleSet>,
}

/// Who takes part.
#[derive(Clone, Copy)]
enum Who {
    Digest,
    DigestMany,
    Content,
    Papaya,
    Scc,
    DashMap,
    Congee,
    Ordered,
    BoundByDigest,
    BoundByContent,
}

const CONTENDERS: [(Who, &str); 8] = [
    (Who::Digest, "SD by digest"),
    (Who::DigestMany, "SD by digest, many"),
    (Who::Content, "SD by content"),
    (Who::Papaya, "papaya"),
    (Who::Scc, "scc HashIndex"),
    (Who::DashMap, "dashmap"),
    (Who::Congee, "congee"),
    (Who::Ordered, "BTreeMap by memcmp"),
];

const BOUNDS: [(Who, &str); 2] =
    [(Who::BoundByDigest, "no index, by digest"), (Who::BoundByContent, "no index, by content")];

/// Measures every data set with every number of keys.
///
/// # Errors
/// If an option is zero or empty, or if two contenders disagree about a page.
pub fn run(options: &Options) -> Result<Report> {
    let Options { contents, keys, threads, rounds, operations, pool_pages } = options;
    ensure!(*rounds > 0, "--rounds must be at least 1");
    ensure!(!keys.is_empty() && !keys.contains(&0), "--keys must be at least 1");
    ensure!(!threads.is_empty() && !threads.contains(&0), "--threads must be at least 1");
    ensure!(*operations > 0, "--operations must be at least 1");
    ensure!(!contents.is_empty(), "--content names no data set");
    let key = DigestKey::generate()?;
    let mut comparisons = Vec::new();
    for content in contents {
        let pages = Pages::new(*content, pool_pages.next_multiple_of(CLASSES).max(CLASSES));
        for keys in keys {
            let plan = Plan::new(*keys, *operations);
            let setting = Setting { pages: &pages, key: &key, keys: plan.keys(), ids: plan.ids() };
            let title = format!("{content:?}, {} keys", plan.keys());
            let runs = compete(&title, plan, setting, threads, *rounds)?;
            comparisons.push(Comparison { content: *content, keys: plan.keys(), runs });
        }
    }
    Ok(Report { comparisons })
}

/// Contenders take turns, each with all its numbers of threads one after the other: what one gains from
/// a second thread is told within a second of its own, in which a noisy machine changes least.
fn compete(
    title: &str,
    plan: Plan,
    setting: Setting<'_>,
    threads: &[u64],
    rounds: usize,
) -> Result<Vec<Threads>> {
    let all: Vec<(Who, &str)> = CONTENDERS.into_iter().chain(BOUNDS).collect();
    let names: Vec<String> = all.iter().map(|(_, name)| (*name).to_owned()).collect();
    let mut lines = Vec::new();
    let sets = take_turns(title, rounds, &names, |who| {
        lines.extend(processors::line_round_trip_ns());
        Ok(take_part(all[who].0, plan, setting, threads))
    })?;
    let line_round_trip_ns = (!lines.is_empty()).then(|| median(&lines));
    let runs = threads.iter().enumerate().map(|(at, threads)| {
        let mut contenders: Vec<SampleSet> = sets.iter().map(|set| part(set, at)).collect();
        let bounds = contenders.split_off(CONTENDERS.len());
        let line_round_trip_ns = line_round_trip_ns.filter(|_| *threads > 1);
        Threads { threads: *threads, line_round_trip_ns, contenders, bounds }
    });
    Ok(runs.collect())
}

/// What a contender did with the `at`-th number of threads.
fn part(set: &SampleSet, at: usize) -> SampleSet {
    let figures = set.figures.chunks(FIGURES.len()).nth(at).unwrap_or_default();
    SampleSet { name: set.name.clone(), figures: figures.to_vec() }
}

fn take_part(who: Who, plan: Plan, setting: Setting<'_>, threads: &[u64]) -> Measured {
    type Papaya = papaya::HashMap<u128, u64, PassState>;
    type Scc = scc::HashIndex<u128, u64, PassState>;
    type DashMap = dashmap::DashMap<u128, u64, PassState>;
    match who {
        Who::Digest => measure(plan, setting, threads, sd::ByDigest::new),
        Who::DigestMany => {
            measure(plan, setting, threads, |setting| sd::ByDigestMany(sd::ByDigest::new(setting)))
        }
        Who::Content => measure(plan, setting, threads, sd::ByContent::new),
        Who::Papaya => measure(plan, setting, threads, Hashed::<Papaya>::new),
        Who::Scc => measure(plan, setting, threads, Hashed::<Scc>::new),
        Who::DashMap => measure(plan, setting, threads, Hashed::<DashMap>::new),
        Who::Congee => measure(plan, setting, threads, Hashed::<Congee>::new),
        Who::Ordered => measure(plan, setting, threads, ordered::Ordered::new),
        Who::BoundByDigest => measure(plan, setting, threads, |setting| Bound::new(setting, true)),
        Who::BoundByContent => {
            measure(plan, setting, threads, |setting| Bound::new(setting, false))
        }
    }
}

fn measure<'a, C: Contender>(
    plan: Plan,
    setting: Setting<'a>,
    threads: &[u64],
    new: impl Fn(Setting<'a>) -> C,
) -> Measured {
    workload::run(plan, &setting, threads, || new(setting))
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "Millions of operations a second; the best of each column has a star.")?;
        writeln!(
            f,
            "\"No index\" is what none can save: digests, and comparing with what is found."
        )?;
        self.comparisons.iter().try_for_each(|comparison| write!(f, "{comparison}"))
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { content, keys, runs } = self;
        for (at, run) in runs.iter().enumerate() {
            let plural = if run.threads == 1 { "" } else { "s" };
            let name = choice::name(content);
            let mut title = format!("{name}, {keys} keys, {} thread{plural}", run.threads);
            if let Some(line) = run.line_round_trip_ns {
                title += &format!(" (a line takes {line:.0} ns there and back)");
            }
            // Rates beside the same contender's with the fewest threads.
            let base = (at > 0).then(|| &runs[0]);
            write!(f, "\n{}", table(title, run, base))?;
        }
        Ok(())
    }
}

fn table(title: String, run: &Threads, base: Option<&Threads>) -> Table {
    let figures = &run.contenders[0].figures;
    let mut headings = vec![String::new()];
    for figure in figures {
        headings.push(figure.name.to_owned());
        headings.extend(base.map(|base| format!("× {} thread", base.threads)));
    }
    let headings: Vec<&str> = headings.iter().map(String::as_str).collect();
    let mut table = Table::new(title, &headings);
    let best: Vec<f64> = (0..figures.len())
        .map(|at| run.contenders.iter().map(|set| set.figures[at].median).fold(0.0, f64::max))
        .collect();
    let bases = base.map(|base| base.contenders.iter().chain(&base.bounds).collect::<Vec<_>>());
    for (who, set) in run.contenders.iter().chain(&run.bounds).enumerate() {
        let takes_part = who < run.contenders.len();
        let mut row = vec![set.name.clone()];
        for (at, figure) in set.figures.iter().enumerate() {
            let star = if takes_part && figure.median >= best[at] { "*" } else { "" };
            row.push(format!("{star}{}", significant(figure.median)));
            let scaled = bases.as_ref().map(|bases| figure.ratio_to(&bases[who].figures[at]));
            row.extend(scaled.map(|scaled| format!("{scaled:.2}")));
        }
        table.push(row);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every contender finds, misses, inserts and deletes the same pages: [`take_turns`] refuses
    /// them otherwise.
    #[test]
    fn all_contenders_agree_on_every_data_set() {
        let options = Options {
            keys: vec![3000],
            threads: vec![1, 3],
            rounds: 1,
            operations: 1000,
            pool_pages: 256,
            ..Options::default()
        };
        let report = run(&options).unwrap();
        assert_eq!(report.comparisons.len(), 3);
        let shown = report.to_string();
        assert!(shown.contains("last-word, 3072 keys, 3 threads"), "{shown}");
        let options = Options { threads: vec![0], ..options };
        assert!(run(&options).is_err());
    }
}
