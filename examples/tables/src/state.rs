//! What a store consists of at a moment. Readers take it as it is; it is replaced, never changed.

use std::ops::ControlFlow;
use std::sync::Arc;

use bindery_pool::ObjectId;

use crate::block::Value;
use crate::error::StoreError;
use crate::manifest::Manifest;
use crate::memory::MemoryTable;
use crate::shelf::Shelf;
use crate::table::Table;

/// All entries, the newest first.
#[derive(Clone, Default)]
pub(crate) struct State {
    /// Takes what is put.
    pub(crate) memory: Arc<MemoryTable>,
    /// Is being written to a table.
    pub(crate) frozen: Option<Arc<MemoryTable>>,
    /// One table each, the newest first.
    pub(crate) root: Vec<Arc<Shelf>>,
    /// By their first keys.
    pub(crate) shelves: Vec<Arc<Shelf>>,
}

impl State {
    /// What is said of a key; `read` is called at most once.
    pub(crate) fn find<R>(
        &self,
        key: &[u8],
        read: &mut dyn FnMut(Value<'_>) -> R,
    ) -> Result<Option<R>, StoreError> {
        for memory in [Some(&self.memory), self.frozen.as_ref()].into_iter().flatten() {
            if let Some(found) = memory.with(key, &mut *read) {
                return Ok(Some(found));
            }
        }
        let after = self.shelves.partition_point(|shelf| shelf.first_key() <= key);
        let shelf = after.checked_sub(1).map(|at| &self.shelves[at]);
        for shelf in self.root.iter().chain(shelf) {
            if let ControlFlow::Break(found) = shelf.find(key, read)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    pub(crate) fn is_empty(&self) -> bool {
        let Self { memory, frozen, root, shelves } = self;
        memory.is_empty() && frozen.is_none() && root.is_empty() && shelves.is_empty()
    }

    /// The tables that it has, as they are written down.
    pub(crate) fn manifest(&self, logs: [ObjectId; 2]) -> Manifest {
        let objects = |shelf: &Arc<Shelf>| shelf.tables.iter().map(Table::objects).collect();
        let shelves: Vec<Vec<_>> = self.shelves.iter().map(objects).collect();
        Manifest { logs, root: self.root.iter().flat_map(objects).collect(), shelves }
    }
}
