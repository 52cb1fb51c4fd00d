//! The encoder: a sink of a transfer that writes the stream.

use std::collections::HashMap;
use std::io;
use std::thread;

use bindery_page::KeyedDigestKey;
use bindery_transfer::{Sink, SinkError};
use bindery_units::{PAGE_BYTES, PageIndex, PageRange};

use super::lane::{Lane, LaneOptions, Page, Piece};
use super::outlet::Outlet;
use super::tally::SendTally;
use crate::format::{
    CHUNK_PAGES, Chunk, ChunkAt, DIGEST_SECRET_BYTES, Geometry, STATE_PIECE_BYTES,
    device_state_head, low_bits,
};

/// Fewest pages for which streams are written by threads of their own.
const PARALLEL_PAGES: usize = 256;

/// Fewest pages of a piece that are asked for by digest.
const ASKED_PAGES: usize = 4;

/// Digests after which their worth is judged.
const JUDGED_DIGESTS: u64 = 16_384;

/// Choices of an encoder.
#[derive(Clone, Debug)]
pub struct EncodeOptions {
    /// True if chunks are compressed where that pays.
    pub compresses: bool,
    /// Most bytes of last versions of pages, from which deltas are made; 0 for none.
    pub version_bytes: usize,
}

impl Default for EncodeOptions {
    fn default() -> Self {
        Self { compresses: false, version_bytes: 256 << 20 }
    }
}

/// Answers of the destination to digests.
pub trait Answers: Send {
    /// Waits for the next [`Lacking`](crate::format::Frame::Lacking).
    ///
    /// # Errors
    /// The connection's, or that no answer came in time.
    fn next_lacking(&mut self) -> io::Result<Chunk>;
}

struct Asking {
    answers: Box<dyn Answers>,
    key: KeyedDigestKey,
    asked: u64,
    found: u64,
}

/// Writes the memory of a guest to one or more streams.
///
/// Of a zero page that was never sent, nothing is sent; nor is anything of a page that is known not to have
/// changed. Pages of one row of 64 go through one stream, in order.
pub struct Encoder<O> {
    lanes: Vec<Lane<O>>,
    geometry: Geometry,
    asking: Option<Asking>,
    round: u32,
}

impl<O> std::fmt::Debug for Encoder<O> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Encoder").field("round", &self.round).finish_non_exhaustive()
    }
}

impl<O: Outlet> Encoder<O> {
    /// Makes an encoder for one guest. The destination's memory is zero.
    ///
    /// # Errors
    /// zstd's, if there is no memory.
    ///
    /// # Panics
    /// If there is no outlet.
    pub fn new(outlets: Vec<O>, geometry: Geometry, options: &EncodeOptions) -> io::Result<Self> {
        assert!(!outlets.is_empty(), "a migration has a stream");
        let version_bytes = options.version_bytes / outlets.len();
        let options = LaneOptions { compresses: options.compresses, version_bytes };
        let lanes = outlets.into_iter().map(|outlet| Lane::new(outlet, &geometry, options));
        Ok(Self { lanes: lanes.collect::<Result<_, _>>()?, geometry, asking: None, round: 0 })
    }

    /// Asks for pages of the first round by digest, as long as enough of them are found.
    #[must_use]
    pub fn asking(mut self, answers: Box<dyn Answers>, secret: &[u8; DIGEST_SECRET_BYTES]) -> Self {
        let key = KeyedDigestKey::from_secret(secret);
        self.asking = Some(Asking { answers, key, asked: 0, found: 0 });
        self
    }

    /// Returns what was sent by all streams.
    #[must_use]
    pub fn tally(&self) -> SendTally {
        let mut tally = SendTally::default();
        self.lanes.iter().for_each(|lane| tally += lane.tally);
        tally
    }

    /// Returns the number of the round that pages belong to now.
    #[must_use]
    pub const fn round(&self) -> u32 {
        self.round
    }

    /// Ends the round on all streams, and begins the next one.
    ///
    /// # Errors
    /// The outlets'.
    pub fn end_round(&mut self) -> io::Result<()> {
        self.lanes.iter_mut().try_for_each(Lane::end_round)?;
        self.round += 1;
        Ok(())
    }

    /// Sends the state of the guest's devices on the first stream, in pieces.
    ///
    /// # Errors
    /// The outlet's.
    pub fn device_state(&mut self, state: &[u8]) -> io::Result<()> {
        let lane = &mut self.lanes[0];
        lane.flush()?;
        let pieces = state.chunks(STATE_PIECE_BYTES).chain(state.is_empty().then_some(&[][..]));
        let mut offset = 0;
        for piece in pieces {
            let head = device_state_head(offset, state.len() as u64, piece.len());
            lane.outlet().send(&[&head, piece])?;
            offset += piece.len() as u64;
        }
        Ok(())
    }

    /// Returns the outlets, the first stream's first.
    #[must_use]
    pub fn into_outlets(self) -> Vec<O> {
        self.lanes.into_iter().map(Lane::into_outlet).collect()
    }

    fn put_pages(&mut self, block: usize, first: u32, pages: &[Page]) -> io::Result<()> {
        let pieces = self.cut(block, first, pages)?;
        let Some(mut asking) = self.asking.take().filter(|_| self.round == 0) else {
            return self.send(&pieces);
        };
        let sent = self.send_lacking(&pieces, &mut asking);
        let pays = asking.asked < JUDGED_DIGESTS || asking.found * 16 >= asking.asked;
        self.asking = pays.then_some(asking);
        sent
    }

    /// Cuts pages at the rows that they are in.
    fn cut<'a>(&self, block: usize, first: u32, pages: &'a [Page]) -> io::Result<Vec<Piece<'a>>> {
        self.check(block, first, pages.len())?;
        let (mut pieces, mut first, mut rest) = (Vec::new(), first, pages);
        while !rest.is_empty() {
            let bit = first % CHUNK_PAGES;
            let count = rest.len().min((CHUNK_PAGES - bit) as usize);
            let (pages, behind) = rest.split_at(count);
            let at = ChunkAt { block: block as u16, row: first / CHUNK_PAGES };
            pieces.push(Piece { at, bit, pages });
            (rest, first) = (behind, first.saturating_add(count as u32));
        }
        Ok(pieces)
    }

    fn check(&self, block: usize, first: u32, count: usize) -> io::Result<()> {
        let has = self.geometry.blocks().get(block).copied().unwrap_or(0);
        let is_within =
            u64::from(first) + count as u64 <= u64::from(has) && block < usize::from(u16::MAX);
        let wrong = || io::Error::other("pages were put that the offered guest does not have");
        if is_within { Ok(()) } else { Err(wrong()) }
    }

    /// Sends pieces, each on the stream of its row, the streams at the same time if that is worth it.
    fn send(&mut self, pieces: &[Piece<'_>]) -> io::Result<()> {
        let (streams, pages) =
            (self.lanes.len(), pieces.iter().map(|piece| piece.pages.len()).sum::<usize>());
        let of = |stream| pieces.iter().filter(move |piece| piece.at.stream(streams) == stream);
        let send = |(stream, lane): (usize, &mut Lane<O>)| {
            of(stream).try_for_each(|piece| lane.put(piece))
        };
        if streams == 1 || pages < PARALLEL_PAGES {
            return self.lanes.iter_mut().enumerate().try_for_each(send);
        }
        thread::scope(|scope| {
            let lanes = self.lanes.iter_mut().enumerate();
            let threads: Vec<_> = lanes.map(|lane| scope.spawn(move || send(lane))).collect();
            let mut joined = threads.into_iter().map(|thread| thread.join());
            joined
                .try_for_each(|sent| sent.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        })
    }

    /// Asks for pieces by digest, and sends what is lacking.
    fn send_lacking(&mut self, pieces: &[Piece<'_>], asking: &mut Asking) -> io::Result<()> {
        let streams = self.lanes.len();
        let mut open = HashMap::new();
        for piece in pieces.iter().filter(|piece| piece.pages.len() >= ASKED_PAGES) {
            let chunk = self.lanes[piece.at.stream(streams)].ask(piece, &asking.key)?;
            if chunk.pages != 0 {
                asking.asked += chunk.count() as u64;
                open.insert(chunk.at, chunk.pages);
            }
        }
        let mut known = HashMap::new();
        while !open.is_empty() {
            let answer = asking.answers.next_lacking()?;
            let asked = open.remove(&answer.at).filter(|asked| answer.pages & !asked == 0);
            let asked = asked.ok_or_else(|| {
                io::Error::new(
                    io::ErrorKind::InvalidData,
                    "the destination answered what nobody asked",
                )
            })?;
            asking.found += u64::from((asked & !answer.pages).count_ones());
            known.insert(answer.at, asked & !answer.pages);
        }
        let mut lacking = Vec::new();
        for piece in pieces {
            let known = known.get(&piece.at).copied().unwrap_or(0) & piece.bits();
            self.lanes[piece.at.stream(streams)].note_known(piece.at, known);
            lacking.extend(without(piece, known));
        }
        self.send(&lacking)
    }
}

/// Returns the parts of a piece that are not among `known`.
fn without<'a>(piece: &Piece<'a>, known: u64) -> Vec<Piece<'a>> {
    let chunk = Chunk { at: piece.at, round: 0, pages: piece.bits() & !known };
    let part = |(first, count): (u32, u32)| {
        let bit = first - piece.at.first();
        let start = (bit - piece.bit) as usize;
        Piece { at: piece.at, bit, pages: &piece.pages[start..start + count as usize] }
    };
    chunk.runs().map(part).collect()
}

impl<O: Outlet> Sink for Encoder<O> {
    fn put(&mut self, block: usize, first: PageIndex, bytes: &[u8]) -> Result<(), SinkError> {
        let (pages, rest) = bytes.as_chunks::<PAGE_BYTES>();
        if !rest.is_empty() {
            return Err("pages were put that are not whole".into());
        }
        Ok(self.put_pages(block, first.0, pages)?)
    }

    fn zeros(&mut self, block: usize, pages: PageRange) -> Result<(), SinkError> {
        self.check(block, pages.first.0, pages.count as usize)?;
        let (mut first, mut left, streams) = (pages.first.0, pages.count, self.lanes.len());
        while left > 0 {
            let bit = first % CHUNK_PAGES;
            let count = left.min(CHUNK_PAGES - bit);
            let at = ChunkAt { block: block as u16, row: first / CHUNK_PAGES };
            self.lanes[at.stream(streams)].put_zeros(at, low_bits(count) << bit)?;
            (first, left) = (first.saturating_add(count), left - count);
        }
        Ok(())
    }

    fn end_round(&mut self) -> Result<(), SinkError> {
        Ok(Self::end_round(self)?)
    }
}
