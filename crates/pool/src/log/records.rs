//! The records of a log.

use std::collections::VecDeque;

use super::chain::{Chain, Position};
use super::error::OpenError;
use super::heads;
use super::log_copies::{HEADS, LogCopies};
use crate::format::log_block::Kind;
use crate::format::piece::Joiner;

/// The records of a log in the order in which they were appended; after an error, none.
#[derive(Debug)]
pub struct Records<'a> {
    chain: Chain<'a>,
    until: u64,
    joiner: Joiner,
    ready: VecDeque<Vec<u8>>,
    /// Error to return after the records that are ready.
    error: Option<OpenError>,
}

impl<'a> Records<'a> {
    /// Reads the records in the blocks before `end`, which were found to be there.
    pub(super) fn new(copies: &'a LogCopies, end: &Position) -> Self {
        Self {
            chain: Chain::new(copies, end.generation),
            until: end.sequence,
            joiner: Joiner::new(end.generation),
            ready: VecDeque::new(),
            error: None,
        }
    }

    fn next_block(&mut self) -> Result<(), OpenError> {
        let sequence = self.chain.position.sequence;
        let copies = self.chain.copies;
        let Some(block) = self.chain.next() else { return Err(self.missing()) };
        if block.header.kind == Kind::Mark {
            self.joiner.forget();
        }
        let ready = &mut self.ready;
        let taken = self.joiner.take(sequence, block.payload, |record| ready.push_back(record));
        taken.map_err(|wrong| OpenError::Damaged(copies.damage(0, HEADS + sequence, wrong)))
    }

    /// A block is not there that was there before.
    fn missing(&mut self) -> OpenError {
        let Position { generation, sequence, .. } = self.chain.position;
        let copies = self.chain.copies;
        match heads::read(copies) {
            Ok(heads) if heads.generation != generation => OpenError::Erased(copies.identity.log),
            Err(error) => error,
            Ok(_) => {
                let wrong = self.chain.examine(0, HEADS + sequence).err();
                let what = wrong.map_or_else(String::new, |wrong| wrong.to_string());
                OpenError::Damaged(copies.damage(0, HEADS + sequence, what))
            }
        }
    }
}

impl Iterator for Records<'_> {
    type Item = Result<Vec<u8>, OpenError>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.ready.is_empty() && self.error.is_none() {
            if self.chain.position.sequence >= self.until {
                return None;
            }
            self.error = self.next_block().err();
        }
        if let Some(record) = self.ready.pop_front() {
            return Some(Ok(record));
        }
        self.until = 0;
        self.error.take().map(Err)
    }
}
