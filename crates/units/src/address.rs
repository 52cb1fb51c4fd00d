//! Addresses in the process that hosts a guest.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{PAGE_BYTES, PAGE_SHIFT};

/// A virtual address in the process that holds a guest's memory, in bytes.
///
/// A number, not a pointer: holding one gives no right to read what is there.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[repr(transparent)]
pub struct HostAddress(pub usize);

impl HostAddress {
    /// The address `bytes` further on.
    ///
    /// # Panics
    /// If the sum leaves the address space.
    #[must_use]
    pub const fn plus(self, bytes: usize) -> Self {
        Self(self.0.checked_add(bytes).expect("an address stays within the address space"))
    }

    /// The address `pages` pages further on.
    ///
    /// # Panics
    /// If the sum leaves the address space.
    #[must_use]
    pub const fn plus_pages(self, pages: u32) -> Self {
        self.plus((pages as usize) << PAGE_SHIFT)
    }

    /// Whether the address is the start of a page.
    #[must_use]
    pub const fn is_page_aligned(self) -> bool {
        self.0.is_multiple_of(PAGE_BYTES)
    }
}

impl fmt::Display for HostAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}
