//! Pages on their way: read into one buffer, handed on from there.

use std::time::Instant;

use bindery_units::{PAGE_BYTES, PageIndex, PageRange};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::memory::{BlockPages, Memory, MemoryError, Sink, SinkError, count};
use crate::pace::Pace;

/// A page's bytes where a page begins: some processors copy eight times as slowly to other addresses.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
#[repr(C, align(4096))]
struct Page([u8; PAGE_BYTES]);

/// Pages of memory blocks and a buffer that holds them.
pub(crate) struct Chunk {
    runs: Vec<BlockPages>,
    pages: Vec<Page>,
}

impl Chunk {
    /// Makes a chunk with room for so many pages. The memory is touched here, so that it costs nothing later.
    pub(crate) fn with_room(pages: usize) -> Self {
        // Not zeros, which the allocator would leave untouched.
        let mut room = vec![Page([1; PAGE_BYTES]); pages];
        std::hint::black_box(&mut room);
        Self { runs: Vec::new(), pages: room }
    }

    /// Returns the number of pages that it has room for.
    pub(crate) const fn room(&self) -> usize {
        self.pages.len()
    }

    /// Reads `runs`, no more pages than it has room for, in place of what it held.
    pub(crate) fn load(
        &mut self,
        runs: Vec<BlockPages>,
        memory: &mut dyn Memory,
        pace: &mut Pace,
    ) -> Result<(), MemoryError> {
        self.runs.clear();
        let (pages, start) = (count(&runs), Instant::now());
        if pages > 0 {
            memory.read(&runs, self.pages[..pages as usize].as_mut_bytes())?;
        }
        pace.note_read(pages, start.elapsed());
        self.runs = runs;
        Ok(())
    }

    /// Hands all of its pages on, those of zeros as such.
    pub(crate) fn hand_on(&self, sink: &mut dyn Sink) -> Result<(), SinkError> {
        let mut at = 0;
        for run in &self.runs {
            let pages = &self.pages[at..at + run.pages.count as usize];
            at += pages.len();
            let mut first = run.pages.first;
            for alike in pages.chunk_by(|one, other| is_zero(one) == is_zero(other)) {
                let pages = PageRange::new(first, alike.len() as u32);
                if is_zero(&alike[0]) {
                    sink.zeros(run.block, pages)?;
                } else {
                    sink.put(run.block, first, alike.as_bytes())?;
                }
                first = pages.end();
            }
        }
        Ok(())
    }
}

fn is_zero(page: &Page) -> bool {
    bindery_page::is_zero(&page.0)
}

/// Cuts runs into lists of at most `room` pages each, in order.
pub(crate) fn cut(runs: &[BlockPages], room: u32) -> impl Iterator<Item = Vec<BlockPages>> + '_ {
    let mut rest = runs.iter().copied();
    let mut begun: Option<BlockPages> = None;
    std::iter::from_fn(move || {
        let (mut list, mut left) = (Vec::new(), room);
        while left > 0 {
            let Some(BlockPages { block, pages }) = begun.take().or_else(|| rest.next()) else {
                break;
            };
            let now = pages.count.min(left);
            list.push(BlockPages { block, pages: PageRange::new(pages.first, now) });
            left -= now;
            if now < pages.count {
                let behind = PageRange::new(PageIndex(pages.first.0 + now), pages.count - now);
                begun = Some(BlockPages { block, pages: behind });
            }
        }
        (!list.is_empty()).then_some(list)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pages_of(runs: &[BlockPages]) -> Vec<(usize, u32)> {
        let each = |run: &BlockPages| {
            let block = run.block;
            run.pages.pages().map(move |page| (block, page.0)).collect::<Vec<_>>()
        };
        runs.iter().flat_map(each).collect()
    }

    proptest! {
        #[test]
        fn lists_have_the_pages_of_the_runs_in_order(
            counts in prop::collection::vec(1_u32..50, 0..20),
            room in 1_u32..70,
        ) {
            let run = |(at, count): (usize, &u32)| BlockPages {
                block: at / 3,
                pages: PageRange::new(PageIndex(100 * at as u32), *count),
            };
            let runs: Vec<_> = counts.iter().enumerate().map(run).collect();
            let lists: Vec<_> = cut(&runs, room).collect();
            prop_assert_eq!(pages_of(&lists.concat()), pages_of(&runs));
            let full = lists.iter().map(|list| count(list));
            prop_assert!(full.clone().all(|pages| pages > 0 && pages <= u64::from(room)));
            prop_assert!(full.rev().skip(1).all(|pages| pages == u64::from(room)));
        }
    }
}
