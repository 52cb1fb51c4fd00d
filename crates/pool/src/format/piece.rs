//! Records in the payload of log blocks.
//!
//! A record is followed by its checksum, and both together are cut into pieces where blocks end: one
//! that begins and ends it (FULL), or one that begins it (FIRST), some that do neither (MIDDLE), and one
//! that ends it (LAST); as in `LevelDB`'s log. No length of a whole record is stored, so none can lie.

use thiserror::Error;

use super::le::{u16_at, u32_at};
use super::log_block::PAYLOAD_BYTES;
use crate::crc::crc32c;

const HEADER_BYTES: usize = 4;
const CHECKSUM_BYTES: usize = 4;
const BEGINS: u16 = 1;
const ENDS: u16 = 2;

/// The most that a block has of one record.
pub(crate) const MOST_BYTES: usize = PAYLOAD_BYTES - HEADER_BYTES;

/// A record with its checksum, as it is cut into pieces.
///
/// The checksum covers where the record begins, so that pieces of two records never make a third.
pub(crate) fn stored(record: &[u8], generation: u64, sequence: u64) -> Vec<u8> {
    let mut stored = Vec::with_capacity(record.len() + CHECKSUM_BYTES);
    stored.extend_from_slice(record);
    stored.extend_from_slice(&checksum(record, generation, sequence).to_le_bytes());
    stored
}

/// Returns the length of a record as it is stored, in bytes, without the headers of its pieces.
pub(crate) const fn stored_bytes(record: &[u8]) -> usize {
    record.len() + CHECKSUM_BYTES
}

fn checksum(record: &[u8], generation: u64, sequence: u64) -> u32 {
    crc32c([&generation.to_le_bytes(), &sequence.to_le_bytes(), record])
}

/// Returns the bytes of a record that fit into the rest of a payload.
pub(crate) const fn room(payload: &[u8]) -> usize {
    (PAYLOAD_BYTES - payload.len()).saturating_sub(HEADER_BYTES)
}

/// Puts the next piece of a stored record, as long as it fits, into a payload; what is left of the
/// record.
///
/// # Panics
/// If there is no [`room`].
pub(crate) fn put<'a>(payload: &mut Vec<u8>, begins: bool, rest: &'a [u8]) -> &'a [u8] {
    assert!(room(payload) > 0, "a block was not ended");
    let (piece, left) = rest.split_at(rest.len().min(room(payload)));
    let flags = if begins { BEGINS } else { 0 } | if left.is_empty() { ENDS } else { 0 };
    payload.extend_from_slice(&(piece.len() as u16).to_le_bytes());
    payload.extend_from_slice(&flags.to_le_bytes());
    payload.extend_from_slice(piece);
    left
}

/// Why pieces make no records, though the blocks that hold them are whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(crate) enum Malformed {
    #[error("holds a piece of a record that is cut off")]
    Short,
    #[error("holds a piece of a record of unknown kind {0}")]
    Kind(u16),
    #[error("begins a record within another")]
    Begins,
    #[error("goes on with a record that never began")]
    GoesOn,
    #[error("ends a record that does not match its checksum")]
    Checksum,
}

/// Joins pieces to records, across blocks.
#[derive(Debug)]
pub(crate) struct Joiner {
    generation: u64,
    /// The record whose end has not come, and the block in which it began.
    unfinished: Option<(u64, Vec<u8>)>,
}

impl Joiner {
    /// Begins with the first block of a generation.
    pub(crate) const fn new(generation: u64) -> Self {
        Self { generation, unfinished: None }
    }

    /// Forgets a record that was begun and will not end: its writer was gone before.
    pub(crate) fn forget(&mut self) {
        self.unfinished = None;
    }

    /// Takes the payload of block `sequence`, and gives each record that ends in it.
    ///
    /// # Errors
    /// If the pieces do not make records. Those before were given.
    pub(crate) fn take(
        &mut self,
        sequence: u64,
        mut payload: &[u8],
        mut each: impl FnMut(Vec<u8>),
    ) -> Result<(), Malformed> {
        while !payload.is_empty() {
            let (flags, piece, rest) = split(payload)?;
            payload = rest;
            let (begun, mut bytes) = match (self.unfinished.take(), flags & BEGINS != 0) {
                (None, true) => (sequence, Vec::new()),
                (Some(unfinished), false) => unfinished,
                (Some(_), true) => return Err(Malformed::Begins),
                (None, false) => return Err(Malformed::GoesOn),
            };
            bytes.extend_from_slice(piece);
            if flags & ENDS == 0 {
                self.unfinished = Some((begun, bytes));
            } else {
                each(self.check(begun, bytes)?);
            }
        }
        Ok(())
    }

    fn check(&self, begun: u64, mut stored: Vec<u8>) -> Result<Vec<u8>, Malformed> {
        let length = stored.len().checked_sub(CHECKSUM_BYTES).ok_or(Malformed::Short)?;
        let expected = u32_at(&stored, length);
        stored.truncate(length);
        let found = checksum(&stored, self.generation, begun);
        if found == expected { Ok(stored) } else { Err(Malformed::Checksum) }
    }
}

/// The first piece of a payload: its flags, itself, and what comes behind it.
fn split(payload: &[u8]) -> Result<(u16, &[u8], &[u8]), Malformed> {
    if payload.len() < HEADER_BYTES {
        return Err(Malformed::Short);
    }
    let (length, flags) = (usize::from(u16_at(payload, 0)), u16_at(payload, 2));
    if flags & !(BEGINS | ENDS) != 0 {
        return Err(Malformed::Kind(flags));
    }
    let rest = &payload[HEADER_BYTES..];
    if length == 0 || length > rest.len() {
        return Err(Malformed::Short);
    }
    let (piece, rest) = rest.split_at(length);
    Ok((flags, piece, rest))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Payloads of blocks, from number 0 on, that hold these records.
    fn frame(records: &[Vec<u8>], generation: u64) -> Vec<Vec<u8>> {
        let mut blocks = vec![Vec::new()];
        for record in records {
            if room(blocks.last().unwrap()) == 0 {
                blocks.push(Vec::new());
            }
            let stored = stored(record, generation, blocks.len() as u64 - 1);
            let mut rest = &stored[..];
            let mut begins = true;
            while !rest.is_empty() {
                if room(blocks.last().unwrap()) == 0 {
                    blocks.push(Vec::new());
                }
                rest = put(blocks.last_mut().unwrap(), begins, rest);
                begins = false;
            }
        }
        blocks
    }

    fn join(blocks: &[Vec<u8>], generation: u64) -> Result<Vec<Vec<u8>>, Malformed> {
        let (mut joiner, mut records) = (Joiner::new(generation), Vec::new());
        for (sequence, payload) in blocks.iter().enumerate() {
            joiner.take(sequence as u64, payload, |record| records.push(record))?;
        }
        Ok(records)
    }

    #[test]
    fn pieces_that_do_not_belong_together_are_refused() {
        let whole = frame(&[vec![1; 9000], vec![2; 10]], 5);
        assert_eq!(whole.len(), 3);
        assert_eq!(join(&whole, 6), Err(Malformed::Checksum));
        assert_eq!(join(&whole[1..], 5), Err(Malformed::GoesOn));
        let skipped = [whole[0].clone(), whole[2].clone()];
        assert_eq!(join(&skipped, 5), Err(Malformed::Checksum));
        let twice = [whole[0].clone(), whole[0].clone()];
        assert_eq!(join(&twice, 5), Err(Malformed::Begins));
        assert_eq!(join(&[vec![0, 0, 3, 0]], 5), Err(Malformed::Short));
        assert_eq!(join(&[vec![9, 0, 3, 0, 1]], 5), Err(Malformed::Short));
        assert_eq!(join(&[vec![1, 0, 3, 0, 1]], 5), Err(Malformed::Short));
        assert_eq!(join(&[vec![1, 0, 8, 0, 1]], 5), Err(Malformed::Kind(8)));
        assert_eq!(join(&[vec![1, 0, 3]], 5), Err(Malformed::Short));
    }

    proptest! {
        #[test]
        fn records_of_any_length_come_back(
            lengths in proptest::collection::vec(
                prop_oneof![0..20_usize, 3990..4030_usize, 8000..8100_usize, 0..20_000_usize], 0..30),
        ) {
            let records: Vec<Vec<u8>> =
                lengths.iter().enumerate().map(|(at, &length)| vec![at as u8; length]).collect();
            let blocks = frame(&records, 1);
            prop_assert!(blocks.iter().all(|payload| payload.len() <= PAYLOAD_BYTES));
            prop_assert_eq!(join(&blocks, 1).unwrap(), records);
        }

        #[test]
        fn nothing_makes_the_joiner_panic(
            payloads in proptest::collection::vec(
                proptest::collection::vec(prop_oneof![0..6_u8, any::<u8>()], 0..60), 0..8),
        ) {
            let given: usize = payloads.iter().map(Vec::len).sum();
            if let Ok(records) = join(&payloads, 1) {
                prop_assert!(records.iter().map(Vec::len).sum::<usize>() <= given);
            }
        }
    }
}
