//! Which regions the daemon is to hear of: what it was told against what is.
//!
//! A comparison instead of a queue of events: whoever manages or unmaps memory says only that
//! something changed, and nothing is lost or told twice however the calls and a reconnect interleave.
//! Page indices are never used again, so a region either is still there, in part or all, or gone.

use bindery_units::{PageIndex, PageRange};

use bindery_wire::control::Region;

/// What to tell, removals first.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Changes {
    pub(super) removed: Vec<PageRange>,
    pub(super) added: Vec<Region>,
}

/// Returns what changed from `told` to `current`. Both ascend by page, and neither has regions that
/// overlap. Takes time in proportion to what there is.
pub(super) fn changes(announced: &[Region], current: &[Region]) -> Changes {
    let removed =
        announced.iter().flat_map(|region| without(region.pages, within(current, region.pages)));
    let is_new = |region: &&Region| within(announced, region.pages).is_empty();
    Changes { removed: removed.collect(), added: current.iter().filter(is_new).copied().collect() }
}

/// Returns those of `regions`, which ascend, that have a page of `pages`.
fn within(regions: &[Region], pages: PageRange) -> &[Region] {
    let begin = regions.partition_point(|region| region.pages.end() <= pages.first);
    let count = regions[begin..].partition_point(|region| region.pages.first < pages.end());
    &regions[begin..begin + count]
}

/// Returns the pages of `pages` that are in no region, ascending. The regions ascend, too.
fn without(pages: PageRange, regions: &[Region]) -> Vec<PageRange> {
    let mut gaps = Vec::new();
    let mut at = pages.first;
    for part in regions.iter().map(|region| region.pages.intersection(pages)) {
        gaps.extend(gap(at, part.first));
        at = part.end();
    }
    gaps.extend(gap(at, pages.end()));
    gaps
}

fn gap(from: PageIndex, to: PageIndex) -> Option<PageRange> {
    (from < to).then(|| PageRange::new(from, to.0 - from.0))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use bindery_units::HostAddress;
    use proptest::prelude::*;

    use super::*;

    fn region(first: u32, count: u32) -> Region {
        Region {
            pages: PageRange::new(PageIndex(first), count),
            address: HostAddress((first as usize + 16) << 12),
        }
    }

    fn pages(regions: &[Region]) -> BTreeSet<u32> {
        regions.iter().flat_map(|region| region.pages.pages()).map(|page| page.0).collect()
    }

    proptest! {
        /// Told what changed, the daemon has exactly the pages that are there.
        #[test]
        fn changes_lead_from_one_to_the_other(
            // For each block of 16 pages: was it told, is it there, and which part is left?
            blocks in prop::collection::vec((any::<bool>(), 0u32..16, 0u32..16), 1..12)
        ) {
            let (mut announced, mut current) = (Vec::new(), Vec::new());
            for (block, &(known, hole, length)) in (0u32..).zip(&blocks) {
                let first = block * 16;
                if known {
                    announced.push(region(first, 16));
                }
                let end = (hole + length).min(16);
                for (from, to) in [(0, hole), (end, 16)] {
                    if from < to && (known || from == 0) {
                        current.push(region(first + from, to - from));
                    }
                }
            }
            let changes = changes(&announced, &current);
            let mut known = pages(&announced);
            for range in &changes.removed {
                for page in range.pages() {
                    prop_assert!(known.remove(&page.0), "a page is removed once");
                }
            }
            for page in pages(&changes.added) {
                prop_assert!(known.insert(page), "a page is added once");
            }
            prop_assert_eq!(known, pages(&current));
        }
    }

    #[test]
    fn a_region_cut_in_two_is_a_removal() {
        let changes = changes(&[region(0, 100)], &[region(0, 10), region(30, 70)]);
        assert_eq!(changes.removed, [PageRange::new(PageIndex(10), 20)]);
        assert_eq!(changes.added, []);
    }
}
