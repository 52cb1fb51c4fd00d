//! Tables mapped together: one map for their entries, and a pinned one for their indexes.

use std::ops::ControlFlow;
use std::sync::Arc;

use bindery_pool::map::{Map, MapOptions, Maps, Temperature};
use bindery_pool::object::Object;
use bindery_sys::mapped::View;

use crate::block::{BLOCK_BYTES, Block, Value};
use crate::error::StoreError;
use crate::index::Index;
use crate::table::Table;

/// How the objects of a store come into memory.
pub trait Mapper: Send + Sync {
    /// Shows objects as memory.
    ///
    /// # Errors
    /// Whatever keeps it from that.
    fn map(
        &self,
        objects: &[Arc<dyn Object>],
        temperature: Temperature,
    ) -> Result<Box<dyn Mapped>, StoreError>;
}

/// Objects that are shown as memory.
pub trait Mapped: Send + Sync {
    /// Bytes of an object.
    ///
    /// # Errors
    /// If it has no such bytes.
    fn view(&self, object: usize, offset_bytes: u64, bytes: usize) -> Result<View<'_>, StoreError>;
}

impl Mapper for Maps {
    fn map(
        &self,
        objects: &[Arc<dyn Object>],
        temperature: Temperature,
    ) -> Result<Box<dyn Mapped>, StoreError> {
        // Blocks are copied when they are found.
        let options = MapOptions { accesses_are_reported: true, ..MapOptions::default() };
        Ok(Box::new(Self::map(self, objects, temperature, &options)?))
    }
}

impl Mapped for Map {
    fn view(&self, object: usize, offset_bytes: u64, bytes: usize) -> Result<View<'_>, StoreError> {
        Ok(self.get(object, offset_bytes, bytes)?)
    }
}

/// Tables, by their first keys; no two have a key in common, but for those of the root.
pub(crate) struct Shelf {
    pub(crate) tables: Vec<Table>,
    entries: Box<dyn Mapped>,
    indexes: Box<dyn Mapped>,
}

impl Shelf {
    /// Maps tables.
    pub(crate) fn of(
        mapper: &dyn Mapper,
        tables: Vec<Table>,
        temperature: Temperature,
    ) -> Result<Self, StoreError> {
        let data: Vec<_> = tables.iter().map(|table| Arc::clone(&table.data)).collect();
        let indexes: Vec<_> = tables.iter().map(|table| Arc::clone(&table.index)).collect();
        Ok(Self {
            entries: mapper.map(&data, temperature)?,
            indexes: mapper.map(&indexes, Temperature::Pinned)?,
            tables,
        })
    }

    /// The first key of its first table.
    pub(crate) fn first_key(&self) -> &[u8] {
        self.tables.first().map_or(&[], |table| &table.first_key)
    }

    /// What its tables say of a key; `read` is called at most once.
    pub(crate) fn find<R>(
        &self,
        key: &[u8],
        read: &mut dyn FnMut(Value<'_>) -> R,
    ) -> Result<ControlFlow<R>, StoreError> {
        let after = self.tables.partition_point(|table| &*table.first_key <= key);
        let Some(table) = after.checked_sub(1) else { return Ok(ControlFlow::Continue(())) };
        let index_bytes = self.tables[table].index.length_bytes() as usize;
        let index = Index::parse(self.indexes.view(table, 0, index_bytes)?)
            .ok_or_else(|| StoreError::NoIndex(self.tables[table].index.id()))?;
        let Some(block) = index.block_of(key) else { return Ok(ControlFlow::Continue(())) };
        let mut bytes = [0; BLOCK_BYTES];
        let offset_bytes = (block * BLOCK_BYTES) as u64;
        self.entries.view(table, offset_bytes, BLOCK_BYTES)?.copy_to(&mut bytes);
        Ok(match Block(&bytes).find(key) {
            Some(value) => ControlFlow::Break(read(value)),
            None => ControlFlow::Continue(()),
        })
    }
}
