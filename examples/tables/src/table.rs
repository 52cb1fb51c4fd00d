//! Sorted tables: written once, one object for the entries and a small one for the index.

use std::iter::Peekable;
use std::sync::Arc;

use bindery_pool::object::Object;
use bindery_pool::pace::Pace;
use bindery_pool::{MediaClass, ObjectId, Pool};
use bindery_sys::direct::Buffer;

use crate::block::{BLOCK_BYTES, Block, BlockBuilder};
use crate::error::StoreError;
use crate::index::IndexBuilder;
use crate::merge::Entry;

/// Bytes that are read at once by who goes through a whole table: few, since requests wait meanwhile.
const READ_BYTES: usize = 128 << 10;

/// Bytes of a table that are written at once.
const WRITE_BYTES: usize = 256 << 10;

/// The objects of a table, and its first key.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    pub(crate) data: Arc<dyn Object>,
    pub(crate) index: Arc<dyn Object>,
    pub(crate) first_key: Arc<[u8]>,
}

impl Table {
    pub(crate) fn objects(&self) -> [ObjectId; 2] {
        [self.data.id(), self.index.id()]
    }

    /// Finds the objects of a table again, and reads its first key.
    pub(crate) fn open(pool: &Pool, [data, index]: [ObjectId; 2]) -> Result<Self, StoreError> {
        let (data, index) = (pool.get(data)?, pool.get(index)?);
        let table = Self { data, index, first_key: Arc::default() };
        let first = table.entries().next().transpose()?;
        let first_key = first.map(|(key, _)| key.into()).unwrap_or_default();
        Ok(Self { first_key, ..table })
    }

    /// Writes a table of the next entries, until it has `data_bytes` or they end; none if there are
    /// none. Calls `wrote` with the number of bytes after each piece. An error of the entries is given on.
    pub(crate) fn write<I: Iterator<Item = Result<Entry, StoreError>>>(
        pool: &Pool,
        class: MediaClass,
        data_bytes: u64,
        entries: &mut Peekable<I>,
        wrote: &dyn Fn(u64),
    ) -> Result<Option<Self>, StoreError> {
        let Some(Ok((first_key, _))) = entries.peek() else {
            return entries.next().map_or(Ok(None), |entry| entry.map(|_| None));
        };
        let first_key = first_key.as_slice().into();
        let mut writer = pool.allocate_mblock(class, data_bytes)?.in_pieces_of(WRITE_BYTES);
        let (mut block, mut index) = (BlockBuilder::default(), IndexBuilder::default());
        let mut chunk = Vec::with_capacity(WRITE_BYTES);
        let mut written = 0;
        let mut pace = Pace::begin();
        while let Some(entry) = entries.peek() {
            let is_full = match entry {
                Ok((key, value)) => !block.has_room_for(key, value.as_deref()),
                Err(_) => false,
            };
            if is_full {
                pace.step();
                block.finish(&mut chunk);
                written += BLOCK_BYTES as u64;
                if chunk.len() >= WRITE_BYTES {
                    writer.append(&chunk)?;
                    wrote(chunk.len() as u64);
                    chunk.clear();
                }
                if written + BLOCK_BYTES as u64 > data_bytes {
                    break;
                }
            }
            let Some((key, value)) = entries.next().transpose()? else { break };
            if block.is_empty() {
                index.begin_block(&key);
            }
            block.push(&key, value.as_deref());
            index.push(&key);
        }
        if !block.is_empty() {
            block.finish(&mut chunk);
        }
        writer.append(&chunk)?;
        let data = writer.commit()?;
        let index = write_whole(pool, class, &index.finish())?;
        Ok(Some(Self { data, index, first_key }))
    }

    /// All entries, in order, read past every cache.
    pub(crate) fn entries(&self) -> Entries {
        Entries { table: Arc::clone(&self.data), at: 0, next: Vec::new().into_iter() }
    }
}

fn write_whole(
    pool: &Pool,
    class: MediaClass,
    bytes: &[u8],
) -> Result<Arc<dyn Object>, StoreError> {
    let mut writer = pool.allocate_mblock(class, bytes.len() as u64)?;
    writer.append(bytes)?;
    Ok(writer.commit()?)
}

/// The entries of a table.
pub(crate) struct Entries {
    table: Arc<dyn Object>,
    /// Where the next chunk begins.
    at: u64,
    next: std::vec::IntoIter<Entry>,
}

impl Entries {
    /// Reads the next chunk; whether there was one.
    fn advance(&mut self) -> Result<bool, StoreError> {
        let left = self.table.length_bytes() - self.at;
        if left == 0 {
            return Ok(false);
        }
        let bytes = left.min(READ_BYTES as u64) as usize;
        let mut buffer = Buffer::zeroed(bytes);
        self.table.read(self.at, &mut buffer)?;
        self.at += bytes as u64;
        let owned =
            |(key, value): (&[u8], Option<&[u8]>)| (key.to_vec(), value.map(<[u8]>::to_vec));
        let mut next = Vec::new();
        for block in buffer.chunks(BLOCK_BYTES) {
            let entries = Block(block).entries();
            let entries = entries.ok_or_else(|| StoreError::NoTable(self.table.id()))?;
            next.extend(entries.into_iter().map(owned));
        }
        self.next = next.into_iter();
        Ok(true)
    }
}

impl Iterator for Entries {
    type Item = Result<Entry, StoreError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(entry) = self.next.next() {
                return Some(Ok(entry));
            }
            match self.advance() {
                Ok(true) => {}
                Ok(false) => return None,
                Err(error) => return Some(Err(error)),
            }
        }
    }
}
