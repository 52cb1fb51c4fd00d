//! fjall: a log-structured merge tree in Rust.

use anyhow::Result;
use bindery_ycsb::{BoxError, KEY_BYTES, Store, Task, VALUE_BYTES};
use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode};

pub(crate) struct Fjall {
    database: Database,
    records: Keyspace,
}

impl Fjall {
    pub(crate) fn open(task: &Task) -> Result<Self> {
        let database =
            Database::builder(task.directory.join("fjall")).cache_size(task.cache_bytes).open()?;
        let records = database.keyspace("ycsb", KeyspaceCreateOptions::default)?;
        Ok(Self { database, records })
    }
}

impl Store for Fjall {
    fn fill(
        &self,
        records: &mut dyn Iterator<Item = ([u8; KEY_BYTES], [u8; VALUE_BYTES])>,
    ) -> Result<(), BoxError> {
        let mut ingestion = self.records.start_ingestion()?;
        for (key, value) in records {
            ingestion.write(key, value)?;
        }
        Ok(ingestion.finish()?)
    }

    fn read(&self, key: &[u8; KEY_BYTES], value: &mut Vec<u8>) -> Result<bool, BoxError> {
        let found = self.records.get(key)?;
        value.extend_from_slice(found.as_deref().unwrap_or_default());
        Ok(found.is_some())
    }

    fn put(&self, key: &[u8; KEY_BYTES], value: &[u8; VALUE_BYTES]) -> Result<(), BoxError> {
        Ok(self.records.insert(key, value)?)
    }

    fn settle(&self) -> Result<(), BoxError> {
        Ok(self.database.persist(PersistMode::SyncAll)?)
    }
}
