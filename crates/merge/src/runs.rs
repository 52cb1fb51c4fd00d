//! How a guest's merges are cut into runs, and which of them come first when mappings are short.
//!
//! A mapping is what a run costs, so pages that lie side by side go together with slots that do,
//! up to [`RUN_PAGES_MAX`] a run: that bounds how long a guest's thread can wait for a page.

use bindery_space::wire::lane::{RUN_PAGES_MAX, Run};
use bindery_units::{PageIndex, Slot};

/// Mappings that merging a run costs: its own, and one more where it splits what was around it.
pub(crate) const RUN_MAPPINGS: u32 = 2;

/// A page that is to be merged with a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Merge {
    pub(crate) page: PageIndex,
    pub(crate) slot: Slot,
}

/// The runs of `merges`, which are sorted by page and name no page twice.
pub(crate) fn cut(merges: &[Merge]) -> Vec<Run> {
    let consecutive =
        |a: &Merge, b: &Merge| b.page.0 == a.page.0 + 1 && b.slot.0.wrapping_sub(a.slot.0) == 1;
    let stretches = merges.chunk_by(consecutive);
    let runs = stretches.flat_map(|stretch| stretch.chunks(RUN_PAGES_MAX as usize));
    runs.map(|run| Run {
        page: run[0].page.0,
        count: run.len() as u32,
        slot: run[0].slot.0,
        zero: 0,
    })
    .collect()
}

/// The runs of pages that are expected to be zero, sorted.
pub(crate) fn cut_zeros(pages: &[u32]) -> Vec<Run> {
    let stretches = pages.chunk_by(|a, b| *b == a + 1);
    let runs = stretches.flat_map(|stretch| stretch.chunks(RUN_PAGES_MAX as usize));
    runs.map(|run| Run { page: run[0], count: run.len() as u32, slot: 0, zero: 1 }).collect()
}

/// Takes from `runs` what does not fit `mappings` more mappings: the shortest runs, which give
/// least for a mapping. What is kept stays in order of pages.
pub(crate) fn fit(runs: &mut Vec<Run>, mappings: u32) -> Vec<Run> {
    let room = (mappings / RUN_MAPPINGS) as usize;
    if runs.len() <= room {
        return Vec::new();
    }
    runs.sort_unstable_by_key(|run| std::cmp::Reverse(run.count));
    let rest = runs.split_off(room);
    runs.sort_unstable_by_key(|run| run.page);
    rest
}

/// The pages of a run and the slot of each.
pub(crate) fn merges_of(run: &Run) -> impl Iterator<Item = Merge> + use<> {
    let Run { page, slot, count, .. } = *run;
    (0..count)
        .map(move |at| Merge { page: PageIndex(page + at), slot: Slot(slot.wrapping_add(at)) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        /// Runs say exactly what was to be merged, are as long as they can be, and no longer than
        /// they may be.
        #[test]
        fn runs_say_the_same_as_pages(
            list in prop::collection::btree_map(0u32..600, prop_oneof![4 => Just(0u32), 1 => 1u32..5], 0..400)
        ) {
            // Slots follow pages at one of a few distances, so that long runs do occur.
            let merges: Vec<Merge> = list
                .iter()
                .map(|(page, shift)| Merge { page: PageIndex(*page), slot: Slot(page + 1000 * shift) })
                .collect();
            let runs = cut(&merges);
            let back: Vec<Merge> = runs.iter().flat_map(merges_of).collect();
            prop_assert_eq!(back, merges);
            for pair in runs.windows(2) {
                prop_assert!(pair[0].count <= RUN_PAGES_MAX);
                let joined = pair[0].page + pair[0].count == pair[1].page
                    && pair[0].slot + pair[0].count == pair[1].slot;
                prop_assert!(!joined || pair[0].count == RUN_PAGES_MAX);
            }
        }

        /// What is dropped when mappings are short is never longer than what is kept.
        #[test]
        fn the_longest_runs_fit_first(
            counts in prop::collection::vec(1u32..64, 0..40), mappings in 0u32..60
        ) {
            let mut runs: Vec<Run> = counts
                .iter()
                .enumerate()
                .map(|(at, count)| Run { page: 100 * at as u32, count: *count, slot: 0, zero: 0 })
                .collect();
            let all = runs.clone();
            let dropped = fit(&mut runs, mappings);
            prop_assert!(runs.len() as u32 * RUN_MAPPINGS <= mappings || dropped.is_empty());
            let shortest_kept = runs.iter().map(|run| run.count).min().unwrap_or(u32::MAX);
            prop_assert!(dropped.iter().all(|run| run.count <= shortest_kept));
            prop_assert!(runs.is_sorted_by_key(|run| run.page));
            let count = |runs: &[Run]| {
                runs.iter().fold(BTreeMap::new(), |mut all, run| {
                    *all.entry(run.page).or_insert(0) += run.count;
                    all
                })
            };
            let together: Vec<Run> = runs.iter().chain(&dropped).copied().collect();
            prop_assert_eq!(count(&together), count(&all));
        }
    }

    #[test]
    fn zeros_are_cut_where_they_are_not_consecutive() {
        let pages: Vec<u32> = (0..70).chain([80]).collect();
        let runs: Vec<_> = cut_zeros(&pages).iter().map(|run| (run.page, run.count)).collect();
        assert_eq!(runs, [(0, 64), (64, 6), (80, 1)]);
    }
}
