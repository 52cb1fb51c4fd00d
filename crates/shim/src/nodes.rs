//! Nodes that a VMM binds managed memory to.

use std::io;

use bindery_sys::mapping::Mapping;
use bindery_sys::numa::Policy;
use bindery_units::{HostAddress, PAGE_BYTES};
use libc::{c_int, c_long, c_uint, c_ulong, c_void};

use crate::answer::Errno;
use crate::kernel;
use crate::managed::Managed;

/// Arguments of mbind(2), but for the range.
pub(crate) struct Binding {
    pub(crate) mode: c_int,
    pub(crate) nodes: *const c_ulong,
    pub(crate) nodes_max: c_ulong,
    pub(crate) flags: c_uint,
}

impl Binding {
    /// Binds whole pages, of which some are managed.
    ///
    /// # Safety
    /// As mbind(2).
    pub(crate) unsafe fn bind(
        &self,
        managed: &Managed,
        address: usize,
        bytes: usize,
    ) -> Result<(), Errno> {
        // SAFETY: the caller's contract.
        let policy = unsafe { self.policy()? };
        let bound = managed.space.bind(HostAddress(address), bytes, policy, |start, bytes| {
            // SAFETY: the caller's contract.
            let result = unsafe { self.pass_on(start.0, bytes) };
            if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
        });
        Ok(bound?)
    }

    /// Returns the policy that is asked for, as the kernel reads it: from a page of ours.
    ///
    /// # Safety
    /// As mbind(2).
    unsafe fn policy(&self) -> io::Result<Policy> {
        let page = Mapping::anonymous(PAGE_BYTES)?;
        let without_flags = Self { flags: 0, ..*self };
        // SAFETY: the page is ours, and the rest is the caller's contract.
        if unsafe { without_flags.pass_on(page.address().0, PAGE_BYTES) } == -1 {
            return Err(io::Error::last_os_error());
        }
        Policy::of(page.address())
    }

    /// # Safety
    /// As mbind(2).
    pub(crate) unsafe fn pass_on(&self, address: usize, bytes: usize) -> c_long {
        let (address, bytes) = (address as *mut c_void, bytes as c_ulong);
        // SAFETY: the caller's contract.
        unsafe { kernel::mbind(address, bytes, self.mode, self.nodes, self.nodes_max, self.flags) }
    }
}
