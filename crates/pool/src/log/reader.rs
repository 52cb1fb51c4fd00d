//! A log for those who only read it.

use super::error::{Damage, OpenError};
use super::find::{Found, find};
use super::log_copies::LogCopies;
use super::log_copy::LogCopy;
use super::records::Records;
use crate::LogIdentity;

/// A log as it was when it was opened, for reading. Others may read it, and one write it, meanwhile.
#[derive(Debug)]
pub struct Reader {
    copies: LogCopies,
    found: Found,
    damaged: Vec<Damage>,
}

impl Reader {
    /// Opens a log. Blocks; reads all copies of all of it.
    ///
    /// # Errors
    /// If there is no such log, or if what was synced is damaged in all copies.
    pub fn open(identity: LogIdentity, places: Vec<LogCopy>) -> Result<Self, OpenError> {
        let copies = LogCopies::new(identity, places)?;
        let mut found = find(&copies)?;
        let damaged = std::mem::take(&mut found.defects).into_iter().map(|it| it.damage).collect();
        Ok(Self { copies, found, damaged })
    }

    /// Blocks that one copy has and another has not: because of damage, or because a crash left the
    /// last ones so, or because they are being written.
    #[must_use]
    pub fn damaged(&self) -> &[Damage] {
        &self.damaged
    }

    /// Returns what lies where the log ends and is not whole: the block that a crash tore, or the last one
    /// that was synced before it, damaged. With one copy, nobody can tell.
    #[must_use]
    pub const fn torn(&self) -> Option<&Damage> {
        self.found.torn.as_ref()
    }

    /// Returns the number of erases, and one.
    #[must_use]
    pub const fn generation(&self) -> u64 {
        self.found.end.generation
    }

    /// The records that were there when it was opened. Reads as it goes.
    #[must_use]
    pub fn records(&self) -> Records<'_> {
        Records::new(&self.copies, &self.found.end)
    }
}
