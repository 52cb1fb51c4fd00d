//! Pools across fork(2) and clone(2): what one process has opened every other is refused.
//!
//! A child has a copy of its parent's memory and shares its open files. Were it let, both would give the
//! same ids and places to different objects, and each be told that its own is committed. So everything that
//! is open knows its process ([`Origin`]), and a child is refused where it matters, with [`OtherProcess`]:
//!
//! * at the device, which does nothing for it, whatever calls it (`FileDevice::check_here`);
//! * and, because what is above the device takes locks that a thread of the parent's may have held when it
//!   forked, and waits for threads that a child has not, where the ways of the calls meet: the catalogue, the
//!   lookup of objects, the allocation of space, a writer, an object, a map, the thread of an archive.
//!
//! What a child drops it leaves as it is: nothing is written, unlocked, joined or waited for.

use std::io;

use bindery_sys::process::Origin;
use thiserror::Error;

/// Something is used in a child of the process that opened it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "process {opener} opened it, and a child of that process (fork, clone) cannot use it: open the pool in \
     the child, for reading beside its parent, or for writing once its parent has closed it"
)]
pub struct OtherProcess {
    /// Process id of the one that opened it.
    pub opener: u32,
}

/// Refuses all processes but the one of origin. Costs two loads.
pub(crate) fn check(origin: Origin) -> Result<(), OtherProcess> {
    if origin.is_here() { Ok(()) } else { Err(OtherProcess { opener: origin.pid() }) }
}

impl From<OtherProcess> for io::Error {
    fn from(error: OtherProcess) -> Self {
        Self::new(io::ErrorKind::PermissionDenied, error)
    }
}
