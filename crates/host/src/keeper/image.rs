//! Checkpoints as the content of a guest's memory.

use bindery_checkpoint::{CheckpointError, CheckpointReader, TouchedRun};
use bindery_guest::{Image, ImageError};
use bindery_units::{PageIndex, PageRange};
use bindery_wire::control::PAGES_MAX;
use bindery_wire::lane::BLOCK_PAGES;

/// Memory blocks of a checkpoint, one behind the other, as the pages of an image.
#[derive(Debug)]
pub(crate) struct CheckpointImage {
    reader: CheckpointReader,
    /// Pages of the image that each block has.
    blocks: Vec<PageRange>,
}

impl CheckpointImage {
    /// Lays the blocks out: each begins with a block of 2 MiB, and none goes on where another ended. `None` if
    /// they are more than an image can have.
    pub(crate) fn new(reader: CheckpointReader) -> Option<Self> {
        let sizes = reader.manifest().description.blocks.iter().map(|block| block.pages());
        let blocks = lay_out(sizes)?;
        Some(Self { reader, blocks })
    }

    pub(crate) const fn reader(&self) -> &CheckpointReader {
        &self.reader
    }

    /// Returns the pages of the image that each block has.
    pub(crate) fn blocks(&self) -> &[PageRange] {
        &self.blocks
    }

    /// Returns the block that has a page of the image, and its page there.
    fn find(&self, page: PageIndex) -> Option<(usize, PageIndex)> {
        let behind = self.blocks.partition_point(|block| block.first <= page);
        let block = behind.checked_sub(1)?;
        let pages = self.blocks[block];
        pages.contains(page).then(|| (block, PageIndex(page.0 - pages.first.0)))
    }

    /// Returns runs of touched pages as pages of the image. Those that no block has are left out.
    pub(crate) fn of_touched(&self, runs: &[TouchedRun]) -> Vec<PageRange> {
        let in_image = runs.iter().filter_map(|run| {
            let block = self.blocks.get(usize::from(run.block))?;
            let first = block.first.0.checked_add(run.pages.first.0)?;
            let pages = PageRange::new(PageIndex(first), run.pages.count);
            Some(pages.intersection(*block)).filter(|pages| !pages.is_empty())
        });
        in_image.collect()
    }

    /// Returns pages of the image as runs of touched pages.
    pub(crate) fn to_touched(&self, runs: &[PageRange]) -> Vec<TouchedRun> {
        let in_blocks = runs.iter().filter_map(|run| {
            let (block, first) = self.find(run.first)?;
            let pages = PageRange::new(first, run.intersection(self.blocks[block]).count);
            Some(TouchedRun { block: u16::try_from(block).ok()?, pages })
        });
        in_blocks.collect()
    }
}

fn lay_out(sizes: impl Iterator<Item = u64>) -> Option<Vec<PageRange>> {
    let mut at = 0_u32;
    let blocks = sizes.map(|pages| {
        let pages = u32::try_from(pages).ok()?;
        let block = PageRange::new(PageIndex(at), pages);
        let end = at.checked_add(pages)?.checked_add(1)?;
        at = end.checked_next_multiple_of(BLOCK_PAGES)?;
        (at <= PAGES_MAX).then_some(block)
    });
    blocks.collect()
}

impl Image for CheckpointImage {
    fn read(&self, first: PageIndex, into: &mut [u8]) -> Result<(), ImageError> {
        let Some((block, page)) = self.find(first) else {
            return Err(ImageError::Unavailable("no block has the page".into()));
        };
        self.reader.read(block, page, into).map_err(|error| match error {
            CheckpointError::Page { page: damaged, ref checkpoint, .. } => {
                tracing::error!(%checkpoint, "a restored guest wants what is damaged: {error}");
                ImageError::Damaged(PageIndex(first.0 + (damaged.0 - page.0)))
            }
            error => ImageError::Unavailable(Box::new(error)),
        })
    }

    fn zero_run(&self, page: PageIndex) -> Option<PageRange> {
        let (block, within) = self.find(page)?;
        let (pages, runs) = (self.blocks[block], self.reader.runs(block));
        let next = runs.partition_point(|run| run.pages.end() <= within);
        let end = runs.get(next).map_or(PageIndex(pages.count), |run| run.pages.first);
        (end > within).then(|| PageRange::new(page, end.0 - within.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_begin_apart_and_whole() {
        let range = |first, count| PageRange::new(PageIndex(first), count);
        let blocks = lay_out([512, 0, 1, 511].into_iter()).unwrap();
        assert_eq!(blocks, [range(0, 512), range(1024, 0), range(1536, 1), range(2048, 511)]);
        assert!(lay_out([u64::from(PAGES_MAX)].into_iter()).is_none());
        assert!(lay_out([1 << 40].into_iter()).is_none());
    }
}
