//! Frames, decoded.

use super::delta::Delta;
use super::error::FormatError;
use super::geometry::{CHUNK_PAGES, ChunkAt, Geometry};
use super::head::{Codec, FrameHead, FrameKind, POST_COPY_ROUND};
use super::message::HandOverFrame;
use super::offer::{Accepted, Description, Join, Offer, Refusal};
use super::zero_runs::ZeroRuns;
use bindery_page::KEYED_DIGEST_BYTES;
use bindery_units::PAGE_BYTES;

const BITMAP_BYTES: usize = 8;

/// Pages of a row in one round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Row of 64 pages.
    pub at: ChunkAt,
    /// Round, or [`POST_COPY_ROUND`].
    pub round: u32,
    /// Pages of the row, the lowest bit the first.
    pub pages: u64,
}

impl Chunk {
    /// Returns the number of pages.
    #[must_use]
    pub const fn count(&self) -> usize {
        self.pages.count_ones() as usize
    }

    /// Returns its runs: the first page of each, counted from the block's first, and the number of pages.
    pub fn runs(&self) -> impl Iterator<Item = (u32, u32)> {
        let (first, mut left) = (self.at.first(), self.pages);
        std::iter::from_fn(move || {
            let start = (left != 0).then(|| left.trailing_zeros())?;
            let count = (left >> start).trailing_ones();
            left &= !(low_bits(count) << start);
            Some((first + start, count))
        })
    }
}

/// Returns a bitmap of the lowest `count` bits.
#[must_use]
pub(crate) const fn low_bits(count: u32) -> u64 {
    if count >= CHUNK_PAGES { u64::MAX } else { (1 << count) - 1 }
}

/// Frame of the stream, borrowing from its body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame<'a> {
    /// Guest that the source offers.
    Offer(Box<Offer>),
    /// Consent of the destination.
    Accepted(Accepted),
    /// Refusal or end.
    Refused(Refusal),
    /// Another stream of a session.
    Join(Join),
    /// Consent to a join.
    Joined,
    /// Pages: as they are, or compressed.
    Pages {
        /// Pages that are sent.
        chunk: Chunk,
        /// Encoding of `bytes`.
        codec: Codec,
        /// Their content, one page behind the other.
        bytes: &'a [u8],
    },
    /// Changed words, of each page of the chunk.
    Deltas {
        /// Pages that are meant.
        chunk: Chunk,
        /// A delta for each page.
        deltas: Vec<Delta<'a>>,
    },
    /// Pages that are zero now.
    Zeros {
        /// Memory block.
        block: u16,
        /// Round.
        round: u32,
        /// Pages.
        runs: ZeroRuns<'a>,
    },
    /// Digests of pages that the destination may have.
    Digests {
        /// Pages that are meant.
        chunk: Chunk,
        /// A digest for each page.
        digests: &'a [[u8; KEYED_DIGEST_BYTES]],
    },
    /// Pages that the destination lacks: all others of the digests were found, or somebody waits for these.
    Lacking(Chunk),
    /// Pages that the source cannot read.
    Damaged(Chunk),
    /// End of a round on this stream, with the number of frames of the round before it.
    RoundEnd {
        /// Round.
        round: u32,
        /// Number of frames.
        frames: u64,
    },
    /// Round that the destination has from all streams.
    RoundDone(u32),
    /// Bytes that the destination received on this stream.
    Received(u64),
    /// Piece of the device state.
    DeviceState {
        /// Offset of the piece, in bytes.
        offset: u64,
        /// Length of the whole, in bytes.
        total: u64,
        /// Piece.
        piece: &'a [u8],
    },
    /// Message of the hand-over.
    HandOver(HandOverFrame),
    /// Sign of life.
    Alive,
}

impl<'a> Frame<'a> {
    /// Decodes the body behind `head`. `geometry` is that of the offer; before one, an empty one.
    ///
    /// Takes memory in proportion to `body`.
    ///
    /// # Errors
    /// [`FormatError::Impossible`].
    pub fn decode(
        head: &FrameHead,
        body: &'a [u8],
        geometry: &Geometry,
    ) -> Result<Self, FormatError> {
        match head.kind {
            FrameKind::Offer => Offer::decode(body).map(|offer| Self::Offer(Box::new(offer))),
            FrameKind::Accepted => Accepted::decode(body).map(Self::Accepted),
            FrameKind::Refused => Refusal::decode(body).map(Self::Refused),
            FrameKind::Join => Join::decode(body).map(Self::Join),
            FrameKind::Joined => Ok(Self::Joined),
            FrameKind::Pages => pages(head, body, geometry),
            FrameKind::Deltas => deltas(head, body, geometry),
            FrameKind::Zeros => zeros(head, body, geometry),
            FrameKind::Digests => digests(head, body, geometry),
            FrameKind::Lacking => bitmap_alone(head, body, geometry).map(Self::Lacking),
            FrameKind::Damaged => bitmap_alone(head, body, geometry).map(Self::Damaged),
            FrameKind::RoundEnd => Ok(Self::RoundEnd {
                round: head.round.get(),
                frames: number(body, "end of a round")?,
            }),
            FrameKind::RoundDone => Ok(Self::RoundDone(head.round.get())),
            FrameKind::Received => number(body, "acknowledgement").map(Self::Received),
            FrameKind::DeviceState => device_state(body),
            FrameKind::HandOver => HandOverFrame::decode(body).map(Self::HandOver),
            FrameKind::Alive => Ok(Self::Alive),
        }
    }
}

/// Splits a chunk's bitmap off its body.
fn chunk<'a>(
    head: &FrameHead,
    body: &'a [u8],
    geometry: &Geometry,
) -> Result<(Chunk, &'a [u8]), FormatError> {
    let short = FormatError::impossible("chunk", "it is shorter than its bitmap");
    let (bitmap, rest) = body.split_first_chunk::<BITMAP_BYTES>().ok_or(short)?;
    let at = ChunkAt { block: head.block.get(), row: head.row.get() };
    let chunk = Chunk { at, round: head.round.get(), pages: u64::from_le_bytes(*bitmap) };
    geometry.check(at, chunk.pages)?;
    Ok((chunk, rest))
}

fn pages<'a>(
    head: &FrameHead,
    body: &'a [u8],
    geometry: &Geometry,
) -> Result<Frame<'a>, FormatError> {
    let (chunk, bytes) = chunk(head, body, geometry)?;
    let plain = chunk.count() * PAGE_BYTES;
    let is_possible = match head.codec {
        Codec::Plain => bytes.len() == plain,
        Codec::Zstd => !bytes.is_empty() && bytes.len() < plain,
    };
    if chunk.pages == 0 || !is_possible {
        return Err(FormatError::impossible("chunk", "its length is not that of its pages"));
    }
    Ok(Frame::Pages { chunk, codec: head.codec, bytes })
}

fn deltas<'a>(
    head: &FrameHead,
    body: &'a [u8],
    geometry: &Geometry,
) -> Result<Frame<'a>, FormatError> {
    let wrong = FormatError::impossible("chunk of deltas", "its length is not that of its deltas");
    let (chunk, mut rest) = chunk(head, body, geometry)?;
    let mut deltas = Vec::with_capacity(chunk.count());
    for _ in 0..chunk.count() {
        let (length, behind) = rest.split_first_chunk().ok_or(wrong.clone())?;
        let length = usize::from(u16::from_le_bytes(*length));
        let (delta, behind) = behind.split_at_checked(length).ok_or(wrong.clone())?;
        if length >= PAGE_BYTES {
            return Err(FormatError::impossible("delta", "it is no shorter than its page"));
        }
        deltas.push(Delta::parse(delta)?);
        rest = behind;
    }
    if deltas.is_empty() || !rest.is_empty() || chunk.round == POST_COPY_ROUND {
        return Err(wrong);
    }
    Ok(Frame::Deltas { chunk, deltas })
}

fn zeros<'a>(
    head: &FrameHead,
    body: &'a [u8],
    geometry: &Geometry,
) -> Result<Frame<'a>, FormatError> {
    let block = head.block.get();
    let runs = ZeroRuns::parse(body, geometry.pages_of(block)?)?;
    Ok(Frame::Zeros { block, round: head.round.get(), runs })
}

fn digests<'a>(
    head: &FrameHead,
    body: &'a [u8],
    geometry: &Geometry,
) -> Result<Frame<'a>, FormatError> {
    let (chunk, bytes) = chunk(head, body, geometry)?;
    let (digests, rest) = bytes.as_chunks();
    if digests.is_empty() || digests.len() != chunk.count() || !rest.is_empty() {
        return Err(FormatError::impossible(
            "chunk of digests",
            "its length is not that of its pages",
        ));
    }
    Ok(Frame::Digests { chunk, digests })
}

fn bitmap_alone(head: &FrameHead, body: &[u8], geometry: &Geometry) -> Result<Chunk, FormatError> {
    match chunk(head, body, geometry)? {
        (chunk, []) => Ok(chunk),
        _ => Err(FormatError::impossible("chunk", "something is behind its bitmap")),
    }
}

fn device_state(body: &[u8]) -> Result<Frame<'_>, FormatError> {
    let wrong = FormatError::impossible("piece of device state", "it is none of a whole");
    let (offset, rest) = body.split_first_chunk().ok_or(wrong.clone())?;
    let (total, piece) = rest.split_first_chunk().ok_or(wrong.clone())?;
    let [offset, total] = [offset, total].map(|number| u64::from_le_bytes(*number));
    let is_within = offset.checked_add(piece.len() as u64).is_some_and(|end| end <= total);
    if !is_within || (piece.is_empty() && total > 0) {
        return Err(wrong);
    }
    Ok(Frame::DeviceState { offset, total, piece })
}

fn number(body: &[u8], what: &'static str) -> Result<u64, FormatError> {
    let bytes =
        body.try_into().map_err(|_| FormatError::impossible(what, "it is no number of 8 bytes"))?;
    Ok(u64::from_le_bytes(bytes))
}
