//! Packs that are being written.

use bindery_pool::write::Writer;
use bindery_pool::{BLOCK_BYTES, MediaClass, ObjectId, Pool};
use bindery_units::PAGE_BYTES;

use super::group::{GROUP_ENTRY_BYTES, GROUP_PAGES, GroupCompressor, GroupEntry, PageEncoding};
use super::tail::{PackTail, blocks_of};
use crate::checksum::crc32c;
use crate::error::CheckpointError;
use crate::object::{HEAD_BYTES, ObjectHead, ObjectKind, allocate_some};
use crate::page_digest::{DIGEST_BYTES, PageDigest};
use crate::seal::{CHECK_BYTES, ObjectCipher, SecretKey, random};

const ZEROS: [u8; BLOCK_BYTES] = [0; BLOCK_BYTES];

/// Returns the most bytes that a pack of so many pages takes. A compressed group and the gap up to the next
/// page take no more than its pages as they are.
pub(crate) const fn capacity_bytes(pages: u32) -> u64 {
    let pages = pages as u64;
    let table = blocks_of(pages * GROUP_ENTRY_BYTES as u64);
    let digests = blocks_of(pages * DIGEST_BYTES as u64);
    HEAD_BYTES as u64 + (pages + 1) * PAGE_BYTES as u64 + table + digests + BLOCK_BYTES as u64
}

/// A pack that is being written. Dropping it undoes it.
pub(crate) struct PackWriter {
    writer: Writer,
    id: u128,
    cipher: ObjectCipher,
    compressor: Option<GroupCompressor>,
    /// Number of pages that there is room for.
    pages_max: u32,
    entries: Vec<GroupEntry>,
    digests: Vec<PageDigest>,
    /// Pages that are to be compressed together.
    gathered: Vec<u8>,
}

impl PackWriter {
    /// Begins a pack of up to `pages` pages, fewer where there is less room.
    pub(crate) fn begin(
        pool: &Pool,
        class: MediaClass,
        pages: u32,
        (store, key): (u128, Option<&SecretKey>),
        encoding: PageEncoding,
    ) -> Result<Self, CheckpointError> {
        let id = u128::from_le_bytes(random()?);
        let cipher = ObjectCipher::new(id, key);
        let (mut writer, pages_max) = allocate_some(pool, class, pages, capacity_bytes)?;
        let is_sealed = cipher.is_sealed();
        let head = ObjectHead { store, id, kind: ObjectKind::Pack, is_sealed };
        writer.append(&head.encode(&[]))?;
        Ok(Self {
            writer,
            id,
            cipher,
            compressor: (encoding == PageEncoding::Compressed).then(GroupCompressor::new),
            pages_max,
            entries: Vec::new(),
            digests: Vec::new(),
            gathered: Vec::new(),
        })
    }

    pub(crate) const fn object(&self) -> ObjectId {
        self.writer.id()
    }

    pub(crate) const fn is_full(&self) -> bool {
        self.digests.len() as u32 == self.pages_max
    }

    /// Appends a page. Returns its number.
    ///
    /// # Panics
    /// If the pack is full.
    pub(crate) fn put(
        &mut self,
        page: &[u8; PAGE_BYTES],
        digest: PageDigest,
    ) -> Result<u32, CheckpointError> {
        assert!(!self.is_full(), "a full pack takes no page");
        let number = self.digests.len() as u32;
        self.digests.push(digest);
        if self.compressor.is_none() {
            self.append_raw(page)?;
            return Ok(number);
        }
        self.gathered.extend_from_slice(page);
        if self.gathered.len() == GROUP_PAGES * PAGE_BYTES {
            self.end_group()?;
        }
        Ok(number)
    }

    /// Writes what was gathered, compressed if that pays.
    fn end_group(&mut self) -> Result<(), CheckpointError> {
        let mut gathered = std::mem::take(&mut self.gathered);
        let mut compressor = self.compressor.take();
        let compressed = compressor.as_mut().and_then(|it| it.compress(&gathered));
        let pages = (gathered.len() / PAGE_BYTES) as u8;
        match compressed {
            Some(compressed) => self.append_compressed(compressed, pages)?,
            None => gathered.as_chunks().0.iter().try_for_each(|page| self.append_raw(page))?,
        }
        gathered.clear();
        (self.gathered, self.compressor) = (gathered, compressor);
        Ok(())
    }

    fn append_compressed(
        &mut self,
        compressed: &mut [u8],
        pages: u8,
    ) -> Result<(), CheckpointError> {
        let entry = GroupEntry {
            offset_bytes: self.writer.length_bytes(),
            stored_bytes: compressed.len() as u32,
            pages,
            is_compressed: true,
            check: [0; CHECK_BYTES],
        };
        let check = self.cipher.seal(self.entries.len() as u64, &entry.bound(), compressed);
        self.writer.append(compressed)?;
        self.entries.push(GroupEntry { check, ..entry });
        Ok(())
    }

    fn append_raw(&mut self, page: &[u8; PAGE_BYTES]) -> Result<(), CheckpointError> {
        self.align()?;
        let entry = GroupEntry {
            offset_bytes: self.writer.length_bytes(),
            stored_bytes: PAGE_BYTES as u32,
            pages: 1,
            is_compressed: false,
            check: [0; CHECK_BYTES],
        };
        let (ordinal, bound) = (self.entries.len() as u64, entry.bound());
        let check = if self.cipher.is_sealed() {
            let mut sealed = *page;
            let check = self.cipher.seal(ordinal, &bound, &mut sealed);
            self.writer.append(&sealed)?;
            check
        } else {
            self.writer.append(page)?;
            self.cipher.check_plain(ordinal, &bound, page)
        };
        self.entries.push(GroupEntry { check, ..entry });
        Ok(())
    }

    fn align(&mut self) -> Result<(), CheckpointError> {
        let length = self.writer.length_bytes();
        let gap = (blocks_of(length) - length) as usize;
        if gap > 0 {
            self.writer.append(&ZEROS[..gap])?;
        }
        Ok(())
    }

    /// Ends the pack: what is returned is to be committed. Returns the digests of its pages, too.
    pub(crate) fn finish(mut self) -> Result<(Writer, Vec<PageDigest>), CheckpointError> {
        if !self.gathered.is_empty() {
            self.end_group()?;
        }
        self.align()?;
        let table_at = self.writer.length_bytes();
        let mut table = Vec::with_capacity(self.entries.len() * GROUP_ENTRY_BYTES);
        self.entries.iter().for_each(|entry| entry.put(&mut table));
        let mut digests: Vec<u8> = self.digests.iter().flat_map(|digest| digest.0).collect();
        let mut tail = PackTail {
            id: self.id,
            groups: self.entries.len() as u32,
            pages: self.digests.len() as u32,
            table_at,
            table_checksum: crc32c([&table]),
            digests_check: [0; CHECK_BYTES],
        };
        tail.digests_check = self.cipher.seal(tail.digests_ordinal(), b"", &mut digests);
        for section in [&table, &digests] {
            self.writer.append(section)?;
            self.align()?;
        }
        self.writer.append(&tail.encode())?;
        Ok((self.writer, self.digests))
    }
}
