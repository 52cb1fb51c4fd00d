//! The two blocks with which each copy of a log begins.
//!
//! They are written one after the other with a sync between, so that whatever a crash tears, one is
//! whole. Both say the same: which generation of the log counts, and how long the log is. An erase is a
//! head of the next generation.

use bindery_sys::direct::Buffer;

use super::error::{DeviceError, OpenError};
use super::log_copies::{Defect, HEADS, LogCopies};
use super::window::Window;
use crate::format::le::u64_at;
use crate::format::log_block::{self, Header, Kind, NotABlock, VERSION};
use crate::{BLOCK_BYTES, LogIdentity};

/// State that the heads give.
#[derive(Debug)]
pub(super) struct Heads {
    pub(super) generation: u64,
    /// The opening that wrote them.
    pub(super) session: u64,
    /// Heads that differ from it.
    pub(super) defects: Vec<Defect>,
}

/// A head of a log.
fn encode(identity: LogIdentity, generation: u64, session: u64, blocks: u64) -> Buffer {
    let header = Header {
        identity,
        generation,
        session,
        sequence: 0,
        durable: 0,
        previous: 0,
        kind: Kind::Head,
    };
    let mut block = Buffer::zeroed(BLOCK_BYTES);
    log_block::encode(&header, &blocks.to_le_bytes(), &mut block);
    block
}

/// Makes a generation the one that counts. Afterwards it is durable.
pub(super) fn write(copies: &LogCopies, generation: u64, session: u64) -> Result<(), DeviceError> {
    let block = encode(copies.identity, generation, session, copies.blocks());
    (0..HEADS).try_for_each(|head| {
        copies.write_all(head, &block)?;
        copies.sync()
    })
}

/// Reads a head, if these bytes are one.
fn decode(bytes: &[u8], copies: &LogCopies) -> Result<(Header, u64), Wrong> {
    let block = log_block::decode(bytes)?;
    let head = block.header.kind == Kind::Head && block.payload.len() == size_of::<u64>();
    // No log was erased that often; and one more must be a number.
    let forged = block.header.generation == u64::MAX;
    if !head || forged || block.header.identity != copies.identity {
        return Err(Wrong::Foreign);
    }
    Ok((block.header, u64_at(block.payload, 0)))
}

enum Wrong {
    Foreign,
    NotABlock(NotABlock),
}

impl From<NotABlock> for Wrong {
    fn from(wrong: NotABlock) -> Self {
        Self::NotABlock(wrong)
    }
}

/// The generation that counts, if there is a log.
pub(super) fn generation(copies: &LogCopies) -> Option<u64> {
    latest(copies, &mut heads(copies)).ok().map(|(head, _)| head.generation)
}

/// Reads all heads of all copies: the latest counts.
///
/// # Errors
/// If there is no head, or none that is whole.
pub(super) fn read(copies: &LogCopies) -> Result<Heads, OpenError> {
    let mut window = heads(copies);
    let latest = latest(copies, &mut window)?;
    let (generation, session) = (latest.0.generation, latest.0.session);
    let log = copies.identity.log;
    if latest.1 != copies.blocks() {
        let why = format!("it was made for {}", latest.1);
        return Err(OpenError::Size { log, blocks: copies.blocks(), why });
    }
    let mut defects = Vec::new();
    for (copy, head) in all(copies) {
        let what = match window.block(copy, head) {
            Err(error) => format!("cannot be read: {}", error.source),
            Ok(bytes) => match decode(bytes, copies) {
                Ok((header, _)) if header.generation == generation => continue,
                Ok((header, _)) => format!("is a head of generation {}", header.generation),
                Err(Wrong::Foreign) => "is no head of this log".into(),
                Err(Wrong::NotABlock(wrong)) => wrong.to_string(),
            },
        };
        defects.push(Defect { damage: copies.damage(copy, head, what), good: None });
    }
    Ok(Heads { generation, session, defects })
}

fn heads(copies: &LogCopies) -> Window<'_> {
    let mut window = Window::new(copies);
    window.load(0, HEADS);
    window
}

fn all(copies: &LogCopies) -> impl Iterator<Item = (usize, u64)> {
    (0..copies.count()).flat_map(|copy| (0..HEADS).map(move |head| (copy, head)))
}

/// The head of the latest generation and the length that it gives.
fn latest(copies: &LogCopies, window: &mut Window<'_>) -> Result<(Header, u64), OpenError> {
    let log = copies.identity.log;
    let mut heads = Vec::new();
    let (mut version, mut resembles, mut readable) = (None, None, false);
    for (copy, head) in all(copies) {
        let Ok(bytes) = window.block(copy, head) else { continue };
        readable = true;
        match decode(bytes, copies) {
            Ok(head) => heads.push(head),
            Err(Wrong::NotABlock(NotABlock::Version(found))) => version = Some(found),
            Err(Wrong::NotABlock(wrong)) if log_block::resembles(bytes, copies.identity) => {
                resembles = Some(copies.damage(copy, head, wrong));
            }
            Err(_) => {}
        }
    }
    if let Some(latest) = heads.into_iter().max_by_key(|(head, _)| head.generation) {
        return Ok(latest);
    }
    if !readable {
        copies.read(0, 0, &mut Buffer::zeroed(BLOCK_BYTES))?;
    }
    Err(match (version, resembles) {
        (Some(found), _) => OpenError::Version { log, found, known: VERSION },
        (None, Some(damage)) => OpenError::Damaged(damage),
        (None, None) => OpenError::NoLog(copies.damage(0, 0, "is no head of it")),
    })
}
