//! Heads of frames: what follows, and how long it is.

use bindery_units::PAGE_BYTES;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{Immutable, IntoBytes, KnownLayout, TryFromBytes, Unaligned};

use super::error::FormatError;
use super::geometry::CHUNK_PAGES;

/// Length of a [`FrameHead`], in bytes.
pub const HEAD_BYTES: usize = 16;

/// Most bytes of a body that is a description.
pub const DESCRIPTION_BYTES_MAX: usize = 1 << 20;

/// Most bytes of device state in one frame.
pub const STATE_PIECE_BYTES: usize = 1 << 20;

/// Most runs of one frame of zeros.
pub const ZERO_RUNS_MAX: usize = 4096;

/// Round of pages that are sent while the guest runs at the destination.
pub const POST_COPY_ROUND: u32 = u32::MAX;

/// Kind of a frame.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    Hash,
    TryFromBytes,
    IntoBytes,
    KnownLayout,
    Immutable,
    Unaligned,
)]
#[repr(u8)]
pub enum FrameKind {
    /// Guest that the source offers.
    Offer = 1,
    /// Consent of the destination.
    Accepted = 2,
    /// Refusal or end, with its reason; either way. The last frame.
    Refused = 3,
    /// Secret of a session that this connection is another stream of.
    Join = 4,
    /// Consent to a join.
    Joined = 5,
    /// Pages of a chunk.
    Pages = 6,
    /// Changed words of pages of a chunk.
    Deltas = 7,
    /// Runs of pages that are zero now.
    Zeros = 8,
    /// Digests of pages of a chunk.
    Digests = 9,
    /// Pages of a chunk that the destination lacks.
    Lacking = 10,
    /// Pages of a chunk that the source cannot read.
    Damaged = 11,
    /// End of a round on this stream.
    RoundEnd = 12,
    /// Round that the destination has from all streams.
    RoundDone = 13,
    /// Number of bytes that the destination received on this stream.
    Received = 14,
    /// Piece of the device state.
    DeviceState = 15,
    /// Message of the hand-over.
    HandOver = 16,
    /// Sign of life.
    Alive = 17,
}

/// Encoding of a body.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, TryFromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(u8)]
pub enum Codec {
    /// As it is.
    Plain = 0,
    /// Pages compressed by zstd (RFC 8878), one frame.
    Zstd = 1,
}

/// Head of a frame.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, TryFromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct FrameHead {
    /// Kind of the frame.
    pub kind: FrameKind,
    /// Encoding of its pages; plain in other kinds than [`FrameKind::Pages`].
    pub codec: Codec,
    /// Memory block, or 0.
    pub block: U16,
    /// Round, or 0.
    pub round: U32,
    /// Row of the chunk, or 0.
    pub row: U32,
    /// Length of the body, in bytes.
    pub bytes: U32,
}

impl FrameHead {
    /// Makes the head of a frame about nothing in particular.
    #[must_use]
    pub const fn of(kind: FrameKind, bytes: usize) -> Self {
        Self {
            kind,
            codec: Codec::Plain,
            block: U16::ZERO,
            round: U32::ZERO,
            row: U32::ZERO,
            bytes: U32::new(bytes as u32),
        }
    }

    /// Encodes it.
    #[must_use]
    pub fn encode(&self) -> [u8; HEAD_BYTES] {
        let mut bytes = [0; HEAD_BYTES];
        bytes.copy_from_slice(self.as_bytes());
        bytes
    }

    /// Decodes a head, and bounds the length of the body behind it.
    ///
    /// # Errors
    /// [`FormatError::Impossible`].
    pub fn decode(bytes: &[u8; HEAD_BYTES]) -> Result<Self, FormatError> {
        let head = Self::try_read_from_bytes(bytes)
            .map_err(|_| FormatError::impossible("frame", "its kind or codec is unknown"))?;
        if head.bytes.get() as usize > most_bytes(head.kind) {
            return Err(FormatError::impossible("frame", "it is longer than its kind can be"));
        }
        let is_about_rows = matches!(head.kind, FrameKind::Pages | FrameKind::Deltas)
            || matches!(head.kind, FrameKind::Digests | FrameKind::Lacking | FrameKind::Damaged);
        let is_in_round = matches!(head.kind, FrameKind::Zeros) || is_about_rows;
        let names_round =
            is_in_round || matches!(head.kind, FrameKind::RoundEnd | FrameKind::RoundDone);
        let is_wrong = (!is_about_rows && head.row.get() != 0)
            || (!is_in_round && head.block.get() != 0)
            || (!names_round && head.round.get() != 0)
            || (head.kind != FrameKind::Pages && head.codec != Codec::Plain)
            || head.row.get() > u32::MAX / CHUNK_PAGES;
        if is_wrong {
            return Err(FormatError::impossible("frame", "a field is set that its kind has not"));
        }
        Ok(head)
    }
}

/// Returns the most bytes that a body of that kind can have.
#[must_use]
pub const fn most_bytes(kind: FrameKind) -> usize {
    const BITMAP: usize = 8;
    const PAGES: usize = CHUNK_PAGES as usize;
    match kind {
        FrameKind::Offer | FrameKind::Accepted | FrameKind::Refused => DESCRIPTION_BYTES_MAX,
        FrameKind::Join => 64,
        FrameKind::Pages => BITMAP + PAGES * PAGE_BYTES,
        FrameKind::Deltas => BITMAP + PAGES * (2 + PAGE_BYTES),
        FrameKind::Zeros => ZERO_RUNS_MAX * 8,
        FrameKind::Digests => BITMAP + PAGES * 32,
        FrameKind::Lacking | FrameKind::Damaged | FrameKind::RoundEnd | FrameKind::Received => 8,
        FrameKind::DeviceState => 16 + STATE_PIECE_BYTES,
        FrameKind::HandOver => 17,
        FrameKind::Joined | FrameKind::RoundDone | FrameKind::Alive => 0,
    }
}
