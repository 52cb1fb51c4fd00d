//! Packs that are read.

use std::sync::{Arc, OnceLock};

use bindery_pool::BLOCK_BYTES;
use bindery_pool::object::Object;
use bindery_sys::direct::Buffer;
use bindery_units::PAGE_BYTES;

use super::group::{GroupEntry, Groups, decompress};
use super::tail::PackTail;
use crate::checksum::crc32c;
use crate::error::PackError;
use crate::format_error::FormatError;
use crate::object::{HEAD_BYTES, ObjectHead, ObjectKind, read_range};
use crate::page_digest::{DIGEST_BYTES, PageDigest};
use crate::seal::{ObjectCipher, SecretKey};

/// Most pages that are read from the device at once.
const STRETCH_PAGES_MAX: u32 = 256;

/// A pack that is read. Its table is read when its first page is.
pub(crate) struct PackReader {
    object: Arc<dyn Object>,
    loaded: OnceLock<LoadedPack>,
}

struct LoadedPack {
    cipher: ObjectCipher,
    groups: Groups,
}

/// Pages of a pack that lie behind each other as they are, not compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RawStretch {
    /// Start in the pack, in bytes: a whole number of pages.
    pub(crate) offset_bytes: u64,
    pub(crate) pages: u32,
    /// Number of the first one's group.
    group: usize,
}

impl PackReader {
    pub(crate) fn new(object: Arc<dyn Object>) -> Self {
        Self { object, loaded: OnceLock::new() }
    }

    pub(crate) const fn object(&self) -> &Arc<dyn Object> {
        &self.object
    }

    fn load(&self, key: Option<&SecretKey>) -> Result<&LoadedPack, PackError> {
        if let Some(loaded) = self.loaded.get() {
            return Ok(loaded);
        }
        let head = self.head()?;
        let cipher = ObjectCipher::reading("pack", head.id, head.is_sealed, key)?;
        let tail = self.tail(&head)?;
        let table = read_range(&*self.object, tail.table_at, tail.table_bytes())?;
        if crc32c([&table]) != tail.table_checksum {
            return Err(FormatError::Checksum { what: "table of groups" }.into());
        }
        let groups = Groups::decode(&table, (HEAD_BYTES as u64, tail.table_at), tail.pages)?;
        Ok(self.loaded.get_or_init(|| LoadedPack { cipher, groups }))
    }

    fn head(&self) -> Result<ObjectHead, PackError> {
        let head = read_range(&*self.object, 0, HEAD_BYTES as u64)?;
        Ok(ObjectHead::expect(&head, ObjectKind::Pack)?)
    }

    fn tail(&self, head: &ObjectHead) -> Result<PackTail, PackError> {
        let length = self.object.length_bytes();
        let at = length.saturating_sub(BLOCK_BYTES as u64);
        let tail = PackTail::decode(&read_range(&*self.object, at, BLOCK_BYTES as u64)?, length)?;
        if tail.id == head.id {
            return Ok(tail);
        }
        Err(FormatError::impossible("last block", "it is another pack's").into())
    }

    /// Reads the digests of all pages.
    pub(crate) fn digests(&self, key: Option<&SecretKey>) -> Result<Vec<PageDigest>, PackError> {
        const WHAT: &str = "digests of pages";
        let head = self.head()?;
        let cipher = ObjectCipher::reading(WHAT, head.id, head.is_sealed, key)?;
        let tail = self.tail(&head)?;
        let mut bytes = read_range(&*self.object, tail.digests_at(), tail.digests_bytes())?;
        cipher.open(WHAT, (tail.digests_ordinal(), b""), &tail.digests_check, &mut bytes)?;
        let (digests, _) = bytes.as_chunks::<DIGEST_BYTES>();
        Ok(digests.iter().map(|digest| PageDigest(*digest)).collect())
    }

    /// Returns the stretch of pages that lie as they are from a page on, `pages` at most; none if the page
    /// is compressed.
    pub(crate) fn raw_stretch(
        &self,
        key: Option<&SecretKey>,
        page: u32,
        pages: u32,
    ) -> Result<Option<RawStretch>, PackError> {
        let groups = &self.load(key)?.groups;
        let (group, entry, _) = find(groups, page)?;
        if entry.is_compressed {
            return Ok(None);
        }
        let follows = |count: &u32| {
            groups.find(page + count).is_some_and(|(_, next, _)| {
                let offset_bytes = entry.offset_bytes + u64::from(*count) * PAGE_BYTES as u64;
                !next.is_compressed && next.offset_bytes == offset_bytes
            })
        };
        let more = (1..pages).take_while(follows).count() as u32;
        Ok(Some(RawStretch { offset_bytes: entry.offset_bytes, pages: 1 + more, group }))
    }

    /// Returns true if pages of the pack may be mapped as they are.
    pub(crate) fn is_sealed(&self, key: Option<&SecretKey>) -> Result<bool, PackError> {
        Ok(self.load(key)?.cipher.is_sealed())
    }

    /// Reads pages as they are: the stretch that begins at `page`, as far as `into` has room. Returns how
    /// many; none if the page is compressed.
    pub(crate) fn read_raw(
        &self,
        key: Option<&SecretKey>,
        page: u32,
        into: &mut [u8],
    ) -> Result<u32, PackError> {
        let pages = ((into.len() / PAGE_BYTES) as u32).min(STRETCH_PAGES_MAX);
        let Some(stretch) = self.raw_stretch(key, page, pages)? else { return Ok(0) };
        let LoadedPack { cipher, groups } = self.load(key)?;
        let mut buffer = Buffer::zeroed(stretch.pages as usize * PAGE_BYTES);
        self.object.read(stretch.offset_bytes, &mut buffer)?;
        let (stored, _) = buffer.as_chunks_mut::<PAGE_BYTES>();
        for (count, (stored, into)) in
            stored.iter_mut().zip(into.chunks_exact_mut(PAGE_BYTES)).enumerate()
        {
            let (_, entry, _) = find(groups, page + count as u32)?;
            let place = ((stretch.group + count) as u64, &entry.bound()[..]);
            cipher.open("page", place, &entry.check, stored)?;
            into.copy_from_slice(stored);
        }
        Ok(stretch.pages)
    }

    /// Reads the compressed group that has a page. Returns its first page, and the bytes of its pages.
    pub(crate) fn read_group(
        &self,
        key: Option<&SecretKey>,
        page: u32,
    ) -> Result<(u32, Vec<u8>), PackError> {
        let LoadedPack { cipher, groups } = self.load(key)?;
        let (group, entry, first) = find(groups, page)?;
        let GroupEntry { offset_bytes, stored_bytes, .. } = *entry;
        let mut stored = read_range(&*self.object, offset_bytes, stored_bytes.into())?;
        let place = (group as u64, &entry.bound()[..]);
        cipher.open("group of pages", place, &entry.check, &mut stored)?;
        if !entry.is_compressed {
            return Ok((first, stored));
        }
        let mut plain = vec![0; entry.plain_bytes()];
        if decompress(&stored, &mut plain) {
            return Ok((first, plain));
        }
        Err(FormatError::impossible("group of pages", "it decompresses to something else").into())
    }
}

fn find(groups: &Groups, page: u32) -> Result<(usize, &GroupEntry, u32), PackError> {
    groups.find(page).ok_or(PackError::NoPage { page, pages: groups.pages() })
}
