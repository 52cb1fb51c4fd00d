//! Pools: made, opened, filled, grown, looked through, and ended.
//!
//! One process at a time has a pool open for writing ([`Pool`]); any number read it meanwhile
//! ([`PoolReader`]). All methods take any number of threads.

#[cfg(feature = "archive")]
mod archiving;
mod assemble;
mod attach;
mod create;
mod error;
mod grow;
mod handle;
mod logs;
mod objects;
mod open;
mod paths;
mod reader;
mod scan;
mod statistics;
mod verify;

#[cfg(feature = "archive")]
pub use archiving::{ArchiveError, ArchiveSweep, IdleArchived, MoveError};
pub use attach::PathError;
pub use create::{CATALOGUE_BYTES, CreateOptions, NewDevice};
pub use error::{CreateError, DeleteError, GrowError, JoinError, LogError, OpenError};
pub use handle::Pool;
pub use logs::{OpenLog, OpenMdc};
pub use objects::LARGEST_ALIGNMENT;
pub use paths::DevicePath;
pub use reader::{PoolReader, ReaderError};
pub use scan::{FoundPool, PoolScan, scan_pools};
pub use statistics::{DeviceUsage, PoolStatistics};
pub use verify::{Finding, VerifyReport};
