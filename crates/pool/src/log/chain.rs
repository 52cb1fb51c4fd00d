//! The blocks of a log one after the other, each from a copy that has it.

use super::log_copies::{Defect, HEADS, LogCopies};
use super::window::Window;
use crate::format::log_block::{self, Block, Header, Kind, NotABlock};

/// Position up to which a log's blocks were followed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Position {
    pub(super) generation: u64,
    /// Number of blocks so far.
    pub(super) sequence: u64,
    /// The opening that wrote the last one, or the heads.
    pub(super) session: u64,
    /// The checksum of the last one.
    pub(super) previous: u32,
    /// Kind of the last block; [`Kind::Head`] of none.
    pub(super) last: Kind,
    /// The most blocks that any of them says were durable before it.
    pub(super) durable: u64,
}

impl Position {
    /// Before the first block.
    pub(super) const fn start(generation: u64, session: u64) -> Self {
        Self { generation, sequence: 0, session, previous: 0, last: Kind::Head, durable: 0 }
    }

    /// Behind one more block.
    pub(super) fn step(&mut self, header: &Header, checksum: u32) {
        self.sequence += 1;
        self.session = header.session;
        self.previous = checksum;
        self.last = header.kind;
        self.durable = self.durable.max(header.durable);
    }
}

/// Why a block does not come next.
#[derive(Debug, thiserror::Error)]
pub(super) enum Wrong {
    #[error("cannot be read: {0}")]
    Unreadable(String),
    #[error(transparent)]
    NotABlock(#[from] NotABlock),
    #[error("belongs to log {} of pool {:#x}", .0.log, .0.pool)]
    Foreign(crate::LogIdentity),
    #[error("is number {sequence} of generation {generation}")]
    Elsewhere { sequence: u64, generation: u64 },
    #[error("was written by opening {session}, after which the one before it was written")]
    Stale { session: u64 },
    #[error("does not follow the block before it")]
    Unchained,
    #[error("differs from its copy")]
    Differs,
}

/// Follows a log's blocks.
#[derive(Debug)]
pub(super) struct Chain<'a> {
    pub(super) copies: &'a LogCopies,
    pub(super) window: Window<'a>,
    pub(super) position: Position,
    /// Blocks that some copies have, and these do not.
    pub(super) defects: Vec<Defect>,
}

impl<'a> Chain<'a> {
    pub(super) const fn new(copies: &'a LogCopies, generation: u64) -> Self {
        let position = Position::start(generation, 0);
        Self { copies, window: Window::new(copies), position, defects: Vec::new() }
    }

    /// Returns the number of the next block in the extent; none if there is no room for one.
    pub(super) fn next_block(&self) -> Option<u64> {
        let block = HEADS + self.position.sequence;
        (block < self.copies.blocks()).then_some(block)
    }

    /// The next block, if any copy has it.
    pub(super) fn next(&mut self) -> Option<Block<'_>> {
        let block = self.next_block()?;
        let found: Vec<Result<(Header, u32), Wrong>> = (0..self.copies.count())
            .map(|copy| self.examine(copy, block).map(|found| (found.header, found.checksum)))
            .collect();
        let (good, header, checksum) = latest(&found)?;
        for (copy, found) in found.into_iter().enumerate() {
            let wrong = match found {
                Ok((_, same)) if same == checksum => continue,
                Ok(_) => Wrong::Differs,
                Err(wrong) => wrong,
            };
            let damage = self.copies.damage(copy, block, wrong);
            self.defects.push(Defect { damage, good: Some(good) });
        }
        self.position.step(&header, checksum);
        log_block::decode(self.window.block(good, block).ok()?).ok()
    }

    /// The block of one copy, if it comes next.
    pub(super) fn examine(&mut self, copy: usize, block: u64) -> Result<Block<'_>, Wrong> {
        let Position { generation, sequence, session, previous, .. } = self.position;
        let bytes = self.window.block(copy, block);
        let bytes = bytes.map_err(|error| Wrong::Unreadable(error.source.to_string()))?;
        let found = log_block::decode(bytes)?;
        let header = &found.header;
        if header.identity != self.copies.identity || header.kind == Kind::Head {
            return Err(Wrong::Foreign(header.identity));
        }
        if (header.generation, header.sequence) != (generation, sequence) {
            let Header { sequence, generation, .. } = *header;
            return Err(Wrong::Elsewhere { sequence, generation });
        }
        if header.session < session {
            return Err(Wrong::Stale { session: header.session });
        }
        if header.previous != previous {
            return Err(Wrong::Unchained);
        }
        Ok(found)
    }
}

/// Returns the copy whose block counts. Copies differ where one was away while the other went on: then it is that
/// of the later opening.
fn latest(found: &[Result<(Header, u32), Wrong>]) -> Option<(usize, Header, u32)> {
    let good = found.iter().enumerate().filter_map(|(copy, found)| {
        let (header, checksum) = found.as_ref().ok()?;
        Some((copy, *header, *checksum))
    });
    good.max_by_key(|(_, header, _)| header.session)
}
