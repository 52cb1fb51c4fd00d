//! Where marks come from.
//!
//! | source | sees writes of | how |
//! |---|---|---|
//! | [`WrittenPages`] | all who write through this process's mappings, vCPUs included | `PAGEMAP_SCAN` over asynchronous write protection |
//! | [`KvmBitmap`] | vCPUs | `KVM_GET_DIRTY_LOG`, and `KVM_CLEAR_DIRTY_LOG` |
//! | [`KvmRings`] | vCPUs | the dirty rings, and `KVM_RESET_DIRTY_RINGS` |
//! | [`SoftDirty`] | all who write through this process's mappings | `/proc/PID/clear_refs` |
//! | [`Software`] | who says so: a VMM's own devices | marks |
//!
//! What KVM reports and what a VMM's devices wrote are two halves of one set: [`Union`].
//!
//! # What holds
//!
//! After [`Source::collect`] returns, every page that was written before it was called is marked, and
//! is watched again: a write that comes later is found by a later call. So a page's content is to be
//! read *after* it was collected, and a copy made then and at each later mark is complete.
//!
//! When it fails, the marks made so far stand, and what could not be marked is left for the next
//! call wherever the kernel still knows it; [`SourceError`] says where it does not.

mod bitmap;
mod error;
mod policy;
mod ring;
mod slot;
mod soft_dirty;
mod software;
mod words;
mod written;

pub use bitmap::{KvmBitmap, Protection};
pub use error::SourceError;
pub use policy::{EpochCosts, Policy, Tracking};
pub use ring::KvmRings;
pub use slot::MemorySlot;
pub use soft_dirty::{SoftDirty, probe_soft_dirty};
pub use software::{Software, Union};
pub use written::{Region, WrittenPages};

use crate::marks::Marks;

/// Whose writes a source sees, and what a caller must know of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abilities {
    /// Sees what vCPUs write.
    pub vcpu_writes: bool,
    /// Sees what the threads of the VMM's process write, and the kernel on their behalf.
    pub process_writes: bool,
    /// The first collection may have pages that nobody wrote since tracking began: all of them, or
    /// all that are there.
    pub first_has_more: bool,
    /// Collects while writers run. Otherwise they must be stopped meanwhile, or writes are lost.
    pub beside_writers: bool,
}

/// What a collection found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Collected {
    /// Pages that were marked. A page that several vCPUs wrote, or that both halves of a [`Union`]
    /// have, counts as often.
    pub pages: u64,
}

/// Finds out which pages were written.
pub trait Source {
    /// Marks every page that was written since the last collection, and watches it again. Blocks for
    /// system calls alone, and allocates nothing that grows with the guest once it ran before.
    ///
    /// # Errors
    /// [`SourceError`].
    ///
    /// # Panics
    /// If `marks` has not the pages that this source was made for.
    fn collect(&mut self, marks: &dyn Marks) -> Result<Collected, SourceError>;

    /// What it can do.
    fn abilities(&self) -> Abilities;
}

impl<S: Source + ?Sized> Source for Box<S> {
    fn collect(&mut self, marks: &dyn Marks) -> Result<Collected, SourceError> {
        (**self).collect(marks)
    }

    fn abilities(&self) -> Abilities {
        (**self).abilities()
    }
}
