//! Finding the end of a log.
//!
//! It ends at the first block that no copy has: what was being written when the machine stopped, or what
//! was written in an earlier life of the extent. If any block behind it says that this one was durable,
//! it is no end but damage. Such a claim is never stale: blocks that were durable are not written
//! again in their generation, whoever comes next.

use super::chain::{Chain, Position};
use super::error::{Damage, OpenError};
use super::heads;
use super::log_copies::{Defect, HEADS, LogCopies};
use super::window::Window;
use crate::format::log_block::{self, Header};

/// Most erases of a log while it is read, before reading is given up.
const ATTEMPTS: u32 = 8;

/// State of a log.
#[derive(Debug)]
pub(super) struct Found {
    /// End of the log.
    pub(super) end: Position,
    /// Blocks that some copies do not have.
    pub(super) defects: Vec<Defect>,
    /// Damage at the end, which is no block but may have been one.
    pub(super) torn: Option<Damage>,
}

/// Finds a log's end. Reads all of it, and all of its extent.
///
/// # Errors
/// If there is no log, or if what was durable is damaged in all copies.
pub(super) fn find(copies: &LogCopies) -> Result<Found, OpenError> {
    let mut attempt = 1;
    loop {
        let heads = heads::read(copies)?;
        let generation = heads.generation;
        let found = follow(copies, heads);
        // Whoever only reads may be overtaken by an erase.
        let erased = || heads::read(copies).is_ok_and(|heads| heads.generation != generation);
        if found.is_ok() || attempt == ATTEMPTS || !erased() {
            return found;
        }
        attempt += 1;
    }
}

fn follow(copies: &LogCopies, heads: heads::Heads) -> Result<Found, OpenError> {
    let mut chain = Chain::new(copies, heads.generation);
    loop {
        while chain.next().is_some() {}
        let Some(damage) = damage_at(&mut chain) else { break };
        // A writer may have written it since, and more behind it.
        if let Some(block) = chain.next_block() {
            chain.window.load(block, 1);
        }
        if chain.next().is_none() {
            return Err(OpenError::Damaged(damage));
        }
    }
    let torn = torn_at(&mut chain);
    let mut defects = heads.defects;
    defects.append(&mut chain.defects);
    let session = chain.position.session.max(heads.session);
    Ok(Found { end: Position { session, ..chain.position }, defects, torn })
}

/// Returns what shows that there was a block where the chain ends.
fn damage_at(chain: &mut Chain<'_>) -> Option<Damage> {
    let end = chain.next_block()?;
    if let Some(damage) = unreadable_at(chain, end) {
        return Some(damage);
    }
    let copies = chain.copies;
    let mut window = Window::new(copies);
    for block in end..copies.blocks() {
        for copy in 0..copies.count() {
            let Ok(bytes) = window.block(copy, block) else { continue };
            let Ok(found) = log_block::decode(bytes) else { continue };
            if let Some(what) = contradiction(chain, &found.header, block) {
                let first = chain.examine(0, end).err().map(|wrong| wrong.to_string());
                let first = first.unwrap_or_default();
                return Some(copies.damage(0, end, format!("{first}; {what}")));
            }
        }
    }
    None
}

/// Nobody can say that a block is no block if nobody can read it.
fn unreadable_at(chain: &mut Chain<'_>, end: u64) -> Option<Damage> {
    let mut first = None;
    for copy in (0..chain.copies.count()).rev() {
        let error = chain.window.block(copy, end).err()?;
        first = Some(format!("cannot be read: {}", error.source));
    }
    first.map(|what| chain.copies.damage(0, end, what))
}

/// Returns what a block behind the end says against that end.
fn contradiction(chain: &Chain<'_>, header: &Header, block: u64) -> Option<String> {
    let Position { generation, sequence, .. } = chain.position;
    if header.identity != chain.copies.identity || block.checked_sub(HEADS) != Some(header.sequence)
    {
        return None;
    }
    if header.generation > generation {
        let newer = header.generation;
        return Some(format!(
            "the log is of generation {generation}, and block {block} of generation {newer}"
        ));
    }
    let lost = header.generation == generation && header.durable > sequence;
    lost.then(|| format!("block {block} says that it was durable"))
}

/// Returns what lies at the end and was a block of this log once, or part of one.
fn torn_at(chain: &mut Chain<'_>) -> Option<Damage> {
    let end = chain.next_block()?;
    let copies = chain.copies;
    (0..copies.count()).find_map(|copy| {
        let bytes = chain.window.block(copy, end).ok()?;
        let wrong = log_block::decode(bytes).err()?;
        log_block::resembles(bytes, copies.identity).then(|| copies.damage(copy, end, wrong))
    })
}
