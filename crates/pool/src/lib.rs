//! mpool in user space: immutable objects in a pool of media classes.
//!
//! A **pool** is a set of devices (block devices, or files in file systems), each of one **media
//! class**: `capacity` for the bulk, `staging` for what must be fast, and `archive`, which is an
//! S3-compatible store. It holds **mblocks**, which are written once, committed, and never change
//! again; and **mlogs**, which are appended to, and of which pairs (**MDCs**) hold what changes. A
//! list of mblocks, whatever their age or medium, is mapped as one range (**mcache map**); its pages
//! come on demand, and the **reaper** takes them away by temperature before the kernel must.
//!
//! After Micron's mpool (linux-kernel, October 2020) and what became of it in HSE; the format is this
//! crate's own and stands in `docs/formats/pool.md`.
#![forbid(unsafe_code)]

#[cfg(feature = "archive")]
pub mod archive;
mod block;
pub mod catalogue;
mod crc;
pub mod device;
mod extent;
pub mod format;
pub mod free_space;
mod id;
pub mod log;
pub mod map;
pub mod mblock;
pub mod mdc;
mod media;
mod name;
pub mod object;
pub mod pace;
mod pool;
mod process;
pub mod reaper;
mod session;
pub mod write;

pub use block::{BLOCK_BYTES, UNIT_BYTES};
pub use extent::Extent;
pub use id::{DeviceIndex, LogIdentity, MediaClass, ObjectId, UnknownClass};
pub use media::{AttachedDevice, SpaceUsage};
pub use name::{BadName, LONGEST_NAME, PoolName};
#[cfg(feature = "archive")]
pub use pool::{ArchiveError, ArchiveSweep, IdleArchived, MoveError};
pub use pool::{
    CATALOGUE_BYTES, CreateError, CreateOptions, DeleteError, DevicePath, DeviceUsage, Finding,
    FoundPool, GrowError, JoinError, LARGEST_ALIGNMENT, LogError, NewDevice, OpenError, OpenLog,
    OpenMdc, PathError, Pool, PoolReader, PoolScan, PoolStatistics, ReaderError, VerifyReport,
    scan_pools,
};
pub use process::OtherProcess;
pub use session::{AllocateError, ChangeError, FindError, LeftBehind, ObjectAmount};

/// The examples of the README are tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
