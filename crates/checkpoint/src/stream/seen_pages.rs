//! Pages that have come, so that none comes twice.

use std::collections::BTreeMap;

use bindery_units::PageRange;

/// Pages of memory blocks. Takes memory for each gap between them, not for each page.
#[derive(Debug, Default)]
pub(super) struct SeenPages {
    /// End of each stretch, by block and first page.
    stretches: BTreeMap<(u16, u32), u32>,
}

impl SeenPages {
    /// Adds pages of a block. Returns false if one of them was there.
    pub(super) fn insert(&mut self, block: u16, pages: PageRange) -> bool {
        let (mut first, mut end) = (pages.first.0, pages.end().0);
        let before = self.stretches.range(..=(block, first)).next_back();
        let before = before.filter(|((other, _), _)| *other == block);
        let before = before.map(|((_, start), end)| (*start, *end));
        let next = self.stretches.range((block, first)..=(block, u32::MAX)).next();
        let next = next.map(|((_, start), end)| (*start, *end));
        if before.is_some_and(|(_, before)| before > first)
            || next.is_some_and(|(next, _)| next < end)
        {
            return false;
        }
        if let Some((start, _)) = before.filter(|(_, before)| *before == first) {
            first = start;
        }
        if let Some((start, behind)) = next.filter(|(start, _)| *start == end) {
            self.stretches.remove(&(block, start));
            end = behind;
        }
        self.stretches.insert((block, first), end);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bindery_units::PageIndex;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_page_is_new_once(runs in prop::collection::vec((0..2_u16, 0..60_u32, 1..9_u32), 0..40)) {
            let (mut seen, mut expected) = (SeenPages::default(), std::collections::BTreeSet::new());
            for (block, first, count) in runs {
                let pages: Vec<_> = (first..first + count).map(|page| (block, page)).collect();
                let is_new = pages.iter().all(|page| !expected.contains(page));
                prop_assert_eq!(seen.insert(block, PageRange::new(PageIndex(first), count)), is_new);
                if is_new {
                    expected.extend(pages);
                }
            }
        }
    }
}
