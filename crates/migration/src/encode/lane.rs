//! One stream's part of an encoder: the rows that it carries, and what was sent of them.

use std::io;

use bindery_page::KeyedDigestKey;
use bindery_units::{PAGE_BYTES, PageIndex, PageRange};

use super::compressor::Compressor;
use super::outlet::Outlet;
use super::row_set::RowSet;
use super::staged::Staged;
use super::tally::SendTally;
use super::versions::Versions;
use crate::format::{
    CHUNK_PAGES, Chunk, ChunkAt, Codec, FrameKind, Geometry, ZERO_RUNS_MAX, chunk_head,
    encode_delta, encode_runs, low_bits, push_run, round_end_frame, zeros_head,
};

pub(crate) type Page = [u8; PAGE_BYTES];

/// Longest delta that is sent: a page that changed more is sent as a whole.
const DELTA_BYTES_MAX: usize = PAGE_BYTES * 3 / 4;

/// Fewest pages of a row that are written from where they are, by a frame of their own, rather than gathered.
const DIRECT_PAGES: usize = 16;

/// Consecutive pages of one row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece<'a> {
    pub(crate) at: ChunkAt,
    /// First page, counted from the row's first.
    pub(crate) bit: u32,
    pub(crate) pages: &'a [Page],
}

impl Piece<'_> {
    /// Returns the pages of the row that it has.
    pub(crate) fn bits(&self) -> u64 {
        low_bits(self.pages.len() as u32) << self.bit
    }
}

/// Choices of a lane.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LaneOptions {
    pub(crate) compresses: bool,
    /// Most bytes of versions that are kept; 0 for no deltas.
    pub(crate) version_bytes: usize,
}

/// Encoder of one stream. All versions of a page go through one, so they arrive in order.
#[derive(Debug)]
pub(crate) struct Lane<O> {
    outlet: O,
    /// Pages that are not zero at the destination, or on their way there.
    present: RowSet,
    versions: Option<Versions>,
    compressor: Option<Compressor>,
    staged: Staged,
    zeros: Vec<PageRange>,
    zeros_of: ChunkAt,
    round: u32,
    frames_of_round: u64,
    pub(crate) tally: SendTally,
}

impl<O: Outlet> Lane<O> {
    pub(crate) fn new(outlet: O, geometry: &Geometry, options: LaneOptions) -> io::Result<Self> {
        let has_versions = options.version_bytes >= PAGE_BYTES;
        Ok(Self {
            outlet,
            present: RowSet::new(geometry),
            versions: has_versions.then(|| Versions::new(options.version_bytes)),
            compressor: if options.compresses { Some(Compressor::new()?) } else { None },
            staged: Staged::default(),
            zeros: Vec::new(),
            zeros_of: ChunkAt { block: 0, row: 0 },
            round: 0,
            frames_of_round: 0,
            tally: SendTally::default(),
        })
    }

    /// Sends what is new of a piece.
    pub(crate) fn put(&mut self, piece: &Piece<'_>) -> io::Result<()> {
        if self.is_direct(piece) {
            return self.put_direct(piece);
        }
        (piece.bit..)
            .zip(piece.pages)
            .try_for_each(|(bit, page)| self.put_page(piece.at, bit, page))
    }

    /// True if nothing is to be computed of the piece's pages, so that they need not be gathered.
    fn is_direct(&self, piece: &Piece<'_>) -> bool {
        let keeps_versions = self.versions.is_some() && self.round > 0;
        piece.pages.len() >= DIRECT_PAGES && !keeps_versions && self.compressor.is_none()
    }

    fn put_direct(&mut self, piece: &Piece<'_>) -> io::Result<()> {
        let (mut bits, mut zeros, mut runs) = (0_u64, 0_u64, Vec::new());
        let mut start = 0;
        for alike in piece.pages.chunk_by(|one, other| is_zero(one) == is_zero(other)) {
            let run = low_bits(alike.len() as u32) << (piece.bit + start);
            start += alike.len() as u32;
            if is_zero(&alike[0]) {
                zeros |= run;
            } else {
                bits |= run;
                runs.push(alike.as_flattened());
            }
        }
        // What waits is older than this.
        self.flush()?;
        self.put_zeros(piece.at, zeros)?;
        if bits == 0 {
            return Ok(());
        }
        *self.present.word(piece.at) |= bits;
        let chunk = Chunk { at: piece.at, round: self.round, pages: bits };
        let head = chunk_head(FrameKind::Pages, Codec::Plain, &chunk, chunk.count() * PAGE_BYTES);
        let parts: Vec<&[u8]> = std::iter::once(&head[..]).chain(runs).collect();
        self.tally.pages += u64::from(bits.count_ones());
        self.send(&parts)
    }

    fn put_page(&mut self, at: ChunkAt, bit: u32, page: &Page) -> io::Result<()> {
        if is_zero(page) {
            return self.put_zeros(at, 1 << bit);
        }
        let is_present = *self.present.word(at) & 1 << bit != 0;
        self.enter(at, 1 << bit)?;
        let keeps = self.round > 0;
        let versions = self.versions.as_mut().filter(|_| keeps);
        let before = versions.as_ref().and_then(|them| them.get(at, bit)).filter(|_| is_present);
        let delta = before.and_then(|before| self.staged.stage_delta(bit, before, page));
        match delta {
            Some(0) => {
                self.tally.unchanged += 1;
                return Ok(());
            }
            Some(_) => self.tally.deltas += 1,
            None => {
                self.staged.stage_page(bit, page);
                self.tally.pages += 1;
            }
        }
        if let Some(versions) = versions {
            versions.put(at, bit, page);
        }
        *self.present.word(at) |= 1 << bit;
        Ok(())
    }

    /// Marks pages of a row as zero, where the destination has something else.
    pub(crate) fn put_zeros(&mut self, at: ChunkAt, bits: u64) -> io::Result<()> {
        if bits == 0 {
            return Ok(());
        }
        let present = self.present.word(at);
        let news = *present & bits;
        *present &= !bits;
        self.tally.silent_zeros += u64::from((bits & !news).count_ones());
        if news == 0 {
            return Ok(());
        }
        if self.staged.at == at && self.staged.has(news) {
            self.flush_staged()?;
        }
        let is_behind = self.zeros.last().is_none_or(|last| {
            let first = at.first() + news.trailing_zeros();
            self.zeros_of.block == at.block && first >= last.first.0 + last.count
        });
        if !is_behind || self.zeros.len() + CHUNK_PAGES as usize / 2 > ZERO_RUNS_MAX {
            self.flush_zeros()?;
        }
        self.zeros_of = at;
        for (first, count) in (Chunk { at, round: self.round, pages: news }).runs() {
            push_run(&mut self.zeros, PageRange { first: PageIndex(first), count });
            if let Some(versions) = &mut self.versions {
                (first..first + count).for_each(|page| versions.forget(at, page - at.first()));
            }
        }
        self.tally.zeros += u64::from(news.count_ones());
        Ok(())
    }

    /// Sends digests of those pages of a piece that are not zero, and returns which they are.
    pub(crate) fn ask(&mut self, piece: &Piece<'_>, key: &KeyedDigestKey) -> io::Result<Chunk> {
        let (mut bits, mut digests) = (0, Vec::with_capacity(piece.pages.len() * 32));
        for (bit, page) in (piece.bit..).zip(piece.pages).filter(|(_, page)| !is_zero(page)) {
            bits |= 1 << bit;
            digests.extend_from_slice(&key.digest(page).0);
        }
        let chunk = Chunk { at: piece.at, round: self.round, pages: bits };
        if bits != 0 {
            self.flush()?;
            let head = chunk_head(FrameKind::Digests, Codec::Plain, &chunk, digests.len());
            self.send(&[&head, &digests])?;
        }
        Ok(chunk)
    }

    /// Notes that the destination has pages, found by their digests.
    pub(crate) fn note_known(&mut self, at: ChunkAt, bits: u64) {
        *self.present.word(at) |= bits;
        if let Some(versions) = &mut self.versions {
            (0..CHUNK_PAGES)
                .filter(|bit| bits & 1 << bit != 0)
                .for_each(|bit| versions.forget(at, bit));
        }
        self.tally.known += u64::from(bits.count_ones());
    }

    /// Makes room for pages of a row: what waits of other rows, or of these pages, goes first.
    fn enter(&mut self, at: ChunkAt, bits: u64) -> io::Result<()> {
        if self.staged.at != at || self.staged.has(bits) {
            self.flush_staged()?;
        }
        // A mark of zeros for one of these pages is older.
        let first = at.first() + bits.trailing_zeros();
        let behind = self.zeros.partition_point(|run| run.first.0 <= first);
        let nearest = behind.checked_sub(1).map(|at| self.zeros[at]);
        let has_mark = nearest.is_some_and(|run| first - run.first.0 < run.count);
        if self.zeros_of.block == at.block && has_mark {
            self.flush_zeros()?;
        }
        self.staged.at = at;
        Ok(())
    }

    /// Sends all that waits.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.flush_zeros()?;
        self.flush_staged()
    }

    fn flush_zeros(&mut self) -> io::Result<()> {
        if self.zeros.is_empty() {
            return Ok(());
        }
        let body = encode_runs(&self.zeros);
        self.zeros.clear();
        let head = zeros_head(self.zeros_of.block, self.round, body.len());
        self.send(&[&head, &body])
    }

    fn flush_staged(&mut self) -> io::Result<()> {
        let staged = std::mem::take(&mut self.staged);
        let sent = self.send_staged(&staged);
        self.staged = staged.emptied();
        sent
    }

    fn send_staged(&mut self, staged: &Staged) -> io::Result<()> {
        let (at, round) = (staged.at, self.round);
        let chunk = |pages| Chunk { at, round, pages };
        if staged.delta_bits != 0 {
            let bytes = &staged.deltas;
            let head =
                chunk_head(FrameKind::Deltas, Codec::Plain, &chunk(staged.delta_bits), bytes.len());
            self.send(&[&head, bytes])?;
        }
        if staged.page_bits == 0 {
            return Ok(());
        }
        let chunk = chunk(staged.page_bits);
        let mut compressor = self.compressor.take();
        let small = compressor.as_mut().and_then(|it| it.compress(&staged.pages));
        let (codec, bytes) =
            small.map_or((Codec::Plain, &staged.pages[..]), |it| (Codec::Zstd, it));
        let head = chunk_head(FrameKind::Pages, codec, &chunk, bytes.len());
        let sent = self.send(&[&head, bytes]);
        self.compressor = compressor;
        sent
    }

    /// Ends the round on this stream.
    pub(crate) fn end_round(&mut self) -> io::Result<()> {
        self.flush()?;
        let frame = round_end_frame(self.round, self.frames_of_round);
        self.send(&[&frame])?;
        self.frames_of_round = 0;
        self.round += 1;
        Ok(())
    }

    fn send(&mut self, parts: &[&[u8]]) -> io::Result<()> {
        self.tally.bytes += parts.iter().map(|part| part.len() as u64).sum::<u64>();
        self.tally.frames += 1;
        self.frames_of_round += 1;
        self.outlet.send(parts)
    }

    pub(crate) fn into_outlet(self) -> O {
        self.outlet
    }

    pub(crate) const fn outlet(&mut self) -> &mut O {
        &mut self.outlet
    }
}

/// Returns true if a page is zero. Looks at its first and last words before anything else: most pages that are not
/// zero show it there.
pub(crate) fn is_zero(page: &Page) -> bool {
    let ends = [page.first_chunk::<8>(), page.last_chunk::<8>()];
    ends.iter().all(|end| *end == Some(&[0; 8])) && bindery_page::is_zero(page)
}

/// Appends a delta of at most [`DELTA_BYTES_MAX`] behind its length.
pub(super) fn put_delta(before: &Page, now: &Page, into: &mut Vec<u8>) -> Option<usize> {
    let start = into.len();
    into.extend_from_slice(&[0; 2]);
    let length = encode_delta(before, now, DELTA_BYTES_MAX, into);
    match length {
        None | Some(0) => into.truncate(start),
        Some(length) => into[start..start + 2].copy_from_slice(&(length as u16).to_le_bytes()),
    }
    length
}
