//! Pages of which only the page tables tell whether they are accessed.
//!
//! They are taken out of the page tables when it is their turn to go, not out of memory. Whatever is back in the page
//! tables after a while has been accessed, for one fault that does not read, and stays. So nobody pays for pages that
//! are not about to go.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::paged_object::{PagedObject, Run};
use super::work::Work;

/// Runs of pages that are out of the page tables. They go unless they come back.
#[derive(Debug, Default)]
pub(super) struct Suspects {
    /// By the address of their object, each since when; the oldest first.
    runs: BTreeMap<usize, VecDeque<(Duration, Run)>>,
    pages: u64,
}

impl Suspects {
    /// Returns the number of pages, all of them in memory.
    pub(super) const fn pages(&self) -> u64 {
        self.pages
    }

    /// Adds pages that are out of the page tables since `now`.
    pub(super) fn add(&mut self, run: Run, now: Duration) {
        self.pages += run.pages as u64;
        self.runs.entry(key(&run.object)).or_default().push_back((now, run));
    }

    /// Counts the suspects of an object as gone, after all that is in memory was counted.
    pub(super) fn count_as_gone(&self, object: &PagedObject) {
        let runs = self.runs.get(&key(object)).into_iter().flatten();
        let pages = runs.flat_map(|(_, run)| run.range());
        pages.for_each(|page| object.accesses.evict(page));
    }

    /// Takes out those that have been there since `before`, and returns what nobody has accessed of them.
    pub(super) fn judge(&mut self, before: Duration, work: &mut Work) -> Vec<Run> {
        let mut unaccessed = Vec::new();
        for runs in self.runs.values_mut() {
            let due = runs.partition_point(|(since, _)| *since <= before);
            let due: Vec<Run> = runs.drain(..due).map(|(_, run)| run).collect();
            self.pages -= due.iter().map(|run| run.pages as u64).sum::<u64>();
            if !due.is_empty() {
                judge_object(&due, &mut unaccessed, work);
                work.pace.step();
            }
        }
        self.runs.retain(|_, runs| !runs.is_empty());
        unaccessed
    }
}

/// Returns the place of the accesses to an object, which is the same for as long as anything shows it.
fn key(object: &PagedObject) -> usize {
    Arc::as_ptr(&object.accesses).addr()
}

/// Appends what nobody has accessed of some runs of one object. The rest counts as accessed and in memory.
fn judge_object(runs: &[Run], unaccessed: &mut Vec<Run>, work: &mut Work) {
    // Of maps that came and went, the last may be there.
    let Some(object) = runs.iter().rev().map(|run| &run.object).find(|object| object.is_shown())
    else {
        return;
    };
    let mut is_back = pages_in_tables(object, work);
    for run in runs {
        let mut page = run.first_page;
        let was_read = |page: &usize| object.accesses.resident_frequency(*page).is_some();
        run.range().filter(was_read).for_each(|page| is_back[page] = true);
        for alike in is_back[run.range()].chunk_by(|a, b| a == b) {
            if alike[0] {
                object.touch(page..page + alike.len());
            } else {
                let object = Arc::clone(object);
                unaccessed.push(Run { object, first_page: page, pages: alike.len() });
            }
            page += alike.len();
        }
    }
}

/// Returns for each page of an object whether it is in the page tables; all of them are where nobody knows.
fn pages_in_tables(object: &PagedObject, work: &mut Work) -> Vec<bool> {
    let mut are_back = vec![false; object.accesses.len()];
    let Some((map, number)) = object.owners.any() else { return are_back };
    let mut see = |first: u64, pages: u64| {
        let end = (first + pages).min(are_back.len() as u64) as usize;
        are_back[(first as usize).min(end)..end].fill(true);
    };
    let seen = map.back_end.mapped_runs(&work.pagemap, number, &mut see);
    if seen.is_err() {
        are_back.fill(true);
    }
    work.note(seen);
    are_back
}
