//! Pages that were put, over those of the checkpoint before.

use bindery_pool::ObjectId;
use bindery_units::{PageIndex, PageRange};

use super::page_map::{PageMap, PlacedRun};

/// Place of a stored page in the pool.
pub(crate) type PagePlace = (ObjectId, u32);

/// Pages of one memory block that were put, in any order; of a page that was put twice the last counts.
#[derive(Debug, Default)]
pub(crate) struct Overlay {
    /// Runs in the order in which they were put; without a place, they are zero.
    put: Vec<(PageRange, Option<PagePlace>)>,
}

impl Overlay {
    /// Puts pages that lie one after the other in a pack, from `place` on.
    pub(crate) fn put(&mut self, run: PageRange, place: Option<PagePlace>) {
        if let Some((pages, last)) = self.put.last_mut()
            && pages.end() == run.first
            && goes_on(*last, pages.count, place)
        {
            pages.count += run.count;
            return;
        }
        self.put.push((run, place));
    }

    /// Returns the runs of the block: those that were put, and between them those of `base`. `pack_number`
    /// gives the number of a pack in the new manifest's list; `base_packs` are those of the base's.
    pub(crate) fn over(
        self,
        (base, base_packs): (&PageMap, &[ObjectId]),
        pages: u32,
        pack_number: &mut impl FnMut(ObjectId) -> u32,
    ) -> PageMap {
        let mut map = PageMap::default();
        let mut end = PageIndex(0);
        let base = (base, base_packs);
        for (pages, place) in self.flatten() {
            inherit(&mut map, base, (end, pages.first), pack_number);
            if let Some((object, place)) = place {
                map.push(PlacedRun { pages, pack: pack_number(object), place });
            }
            end = pages.end();
        }
        inherit(&mut map, base, (end, PageIndex(pages)), pack_number);
        map
    }

    /// Returns disjoint runs in ascending order, later ones before earlier ones where they overlap.
    fn flatten(self) -> Vec<(PageRange, Option<PagePlace>)> {
        if self.put.windows(2).all(|pair| pair[0].0.end() <= pair[1].0.first) {
            return self.put;
        }
        let mut pages: Vec<(PageIndex, usize)> = Vec::new();
        for (at, (run, _)) in self.put.iter().enumerate() {
            pages.extend(run.pages().map(|page| (page, at)));
        }
        pages.sort_unstable();
        let mut flat = Self::default();
        for (at, (page, run)) in pages.iter().enumerate() {
            let is_last = pages.get(at + 1).is_none_or(|(next, _)| next != page);
            let (put, place) = self.put[*run];
            let place = place.map(|(object, place)| (object, place + (page.0 - put.first.0)));
            if is_last {
                flat.put(PageRange::new(*page, 1), place);
            }
        }
        flat.put
    }
}

fn goes_on(last: Option<PagePlace>, count: u32, next: Option<PagePlace>) -> bool {
    match (last, next) {
        (None, None) => true,
        (Some((object, place)), Some(next)) => (object, place + count) == next,
        _ => false,
    }
}

/// Appends what a base has of a range.
fn inherit(
    map: &mut PageMap,
    (base, packs): (&PageMap, &[ObjectId]),
    (first, end): (PageIndex, PageIndex),
    pack_number: &mut impl FnMut(ObjectId) -> u32,
) {
    if first >= end {
        return;
    }
    for run in base.within(PageRange::new(first, end.0 - first.0)) {
        map.push(PlacedRun { pack: pack_number(packs[run.pack as usize]), ..run });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// The map says what an array of places would.
        #[test]
        fn a_map_is_an_array_of_places(
            rounds in prop::collection::vec(
                prop::collection::vec((0_u32..40, prop::option::of((0_u64..3, 0_u32..6))), 0..30),
                1..4,
            ),
            lengths in prop::collection::vec(0_u32..45, 3),
        ) {
            let (mut base, mut packs) = (PageMap::default(), Vec::new());
            let mut expected = [None; 64];
            for (round, &length) in rounds.into_iter().zip(&lengths) {
                let mut overlay = Overlay::default();
                for (page, place) in round.into_iter().filter(|put| put.0 < length) {
                    let place = place.map(|(object, place)| (ObjectId(object), place));
                    overlay.put(PageRange::new(PageIndex(page), 1), place);
                    expected[page as usize] = place;
                }
                expected[length as usize..].fill(None);
                let mut new_packs = Vec::new();
                let mut number = |object| match new_packs.iter().position(|it| *it == object) {
                    Some(at) => at as u32,
                    None => { new_packs.push(object); new_packs.len() as u32 - 1 }
                };
                base = overlay.over((&base, &packs), length, &mut number);
                packs = new_packs;
                for (page, expected) in expected.iter().enumerate() {
                    let found = base.find(PageIndex(page as u32));
                    let found = found.map(|run| (packs[run.pack as usize], run.place));
                    prop_assert_eq!(found, *expected, "page {}", page);
                }
                prop_assert!(base.runs().windows(2).all(|it| !it[0].is_continued_by(&it[1])));
            }
        }
    }
}
