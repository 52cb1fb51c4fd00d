//! Pages that are still to be sent in post-copy: each once, those that somebody waits for first.

use bindery_units::{PAGE_BYTES, PageIndex, PageRange};

use super::lane::{Page, is_zero};
use super::outlet::Outlet;
use super::row_set::RowSet;
use crate::format::{
    CHUNK_PAGES, Chunk, ChunkAt, Codec, FormatError, FrameKind, Geometry, POST_COPY_ROUND,
    bitmap_frame, chunk_head, encode_runs, push_run, zeros_head,
};

/// Pages that the destination lacks, over one connection. Pure.
#[derive(Clone, Debug)]
pub struct Outstanding {
    lacking: RowSet,
    geometry: Geometry,
    next: ChunkAt,
    left: u64,
}

impl Outstanding {
    /// Makes an empty set.
    #[must_use]
    pub fn new(geometry: Geometry) -> Self {
        let next = ChunkAt { block: 0, row: 0 };
        Self { lacking: RowSet::new(&geometry), geometry, next, left: 0 }
    }

    /// Adds pages: those that changed since they were sent, or that the destination named after a lost connection.
    ///
    /// # Errors
    /// [`FormatError::Impossible`] if the block does not have them.
    pub fn add(&mut self, at: ChunkAt, pages: u64) -> Result<(), FormatError> {
        self.geometry.check(at, pages)?;
        let row = self.lacking.word(at);
        self.left += u64::from((pages & !*row).count_ones());
        *row |= pages;
        Ok(())
    }

    /// Takes those of the wanted pages that were not sent: somebody waits for them. The rest of the row comes with them.
    pub fn take_wanted(&mut self, wanted: &Chunk) -> Chunk {
        let row = *self.lacking.word(wanted.at);
        let pages = if row & wanted.pages == 0 { 0 } else { row };
        self.take(wanted.at, pages)
    }

    /// Takes the next row that nobody has asked for, ascending; `None` if all were taken.
    pub fn take_next(&mut self) -> Option<Chunk> {
        while self.left > 0 {
            let at = self.next;
            let pages = self.geometry.blocks()[usize::from(at.block)];
            let is_last = (at.row + 1) * CHUNK_PAGES >= pages;
            let blocks = self.geometry.blocks().len() as u16;
            self.next = if is_last {
                ChunkAt { block: (at.block + 1) % blocks, row: 0 }
            } else {
                ChunkAt { row: at.row + 1, ..at }
            };
            let row = *self.lacking.word(at);
            if row != 0 {
                return Some(self.take(at, row));
            }
        }
        None
    }

    /// Returns the number of pages that were not taken.
    #[must_use]
    pub const fn left(&self) -> u64 {
        self.left
    }

    fn take(&mut self, at: ChunkAt, pages: u64) -> Chunk {
        *self.lacking.word(at) &= !pages;
        self.left -= u64::from(pages.count_ones());
        Chunk { at, round: POST_COPY_ROUND, pages }
    }
}

/// Sends pages of a row that were taken from [`Outstanding`], zeros as `Zeros`. `pages` are those of the chunk, in
/// order.
///
/// # Errors
/// The outlet's.
///
/// # Panics
/// If there are not as many pages as the chunk has.
pub fn send_post_copy(outlet: &mut dyn Outlet, chunk: &Chunk, pages: &[u8]) -> std::io::Result<()> {
    let (pages, _) = pages.as_chunks::<PAGE_BYTES>();
    assert_eq!(pages.len(), chunk.count(), "each page of the chunk is there");
    let (mut bits, mut content, mut zeros) = (0_u64, Vec::new(), Vec::new());
    let rows = (0..CHUNK_PAGES).filter(|bit| chunk.pages & 1 << bit != 0);
    for (bit, page) in rows.zip(pages) {
        if is_zero(page) {
            let first = PageIndex(chunk.at.first() + bit);
            push_run(&mut zeros, PageRange { first, count: 1 });
        } else {
            bits |= 1 << bit;
            content.push(Page::as_slice(page));
        }
    }
    if !zeros.is_empty() {
        let body = encode_runs(&zeros);
        outlet.send(&[&zeros_head(chunk.at.block, POST_COPY_ROUND, body.len()), &body])?;
    }
    if bits == 0 {
        return Ok(());
    }
    let chunk = Chunk { pages: bits, ..*chunk };
    let head = chunk_head(FrameKind::Pages, Codec::Plain, &chunk, content.len() * PAGE_BYTES);
    outlet.send(&std::iter::once(&head[..]).chain(content).collect::<Vec<_>>())
}

/// Sends the news that pages of a row cannot be read.
///
/// # Errors
/// The outlet's.
pub fn send_damaged(outlet: &mut dyn Outlet, chunk: &Chunk) -> std::io::Result<()> {
    outlet.send(&[&bitmap_frame(FrameKind::Damaged, chunk)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::Frame;
    use crate::receive::FrameReader;
    use proptest::prelude::*;

    proptest! {
        /// Each page that was added is taken once, whatever is asked for in between.
        #[test]
        fn each_page_is_taken_once(
            added in prop::collection::vec((0..2_u16, 0..4_u32, any::<u64>()), 1..10),
            asked in prop::collection::vec((0..2_u16, 0..4_u32, any::<u64>()), 0..20),
        ) {
            let geometry = Geometry::new(vec![256, 256]);
            let mut outstanding = Outstanding::new(geometry);
            let mut left = std::collections::BTreeMap::<ChunkAt, u64>::new();
            for (block, row, pages) in added {
                let at = ChunkAt { block, row };
                outstanding.add(at, pages).expect("the block has them");
                *left.entry(at).or_default() |= pages;
            }
            let mut take = |chunk: Chunk, wanted: u64| {
                let row = left.entry(chunk.at).or_default();
                prop_assert_eq!(chunk.pages & !*row, 0);
                prop_assert_eq!(*row & wanted & !chunk.pages, 0);
                *row &= !chunk.pages;
                Ok(())
            };
            for (block, row, pages) in asked {
                let at = ChunkAt { block, row };
                take(outstanding.take_wanted(&Chunk { at, round: POST_COPY_ROUND, pages }), pages)?;
                if let Some(chunk) = outstanding.take_next() {
                    take(chunk, 0)?;
                }
            }
            while let Some(chunk) = outstanding.take_next() {
                take(chunk, 0)?;
            }
            prop_assert!(left.values().all(|pages| *pages == 0) && outstanding.left() == 0);
        }
    }

    #[test]
    fn zeros_are_sent_as_runs() {
        let chunk =
            Chunk { at: ChunkAt { block: 0, row: 1 }, round: POST_COPY_ROUND, pages: 0b1111 };
        let pages = [[0; PAGE_BYTES], [0; PAGE_BYTES], [1; PAGE_BYTES], [0; PAGE_BYTES]];
        let mut bytes = Vec::new();
        send_post_copy(&mut bytes, &chunk, pages.as_flattened()).expect("a vector takes all");
        let (mut rest, mut reader, geometry) =
            (&bytes[..], FrameReader::default(), Geometry::new(vec![256]));
        let Frame::Zeros { runs, .. } = reader.next(&mut rest, &geometry).expect("it is a frame")
        else {
            panic!("zeros come first")
        };
        assert_eq!(
            runs.runs().map(|run| (run.first.0, run.count)).collect::<Vec<_>>(),
            [(64, 2), (67, 1)]
        );
        let Frame::Pages { chunk, .. } = reader.next(&mut rest, &geometry).expect("it is a frame")
        else {
            panic!("then the page")
        };
        assert_eq!(chunk.pages, 0b100);
        assert!(Outstanding::new(geometry).add(ChunkAt { block: 0, row: 4 }, 1).is_err());
    }
}
