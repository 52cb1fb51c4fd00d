//! Checkpoints read from a stream.

use std::io::{self, Read};

use bindery_units::PageRange;

use super::chunk::{CHUNK_HEAD_BYTES, ChunkHead, ChunkKind, STREAM_HEAD_BYTES, StreamHead};
use super::seen_pages::SeenPages;
use crate::catalogue::{CheckpointId, CheckpointSummary};
use crate::error::CheckpointError;
use crate::format_error::FormatError;
use crate::manifest::{DESCRIPTION_BYTES_MAX, Description, MemoryBlock};
use crate::name::Name;
use crate::pack::{PageEncoding, decompress};
use crate::seal::{CHECK_BYTES, ObjectCipher, SecretKey};
use crate::store::{CheckpointWriter, NewCheckpoint, Store};

const WHAT: &str = "export";
const CHUNK: &str = "chunk";

/// Ways to import a checkpoint.
#[derive(Clone, Debug)]
pub struct ImportOptions {
    /// Domain that the checkpoint is to be of; it must be there.
    pub domain: Name,
    /// Key that the stream was encrypted with; with one, a stream that is not encrypted is refused.
    pub key: Option<SecretKey>,
    /// Name of the guest; none keeps that of the stream.
    pub guest: Option<Name>,
    /// Name of the checkpoint; none keeps that of the stream.
    pub name: Option<Name>,
    /// Way in which pages are stored.
    pub encoding: PageEncoding,
    /// Checkpoint of the same domain, with the same memory blocks, of which every page counts that the stream lacks.
    pub base: Option<CheckpointId>,
}

impl Store {
    /// Makes a checkpoint of a stream, as if its pages had been put. Nothing is seen of it before all of the
    /// stream was read and verified. Memory for one chunk and the description is taken. Blocks.
    ///
    /// # Errors
    /// [`CheckpointError::Import`] if the stream is damaged, cut off, or of another key;
    /// [`CheckpointError::Stream`] with the error of `from`; others as [`create`](Self::create).
    pub fn import(
        &self,
        from: &mut dyn Read,
        options: &ImportOptions,
    ) -> Result<CheckpointSummary, CheckpointError> {
        let (mut stream, description) = StreamReader::begin(from, options.key.as_ref())?;
        let mut writer = self.begin_import(description, options)?;
        while let Some((block, pages, bytes)) = stream.pages()? {
            writer.put(block, pages.first, &bytes)?;
        }
        writer.finish()
    }

    fn begin_import(
        &self,
        mut description: Description,
        options: &ImportOptions,
    ) -> Result<CheckpointWriter, CheckpointError> {
        description.domain = options.domain.clone();
        if let Some(guest) = &options.guest {
            description.guest = guest.clone();
        }
        if let Some(name) = &options.name {
            description.name = name.clone();
        }
        if let Some(base) = options.base
            && self.manifest(base)?.description.blocks != description.blocks
        {
            return Err(impossible("its memory has another length than that of its base"));
        }
        let (base, encoding) = (options.base, options.encoding);
        self.create(NewCheckpoint { description, base, encoding })
    }
}

const fn impossible(why: &'static str) -> CheckpointError {
    CheckpointError::Import(FormatError::impossible(WHAT, why))
}

/// A stream that is read, chunk by chunk, each verified.
pub(crate) struct StreamReader<'a> {
    from: &'a mut dyn Read,
    cipher: ObjectCipher,
    /// Number of chunks that were read.
    read: u64,
    pages: u64,
    /// Number of pages of each memory block.
    blocks: Vec<u64>,
    seen: SeenPages,
    /// Chunk behind the description.
    first: Option<Chunk>,
}

type Chunk = (ChunkKind, Vec<u8>);

/// Pages of a memory block: number of the block, pages, content.
pub(crate) type BlockPages = (usize, PageRange, Vec<u8>);

impl<'a> StreamReader<'a> {
    /// Reads the description.
    pub(crate) fn begin(
        from: &'a mut dyn Read,
        key: Option<&SecretKey>,
    ) -> Result<(Self, Description), CheckpointError> {
        let mut bytes = [0; STREAM_HEAD_BYTES];
        fill(from, WHAT, &mut bytes)?;
        let head = StreamHead::decode(&bytes).map_err(CheckpointError::Import)?;
        let cipher = ObjectCipher::reading(WHAT, head.id, head.is_sealed, key);
        let cipher = cipher.map_err(CheckpointError::Import)?;
        let (blocks, seen) = (Vec::new(), SeenPages::default());
        let mut stream = Self { from, cipher, read: 0, pages: 0, blocks, seen, first: None };
        let (description, next) = stream.description()?;
        stream.blocks = description.blocks.iter().map(MemoryBlock::pages).collect();
        stream.first = Some(next);
        Ok((stream, description))
    }

    /// Reads the next pages; none at the end, once all was verified.
    pub(crate) fn pages(&mut self) -> Result<Option<BlockPages>, CheckpointError> {
        let next = match self.first.take() {
            Some(next) => next,
            None => self.next()?,
        };
        match next {
            (ChunkKind::Pages { block, pages }, bytes) => {
                self.count(block, pages)?;
                Ok(Some((block.into(), pages, bytes)))
            }
            (ChunkKind::End, bytes) => self.end(&bytes).map(|()| None),
            (ChunkKind::Description, _) => Err(impossible("two descriptions")),
        }
    }

    fn next(&mut self) -> Result<Chunk, CheckpointError> {
        let mut head_bytes = [0; CHUNK_HEAD_BYTES];
        let mut check = [0; CHECK_BYTES];
        fill(self.from, CHUNK, &mut head_bytes)?;
        fill(self.from, CHUNK, &mut check)?;
        let head = ChunkHead::decode(&head_bytes).map_err(CheckpointError::Import)?;
        let mut stored = vec![0; head.stored_bytes as usize];
        fill(self.from, CHUNK, &mut stored)?;
        let opened = self.cipher.open(CHUNK, (self.read, &head_bytes), &check, &mut stored);
        opened.map_err(CheckpointError::Import)?;
        self.read += 1;
        if !head.is_compressed {
            return Ok((head.kind, stored));
        }
        let mut plain = vec![0; head.plain_bytes as usize];
        if decompress(&stored, &mut plain) {
            return Ok((head.kind, plain));
        }
        Err(impossible("a chunk decompresses to something else"))
    }

    /// Reads the description, and the chunk behind it.
    fn description(&mut self) -> Result<(Description, Chunk), CheckpointError> {
        let mut description = Vec::new();
        loop {
            match self.next()? {
                (ChunkKind::Description, piece) => description.extend_from_slice(&piece),
                next => {
                    let decoded = Description::decode(&description);
                    return Ok((decoded.map_err(CheckpointError::Import)?, next));
                }
            }
            if description.len() > DESCRIPTION_BYTES_MAX {
                return Err(impossible("its description is longer than 64 MiB"));
            }
        }
    }

    /// Counts pages, each of which comes once.
    fn count(&mut self, block: u16, pages: PageRange) -> Result<(), CheckpointError> {
        let end = u64::from(pages.first.0) + u64::from(pages.count);
        if self.blocks.get(usize::from(block)).is_none_or(|block_pages| end > *block_pages) {
            return Err(impossible("pages that no block has"));
        }
        if !self.seen.insert(block, pages) {
            return Err(impossible("a page comes twice"));
        }
        self.pages += u64::from(pages.count);
        Ok(())
    }

    /// Compares what the end says, and sees to it that nothing follows.
    fn end(&mut self, end: &[u8]) -> Result<(), CheckpointError> {
        if end != [self.pages, self.read - 1].map(u64::to_le_bytes).concat() {
            return Err(impossible("its end counts other pages than came"));
        }
        match fill(self.from, WHAT, &mut [0]) {
            Err(CheckpointError::Import(FormatError::Short { .. })) => Ok(()),
            Err(error) => Err(error),
            Ok(()) => Err(impossible("it goes on behind its end")),
        }
    }
}

fn fill(from: &mut dyn Read, what: &'static str, bytes: &mut [u8]) -> Result<(), CheckpointError> {
    from.read_exact(bytes).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => CheckpointError::Import(FormatError::Short { what }),
        _ => CheckpointError::Stream(error),
    })
}
