//! A range that a call is about, cut where managed memory begins and ends.

use bindery_units::PAGE_BYTES;
use bindery_wire::control::Region;

/// A piece of a range: all of it managed by one region, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) address: usize,
    pub(crate) bytes: usize,
    pub(crate) is_managed: bool,
}

/// The pieces of a range, ascending. `regions` do not overlap.
pub(crate) fn pieces(mut regions: Vec<Region>, address: usize, bytes: usize) -> Vec<Piece> {
    regions.sort_by_key(|region| region.address);
    let end = address.saturating_add(bytes);
    let mut at = address;
    let mut pieces = Vec::new();
    let mut push = |from: usize, to: usize, is_managed| {
        if from < to {
            pieces.push(Piece { address: from, bytes: to - from, is_managed });
        }
    };
    for region in regions {
        let start = region.address.0.clamp(at, end);
        let stop = (region.address.0 + region.pages.count as usize * PAGE_BYTES).clamp(at, end);
        if start < stop {
            push(at, start, false);
            push(start, stop, true);
            at = stop;
        }
    }
    push(at, end, false);
    pieces
}

#[cfg(test)]
mod tests {
    use bindery_units::{HostAddress, PageIndex, PageRange};
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Every page of the range is in one piece, of the kind that the page has.
        #[test]
        fn pieces_are_what_each_page_says(
            managed in prop::collection::vec(0u8..3, 1..40), first in 0usize..30, count in 0usize..30
        ) {
            // 0: not managed; 1: same region as the page before, if that is one; else a new region.
            let mut regions: Vec<Region> = Vec::new();
            for (page, &kind) in managed.iter().enumerate() {
                let joins = kind == 1 && page > 0 && managed[page - 1] != 0;
                match regions.last_mut() {
                    Some(last) if joins => last.pages.count += 1,
                    _ if kind != 0 => regions.insert(regions.len(), Region {
                        pages: PageRange::new(PageIndex(page as u32 * 512), 1),
                        address: HostAddress(page * PAGE_BYTES),
                    }),
                    _ => {}
                }
            }
            let is_managed = |page: usize| {
                regions.iter().any(|region| {
                    let start = region.address.0 / PAGE_BYTES;
                    (start..start + region.pages.count as usize).contains(&page)
                })
            };
            let shuffled = regions.iter().rev().copied().collect();
            let found = pieces(shuffled, first * PAGE_BYTES, count * PAGE_BYTES);
            let mut at = first;
            for piece in found {
                prop_assert_eq!(piece.address, at * PAGE_BYTES);
                prop_assert!(piece.bytes > 0);
                for page in at..at + piece.bytes / PAGE_BYTES {
                    prop_assert_eq!(piece.is_managed, is_managed(page));
                }
                at += piece.bytes / PAGE_BYTES;
            }
            prop_assert_eq!(at, first + count);
        }
    }
}
