//! A small read-optimised store of keys and values on a Bindery pool: what a storage engine does with
//! mblocks, mlogs, the MDC and mcache maps, in a thousand lines.
//!
//! ```text
//! put → log (mlog) → memory table ─full→ root table ─several→ merged into the shelves below
//! get ← memory table ← root tables, the newest first ← the one shelf that may have the key
//! ```
//!
//! A table is sorted and never changes: two mblocks, its entries and its index. Root tables and all
//! indexes are mapped *pinned*, for every search passes them; the shelves' entries are mapped *warm*, a
//! map for each shelf of some dozen tables, and the reaper says which of them stay in memory. Merging
//! reads tables directly, past every cache. Which tables there are is in the pool's root MDC.
#![forbid(unsafe_code)]

mod block;
mod compact;
mod course;
mod error;
mod filter;
mod index;
mod journal;
mod keeper;
mod manifest;
mod memory;
mod merge;
mod options;
mod shelf;
mod state;
mod store;
mod table;

pub use block::ENTRY_BYTES_MAX;
pub use error::StoreError;
pub use options::Options;
pub use shelf::{Mapped, Mapper};
pub use store::Tables;
