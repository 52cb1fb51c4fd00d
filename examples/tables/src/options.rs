//! How large the parts of a store are.

use bindery_pool::MediaClass;
use bindery_pool::map::Temperature;

/// How large the parts of a store are, and where they lie.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How much is put before it becomes a table, in bytes.
    pub memory_table_bytes: usize,
    /// Root tables that are merged into the shelves together.
    pub root_tables_max: usize,
    /// The size of a table, in bytes.
    pub table_bytes: u64,
    /// Tables that are mapped together.
    pub shelf_tables: usize,
    /// Where tables lie.
    pub class: MediaClass,
    /// How long what shelves hold is to stay in memory.
    pub temperature: Temperature,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            memory_table_bytes: 16 << 20,
            root_tables_max: 4,
            table_bytes: 4 << 20,
            shelf_tables: 50,
            class: MediaClass::Capacity,
            temperature: Temperature::Warm,
        }
    }
}
