//! Frames of a migration as a hostile hand writes them: with lengths that fit.

use std::io;

use bindery_migration::format::{
    Chunk, Codec, Frame, FrameHead, FrameKind, Geometry, HEAD_BYTES, accepted_frame, bitmap_frame,
    chunk_head, hand_over_frame, join_frame, offer_frame, received_frame, round_end_frame,
};
use bindery_migration::receive::{
    Applied, Applier, DeviceStatePieces, FrameReader, Rounds, Target,
};
use bindery_page::KeyedDigest;
use bindery_units::{PAGE_BYTES, PageIndex, PageRange};
use libfuzzer_sys::arbitrary::{self, Arbitrary};

use crate::memory::bounded;

/// Pages of the memory blocks: one ends within a row.
const PAGES: [u32; 2] = [130, 3];

/// Memory that a stream may take beside its length, in bytes: the longest frame, one that is decompressed, zstd's own.
const STREAM_BYTES: usize = 4 << 20;

/// A frame, or something like one.
#[derive(Arbitrary, Debug)]
pub struct AnyFrame {
    kind: u8,
    codec: u8,
    block: u8,
    round: u8,
    row: u8,
    bitmap: Option<u64>,
    /// Length that is not that of the body.
    length: Option<u32>,
    body: Vec<u8>,
    /// Bytes that the body is filled up to for each page of the bitmap.
    fill: u8,
}

/// A stream of frames.
#[derive(Arbitrary, Debug)]
pub struct Frames(Vec<AnyFrame>);

impl Frames {
    /// Encodes it.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        self.0.iter().take(16).flat_map(AnyFrame::encode).collect()
    }
}

impl AnyFrame {
    fn encode(&self) -> Vec<u8> {
        let mut body = self.bitmap.map(|it| it.to_le_bytes().to_vec()).unwrap_or_default();
        body.extend_from_slice(&self.body);
        let pages = self.bitmap.map_or(0, u64::count_ones) as usize;
        match self.fill {
            0..64 => {}
            64..160 => body.resize(8 + pages * PAGE_BYTES, 7),
            _ => body.resize(8 + pages * 32, 7),
        }
        let mut bytes =
            vec![self.kind % 19, self.codec % 3, self.block % 3, 0, self.round % 3, 0, 0, 0];
        bytes.extend_from_slice(&[self.row % 4, 0, 0, 0]);
        bytes.extend_from_slice(&self.length.unwrap_or(body.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&body);
        bytes
    }
}

fn geometry() -> Geometry {
    Geometry::new(PAGES.to_vec())
}

/// Decodes the first frame, and encodes it again.
///
/// # Panics
/// If that makes other bytes, or takes much memory.
pub fn encode_again(bytes: &[u8]) {
    let Some((head, rest)) = bytes.split_first_chunk::<HEAD_BYTES>() else { return };
    let Ok(decoded) = FrameHead::decode(head) else { return };
    assert_eq!(decoded.encode(), *head);
    let Some(body) = rest.get(..decoded.bytes.get() as usize) else { return };
    let geometry = geometry();
    let Ok(frame) = bounded(8 * body.len(), || Frame::decode(&decoded, body, &geometry)) else {
        return;
    };
    let again = match &frame {
        Frame::Pages { chunk, codec, bytes } => chunk_bytes(FrameKind::Pages, *codec, chunk, bytes),
        Frame::Digests { chunk, digests } => {
            chunk_bytes(FrameKind::Digests, Codec::Plain, chunk, digests.as_flattened())
        }
        Frame::Lacking(chunk) => bitmap_frame(FrameKind::Lacking, chunk),
        Frame::Damaged(chunk) => bitmap_frame(FrameKind::Damaged, chunk),
        Frame::RoundEnd { round, frames } => round_end_frame(*round, *frames),
        Frame::Received(bytes) => received_frame(*bytes),
        Frame::HandOver(message) => hand_over_frame(message),
        // Numbers of descriptions have longer forms, so these come back by value.
        Frame::Offer(offer) => {
            return comes_back(&offer_frame(offer).expect("it was shorter"), &frame);
        }
        Frame::Accepted(it) => {
            return comes_back(&accepted_frame(it).expect("it was shorter"), &frame);
        }
        Frame::Join(join) => return comes_back(&join_frame(join).expect("it was shorter"), &frame),
        _ => return,
    };
    assert!(again == bytes[..HEAD_BYTES + body.len()], "{frame:?}");
}

fn chunk_bytes(kind: FrameKind, codec: Codec, chunk: &Chunk, bytes: &[u8]) -> Vec<u8> {
    [&chunk_head(kind, codec, chunk, bytes.len())[..], bytes].concat()
}

fn comes_back(bytes: &[u8], frame: &Frame<'_>) {
    let mut reader = FrameReader::default();
    let again = reader.next(&mut &bytes[..], &Geometry::default()).expect("it was encoded");
    assert_eq!(again, *frame);
}

/// Memory that checks where it is written.
struct Memory;

impl Memory {
    fn check(block: u16, first: PageIndex, count: usize) {
        let pages = PAGES[usize::from(block)];
        assert!(count > 0 && u64::from(first.0) + count as u64 <= u64::from(pages));
    }
}

impl Target for Memory {
    fn put(&mut self, block: u16, first: PageIndex, bytes: &[u8]) -> io::Result<()> {
        assert!(bytes.len().is_multiple_of(PAGE_BYTES));
        Self::check(block, first, bytes.len() / PAGE_BYTES);
        Ok(())
    }

    fn zeros(&mut self, block: u16, pages: PageRange) -> io::Result<()> {
        Self::check(block, pages.first, pages.count as usize);
        Ok(())
    }

    fn patch(
        &mut self,
        block: u16,
        page: PageIndex,
        offset: usize,
        bytes: &[u8],
    ) -> io::Result<()> {
        Self::check(block, page, 1);
        assert!(!bytes.is_empty() && offset + bytes.len() <= PAGE_BYTES);
        Ok(())
    }

    fn adopt(&mut self, block: u16, page: PageIndex, digest: &KeyedDigest) -> io::Result<bool> {
        Self::check(block, page, 1);
        Ok(digest.0[0] & 1 == 0)
    }

    fn damaged(&mut self, block: u16, page: PageIndex) -> io::Result<()> {
        Self::check(block, page, 1);
        Ok(())
    }
}

/// Applies a stream to a memory.
///
/// # Panics
/// If anything is written outside of the memory, or much memory is taken.
pub fn apply(bytes: &[u8]) {
    bounded(bytes.len() + STREAM_BYTES / 8, || {
        let (geometry, mut rest) = (geometry(), bytes);
        let (mut reader, mut rounds) = (FrameReader::default(), Rounds::new(1));
        let (mut applier, mut state) =
            (Applier::new().expect("there is memory"), DeviceStatePieces::default());
        while let Ok(frame) = reader.next(&mut rest, &geometry) {
            if let Frame::DeviceState { offset, total, piece } = frame {
                _ = state.push(offset, total, piece);
                continue;
            }
            match applier.apply(&frame, &mut Memory) {
                Ok(Applied::Lacking(chunk)) => geometry_has(&chunk),
                Ok(Applied::RoundEnded(round)) => _ = rounds.end(0, round),
                Ok(Applied::Memory | Applied::Other) => {}
                Err(error) => {
                    assert!(!error.to_string().is_empty());
                    break;
                }
            }
        }
        assert!(reader.received() <= bytes.len() as u64);
        assert!(state.whole().is_none_or(|whole| whole.len() <= bytes.len()));
    });
}

fn geometry_has(chunk: &Chunk) {
    chunk
        .runs()
        .for_each(|(first, count)| Memory::check(chunk.at.block, PageIndex(first), count as usize));
}
