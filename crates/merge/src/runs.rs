//! How a guest's merges are cut into runs, and which of them come first when mappings are short.
//!
//! A mapping is what a run costs, so pages that lie side by side go together with slots that do,
//! up to [`RUN_PAGES_MAX`] a run: that bounds how long a guest's thread can wait for a page.

use bindery_units::{PageIndex, Slot};
use bindery_wire::lane::{RUN_PAGES_MAX, Run, RunTarget};

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
        target: RunTarget::Slots,
    })
    .collect()
}

/// The runs of pages that are expected to be zero, sorted.
pub(crate) fn cut_zeros(pages: &[u32]) -> Vec<Run> {
    let stretches = pages.chunk_by(|a, b| *b == a + 1);
    let runs = stretches.flat_map(|stretch| stretch.chunks(RUN_PAGES_MAX as usize));
    runs.map(|run| Run { page: run[0], count: run.len() as u32, slot: 0, target: RunTarget::Zeros })
        .collect()
}

/// Mappings that merging `run` makes at worst: it cuts what is on either side of it, except where
/// that is merged already; there a mapping ends anyway, or even goes on with the run.
pub(crate) fn mappings(run: &Run, slot_at: impl Fn(PageIndex) -> Option<Slot>) -> u32 {
    let before = run.page.checked_sub(1).map(|page| (PageIndex(page), run.slot.wrapping_sub(1)));
    let after = (PageIndex(run.page + run.count), run.slot.wrapping_add(run.count));
    let change = |(page, consecutive): (PageIndex, u32)| match slot_at(page) {
        Some(Slot(slot)) if slot == consecutive => -1_i32,
        Some(_) => 0,
        None => 1,
    };
    (before.map_or(0, change) + change(after)).max(0).cast_unsigned()
}

/// Takes from `runs` what does not fit `room` more mappings: those that give fewest pages for a
/// mapping, and of those that give as many the last ones in the store. What is kept stays in order of pages.
pub(crate) fn fit(runs: &mut Vec<Run>, room: u32, cost: impl Fn(&Run) -> u32) -> Vec<Run> {
    if runs.len() <= room as usize / 2 {
        return Vec::new();
    }
    let mut costed: Vec<(u32, Run)> = runs.iter().map(|run| (cost(run), *run)).collect();
    // Twice the pages of a mapping, since a run costs at most two.
    let yields = |cost: u32, run: &Run| (2 * run.count).checked_div(cost).unwrap_or(u32::MAX);
    costed.sort_by_key(|(cost, run)| (std::cmp::Reverse(yields(*cost, run)), run.slot));
    let mut used = 0;
    let fitting = costed.iter().take_while(|(cost, _)| {
        used += cost;
        used <= room
    });
    let rest = costed.split_off(fitting.count());
    *runs = costed.into_iter().map(|(_, run)| run).collect();
    runs.sort_unstable_by_key(|run| run.page);
    rest.into_iter().map(|(_, run)| run).collect()
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

        /// What is dropped when mappings are short never gives more than what is kept, and is only
        /// dropped if it does not fit.
        #[test]
        fn what_gives_most_for_a_mapping_fits_first(
            counts in prop::collection::vec((1u32..64, 0u32..3), 0..40), room in 0u32..60
        ) {
            let mut runs: Vec<Run> = counts
                .iter()
                .enumerate()
                .map(|(at, (count, _))| Run { page: 100 * at as u32, count: *count, slot: 0, target: RunTarget::Slots })
                .collect();
            let cost = |run: &Run| counts[run.page as usize / 100].1;
            let all = runs.clone();
            let dropped = fit(&mut runs, room, cost);
            let used: u32 = runs.iter().map(cost).sum();
            prop_assert!(used <= room);
            let value = |run: &Run| (2 * run.count).checked_div(cost(run)).unwrap_or(u32::MAX);
            let least_kept = runs.iter().map(value).min().unwrap_or(u32::MAX);
            prop_assert!(dropped.iter().all(|run| value(run) <= least_kept));
            let best = dropped.iter().max_by_key(|run| value(run));
            prop_assert!(best.is_none_or(|_| dropped.iter().any(|run| used + cost(run) > room)));
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
    fn a_run_costs_what_it_cuts() {
        let run = Run { page: 10, count: 4, slot: 70, target: RunTarget::Slots };
        let with = |before: Option<u32>, after: Option<u32>| {
            mappings(&run, |page| match page.0 {
                9 => before.map(Slot),
                14 => after.map(Slot),
                page => panic!("page {page} does not touch the run"),
            })
        };
        assert_eq!(with(None, None), 2);
        assert_eq!(with(Some(5), None), 1);
        assert_eq!((with(Some(5), Some(5)), with(Some(69), None)), (0, 0));
        assert_eq!((with(Some(69), Some(74)), with(Some(69), Some(5))), (0, 0));
    }

    #[test]
    fn zeros_are_cut_where_they_are_not_consecutive() {
        let pages: Vec<u32> = (0..70).chain([80]).collect();
        let runs: Vec<_> = cut_zeros(&pages).iter().map(|run| (run.page, run.count)).collect();
        assert_eq!(runs, [(0, 64), (64, 6), (80, 1)]);
    }
}
