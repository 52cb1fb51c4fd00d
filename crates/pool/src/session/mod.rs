//! An opening of a pool for writing: what everything shares that was taken from the pool.

mod archive_attachment;
mod error;
mod lookup;
mod object_handles;
mod pool_session;
mod session_counters;
pub(crate) mod superblocks;

pub use archive_attachment::LeftBehind;
pub use error::{AllocateError, ChangeError, FindError};
pub use session_counters::ObjectAmount;

pub(crate) use archive_attachment::ArchiveAttachment;
pub(crate) use lookup::{mblock_in, wrong_kind};
pub(crate) use pool_session::PoolSession;
