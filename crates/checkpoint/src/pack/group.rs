//! Groups of pages: their entries in the table, and their compression.

use bindery_pool::BLOCK_BYTES;
use bindery_units::PAGE_BYTES;
use zstd::bulk::{Compressor, Decompressor};

use crate::fields::Fields;
use crate::format_error::FormatError;
use crate::seal::{CHECK_BYTES, Check};

/// Most pages that are compressed together: a fault that needs one of them takes about as long as reading
/// them does (decision 0026).
pub(crate) const GROUP_PAGES: usize = 16;

/// Length of an entry of the table, in bytes.
pub(crate) const GROUP_ENTRY_BYTES: usize = 16 + CHECK_BYTES;

/// Level of zstd: more costs much time and gains little (decision 0026).
const LEVEL: i32 = 1;

const WHAT: &str = "table of groups";

/// Way in which pages are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PageEncoding {
    /// Stored as they are, each aligned to a page: written at the speed of the device, and mapped to restore.
    #[default]
    Raw,
    /// Compressed with zstd, up to 16 pages together, where that saves an eighth; others as with `Raw`.
    Compressed,
}

/// Entry of the table for one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GroupEntry {
    /// Start in the pack, in bytes.
    pub(crate) offset_bytes: u64,
    /// Length as it is stored, in bytes.
    pub(crate) stored_bytes: u32,
    pub(crate) pages: u8,
    pub(crate) is_compressed: bool,
    pub(crate) check: Check,
}

impl GroupEntry {
    pub(crate) fn put(&self, into: &mut Vec<u8>) {
        into.extend_from_slice(&self.offset_bytes.to_le_bytes());
        into.extend_from_slice(&self.stored_bytes.to_le_bytes());
        into.extend_from_slice(&[self.pages, u8::from(self.is_compressed), 0, 0]);
        into.extend_from_slice(&self.check);
    }

    fn take(fields: &mut Fields<'_>) -> Result<Self, FormatError> {
        let (offset_bytes, stored_bytes) = (fields.u64()?, fields.u32()?);
        let [pages, codec, 0, 0] = fields.array()? else {
            return Err(FormatError::impossible(WHAT, "something stands where zeros must"));
        };
        let is_compressed = match codec {
            0 => false,
            1 => true,
            _ => return Err(FormatError::impossible(WHAT, "an unknown compression")),
        };
        Ok(Self { offset_bytes, stored_bytes, pages, is_compressed, check: fields.array()? })
    }

    /// Returns the bytes that its check covers beside the stored ones.
    pub(crate) fn bound(&self) -> [u8; 2] {
        [self.pages, u8::from(self.is_compressed)]
    }

    /// Returns the length of its pages, in bytes.
    pub(crate) const fn plain_bytes(&self) -> usize {
        self.pages as usize * PAGE_BYTES
    }

    pub(crate) const fn end_bytes(&self) -> u64 {
        self.offset_bytes + self.stored_bytes as u64
    }

    fn is_possible(&self) -> bool {
        if self.is_compressed {
            return (1..=GROUP_PAGES).contains(&self.pages.into())
                && (1..self.plain_bytes() as u32).contains(&self.stored_bytes);
        }
        self.pages == 1
            && self.stored_bytes == PAGE_BYTES as u32
            && self.offset_bytes.is_multiple_of(BLOCK_BYTES as u64)
    }
}

/// The groups of a pack, found by page.
#[derive(Debug)]
pub(crate) struct Groups {
    entries: Vec<GroupEntry>,
    /// Number of the first page of each group.
    first_pages: Vec<u32>,
    pages: u32,
}

impl Groups {
    /// Reads a table whose groups must lie behind each other, between `start` and `end`, in bytes.
    pub(crate) fn decode(
        bytes: &[u8],
        (start, end): (u64, u64),
        pages: u32,
    ) -> Result<Self, FormatError> {
        let mut fields = Fields::new(WHAT, bytes);
        let count = bytes.len() / GROUP_ENTRY_BYTES;
        let mut groups = Self {
            entries: Vec::with_capacity(count),
            first_pages: Vec::with_capacity(count),
            pages: 0,
        };
        let mut free_at = start;
        for _ in 0..count {
            let entry = GroupEntry::take(&mut fields)?;
            let lies_there = entry.offset_bytes >= free_at && entry.offset_bytes <= end;
            if !entry.is_possible() || !lies_there || entry.end_bytes() > end {
                return Err(FormatError::impossible(WHAT, "a group that cannot lie there"));
            }
            free_at = entry.end_bytes();
            groups.first_pages.push(groups.pages);
            groups.pages += u32::from(entry.pages);
            groups.entries.push(entry);
        }
        fields.end()?;
        if groups.pages != pages {
            return Err(FormatError::impossible(
                WHAT,
                "another number of pages than the last block",
            ));
        }
        Ok(groups)
    }

    pub(crate) const fn pages(&self) -> u32 {
        self.pages
    }

    /// Returns the group that has a page: its number, its entry, its first page. None if there is none.
    pub(crate) fn find(&self, page: u32) -> Option<(usize, &GroupEntry, u32)> {
        if page >= self.pages {
            return None;
        }
        let group = self.first_pages.partition_point(|first| *first <= page) - 1;
        Some((group, &self.entries[group], self.first_pages[group]))
    }
}

/// Compresses pages of groups. One thread at a time uses it.
pub(crate) struct GroupCompressor {
    zstd: Compressor<'static>,
    compressed: Vec<u8>,
}

impl GroupCompressor {
    pub(crate) fn new() -> Self {
        let zstd = Compressor::new(LEVEL).expect("zstd takes its own levels");
        Self { zstd, compressed: Vec::new() }
    }

    /// Returns the compressed bytes, if they are at most seven eighths as many: less is not worth the time
    /// that a read takes to decompress them, nor that they cannot be mapped.
    pub(crate) fn compress(&mut self, plain: &[u8]) -> Option<&mut Vec<u8>> {
        self.compressed.clear();
        // What does not fit does not pay.
        self.compressed.reserve_exact(plain.len() / 8 * 7);
        let compressed = self.zstd.compress_to_buffer(plain, &mut self.compressed);
        let pays = compressed.is_ok_and(|bytes| bytes > 0 && bytes <= plain.len() / 8 * 7);
        pays.then_some(&mut self.compressed)
    }
}

/// Decompresses exactly as many bytes as `into` has. Returns false if they are others.
pub(crate) fn decompress(compressed: &[u8], into: &mut [u8]) -> bool {
    let bytes =
        Decompressor::new().and_then(|mut zstd| zstd.decompress_to_buffer(compressed, into));
    bytes.is_ok_and(|bytes| bytes == into.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_shrink_stays_as_it_is() {
        let mut compressor = GroupCompressor::new();
        let text = b"pages of a guest ".repeat(1000);
        let compressed = compressor.compress(&text).unwrap().clone();
        assert!(compressed.len() < text.len() / 20);
        let mut plain = vec![0; text.len()];
        assert!(decompress(&compressed, &mut plain));
        assert_eq!(plain, text);
        assert!(!decompress(&compressed, &mut plain[1..]));
        assert!(!decompress(&compressed[1..], &mut plain));
        let noise = crate::seal::random::<65536>().unwrap();
        assert!(compressor.compress(&noise).is_none());
    }

    #[test]
    fn groups_are_found_by_page() {
        let entry = |offset_bytes, stored_bytes, pages, is_compressed| GroupEntry {
            offset_bytes,
            stored_bytes,
            pages,
            is_compressed,
            check: [pages; CHECK_BYTES],
        };
        let entries = [
            entry(4096, 4096, 1, false),
            entry(8192, 5000, 16, true),
            entry(16384, 4096, 1, false),
        ];
        let mut bytes = Vec::new();
        entries.iter().for_each(|entry| entry.put(&mut bytes));
        let groups = Groups::decode(&bytes, (4096, 20480), 18).unwrap();
        for (page, group, first) in [(0, 0, 0), (1, 1, 1), (16, 1, 1), (17, 2, 17)] {
            assert_eq!(groups.find(page), Some((group, &entries[group], first)));
        }
        assert_eq!(groups.find(18), None);
        Groups::decode(&bytes, (4096, 20479), 18).unwrap_err();
        Groups::decode(&bytes, (8192, 20480), 18).unwrap_err();
        Groups::decode(&bytes, (4096, 20480), 17).unwrap_err();
    }
}
