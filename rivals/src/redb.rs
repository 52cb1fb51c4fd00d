//! redb: a copy-on-write B+ tree with a cache of its own.

use anyhow::Result;
use bindery_ycsb::{BoxError, KEY_BYTES, Store, Task, VALUE_BYTES};
use redb::{Database, Durability, ReadableDatabase, TableDefinition};

const TABLE: TableDefinition<'_, &[u8; KEY_BYTES], &[u8]> = TableDefinition::new("ycsb");

/// Records that one transaction loads.
const BATCH: usize = 100_000;

pub(crate) struct Redb(Database);

impl Redb {
    pub(crate) fn open(task: &Task) -> Result<Self> {
        let mut builder = Database::builder();
        builder.set_cache_size(task.cache_bytes as usize);
        Ok(Self(builder.create(task.directory.join("redb"))?))
    }
}

impl Store for Redb {
    fn fill(
        &self,
        records: &mut dyn Iterator<Item = ([u8; KEY_BYTES], [u8; VALUE_BYTES])>,
    ) -> Result<(), BoxError> {
        loop {
            let write = self.0.begin_write()?;
            let mut count = 0;
            {
                let mut table = write.open_table(TABLE)?;
                for (key, value) in (&mut *records).take(BATCH) {
                    table.insert(&key, value.as_slice())?;
                    count += 1;
                }
            }
            write.commit()?;
            if count < BATCH {
                return Ok(());
            }
        }
    }

    fn read(&self, key: &[u8; KEY_BYTES], value: &mut Vec<u8>) -> Result<bool, BoxError> {
        let read = self.0.begin_read()?;
        let found = read.open_table(TABLE)?.get(key)?;
        value.extend_from_slice(found.as_ref().map_or(&[], |found| found.value()));
        Ok(found.is_some())
    }

    fn put(&self, key: &[u8; KEY_BYTES], value: &[u8; VALUE_BYTES]) -> Result<(), BoxError> {
        let mut write = self.0.begin_write()?;
        write.set_durability(Durability::None)?;
        write.open_table(TABLE)?.insert(key, value.as_slice())?;
        Ok(write.commit()?)
    }

    fn settle(&self) -> Result<(), BoxError> {
        // An empty durable transaction makes those before it durable.
        Ok(self.0.begin_write()?.commit()?)
    }
}
