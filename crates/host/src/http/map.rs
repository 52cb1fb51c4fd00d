//! A guest's memory as cells: so many pages each, and what they are.

use bindery_merge::{LinkCounts, TALLY_PAGES};
use bindery_units::{PAGE_BYTES, PageIndex, PageRange};
use bindery_wire::control::Region;
use serde::Serialize;

use super::Memory;
use super::heat::{WINDOW, Writes};

/// Cells of a map, unless said otherwise.
pub(super) const CELLS: u32 = 1024;

/// Cells of a map at most, for a guest of one region.
pub(super) const CELLS_MAX: u32 = 16_384;

/// One region of a guest.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct RegionCells {
    /// Where it begins in the guest's process.
    address: String,
    pages: u32,
    /// Which cell is its first, and how many it has. The last may have fewer pages than others.
    first_cell: u32,
    cells: u32,
}

/// A guest's memory. Each list has an entry for each cell, in pages; the first four add up to the
/// cell's pages, and hot ones may be of any of these.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Map {
    guest: String,
    page_bytes: u32,
    cell_pages: u32,
    /// For how long writes are listened to, in milliseconds; `None` if they cannot be.
    observed_ms: Option<u64>,
    /// How far back hot pages may have been written at least, in milliseconds.
    hot_window_ms: u64,
    regions: Vec<RegionCells>,
    /// The kernel's zero page.
    zero: Vec<u32>,
    /// Mapped from a canonical page.
    merged: Vec<u32>,
    /// Private: looked at, and found unique.
    unshared: Vec<u32>,
    /// Absent, or private and changing too often to be looked at, or still to be looked at.
    unknown: Vec<u32>,
    /// Written lately.
    hot: Vec<u32>,
}

/// Draws a map of at most `cells` cells, unless there are more regions.
pub(super) fn draw(memory: &Memory, writes: &Writes, cells: u32) -> Map {
    let pages: Vec<PageRange> = memory.regions.iter().map(|region| region.pages).collect();
    let cell_pages = cell_pages(&pages, cells);
    let ranges: Vec<PageRange> =
        pages.iter().flat_map(|region| cells_of(*region, cell_pages)).collect();
    let counts = match &memory.map {
        Some(map) => map.count(&ranges),
        None => vec![LinkCounts::default(); ranges.len()],
    };
    let known = |counts: &LinkCounts| counts.zero + counts.merged + counts.unshared;
    let mut first_cell = 0;
    let mut place = |region: &Region| {
        let cells = region.pages.count.div_ceil(cell_pages);
        first_cell += cells;
        let address = format!("{:#x}", region.address.0);
        RegionCells { address, pages: region.pages.count, first_cell: first_cell - cells, cells }
    };
    Map {
        guest: memory.name.clone(),
        page_bytes: PAGE_BYTES as u32,
        cell_pages,
        observed_ms: writes.observed.map(|observed| observed.as_millis() as u64),
        hot_window_ms: WINDOW.as_millis() as u64,
        regions: memory.regions.iter().map(&mut place).collect(),
        zero: counts.iter().map(|counts| counts.zero).collect(),
        merged: counts.iter().map(|counts| counts.merged).collect(),
        unshared: counts.iter().map(|counts| counts.unshared).collect(),
        // Links may change between one word and the next.
        unknown: ranges
            .iter()
            .zip(&counts)
            .map(|(range, counts)| range.count.saturating_sub(known(counts)))
            .collect(),
        hot: ranges.iter().map(|range| writes.windows.hot(*range)).collect(),
    }
}

/// The fewest pages of a cell, as a power of two, with which there are at most `cells` of them.
fn cell_pages(regions: &[PageRange], cells: u32) -> u32 {
    let largest = regions.iter().map(|region| region.count).max().unwrap_or(1);
    let mut pages = TALLY_PAGES;
    let total = |pages: u32| -> u64 {
        regions.iter().map(|region| u64::from(region.count.div_ceil(pages))).sum()
    };
    while pages < largest && total(pages) > u64::from(cells) {
        pages *= 2;
    }
    pages
}

fn cells_of(region: PageRange, pages: u32) -> impl Iterator<Item = PageRange> {
    (0..region.count.div_ceil(pages)).map(move |cell| {
        let first = PageIndex(region.first.0 + cell * pages);
        PageRange::new(first, pages).intersection(region)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn cells_have_every_page_once_and_are_as_many_as_asked_for(
            sizes in prop::collection::vec(1_u32..=1 << 20, 0..20), cells in 1..=CELLS_MAX,
        ) {
            let mut start = 0;
            let regions: Vec<PageRange> = sizes.iter().map(|count| {
                let region = PageRange::new(PageIndex(start), *count);
                start = region.end().0.next_multiple_of(512);
                region
            }).collect();
            let pages = cell_pages(&regions, cells);
            let mut count = 0;
            for region in &regions {
                let mut next = region.first;
                for cell in cells_of(*region, pages) {
                    prop_assert_eq!(cell.first, next);
                    prop_assert!(!cell.is_empty() && cell.count <= pages);
                    next = cell.end();
                    count += 1;
                }
                prop_assert_eq!(next, region.end());
            }
            prop_assert!(count <= cells.max(regions.len() as u32));
            let coarse = |pages| {
                let total = regions.iter().map(|region| region.count.div_ceil(pages));
                total.sum::<u32>()
            };
            prop_assert!(pages == TALLY_PAGES || coarse(pages / 2) > cells);
        }
    }
}
