//! Images of memory blocks, put page by page.

use bindery_transfer::{PlacedBlock, Sink, SinkError};
use bindery_units::{PAGE_BYTES, PageIndex, PageRange};

#[derive(Clone, Default)]
pub(crate) struct Image {
    pub(crate) blocks: Vec<Vec<u8>>,
    pub(crate) puts: u64,
}

impl Image {
    pub(crate) fn new(blocks: &[PlacedBlock]) -> Self {
        // Not zero: what nobody puts differs.
        let blocks = blocks.iter().map(|block| vec![0xa5; block.pages as usize * PAGE_BYTES]);
        Self { blocks: blocks.collect(), puts: 0 }
    }

    /// Returns the first pages in which a block differs from `memory`.
    pub(crate) fn differences(&self, block: usize, memory: &[u8]) -> Vec<usize> {
        assert!(memory.len() <= self.blocks[block].len());
        let pages = self.blocks[block].chunks(PAGE_BYTES).zip(memory.chunks(PAGE_BYTES));
        let differ = pages.enumerate().filter(|(_, (one, other))| one[..other.len()] != **other);
        differ.map(|(page, _)| page).take(8).collect()
    }
}

impl Sink for Image {
    fn put(&mut self, block: usize, first: PageIndex, bytes: &[u8]) -> Result<(), SinkError> {
        self.blocks[block][first.at() * PAGE_BYTES..][..bytes.len()].copy_from_slice(bytes);
        self.puts += (bytes.len() / PAGE_BYTES) as u64;
        Ok(())
    }

    fn zeros(&mut self, block: usize, pages: PageRange) -> Result<(), SinkError> {
        let bytes = pages.count as usize * PAGE_BYTES;
        self.blocks[block][pages.first.at() * PAGE_BYTES..][..bytes].fill(0);
        Ok(())
    }
}
