//! Blocks of all copies, read some at a time.

use bindery_sys::direct::Buffer;

use super::error::DeviceError;
use super::log_copies::{CHUNK_BLOCKS, LogCopies};
use crate::BLOCK_BYTES;

/// A sliding view of a log's blocks.
#[derive(Debug)]
pub(super) struct Window<'a> {
    copies: &'a LogCopies,
    first: u64,
    contents: Vec<Content>,
}

/// Blocks of one copy.
#[derive(Debug)]
struct Content {
    blocks: Buffer,
    /// Blocks that could not be read, and why.
    unreadable: Vec<(u64, DeviceError)>,
}

impl<'a> Window<'a> {
    pub(super) const fn new(copies: &'a LogCopies) -> Self {
        Self { copies, first: 0, contents: Vec::new() }
    }

    /// Block `block` of copy `copy`, or why it cannot be read. The log must have it.
    pub(super) fn block(&mut self, copy: usize, block: u64) -> Result<&[u8], &DeviceError> {
        if !self.holds(block) {
            self.load(block, CHUNK_BLOCKS);
        }
        let content = &self.contents[copy];
        let failed = content.unreadable.iter().find(|(unreadable, _)| *unreadable == block);
        match failed {
            Some((_, error)) => Err(error),
            None => {
                Ok(&content.blocks[BLOCK_BYTES * (block - self.first) as usize..][..BLOCK_BYTES])
            }
        }
    }

    fn holds(&self, block: u64) -> bool {
        let blocks = self.contents.first().map_or(0, |content| content.blocks.len() / BLOCK_BYTES);
        (self.first..self.first + blocks as u64).contains(&block)
    }

    /// Reads so many blocks from `first` on, or as many as there are.
    pub(super) fn load(&mut self, first: u64, blocks: u64) {
        let copies = self.copies;
        let blocks = blocks.min(copies.blocks() - first);
        let read = |copy| read(copies, copy, first, blocks);
        self.contents = (0..copies.count()).map(read).collect();
        self.first = first;
    }
}

/// Reads at once what can be read at once, and one by one where not.
fn read(copies: &LogCopies, copy: usize, first: u64, blocks: u64) -> Content {
    let mut content =
        Content { blocks: Buffer::zeroed(blocks as usize * BLOCK_BYTES), unreadable: Vec::new() };
    if copies.read(copy, first, &mut content.blocks).is_ok() {
        return content;
    }
    let mut single = Buffer::zeroed(BLOCK_BYTES);
    for (at, into) in content.blocks.chunks_exact_mut(BLOCK_BYTES).enumerate() {
        let block = first + at as u64;
        match copies.read(copy, block, &mut single) {
            Ok(()) => into.copy_from_slice(&single),
            Err(error) => content.unreadable.push((block, error)),
        }
    }
    content
}
