//! How often a guest is asked what it wrote: less often where it has written nothing for long.
//!
//! Asking costs the kernel a walk of every mapping, written to or not. A block that was quiet each of
//! the last times is asked after in every second, fourth, then eighth period, and in every one again
//! once something in it was written: what KSM's `smart_scan` does with pages that do not merge. All
//! that is delayed is that cold pages which were written are looked at again, by seven periods at
//! most. Merged ones that were written are reported when anything of their guest is asked after, and have their block
//! asked after then; a small guest in which all is quiet is not asked for them in between.
//!
//! Blocks next to one another rest in the same periods, so that what is asked stays in few ranges; small guests rest in
//! different ones.

use bindery_units::{PageIndex, PageRange};
use bindery_wire::lane::BLOCK_PAGES;

/// Blocks that are asked after in the same periods.
const GROUP_BLOCKS: u32 = 64;

/// Blocks that may be asked after unasked, to make one question of two.
const GAP_BLOCKS: u32 = 8;

/// Quiet answers before a block rests twice as long.
const PATIENCE: u8 = 4;

/// A block is asked after in every so many periods at least, as a power of two.
const REST_MAX_LOG2: u8 = 3;

/// When each block of a guest is asked after.
#[derive(Debug, Default)]
pub(crate) struct Rhythm {
    /// For each block, how many times in a row nothing in it had been written.
    quiet: Vec<u8>,
    period: u32,
}

impl Rhythm {
    /// Begins with nothing known. Those that begin with different numbers rest in different periods.
    pub(crate) fn beginning_with(period: u32) -> Self {
        Self { period, ..Self::default() }
    }

    /// Starts the next period.
    pub(crate) fn begin_period(&mut self) {
        self.period = self.period.wrapping_add(1);
    }

    /// What is to be asked after in this period, of `range`: disjoint and ascending.
    pub(crate) fn due(&self, range: PageRange) -> Vec<PageRange> {
        let mut due: Vec<PageRange> = Vec::new();
        for block in blocks_of(range).filter(|block| self.is_due(*block, self.period)) {
            let pages = PageRange::new(PageIndex(block * BLOCK_PAGES), BLOCK_PAGES);
            let pages = pages.intersection(range);
            match due.last_mut() {
                Some(last) if pages.first.0 - last.end().0 <= GAP_BLOCKS * BLOCK_PAGES => {
                    *last = PageRange::new(last.first, pages.end().0 - last.first.0);
                }
                _ => due.push(pages),
            }
        }
        due
    }

    /// Takes in that `range` is asked after: quiet, until something written in it is noted.
    pub(crate) fn note_asked(&mut self, range: PageRange) {
        let end = range.end().0.div_ceil(BLOCK_PAGES) as usize;
        if end > self.quiet.len() {
            self.quiet.resize(end, 0);
        }
        for block in blocks_of(range) {
            let quiet = &mut self.quiet[block as usize];
            *quiet = (*quiet + 1).min(PATIENCE * REST_MAX_LOG2);
        }
    }

    /// Takes in that pages of `range` were written, whoever asked after it.
    pub(crate) fn note_written(&mut self, range: PageRange) {
        for block in blocks_of(range) {
            // What was never asked after is not at rest.
            if let Some(quiet) = self.quiet.get_mut(block as usize) {
                *quiet = 0;
            }
        }
    }

    /// Memory held, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.quiet.capacity()
    }

    /// Returns true if anything of `range` is to be asked after in the next period.
    pub(crate) fn is_due_next(&self, range: PageRange) -> bool {
        let next = self.period.wrapping_add(1);
        blocks_of(range).any(|block| self.is_due(block, next))
    }

    fn is_due(&self, block: u32, period: u32) -> bool {
        let quiet = self.quiet.get(block as usize).copied().unwrap_or(0);
        let rest = 1 << (quiet / PATIENCE);
        (period.wrapping_add(block / GROUP_BLOCKS)).is_multiple_of(rest)
    }
}

/// The blocks that a range has pages of.
fn blocks_of(range: PageRange) -> std::ops::Range<u32> {
    range.first.0 / BLOCK_PAGES..range.end().0.div_ceil(BLOCK_PAGES)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks(first: u32, count: u32) -> PageRange {
        PageRange::new(PageIndex(first * BLOCK_PAGES), count * BLOCK_PAGES)
    }

    /// Asks after what is due of `range` and returns it; nothing but `written` was written.
    fn ask(rhythm: &mut Rhythm, range: PageRange, written: PageRange) -> Vec<PageRange> {
        rhythm.begin_period();
        let due = rhythm.due(range);
        for asked in &due {
            rhythm.note_asked(*asked);
            let found = asked.intersection(written);
            if !found.is_empty() {
                rhythm.note_written(found);
            }
        }
        due
    }

    #[test]
    fn a_quiet_guest_is_asked_less_and_less_often_but_every_eighth_period() {
        let (mut rhythm, all, none) = (Rhythm::default(), blocks(0, 64), blocks(0, 0));
        let asked: Vec<bool> = (0..100).map(|_| ask(&mut rhythm, all, none) == [all]).collect();
        assert!(asked[..4].iter().all(|asked| *asked), "not before it was quiet for long");
        assert!(asked.windows(8).all(|periods| periods.contains(&true)));
        assert_eq!(asked[36..100].iter().filter(|asked| **asked).count(), 8);
    }

    #[test]
    fn a_write_is_found_and_has_its_block_asked_after_every_time_again() {
        let (mut rhythm, all) = (Rhythm::default(), blocks(0, 640));
        (0..50).for_each(|_| drop(ask(&mut rhythm, all, blocks(0, 0))));
        let page = PageRange::new(PageIndex(300 * BLOCK_PAGES + 7), 1);
        let found = (0..8).position(|_| {
            let due = ask(&mut rhythm, all, page);
            due.iter().any(|range| range.contains(page.first))
        });
        assert!(found.is_some());
        for _ in 0..3 {
            let due = ask(&mut rhythm, all, blocks(0, 0));
            assert!(due.iter().any(|range| range.contains(page.first)));
        }
        // Others rest on.
        let pages: u32 = ask(&mut rhythm, all, page).iter().map(|range| range.count).sum();
        assert!(pages < all.count / 3, "{pages} of {}", all.count);
    }

    #[test]
    fn what_is_due_is_in_few_ranges_within_what_is_managed() {
        let mut rhythm = Rhythm::default();
        let all = PageRange::new(PageIndex(700), 200 * BLOCK_PAGES);
        assert_eq!(rhythm.due(all), [all]);
        for period in 0..60 {
            // Every fourth block is never quiet.
            let is_due = rhythm.is_due_next(all);
            rhythm.begin_period();
            let due = rhythm.due(all);
            assert_eq!(is_due, !due.is_empty());
            assert!(due.len() <= 1 + 200 / GAP_BLOCKS as usize, "{period}: {due:?}");
            assert!(due.windows(2).all(|pair| pair[0].end() < pair[1].first));
            assert!(due.iter().all(|range| range.intersection(all) == *range));
            for asked in due {
                rhythm.note_asked(asked);
                for block in blocks_of(asked).filter(|block| block % 4 == 0) {
                    rhythm.note_written(blocks(block, 1));
                }
            }
        }
    }
}
