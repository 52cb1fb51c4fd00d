//! The newest entries, in memory, in the order of their keys.

use std::collections::BTreeMap;
use std::sync::{PoisonError, RwLock};

use crate::block::Value;
use crate::journal;

type Entries = BTreeMap<Box<[u8]>, Option<Box<[u8]>>>;

/// Entries that are in no table yet, and what all puts took in the log.
#[derive(Debug, Default)]
pub(crate) struct MemoryTable(RwLock<(Entries, usize)>);

impl MemoryTable {
    /// Puts an entry in place of what was said of its key. How many bytes of its log all that was put
    /// takes: what was put over too, for the log has no room for it without end.
    pub(crate) fn put(&self, key: &[u8], value: Value<'_>) -> usize {
        let mut guard = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let (entries, bytes) = &mut *guard;
        *bytes += journal::record_bytes(key, value);
        entries.insert(key.into(), value.map(Box::from));
        *bytes
    }

    /// What it says of a key, if it says anything.
    pub(crate) fn with<R>(&self, key: &[u8], read: impl FnOnce(Value<'_>) -> R) -> Option<R> {
        let guard = self.0.read().unwrap_or_else(PoisonError::into_inner);
        guard.0.get(key).map(|value| read(value.as_deref()))
    }

    /// Looks at all entries, in order; nobody writes meanwhile.
    pub(crate) fn read<R>(&self, read: impl FnOnce(&Entries) -> R) -> R {
        read(&self.0.read().unwrap_or_else(PoisonError::into_inner).0)
    }

    /// Returns the number of bytes of its log that all puts took.
    pub(crate) fn log_bytes(&self) -> usize {
        self.0.read().unwrap_or_else(PoisonError::into_inner).1
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.read(Entries::is_empty)
    }
}
