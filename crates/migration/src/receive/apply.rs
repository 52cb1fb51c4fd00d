//! Frames of memory, applied to it.

use std::io;

use bindery_units::{PAGE_BYTES, PageIndex};

use super::frames::ReceiveError;
use super::target::{Target, digest_of};
use crate::format::{CHUNK_PAGES, Chunk, Codec, FormatError, Frame};

const CHUNK_BYTES: usize = CHUNK_PAGES as usize * PAGE_BYTES;

/// Applies frames of one stream.
pub struct Applier {
    zstd: zstd::bulk::Decompressor<'static>,
    plain: Vec<u8>,
    frames_of_round: u64,
}

impl std::fmt::Debug for Applier {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = formatter.debug_struct("Applier");
        shown.field("frames_of_round", &self.frames_of_round).finish_non_exhaustive()
    }
}

/// Outcome of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applied {
    /// Memory has what it says.
    Memory,
    /// Pages of digests that are lacking, to be sent as an answer.
    Lacking(Chunk),
    /// The stream's round ended, and no frame of it was lost.
    RoundEnded(u32),
    /// The frame says nothing about memory.
    Other,
}

impl Applier {
    /// Makes one.
    ///
    /// # Errors
    /// zstd's, if there is no memory.
    pub fn new() -> io::Result<Self> {
        let zstd = zstd::bulk::Decompressor::new()?;
        Ok(Self { zstd, plain: Vec::new(), frames_of_round: 0 })
    }

    /// Applies a frame. The caller has waited for its round.
    ///
    /// # Errors
    /// [`ReceiveError::Format`] if the frame is impossible; [`ReceiveError::Target`].
    pub fn apply(
        &mut self,
        frame: &Frame<'_>,
        target: &mut dyn Target,
    ) -> Result<Applied, ReceiveError> {
        self.frames_of_round += 1;
        match frame {
            Frame::Pages { chunk, codec, bytes } => self.pages(chunk, *codec, bytes, target)?,
            Frame::Deltas { chunk, deltas } => {
                let pages = chunk.runs().flat_map(|(first, count)| first..first + count);
                for (page, delta) in pages.zip(deltas) {
                    let mut runs = delta.runs();
                    let patch = |(offset, bytes): (usize, &[u8])| {
                        target.patch(chunk.at.block, PageIndex(page), offset, bytes)
                    };
                    runs.try_for_each(patch).map_err(ReceiveError::Target)?;
                }
            }
            Frame::Zeros { block, runs, .. } => {
                let mut runs = runs.runs();
                runs.try_for_each(|run| target.zeros(*block, run)).map_err(ReceiveError::Target)?;
            }
            Frame::Digests { chunk, digests } => {
                let pages = adopt(chunk, digests, target).map_err(ReceiveError::Target)?;
                return Ok(Applied::Lacking(Chunk { pages, ..*chunk }));
            }
            Frame::Damaged(chunk) => {
                let mut pages = chunk.runs().flat_map(|(first, count)| first..first + count);
                let note = |page| target.damaged(chunk.at.block, PageIndex(page));
                pages.try_for_each(note).map_err(ReceiveError::Target)?;
            }
            Frame::RoundEnd { round, frames } => {
                let counted = std::mem::take(&mut self.frames_of_round) - 1;
                if *frames != counted {
                    return Err(FormatError::impossible(
                        "end of a round",
                        "frames of it are missing",
                    )
                    .into());
                }
                return Ok(Applied::RoundEnded(*round));
            }
            _ => {
                self.frames_of_round -= 1;
                return Ok(Applied::Other);
            }
        }
        Ok(Applied::Memory)
    }

    fn pages(
        &mut self,
        chunk: &Chunk,
        codec: Codec,
        bytes: &[u8],
        target: &mut dyn Target,
    ) -> Result<(), ReceiveError> {
        let plain = match codec {
            Codec::Plain => bytes,
            Codec::Zstd => self.decompress(bytes, chunk.count() * PAGE_BYTES)?,
        };
        let mut rest = plain;
        for (first, count) in chunk.runs() {
            let (pages, behind) = rest.split_at(count as usize * PAGE_BYTES);
            target.put(chunk.at.block, PageIndex(first), pages).map_err(ReceiveError::Target)?;
            rest = behind;
        }
        Ok(())
    }

    fn decompress(&mut self, bytes: &[u8], length: usize) -> Result<&[u8], FormatError> {
        self.plain.resize(CHUNK_BYTES, 0);
        match self.zstd.decompress_to_buffer(bytes, &mut self.plain[..length]) {
            Ok(made) if made == length => Ok(&self.plain[..length]),
            _ => Err(FormatError::impossible("chunk", "it does not decompress to its pages")),
        }
    }
}

/// Puts pages that are known, and returns those that are not.
fn adopt(chunk: &Chunk, digests: &[[u8; 32]], target: &mut dyn Target) -> io::Result<u64> {
    let (first, mut lacking) = (chunk.at.first(), 0);
    let pages = chunk.runs().flat_map(|(first, count)| first..first + count);
    for (page, digest) in pages.zip(digests) {
        if !target.adopt(chunk.at.block, PageIndex(page), &digest_of(digest))? {
            lacking |= 1 << (page - first);
        }
    }
    Ok(lacking)
}
