//! Managed memory that its VMM protects or seals.
//!
//! Pages that come and go are mapped to be read and written, under the default key, and their mappings
//! are replaced. Memory that is to be anything else is given back first.

use crate::answer::{Errno, aside};
use crate::child::Content;
use crate::{child, kept, managed};

/// What pkey_mprotect(2) takes for "the key stays", as mprotect(2) has it.
pub(crate) const NO_KEY: i32 = -1;

/// The key that memory has from the beginning.
const DEFAULT_KEY: i32 = 0;

/// Before a range is protected.
///
/// # Errors
/// `ENOMEM` if the memory cannot be given back now: it would not keep the protection.
pub(crate) fn before(address: usize, bytes: usize, protection: i32, key: i32) -> Result<(), Errno> {
    if protection & libc::PROT_EXEC != 0 {
        // The file system of a store may forbid it.
        child::before(address, bytes, Content::Stays)?;
    }
    if !matches!(key, NO_KEY | DEFAULT_KEY) {
        kept::note(address, bytes);
    }
    let is_as_managed =
        protection == libc::PROT_READ | libc::PROT_WRITE && matches!(key, NO_KEY | DEFAULT_KEY);
    if is_as_managed { Ok(()) } else { give_back(address, bytes, "protect memory (mprotect)") }
}

/// Before a range is sealed: nothing of it can be mapped anew from then on.
///
/// # Errors
/// As for [`before`].
pub(crate) fn before_seal(address: usize, bytes: usize) -> Result<(), Errno> {
    child::before(address, bytes, Content::Stays)?;
    kept::note(address, bytes);
    give_back(address, bytes, "seal memory (mseal)")
}

fn give_back(address: usize, bytes: usize, what: &str) -> Result<(), Errno> {
    let Some(managed) = managed::overlapping(address, bytes) else { return Ok(()) };
    let is_back = aside(|| managed.step_aside(address, bytes, what));
    if is_back { Ok(()) } else { Err(Errno(libc::ENOMEM)) }
}
