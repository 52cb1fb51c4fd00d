//! Huge pages that change faster than they can be read in a pause. Pure.
//!
//! A huge page that was written counts with all of its 512 pages: reading it takes about 0.4 ms at 5 GB/s. So some
//! fifteen fit a pause of 10 ms, of which 4 ms go to devices and scans. A guest that keeps writing to more of them
//! has those split that do not fit, and no others: they are tracked by page from then on.

use bindery_units::PageIndex;
use bindery_wire::lane::BLOCK_PAGES;

/// Pages that a block is reckoned to have written, once it is tracked by page.
const WRITTEN_PAGES: u64 = 16;

/// Part of the pages that fit a pause, for which it is planned: guests do not write evenly.
const PLANNED: (u64, u64) = (3, 4);

/// Returns the huge pages to split, of those in `hot`, so that about `fits` pages are left to read in a pause at
/// most, of `left` now. None if they would not fit by that: what else there is takes too long by itself.
pub(crate) fn to_split(hot: &[PageIndex], left: u64, fits: u64) -> &[PageIndex] {
    let blocks = hot.len() as u64;
    let planned = fits / PLANNED.1 * PLANNED.0;
    let others = left.saturating_sub(blocks * u64::from(BLOCK_PAGES));
    let room = planned.saturating_sub(others);
    if left <= planned || room < blocks * WRITTEN_PAGES {
        return &[];
    }
    // Each that stays whole takes the rest of its pages.
    let stay = (room - blocks * WRITTEN_PAGES) / (u64::from(BLOCK_PAGES) - WRITTEN_PAGES);
    &hot[stay.min(blocks) as usize..]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn blocks(count: u32) -> Vec<PageIndex> {
        (0..count).map(|number| PageIndex(number * BLOCK_PAGES)).collect()
    }

    #[test]
    fn blocks_that_fit_stay_whole() {
        // 6 ms at 5 GB/s.
        let fits = 7324;
        assert_eq!(to_split(&blocks(10), 10 * 512 + 100, fits), []);
        assert_eq!(to_split(&blocks(0), 1 << 20, fits), []);
    }

    #[test]
    fn blocks_beyond_what_fits_are_split() {
        let hot = blocks(100);
        let split = to_split(&hot, 100 * 512, 7324);
        assert_eq!(split, &hot[7..]);
    }

    #[test]
    fn nothing_is_split_where_the_rest_does_not_fit() {
        assert_eq!(to_split(&blocks(10), 10 * 512 + 6000, 7324), []);
        assert_eq!(to_split(&blocks(1000), 1000 * 512, 7324), []);
    }

    proptest! {
        #[test]
        fn as_few_are_split_as_make_the_rest_fit(
            count in 0_u32..400, others in 0_u64..20_000, fits in 0_u64..50_000,
        ) {
            let hot = blocks(count);
            let left = u64::from(count * BLOCK_PAGES) + others;
            let planned = fits / 4 * 3;
            let split = to_split(&hot, left, fits).len() as u64;
            let with = |split: u64| {
                left - split * (u64::from(BLOCK_PAGES) - WRITTEN_PAGES)
            };
            if left <= planned || with(u64::from(count)) > planned {
                prop_assert_eq!(split, 0);
            } else {
                prop_assert!(with(split) <= planned);
                prop_assert!(with(split - 1) > planned);
            }
        }
    }
}
