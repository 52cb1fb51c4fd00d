//! RocksDB: a log-structured merge tree in C++.

use anyhow::Result;
use bindery_ycsb::{BoxError, KEY_BYTES, Store, Task, VALUE_BYTES};
use rocksdb::{BlockBasedOptions, Cache, DB, DBCompressionType, Options};

/// What RocksDB's tuning guide calls a good start for a filter: one lookup in a hundred is misled.
const FILTER_BITS_PER_KEY: f64 = 10.0;

pub(crate) struct Rocks(DB);

impl Rocks {
    pub(crate) fn open(task: &Task) -> Result<Self> {
        let mut blocks = BlockBasedOptions::default();
        blocks.set_block_cache(&Cache::new_lru_cache(task.cache_bytes as usize));
        blocks.set_bloom_filter(FILTER_BITS_PER_KEY, false);
        // Otherwise they are outside the cache, and of no limit.
        blocks.set_cache_index_and_filter_blocks(true);
        blocks.set_pin_l0_filter_and_index_blocks_in_cache(true);
        let mut options = Options::default();
        options.create_if_missing(true);
        options.set_block_based_table_factory(&blocks);
        options.set_compression_type(DBCompressionType::None);
        Ok(Self(DB::open(&options, task.directory.join("rocksdb"))?))
    }
}

impl Store for Rocks {
    fn fill(
        &self,
        records: &mut dyn Iterator<Item = ([u8; KEY_BYTES], [u8; VALUE_BYTES])>,
    ) -> Result<(), BoxError> {
        for (key, value) in records {
            self.0.put(key, value)?;
        }
        Ok(())
    }

    fn read(&self, key: &[u8; KEY_BYTES], value: &mut Vec<u8>) -> Result<bool, BoxError> {
        let found = self.0.get_pinned(key)?;
        value.extend_from_slice(found.as_deref().unwrap_or_default());
        Ok(found.is_some())
    }

    fn put(&self, key: &[u8; KEY_BYTES], value: &[u8; VALUE_BYTES]) -> Result<(), BoxError> {
        Ok(self.0.put(key, value)?)
    }

    fn settle(&self) -> Result<(), BoxError> {
        self.0.flush()?;
        // What was loaded is to lie in its place, as after days of running.
        self.0.compact_range::<&[u8], &[u8]>(None, None);
        Ok(())
    }
}
