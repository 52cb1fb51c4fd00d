//! Pages between two that were found side by side.
//!
//! Guests that were started from one image hold the same contents in the same order. So of
//! [`STRIDE`] + 1 stable pages in a row the ends are digested first. If both are known, and as far
//! apart in another guest or in the store, each page between is *inferred* to hold what lies between
//! there, and joins it unread:
//!
//! ```text
//! this guest       | a | ? | ? | ? | ? | ? | ? | ? | i |
//! seen before  ... | a | b | c | d | e | f | g | h | i | ...
//! ```
//!
//! Nothing is merged on that, as nothing is merged on a digest: pages are compared. One that proves
//! different, or cannot be merged now, is taken at another time than its ends, and is digested then.

use bindery_units::{PageIndex, Slot};

/// Pages from one end to the other. With 8, seven of eight pages are spared where guests have long
/// stretches in common, and any 16 pages that they have in common spare seven.
pub(crate) const STRIDE: u32 = 8;

/// ContentPlace where a content was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ContentPlace {
    /// In a page of a guest, which was seen with it first.
    Page { guest: u32, page: PageIndex },
    /// In the store.
    Slot(Slot),
}

impl ContentPlace {
    /// So many pages further.
    pub(crate) const fn plus(self, pages: u32) -> Self {
        match self {
            Self::Page { guest, page } => Self::Page { guest, page: page.plus(pages) },
            Self::Slot(slot) => Self::Slot(slot.plus(pages)),
        }
    }

    /// Returns true if `other` is `pages` further.
    fn is_before(self, other: Self, pages: u32) -> bool {
        let distance = match (self, other) {
            (Self::Page { guest: a, page }, Self::Page { guest: b, page: end }) if a == b => {
                end.0.checked_sub(page.0)
            }
            (Self::Slot(slot), Self::Slot(end)) => end.0.checked_sub(slot.0),
            _ => None,
        };
        distance == Some(pages)
    }
}

/// Returns where in `pages`, which ascend, the first ends are: at multiples of [`STRIDE`], so that a stretch's
/// last end is the next one's first.
pub(crate) fn stretches(pages: &[u32]) -> impl Iterator<Item = usize> + '_ {
    let ends = pages.windows(STRIDE as usize + 1).enumerate();
    let in_a_row =
        ends.filter(|(_, row)| row[0] % STRIDE == 0 && row[STRIDE as usize] - row[0] == STRIDE);
    in_a_row.map(|(at, _)| at)
}

/// Returns where what lies between two ends is inferred to be: the place of the first end, if the other's is as
/// far from it as the ends are from each other. `places` are those of pages that were found, ascending.
pub(crate) fn base(first: u32, places: &[(PageIndex, ContentPlace)]) -> Option<ContentPlace> {
    let at = places.binary_search_by_key(&first, |(page, _)| page.0).ok()?;
    // Of the pages between none has been looked up.
    let [(_, start), (page, end)] = places.get(at..at + 2)? else { return None };
    (page.0 == first + STRIDE && start.is_before(*end, STRIDE)).then_some(*start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stretches_begin_at_multiples_and_have_no_gaps() {
        let pages: Vec<u32> = (3..30).chain(32..40).chain(48..57).collect();
        let firsts: Vec<u32> = stretches(&pages).map(|at| pages[at]).collect();
        assert_eq!(firsts, [8, 16, 48]);
        assert_eq!(stretches(&[]).count() + stretches(&[0, 8]).count(), 0);
    }

    #[test]
    fn ends_must_be_as_far_apart_there() {
        let page = |guest, page| ContentPlace::Page { guest, page: PageIndex(page) };
        let slot = |slot| ContentPlace::Slot(Slot(slot));
        let found =
            |start, end| [(PageIndex(3), slot(9)), (PageIndex(8), start), (PageIndex(16), end)];
        assert_eq!(base(8, &found(page(1, 70), page(1, 78))), Some(page(1, 70)));
        assert_eq!(base(8, &found(slot(0), slot(8))), Some(slot(0)));
        for (start, end) in [
            (page(1, 70), page(2, 78)),
            (page(1, 70), page(1, 77)),
            (page(1, 70), page(1, 62)),
            (slot(8), slot(0)),
            (slot(70), page(1, 78)),
        ] {
            assert_eq!(base(8, &found(start, end)), None);
        }
        assert_eq!(base(16, &found(slot(0), slot(8))), None);
        assert_eq!(base(0, &found(slot(0), slot(8))), None);
        // The page between the two was not found.
        let apart = [(PageIndex(8), slot(0)), (PageIndex(24), slot(8))];
        assert_eq!(base(8, &apart), None);
    }
}
