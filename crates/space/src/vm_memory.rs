//! Guest memory of Rust VMMs, managed.
//!
//! A VMM that is built on the [`vm-memory`](::vm_memory) crate puts its memory under management when
//! it has made it, and uses it through the same types as before:
//!
//! ```no_run
//! use bindery_space::agent::AgentConfig;
//! use bindery_space::vm_memory::{ManagedMemory, Manager};
//! use vm_memory::{GuestAddress, GuestMemoryMmap};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let manager = Manager::start(AgentConfig::from_environment())?;
//! let memory: GuestMemoryMmap = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 1 << 30)])?;
//! let memory = ManagedMemory::new(&manager, memory)?;
//! # let _ = memory;
//! # Ok(())
//! # }
//! ```
//!
//! Such a VMM needs no preload. It says what it does to its memory by [`ManagedMemory::discard`] (a
//! balloon) and [`ManagedMemory::release`] (before memory is shared, locked or watched by a
//! userfaultfd of its own). Dropping the memory releases it.

use std::io;
use std::ops::Deref;
use std::sync::Arc;

use bindery_units::{HostAddress, PAGE_BYTES};
use vm_memory::bitmap::Bitmap;
use vm_memory::{
    Address, GuestAddress, GuestMemoryBackend, GuestMemoryError, GuestMemoryMmap,
    GuestMemoryRegion, GuestRegionMmap,
};

use crate::agent::{Agent, AgentConfig};
use crate::{ManageError, ReleaseError, Space, StartError};

/// The space of this process and its agent: one for each process.
#[derive(Debug)]
pub struct Manager {
    space: Arc<Space>,
    agent: Agent,
}

impl Manager {
    /// Starts managing in this process. Takes about a millisecond; no daemon has to be there yet.
    ///
    /// # Errors
    /// [`StartError`] says what to change.
    pub fn start(config: AgentConfig) -> Result<Arc<Self>, StartError> {
        let space = Space::start()?;
        let agent = Agent::start(Arc::clone(&space), config).map_err(StartError::Resources)?;
        Ok(Arc::new(Self { space, agent }))
    }

    /// The agent, which is to know of forks and can be stopped.
    #[must_use]
    pub const fn agent(&self) -> &Agent {
        &self.agent
    }
}

/// Guest memory under management. Used as the memory that it was made of.
#[derive(Debug)]
pub struct ManagedMemory<B: Bitmap = ()> {
    memory: GuestMemoryMmap<B>,
    manager: Arc<Manager>,
    /// What is managed on our account: what was managed before belongs to somebody else.
    ranges: Vec<(HostAddress, usize)>,
}

impl<B: Bitmap> ManagedMemory<B> {
    /// Takes all regions of `memory` under management. Their content and addresses stay.
    ///
    /// # Errors
    /// [`ManageError`]; no region is managed then.
    pub fn new(manager: &Arc<Manager>, memory: GuestMemoryMmap<B>) -> Result<Self, ManageError> {
        // Made first: if a region is refused, its drop releases those before it.
        let mut managed = Self { memory, manager: Arc::clone(manager), ranges: Vec::new() };
        for region in managed.memory.iter() {
            let (address, bytes) = host_range(region);
            manager.space.manage(address, bytes)?;
            managed.ranges.push((address, bytes));
        }
        manager.agent.regions_changed();
        Ok(managed)
    }

    /// Throws pages of the guest away, as a balloon does: they read as zeros and hold no memory.
    /// `address` and `bytes` are whole pages of one region.
    ///
    /// # Errors
    /// `InvalidInput` if they are not; otherwise the kernel's.
    pub fn discard(&self, address: GuestAddress, bytes: usize) -> io::Result<()> {
        let is_whole = address.raw_value().is_multiple_of(PAGE_BYTES as u64)
            && bytes.is_multiple_of(PAGE_BYTES);
        let invalid = |what| io::Error::new(io::ErrorKind::InvalidInput, what);
        if !is_whole {
            return Err(invalid("only whole pages of 4 KiB can be discarded".to_owned()));
        }
        let slice = self.memory.get_slice(address, bytes);
        let slice = slice.map_err(|error: GuestMemoryError| invalid(error.to_string()))?;
        let host = HostAddress(slice.ptr_guard().as_ptr() as usize);
        self.manager.space.discard(host, bytes, libc::MADV_DONTNEED)
    }

    /// Gives all of the memory back: private, unwatched, its content as it is. It is not managed
    /// again.
    ///
    /// # Errors
    /// [`ReleaseError`]: what could not be given back is still managed.
    pub fn release(&self) -> Result<(), ReleaseError> {
        for &(address, bytes) in &self.ranges {
            self.manager.space.release_range(address, bytes)?;
        }
        self.manager.agent.regions_changed();
        Ok(())
    }
}

impl<B: Bitmap> Deref for ManagedMemory<B> {
    type Target = GuestMemoryMmap<B>;

    fn deref(&self) -> &Self::Target {
        &self.memory
    }
}

impl<B: Bitmap> Drop for ManagedMemory<B> {
    fn drop(&mut self) {
        // Clones of the memory may live on, so it is released and not only forgotten.
        if let Err(error) = self.release() {
            // It stays managed, and stays mapped: unmapping would take it from under the lanes.
            crate::agent::log::say(format_args!("guest memory is kept: {error}"));
            std::mem::forget(self.memory.clone());
        }
    }
}

/// Where a region is in this process.
fn host_range<B: Bitmap>(region: &GuestRegionMmap<B>) -> (HostAddress, usize) {
    (HostAddress(region.as_ptr() as usize), region.len() as usize)
}
