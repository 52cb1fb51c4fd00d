//! Checkpoints written as a stream.

use std::io::{self, Write};
use std::ops::ControlFlow;

use bindery_units::{PAGE_BYTES, PageRange};

use super::chunk::{CHUNK_PAGES, ChunkHead, ChunkKind, PIECE_BYTES, StreamHead};
use crate::catalogue::CheckpointId;
use crate::error::CheckpointError;
use crate::manifest::{Description, PlacedRun};
use crate::pack::GroupCompressor;
use crate::seal::{ObjectCipher, SecretKey, random};
use crate::store::Store;

/// Ways to export a checkpoint.
#[derive(Clone, Debug, Default)]
pub struct ExportOptions {
    /// Key that the stream is encrypted with; without one it is readable to all, whatever the domain's is.
    pub key: Option<SecretKey>,
}

/// Size of an export.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exported {
    /// Number of pages that are not zero.
    pub pages: u64,
    /// Length of the stream, in bytes.
    pub bytes: u64,
}

impl Store {
    /// Writes a checkpoint as a stream, and flushes it. Blocks.
    ///
    /// # Errors
    /// [`CheckpointError::Export`] with the error of `into`; if the checkpoint cannot be read. What was
    /// written until then is no whole stream, and is refused by [`import`](Self::import).
    pub fn export(
        &self,
        id: CheckpointId,
        into: &mut dyn Write,
        options: &ExportOptions,
    ) -> Result<Exported, CheckpointError> {
        self.export_watched(id, into, options, &mut |_| ControlFlow::Continue(()))
    }

    /// Writes as [`export`](Self::export), and calls `watch` with the number of pages after each piece.
    ///
    /// # Errors
    /// As [`export`](Self::export); [`CheckpointError::Stopped`] once `watch` breaks.
    pub fn export_watched(
        &self,
        id: CheckpointId,
        into: &mut dyn Write,
        options: &ExportOptions,
        watch: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Result<Exported, CheckpointError> {
        let reader = self.reader(id)?;
        let stream_id = u128::from_le_bytes(random()?);
        let mut stream = StreamWriter::begin(into, stream_id, options.key.as_ref())?;
        stream.describe(&reader.manifest().description)?;
        let mut bytes = vec![0; CHUNK_PAGES as usize * PAGE_BYTES];
        for block in 0..reader.manifest().pages.len() {
            for run in stretches(reader.runs(block)) {
                for pages in run.pieces(CHUNK_PAGES) {
                    let bytes = &mut bytes[..pages.count as usize * PAGE_BYTES];
                    reader.read(block, pages.first, bytes)?;
                    stream.put_pages(block, pages, bytes)?;
                    if watch(pages.count.into()).is_break() {
                        return Err(CheckpointError::Stopped);
                    }
                }
            }
        }
        stream.end()
    }
}

/// Returns stretches of stored pages, wherever they lie.
fn stretches(runs: &[PlacedRun]) -> impl Iterator<Item = PageRange> + '_ {
    let follows = |before: &PlacedRun, next: &PlacedRun| before.pages.end() == next.pages.first;
    runs.chunk_by(follows).map(|runs| {
        let count = runs.iter().map(|run| run.pages.count).sum();
        PageRange::new(runs[0].pages.first, count)
    })
}

/// A stream that is being written.
pub(crate) struct StreamWriter<'a> {
    into: &'a mut dyn Write,
    cipher: ObjectCipher,
    /// None where chunks stay as they are.
    compressor: Option<GroupCompressor>,
    chunks: u64,
    exported: Exported,
}

impl<'a> StreamWriter<'a> {
    /// Begins a stream that another process of this machine reads: neither encrypted nor compressed.
    pub(crate) fn begin_local(into: &'a mut dyn Write) -> Result<Self, CheckpointError> {
        let mut stream = Self::begin(into, u128::from_le_bytes(random()?), None)?;
        stream.compressor = None;
        Ok(stream)
    }

    fn begin(
        into: &'a mut dyn Write,
        id: u128,
        key: Option<&SecretKey>,
    ) -> Result<Self, CheckpointError> {
        let cipher = ObjectCipher::new(id, key);
        let head = StreamHead { id, is_sealed: cipher.is_sealed() }.encode();
        let compressor = Some(GroupCompressor::new());
        let mut stream =
            Self { into, cipher, compressor, chunks: 0, exported: Exported::default() };
        stream.write(&head)?;
        Ok(stream)
    }

    /// Puts the description, which comes first.
    pub(crate) fn describe(&mut self, description: &Description) -> Result<(), CheckpointError> {
        let encoded = description.encode();
        encoded.chunks(PIECE_BYTES).try_for_each(|piece| self.put(ChunkKind::Description, piece))
    }

    /// Puts up to [`CHUNK_PAGES`] pages.
    pub(crate) fn put_pages(
        &mut self,
        block: usize,
        pages: PageRange,
        bytes: &[u8],
    ) -> Result<(), CheckpointError> {
        self.put(ChunkKind::Pages { block: block as u16, pages }, bytes)
    }

    fn put(&mut self, kind: ChunkKind, plain: &[u8]) -> Result<(), CheckpointError> {
        let compressed = self.compressor.as_mut().and_then(|it| it.compress(plain));
        let compressed = compressed.map(std::mem::take);
        let is_compressed = compressed.is_some();
        let mut stored = compressed.unwrap_or_else(|| plain.to_vec());
        let (plain_bytes, stored_bytes) = (plain.len() as u32, stored.len() as u32);
        let head = ChunkHead { kind, is_compressed, plain_bytes, stored_bytes }.encode();
        let check = self.cipher.seal(self.chunks, &head, &mut stored);
        for part in [&head[..], &check, &stored] {
            self.write(part)?;
        }
        self.chunks += 1;
        if let ChunkKind::Pages { pages, .. } = kind {
            self.exported.pages += u64::from(pages.count);
        }
        Ok(())
    }

    /// Ends the stream, and flushes it.
    pub(crate) fn end(mut self) -> Result<Exported, CheckpointError> {
        let end = [self.exported.pages, self.chunks].map(u64::to_le_bytes).concat();
        self.put(ChunkKind::End, &end)?;
        self.into.flush().map_err(CheckpointError::Export)?;
        Ok(self.exported)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), CheckpointError> {
        let written: io::Result<()> = self.into.write_all(bytes);
        self.exported.bytes += bytes.len() as u64;
        written.map_err(CheckpointError::Export)
    }
}
