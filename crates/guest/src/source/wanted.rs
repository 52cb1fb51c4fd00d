//! Pages that a guest lacks and that were not sent. Pure.

use std::collections::BTreeMap;

use bindery_units::{PageIndex, PageRange};

/// Runs of pages, none of which reaches from one bound range into the next.
#[derive(Debug, Default)]
pub(super) struct Wanted {
    /// End of each run, by its first page. They do not overlap.
    runs: BTreeMap<u32, u32>,
}

impl Wanted {
    /// Adds a run. Returns false if it is empty or overlaps another.
    pub(super) fn add(&mut self, run: PageRange) -> bool {
        let is_new = !run.is_empty() && self.first_in(run).is_none();
        if is_new {
            self.runs.insert(run.first.0, run.end().0);
        }
        is_new
    }

    /// Returns the number of runs.
    pub(super) fn len(&self) -> usize {
        self.runs.len()
    }

    #[cfg(test)]
    fn pages(&self) -> u64 {
        self.runs.iter().map(|(first, end)| u64::from(end - first)).sum()
    }

    /// Returns the first run of wanted pages in a range.
    pub(super) fn first_in(&self, range: PageRange) -> Option<PageRange> {
        let before = self.runs.range(..=range.first.0).next_back();
        let behind = self.runs.range(range.first.0..range.end().0.max(range.first.0)).next();
        let runs = before.into_iter().chain(behind);
        let mut cut = runs.map(|(&first, &end)| run(first, end).intersection(range));
        cut.find(|run| !run.is_empty())
    }

    /// Returns the run that a wanted page is in.
    pub(super) fn run_at(&self, page: PageIndex) -> Option<PageRange> {
        let (&first, &end) = self.runs.range(..=page.0).next_back()?;
        (page.0 < end).then(|| run(first, end))
    }

    /// Removes the first run of wanted pages in a range, which are to be sent. Returns it.
    pub(super) fn take_first(&mut self, range: PageRange) -> Option<PageRange> {
        let taken = self.first_in(range)?;
        let (&first, &end) = self.runs.range(..=taken.first.0).next_back()?;
        self.runs.remove(&first);
        for (first, end) in [(first, taken.first.0), (taken.end().0, end)] {
            if first < end {
                self.runs.insert(first, end);
            }
        }
        Some(taken)
    }
}

fn run(first: u32, end: u32) -> PageRange {
    PageRange::new(PageIndex(first), end - first)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// The runs say what a set of pages says.
        #[test]
        fn the_runs_are_a_set_of_pages(
            steps in prop::collection::vec((any::<bool>(), 0u32..300, 0u32..60), 0..40)
        ) {
            let (mut wanted, mut pages) = (Wanted::default(), BTreeSet::new());
            for (adds, first, count) in steps {
                let range = run(first, first + count);
                let within: Vec<u32> = pages.range(first..first + count).copied().collect();
                if adds {
                    let is_new = count > 0 && within.is_empty();
                    prop_assert_eq!(wanted.add(range), is_new);
                    if is_new {
                        pages.extend(first..first + count);
                    }
                } else {
                    let taken = wanted.take_first(range);
                    prop_assert_eq!(taken.map(|run| run.first.0), within.first().copied());
                    for page in taken.iter().flat_map(|run| run.pages()) {
                        prop_assert!(range.contains(page) && pages.remove(&page.0));
                    }
                }
                prop_assert_eq!(wanted.pages(), pages.len() as u64);
            }
        }
    }
}
