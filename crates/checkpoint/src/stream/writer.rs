//! Streams that are written.

use std::io::{self, Write};

use bindery_units::{PAGE_BYTES, PageIndex, PageRange};

use super::chunk::{CHUNK_PAGES, ChunkHead, ChunkKind, PIECE_BYTES, StreamHead};
use crate::error::CheckpointError;
use crate::manifest::Description;
use crate::pack::GroupCompressor;
use crate::seal::{ObjectCipher, SecretKey, random};

/// Size of an export.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exported {
    /// Number of pages.
    pub pages: u64,
    /// Length of the stream, in bytes.
    pub bytes: u64,
}

/// A stream that is being written: of a checkpoint of a store, or of memory that never was in one. A stream without
/// its [`end`](Self::end) is refused by [`import`](crate::Store::import).
pub struct StreamWriter<'a> {
    into: &'a mut dyn Write,
    cipher: ObjectCipher,
    /// None if nothing is compressed.
    compressor: Option<GroupCompressor>,
    chunks: u64,
    exported: Exported,
}

impl std::fmt::Debug for StreamWriter<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("StreamWriter")
            .field("exported", &self.exported)
            .finish_non_exhaustive()
    }
}

impl<'a> StreamWriter<'a> {
    /// Begins a stream with what the guest is, encrypted with `key` if there is one.
    ///
    /// # Errors
    /// [`CheckpointError::Description`] if no checkpoint can have it; [`CheckpointError::Export`] with the error of
    /// `into`.
    pub fn begin(
        into: &'a mut dyn Write,
        description: &Description,
        key: Option<&SecretKey>,
    ) -> Result<Self, CheckpointError> {
        description.check().map_err(CheckpointError::Description)?;
        let id = u128::from_le_bytes(random()?);
        let cipher = ObjectCipher::new(id, key);
        let head = StreamHead { id, is_sealed: cipher.is_sealed() }.encode();
        let compressor = Some(GroupCompressor::new());
        let mut stream =
            Self { into, cipher, compressor, chunks: 0, exported: Exported::default() };
        stream.write(&head)?;
        for piece in description.encode().chunks(PIECE_BYTES) {
            stream.put_chunk(ChunkKind::Description, piece)?;
        }
        Ok(stream)
    }

    /// Leaves what follows uncompressed: for a stream that goes no further than another process.
    #[must_use]
    pub fn uncompressed(self) -> Self {
        Self { compressor: None, ..self }
    }

    /// Puts pages of a memory block from `first` on, in any order, each once.
    ///
    /// # Errors
    /// [`CheckpointError::NotPages`]; [`CheckpointError::Export`] with the error of the target.
    pub fn put(
        &mut self,
        block: u16,
        first: PageIndex,
        bytes: &[u8],
    ) -> Result<(), CheckpointError> {
        if !bytes.len().is_multiple_of(PAGE_BYTES) {
            return Err(CheckpointError::NotPages(bytes.len()));
        }
        let mut at = first;
        for piece in bytes.chunks(CHUNK_PAGES as usize * PAGE_BYTES) {
            let pages = PageRange::new(at, (piece.len() / PAGE_BYTES) as u32);
            self.put_chunk(ChunkKind::Pages { block, pages }, piece)?;
            self.exported.pages += u64::from(pages.count);
            at = pages.end();
        }
        Ok(())
    }

    /// Ends the stream, and flushes it.
    ///
    /// # Errors
    /// [`CheckpointError::Export`] with the error of the target.
    pub fn end(mut self) -> Result<Exported, CheckpointError> {
        let end = [self.exported.pages, self.chunks].map(u64::to_le_bytes).concat();
        self.put_chunk(ChunkKind::End, &end)?;
        self.into.flush().map_err(CheckpointError::Export)?;
        Ok(self.exported)
    }

    fn put_chunk(&mut self, kind: ChunkKind, plain: &[u8]) -> Result<(), CheckpointError> {
        let compressor = self.compressor.as_mut();
        let compressed = compressed_by(compressor, plain);
        let is_compressed = compressed.is_some();
        let mut stored = compressed.unwrap_or_else(|| plain.to_vec());
        let (plain_bytes, stored_bytes) = (plain.len() as u32, stored.len() as u32);
        let head = ChunkHead { kind, is_compressed, plain_bytes, stored_bytes }.encode();
        let check = self.cipher.seal(self.chunks, &head, &mut stored);
        for part in [&head[..], &check, &stored] {
            self.write(part)?;
        }
        self.chunks += 1;
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), CheckpointError> {
        let written: io::Result<()> = self.into.write_all(bytes);
        self.exported.bytes += bytes.len() as u64;
        written.map_err(CheckpointError::Export)
    }
}

fn compressed_by(compressor: Option<&mut GroupCompressor>, plain: &[u8]) -> Option<Vec<u8>> {
    compressor?.compress(plain).map(std::mem::take)
}
