//! Making copies of a log equal again.

use bindery_sys::direct::Buffer;

use super::chain::{Chain, Position};
use super::error::OpenError;
use super::heads;
use super::log_copies::{Defect, HEADS, LogCopies};
use crate::BLOCK_BYTES;
use crate::format::log_block;

/// Returns the blocks that some copies do not have, of a log whose end is known.
///
/// # Errors
/// If no copy has it.
pub(super) fn scrub(copies: &LogCopies, end: &Position) -> Result<Vec<Defect>, OpenError> {
    let mut defects = heads::read(copies)?.defects;
    let mut chain = Chain::new(copies, end.generation);
    while chain.position.sequence < end.sequence {
        if chain.next().is_none() {
            let block = HEADS + chain.position.sequence;
            let wrong = chain.examine(0, block).err();
            let what = wrong.map_or_else(String::new, |wrong| wrong.to_string());
            return Err(OpenError::Damaged(copies.damage(0, block, what)));
        }
    }
    defects.append(&mut chain.defects);
    Ok(defects)
}

/// Writes what copies do not have, and makes it durable.
///
/// # Errors
/// If a device fails, or if what was good is not any more.
pub(super) fn heal(
    copies: &LogCopies,
    end: &Position,
    session: u64,
    defects: &[Defect],
) -> Result<(), OpenError> {
    if defects.is_empty() {
        return Ok(());
    }
    for Defect { damage, good } in defects {
        if let Some(good) = *good {
            copy(copies, damage.block, good, damage.copy)?;
        }
    }
    copies.sync()?;
    if defects.iter().any(|defect| defect.good.is_none()) {
        heads::write(copies, end.generation, session)?;
    }
    Ok(())
}

/// Writes once more what may have been read from a cache: what it holds is lost in a crash, if the
/// last writer died before it synced, or even if he did not but his sync failed (fsync(2)). Whatever
/// a crash tears of a block that is written over itself, nothing changes. Heads need none of it: where
/// the second is there, the first was durable before.
///
/// # Errors
/// If a device fails, or if what was good is not any more.
pub(super) fn settle(copies: &LogCopies, end: &Position) -> Result<(), OpenError> {
    for copy in 0..copies.count() {
        for sequence in end.durable..end.sequence {
            self::copy(copies, HEADS + sequence, copy, copy)?;
        }
        // One copy at a time, so that there always is one that is left alone.
        if end.durable < end.sequence {
            copies.sync()?;
        }
    }
    Ok(())
}

fn copy(copies: &LogCopies, block: u64, from: usize, to: usize) -> Result<(), OpenError> {
    let mut bytes = Buffer::zeroed(BLOCK_BYTES);
    copies.read(from, block, &mut bytes)?;
    if let Err(wrong) = log_block::decode(&bytes) {
        return Err(OpenError::Damaged(copies.damage(from, block, wrong)));
    }
    Ok(copies.write(to, block, &bytes)?)
}
