//! Frames as they are written: a head, and parts of a body that stay where they are.

use super::error::FormatError;
use super::frame::Chunk;
use super::geometry::ChunkAt;
use super::head::{Codec, FrameHead, FrameKind, HEAD_BYTES};
use super::message::HandOverFrame;
use super::offer::{Accepted, Description, Join, Offer, Refusal};

/// Length of the head of a chunk with its bitmap, in bytes.
pub const CHUNK_HEAD_BYTES: usize = HEAD_BYTES + 8;

/// Encodes the head and the bitmap of a chunk with so many bytes behind it.
#[must_use]
pub fn chunk_head(
    kind: FrameKind,
    codec: Codec,
    chunk: &Chunk,
    bytes: usize,
) -> [u8; CHUNK_HEAD_BYTES] {
    let head = FrameHead {
        codec,
        block: chunk.at.block.into(),
        round: chunk.round.into(),
        row: chunk.at.row.into(),
        ..FrameHead::of(kind, 8 + bytes)
    };
    let mut encoded = [0; CHUNK_HEAD_BYTES];
    encoded[..HEAD_BYTES].copy_from_slice(&head.encode());
    encoded[HEAD_BYTES..].copy_from_slice(&chunk.pages.to_le_bytes());
    encoded
}

/// Encodes a chunk that is a bitmap alone, such as [`FrameKind::Lacking`].
#[must_use]
pub fn bitmap_frame(kind: FrameKind, chunk: &Chunk) -> Vec<u8> {
    chunk_head(kind, Codec::Plain, chunk, 0).to_vec()
}

/// Encodes the head of runs of zeros.
#[must_use]
pub(crate) fn zeros_head(block: u16, round: u32, bytes: usize) -> [u8; HEAD_BYTES] {
    FrameHead { block: block.into(), round: round.into(), ..FrameHead::of(FrameKind::Zeros, bytes) }
        .encode()
}

/// Encodes the end of a round.
#[must_use]
pub fn round_end_frame(round: u32, frames: u64) -> Vec<u8> {
    let head = FrameHead { round: round.into(), ..FrameHead::of(FrameKind::RoundEnd, 8) };
    [&head.encode()[..], &frames.to_le_bytes()].concat()
}

/// Encodes the news that a round is there as a whole.
#[must_use]
pub fn round_done_frame(round: u32) -> Vec<u8> {
    FrameHead { round: round.into(), ..FrameHead::of(FrameKind::RoundDone, 0) }.encode().to_vec()
}

/// Encodes a number of received bytes.
#[must_use]
pub fn received_frame(bytes: u64) -> Vec<u8> {
    body_frame(FrameKind::Received, &bytes.to_le_bytes())
}

/// Encodes the head of a piece of device state; the piece follows.
#[must_use]
pub fn device_state_head(offset: u64, total: u64, piece_bytes: usize) -> Vec<u8> {
    let head = FrameHead::of(FrameKind::DeviceState, 16 + piece_bytes).encode();
    [&head[..], &offset.to_le_bytes(), &total.to_le_bytes()].concat()
}

/// Encodes a message of the hand-over.
#[must_use]
pub fn hand_over_frame(message: &HandOverFrame) -> Vec<u8> {
    body_frame(FrameKind::HandOver, &message.encode())
}

/// Encodes a sign of life.
#[must_use]
pub fn alive_frame() -> Vec<u8> {
    body_frame(FrameKind::Alive, &[])
}

/// Encodes consent to a join.
#[must_use]
pub fn joined_frame() -> Vec<u8> {
    body_frame(FrameKind::Joined, &[])
}

/// Encodes an offer.
///
/// # Errors
/// [`FormatError::Impossible`] if it is longer than 1 MiB.
pub fn offer_frame(offer: &Offer) -> Result<Vec<u8>, FormatError> {
    Ok(body_frame(FrameKind::Offer, &offer.encode()?))
}

/// Encodes a consent.
///
/// # Errors
/// [`FormatError::Impossible`] if it is longer than 1 MiB.
pub fn accepted_frame(accepted: &Accepted) -> Result<Vec<u8>, FormatError> {
    Ok(body_frame(FrameKind::Accepted, &accepted.encode()?))
}

/// Encodes a refusal; what is beyond 60,000 bytes of its reason is left out.
#[must_use]
pub fn refusal_frame(refusal: &Refusal) -> Vec<u8> {
    let reason = refusal.reason.chars().take(15_000).collect();
    let body = Refusal { kind: refusal.kind, reason }.encode().expect("it is short enough");
    body_frame(FrameKind::Refused, &body)
}

/// Encodes a join.
///
/// # Errors
/// [`FormatError::Impossible`] if it is longer than 1 MiB.
pub fn join_frame(join: &Join) -> Result<Vec<u8>, FormatError> {
    Ok(body_frame(FrameKind::Join, &join.encode()?))
}

/// Encodes a request for pages that somebody waits for.
#[must_use]
pub fn wanted_frame(at: ChunkAt, pages: u64, round: u32) -> Vec<u8> {
    bitmap_frame(FrameKind::Lacking, &Chunk { at, round, pages })
}

fn body_frame(kind: FrameKind, body: &[u8]) -> Vec<u8> {
    [&FrameHead::of(kind, body.len()).encode()[..], body].concat()
}
