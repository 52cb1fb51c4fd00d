//! Where newly shared contents go in the store: in the order in which guests hold them.
//!
//! A *class* is a content that was seen twice in this period, or seen once and inferred to be in another
//! page ([`between`](crate::between)). All pages of it are known by
//! now; the first of them, by guest and page, is its *home*. Laid out in order of their homes,
//! contents that lie side by side in the first guest lie side by side in the store, and so in every
//! guest that has been started from the same image.
//!
//! A content is copied from another page than the one that it was seen in first, and only if that is as
//! was digested: where nobody lies, no page gets into the store, which all guests of the domain can read,
//! unless there is a second one like it.

use bindery_units::{PageIndex, Slot, SlotRange};

/// A class as it is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seed {
    /// Its number within the period.
    pub(crate) class: u32,
    /// Its leaf in the index.
    pub(crate) leaf: u32,
    /// The first 64 bits of its digest, as in the index.
    pub(crate) head: u64,
    /// The others, unless its second page is inferred to have it.
    pub(crate) tail: Option<u64>,
    /// The guest and the page that it was seen in first.
    pub(crate) origin: (u32, PageIndex),
}

/// A page that was seen with the content of a class. Sorts by class, then as homes are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Join {
    pub(crate) class: u32,
    pub(crate) guest: u32,
    pub(crate) page: PageIndex,
    /// It was not digested.
    pub(crate) inferred: bool,
}

/// A class with its home.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Class {
    pub(crate) seed: Seed,
    /// The first guest and page that have it.
    pub(crate) home: (u32, PageIndex),
    /// The guest and the page that the content is copied from.
    pub(crate) source: (u32, PageIndex),
    /// Which one that was to be at first.
    first_source: (u32, PageIndex),
    /// Where its pages begin and end in the sorted joins.
    pub(crate) joins: (u32, u32),
    /// All but the page that it was seen in first are inferred to have it.
    pub(crate) inferred: bool,
}

impl Class {
    /// Its pages, of the sorted joins.
    pub(crate) fn joins<'a>(&self, all: &'a [Join]) -> &'a [Join] {
        &all[self.joins.0 as usize..self.joins.1 as usize]
    }

    /// Its pages but for the one that it was seen in first. There is one at least.
    pub(crate) fn later<'a>(&self, all: &'a [Join]) -> impl Iterator<Item = &'a Join> + use<'a> {
        let origin = self.seed.origin;
        self.joins(all).iter().filter(move |join| (join.guest, join.page) != origin)
    }

    /// Another page that its content may be copied from, after so many were tried: one that was digested,
    /// if there is any. One of each guest.
    pub(crate) fn next_source(&self, all: &[Join], tried: usize) -> Option<(u32, PageIndex)> {
        let of_kind = self.later(all).filter(|join| join.inferred == self.inferred);
        let mut sources: Vec<_> = of_kind.map(|join| (join.guest, join.page)).collect();
        sources.dedup_by_key(|(guest, _)| *guest);
        sources.into_iter().filter(|source| *source != self.first_source).nth(tried - 1)
    }
}

/// Sorts `joins` and gives every class its home and its source. Classes come in order of their homes.
///
/// # Panics
/// If a class has no page, or a page no class: whoever makes a class enters its first two pages.
pub(crate) fn classes(seeds: &mut [Seed], joins: &mut Vec<Join>) -> Vec<Class> {
    seeds.sort_unstable_by_key(|seed| seed.class);
    joins.sort_unstable();
    joins.dedup();
    let mut start = 0;
    let mut classes: Vec<Class> = Vec::with_capacity(seeds.len());
    for (group, seed) in joins.chunk_by(|a, b| a.class == b.class).zip(seeds.iter()) {
        assert!(group[0].class == seed.class, "every class has pages, every page a class");
        let end = start + group.len() as u32;
        let home = (group[0].guest, group[0].page);
        let inferred = group.iter().filter(|join| !join.inferred).nth(1).is_none();
        let (seed, joins) = (*seed, (start, end));
        classes.push(Class { seed, home, source: home, first_source: home, joins, inferred });
        start = end;
    }
    let complete = classes.len() == seeds.len() && start as usize == joins.len();
    assert!(complete, "every class has pages, every page a class");
    classes.sort_unstable_by_key(|class| class.home);
    give_sources(&mut classes, joins);
    classes
}

/// Gives every class a source: in the same guest as the class before, if it has a page there, so that many
/// contents are asked for at a time and written side by side.
fn give_sources(classes: &mut [Class], joins: &[Join]) {
    let mut last = None;
    for class in classes {
        let same = class.later(joins).find(|join| Some(join.guest) == last);
        let source = same.or_else(|| class.later(joins).next());
        let source = source.expect("whoever makes a class enters its first two pages");
        class.first_source = (source.guest, source.page);
        class.source = class.first_source;
        last = Some(source.guest);
    }
}

/// The slots of `runs`, in the order of the runs.
pub(crate) fn slots_in(runs: &[SlotRange]) -> impl Iterator<Item = Slot> + '_ {
    runs.iter().flat_map(|run| run.slots())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::extents::Extents;
    use crate::runs::{Merge, cut};
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    /// Guests hold contents; returns for each guest its merges, planned in one period.
    fn planned(guests: &[Vec<u32>]) -> Vec<Vec<Merge>> {
        let mut homes: BTreeMap<u32, Vec<(u32, u32)>> = BTreeMap::new();
        for (guest, contents) in guests.iter().enumerate() {
            for (page, content) in contents.iter().enumerate() {
                homes.entry(*content).or_default().push((guest as u32, page as u32));
            }
        }
        homes.retain(|_, pages| pages.len() > 1);
        let (mut seeds, mut joins) = (Vec::new(), Vec::new());
        for (class, (content, pages)) in homes.iter().enumerate() {
            // As many workers leave them: in no order of pages.
            let class = class as u32;
            let head = u64::from(*content);
            let origin = (pages[0].0, PageIndex(pages[0].1));
            seeds.push(Seed { class, leaf: *content, head, tail: None, origin });
            let join = |(guest, page): &(u32, u32)| Join {
                class,
                guest: *guest,
                page: PageIndex(*page),
                inferred: false,
            };
            joins.extend(pages.iter().rev().map(join));
        }
        seeds.reverse();
        let classes = classes(&mut seeds, &mut joins);
        let runs = Extents::new(u32::MAX, 512).allocate(classes.len() as u32);
        let mut merges = vec![Vec::new(); guests.len()];
        for (class, slot) in classes.iter().zip(slots_in(&runs)) {
            for join in &joins[class.joins.0 as usize..class.joins.1 as usize] {
                merges[join.guest as usize].push(Merge { page: join.page, slot });
            }
        }
        merges.iter_mut().for_each(|merges| merges.sort_unstable());
        merges
    }

    /// Joins of one class, which was seen first in page 0 of guest 1, each with whether it is inferred.
    fn class(pages: &[(u32, u32, bool)]) -> (Class, Vec<Join>) {
        let origin = (1, PageIndex(0));
        let mut seeds = [Seed { class: 0, leaf: 0, head: 0, tail: None, origin }];
        let join = |(guest, page, inferred): &(u32, u32, bool)| Join {
            class: 0,
            guest: *guest,
            page: PageIndex(*page),
            inferred: *inferred,
        };
        let mut joins: Vec<Join> = [(1, 0, false)].iter().chain(pages).map(join).collect();
        (classes(&mut seeds, &mut joins)[0], joins)
    }

    /// Guests that a class's content is asked of, the first one included.
    fn asked(pages: &[(u32, u32, bool)]) -> Vec<u32> {
        let (mut class, joins) = class(pages);
        let mut asked = vec![class.source.0];
        while let Some(source) = class.next_source(&joins, asked.len()) {
            assert_ne!(source, class.seed.origin);
            class.source = source;
            asked.push(source.0);
        }
        asked
    }

    #[test]
    fn a_content_is_asked_of_each_guest_once_and_never_of_the_first_page() {
        assert_eq!(asked(&[(2, 7, false), (5, 7, false), (5, 8, false), (9, 7, false)]), [2, 5, 9]);
        // Nobody else says that it has it.
        assert_eq!(asked(&[(0, 7, true), (2, 7, true)]), [0, 2]);
        // The first may be any; then those that were digested.
        assert_eq!(asked(&[(0, 7, true), (2, 7, true), (3, 7, false)]), [0, 3]);
        // Another page of the same guest has it.
        assert_eq!(asked(&[(1, 7, false)]), [1]);
        assert_eq!(asked(&[(1, 7, true), (1, 8, false)]), [1, 1]);
    }

    #[test]
    fn guests_of_one_image_merge_in_the_longest_runs() {
        // Four guests from one image of 4096 pages, each with 100 stretches of its own.
        let contents = |number: u32| -> Vec<u32> {
            let own = |page: u32| (page * 7 + number * 13).is_multiple_of(41);
            (0..4096).map(|page| if own(page) { (number + 1) << 20 | page } else { page }).collect()
        };
        let guests: Vec<_> = (0..4).map(contents).collect();
        for (guest, merges) in planned(&guests).iter().enumerate() {
            let runs = cut(merges);
            let mean = merges.len() / runs.len();
            // Between two pages of its own, a guest's pages are consecutive in the store as well.
            assert!(merges.len() > 3900 && mean >= 13, "guest {guest}: {mean} pages a run");
        }
    }

    #[test]
    fn identical_guests_merge_in_full_runs() {
        let guest: Vec<u32> = (0..4096).collect();
        for merges in planned(&[guest.clone(), guest.clone(), guest]) {
            assert_eq!(cut(&merges).len(), 64);
        }
    }

    proptest! {
        /// Every page of a shared content is planned, once, and equal contents get one slot.
        #[test]
        fn plans_are_complete(
            guests in prop::collection::vec(prop::collection::vec(0u32..40, 0..60), 1..5)
        ) {
            let planned = planned(&guests);
            let mut slot_of = BTreeMap::new();
            let mut content_of = BTreeMap::new();
            let mut pages = 0;
            for (contents, merges) in guests.iter().zip(&planned) {
                prop_assert!(merges.windows(2).all(|pair| pair[0].page < pair[1].page));
                for merge in merges {
                    let content = contents[merge.page.at()];
                    prop_assert_eq!(*slot_of.entry(content).or_insert(merge.slot), merge.slot);
                    prop_assert_eq!(*content_of.entry(merge.slot).or_insert(content), content);
                    pages += 1;
                }
            }
            let mut counts = BTreeMap::new();
            guests.iter().flatten().for_each(|content| *counts.entry(content).or_insert(0) += 1);
            let shared: usize = counts.values().filter(|count| **count > 1).sum();
            prop_assert_eq!(pages, shared);
        }
    }
}
