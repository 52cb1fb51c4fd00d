//! Pieces of memory blocks: managed by a guest's library, or not. Pure.

use bindery_units::{HostAddress, PAGE_BYTES, PageIndex, PageRange};
use bindery_wire::control::Region;

use crate::memory::BlockPages;
use crate::place::PlacedBlock;

/// Consecutive pages of a block that are one in how they are reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// Pages of a block.
    pub(crate) of: BlockPages,
    /// Address of the first of them in the guest's process.
    pub(crate) address: HostAddress,
    /// Numbers of the pages with the guest's library; none where it does not manage them.
    pub(crate) managed: Option<PageIndex>,
}

impl Piece {
    /// Returns the guest's numbers of the pages, if they are managed.
    pub(crate) fn guest_pages(&self) -> Option<PageRange> {
        self.managed.map(|first| PageRange::new(first, self.of.pages.count))
    }

    /// Returns the pages of the block that the guest numbers so; they must be of this piece.
    pub(crate) fn block_pages(&self, guest: PageRange) -> BlockPages {
        let first = self.managed.map_or(guest.first.0, |first| guest.first.0 - first.0);
        let pages = PageRange::new(self.of.pages.first.plus(first), guest.count);
        BlockPages { block: self.of.block, pages }
    }

    /// Returns the part of the piece that has the pages of `run`, if any.
    pub(crate) fn part(&self, run: BlockPages) -> Option<Self> {
        let pages = self.of.pages.intersection(run.pages);
        if self.of.block != run.block || pages.is_empty() {
            return None;
        }
        let offset = pages.first.0 - self.of.pages.first.0;
        Some(Self {
            of: BlockPages { block: run.block, pages },
            address: self.address.plus_pages(offset),
            managed: self.managed.map(|first| first.plus(offset)),
        })
    }
}

/// Cuts blocks where regions begin and end. Pieces are ascending by block and page.
pub(crate) fn cut_blocks(blocks: &[PlacedBlock], regions: &[Region]) -> Vec<Piece> {
    let mut regions = regions.to_vec();
    regions.sort_unstable_by_key(|region| region.address);
    let mut pieces = Vec::new();
    for (number, block) in blocks.iter().enumerate() {
        let end = block.address.plus_pages(block.pages);
        let piece = |from: HostAddress, to: HostAddress, managed| Piece {
            of: BlockPages {
                block: number,
                pages: PageRange::new(PageIndex(pages(block.address, from)), pages(from, to)),
            },
            address: from,
            managed,
        };
        let mut at = block.address;
        for region in &regions {
            let from = region.address.max(at);
            let to = region.address.plus_pages(region.pages.count).min(end);
            if from >= to {
                continue;
            }
            if at < from {
                pieces.push(piece(at, from, None));
            }
            let first = region.pages.first.plus(pages(region.address, from));
            pieces.push(piece(from, to, Some(first)));
            at = to;
        }
        if at < end {
            pieces.push(piece(at, end, None));
        }
    }
    pieces
}

const fn pages(from: HostAddress, to: HostAddress) -> u32 {
    ((to.0 - from.0) / PAGE_BYTES) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BASE: HostAddress = HostAddress(1 << 40);

    proptest! {
        #[test]
        fn each_page_is_in_one_piece_with_its_address_and_number(
            blocks in prop::collection::vec((0_u32..20, 0_u32..10), 0..5),
            regions in prop::collection::vec((1_u32..15, 0_u32..10), 0..8),
        ) {
            let mut at = 10;
            let blocks: Vec<PlacedBlock> = blocks.iter().map(|(pages, gap)| {
                let address = BASE.plus_pages(at);
                at += pages + gap;
                PlacedBlock { name: String::new(), address, pages: *pages }
            }).collect();
            let mut at = 0;
            let mut number = 5000;
            let regions: Vec<Region> = regions.iter().map(|(count, gap)| {
                at += gap;
                number -= 100;
                let pages = PageRange::new(PageIndex(number), *count);
                let region = Region { pages, address: BASE.plus_pages(at) };
                at += count;
                region
            }).collect();
            let pieces = cut_blocks(&blocks, &regions);
            let mut found = pieces.iter().flat_map(|piece| {
                piece.of.pages.pages().enumerate().map(|(at, page)| (
                    piece.of.block,
                    page.0,
                    piece.address.plus_pages(at as u32),
                    piece.managed.map(|first| first.0 + at as u32),
                ))
            });
            for (number, block) in blocks.iter().enumerate() {
                for page in 0..block.pages {
                    let address = block.address.plus_pages(page);
                    let region = regions.iter().find(|region| {
                        let end = region.address.plus_pages(region.pages.count);
                        region.address <= address && address < end
                    });
                    let guest = region.map(|region| {
                        region.pages.first.0 + pages(region.address, address)
                    });
                    prop_assert_eq!(found.next(), Some((number, page, address, guest)));
                }
            }
            prop_assert_eq!(found.next(), None);
        }
    }

    #[test]
    fn parts_keep_addresses_and_numbers() {
        let pages = PageRange::new(PageIndex(10), 10);
        let piece = Piece {
            of: BlockPages { block: 1, pages },
            address: BASE,
            managed: Some(PageIndex(70)),
        };
        let run = |block, first, count| BlockPages {
            block,
            pages: PageRange::new(PageIndex(first), count),
        };
        let part = piece.part(run(1, 13, 100)).unwrap();
        assert_eq!((part.of, part.address), (run(1, 13, 7), BASE.plus_pages(3)));
        assert_eq!(part.guest_pages(), Some(PageRange::new(PageIndex(73), 7)));
        assert_eq!(part.block_pages(PageRange::new(PageIndex(75), 2)), run(1, 15, 2));
        assert_eq!((piece.part(run(0, 13, 1)), piece.part(run(1, 20, 1))), (None, None));
    }
}
