//! A vCPU's dirty ring: the pages that it wrote, in order, each once until the ring is reset.
//!
//! An entry goes round: free, dirty (by the kernel), harvested (by us), free again (by
//! [`reset_dirty_rings`], which protects its page). Kernel and harvester pass it on through its
//! flags; virt/kvm/dirty_ring.c and the section on `KVM_CAP_DIRTY_LOG_RING` in
//! Documentation/virt/kvm/api.rst state the protocol.

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd},
    slice,
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
};

use bindery_units::PAGE_BYTES;
use kvm_bindings::{KVM_DIRTY_LOG_PAGE_OFFSET, kvm_dirty_gfn};
use kvm_ioctls::{VcpuFd, VmFd};

use super::{RingEntries, call};
use crate::mapping::{Mapping, advise};

const IOC_RESET: libc::c_ulong = 0xaec7;

/// `KVM_DIRTY_GFN_F_DIRTY`: the kernel filled the entry.
const DIRTY: u32 = 1;
/// `KVM_DIRTY_GFN_F_RESET`: it was harvested.
const HARVESTED: u32 = 2;

/// `struct kvm_dirty_gfn`, as it is shared with the kernel.
#[repr(C)]
#[derive(Debug, Default)]
struct Entry {
    flags: AtomicU32,
    slot: AtomicU32,
    offset: AtomicU64,
}

const _: () = {
    assert!(size_of::<Entry>() == size_of::<kvm_dirty_gfn>());
    assert!(std::mem::offset_of!(Entry, slot) == std::mem::offset_of!(kvm_dirty_gfn, slot));
    assert!(std::mem::offset_of!(Entry, offset) == std::mem::offset_of!(kvm_dirty_gfn, offset));
};

/// A page that a vCPU wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirtyGfn {
    /// The slot, with the address space in the upper 16 bits.
    pub slot: u32,
    /// Which page of the slot.
    pub offset: u64,
}

/// Somebody else harvested or reset the ring: pages may be missing from what was harvested here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "entry {position} of the dirty ring has flags {flags:#x} after {harvested} were harvested and \
     not reset: somebody else harvests or resets it"
)]
pub struct OutOfStep {
    /// The entry, counted from the ring's start.
    pub position: u32,
    /// Its flags.
    pub flags: u32,
    /// Entries that were harvested here and not reset.
    pub harvested: u32,
}

/// The dirty ring of one vCPU, and how far it is harvested. To be made before the vCPU runs, once:
/// the kernel does not say where it stands.
#[derive(Debug)]
pub struct DirtyRing {
    // Keeps the vCPU's file, and so the machine, alive.
    memory: Mapping,
    cursor: Cursor,
}

impl DirtyRing {
    /// Maps the ring of a vCPU (at `KVM_DIRTY_LOG_PAGE_OFFSET` of its descriptor).
    ///
    /// # Errors
    /// As mmap(2); `EFAULT` if the vCPU's machine has no rings of that size.
    pub fn map(vcpu: &VcpuFd, entries: RingEntries) -> io::Result<Self> {
        // SAFETY: the descriptor is open as long as `vcpu` is borrowed.
        let file = unsafe { BorrowedFd::borrow_raw(vcpu.as_raw_fd()) };
        let offset = u64::from(KVM_DIRTY_LOG_PAGE_OFFSET) * PAGE_BYTES as u64;
        let memory = Mapping::shared_at(file, offset, entries.bytes(), true)?;
        // Also says, before anybody touches it, whether the ring is there: it would be SIGBUS.
        // SAFETY: the range is this mapping; populating it changes no content.
        unsafe { advise(memory.address(), memory.bytes(), libc::MADV_POPULATE_WRITE)? };
        Ok(Self { memory, cursor: Cursor::new(entries.get()) })
    }

    /// The next page that the vCPU wrote, if there is one. Entries are harvested in order, so this
    /// one stays the next until [`advance`](Self::advance).
    ///
    /// # Errors
    /// [`OutOfStep`].
    pub fn peek(&self) -> Result<Option<DirtyGfn>, OutOfStep> {
        self.cursor.peek(self.entries())
    }

    /// Harvests what [`peek`](Self::peek) showed.
    ///
    /// # Panics
    /// If it showed nothing.
    pub fn advance(&mut self) {
        // Not `entries`: that would borrow the cursor too.
        let entries = entries_of(&self.memory, self.cursor.size);
        self.cursor.advance(entries);
    }

    /// How many entries were harvested since [`note_reset`](Self::note_reset).
    #[must_use]
    pub const fn harvested(&self) -> u32 {
        self.cursor.harvested
    }

    /// Whether every entry of the ring was harvested since [`note_reset`](Self::note_reset). The kernel
    /// keeps some free for what a vCPU writes until it can stop; where it wrote more than that, as
    /// KVM's emulator does that runs many instructions before it looks (`WARN_ON_ONCE` in
    /// `kvm_dirty_ring_push`), entries were overwritten, and pages are lost.
    #[must_use]
    pub const fn is_overrun(&self) -> bool {
        self.cursor.harvested == self.cursor.size
    }

    /// Notes that all that was harvested has been reset.
    pub const fn note_reset(&mut self) {
        self.cursor.harvested = 0;
    }

    /// Looks `entries` entries ahead of the one that is harvested next for signs that somebody else
    /// harvests the ring too: dirty entries follow each other without a gap. About 1 ns each.
    ///
    /// # Errors
    /// [`OutOfStep`].
    pub fn check(&self, entries: u32) -> Result<(), OutOfStep> {
        self.cursor.check(self.entries(), entries)
    }

    fn entries(&self) -> &[Entry] {
        entries_of(&self.memory, self.cursor.size)
    }
}

fn entries_of(memory: &Mapping, size: u32) -> &[Entry] {
    // SAFETY: the mapping was made for so many entries, is page-aligned, and was populated, so the
    // kernel has pages there. Entries are atomic: the kernel may write them at any time.
    unsafe { slice::from_raw_parts(memory.as_ptr().cast(), size as usize) }
}

/// Protects the pages of all harvested entries of all rings of a machine again, and frees the
/// entries (`KVM_RESET_DIRTY_RINGS`); returns how many. To be done before the pages are read, if a
/// vCPU runs. A signal may end it early: call it again until all that was harvested is reset.
///
/// # Errors
/// `EINVAL`: the machine has no rings. `EIO`: another process's machine, or one that the kernel gave
/// up.
pub fn reset_dirty_rings(vm: &VmFd) -> io::Result<u32> {
    // SAFETY: the request takes no argument.
    unsafe { call(vm, IOC_RESET, 0) }
}

/// The harvester's place in a ring.
#[derive(Debug)]
struct Cursor {
    /// Entries of the ring, a power of two.
    size: u32,
    /// Harvested ever, wrapping.
    next: u32,
    /// Harvested and not reset; at most `size`.
    harvested: u32,
}

impl Cursor {
    const fn new(size: u32) -> Self {
        assert!(size.is_power_of_two());
        Self { size, next: 0, harvested: 0 }
    }

    const fn position(&self, ahead: u32) -> u32 {
        self.next.wrapping_add(ahead) & (self.size - 1)
    }

    fn peek(&self, entries: &[Entry]) -> Result<Option<DirtyGfn>, OutOfStep> {
        if self.harvested == self.size {
            // All the way round: the next one is our own, waiting for its reset.
            return Ok(None);
        }
        let position = self.position(0);
        let entry = &entries[position as usize];
        // Acquire: pairs with the kernel's Release of the flags (`kvm_dirty_gfn_set_dirtied`, after
        // smp_wmb), so that slot and offset are those of this dirtying.
        match entry.flags.load(Ordering::Acquire) {
            0 => Ok(None),
            DIRTY => Ok(Some(DirtyGfn {
                slot: entry.slot.load(Ordering::Relaxed),
                offset: entry.offset.load(Ordering::Relaxed),
            })),
            flags => Err(self.out_of_step(position, flags)),
        }
    }

    fn advance(&mut self, entries: &[Entry]) {
        let entry = &entries[self.position(0) as usize];
        // Release: pairs with the kernel's Acquire (`kvm_dirty_gfn_harvested`), which may then reuse
        // the entry: our loads of it come first.
        let before = entry.flags.swap(HARVESTED, Ordering::Release);
        assert!(before == DIRTY, "only a dirty entry is harvested, not one with flags {before:#x}");
        self.next = self.next.wrapping_add(1);
        self.harvested += 1;
    }

    fn check(&self, entries: &[Entry], span: u32) -> Result<(), OutOfStep> {
        let flags = |position: u32| entries[position as usize].flags.load(Ordering::Acquire);
        if self.harvested > 0 {
            // The kernel resets in order: our oldest goes first.
            let oldest = self.position(0).wrapping_sub(self.harvested) & (self.size - 1);
            match flags(oldest) {
                HARVESTED => {}
                other => return Err(self.out_of_step(oldest, other)),
            }
        }
        let free = self.size - self.harvested;
        for position in (1..free.min(span)).map(|ahead| self.position(ahead)) {
            let found = flags(position);
            // The kernel may have filled both meanwhile; Acquire above: the earlier one is then
            // seen too.
            if found != 0 && flags(self.position(0)) == 0 {
                return Err(self.out_of_step(position, found));
            }
        }
        Ok(())
    }

    const fn out_of_step(&self, position: u32, flags: u32) -> OutOfStep {
        OutOfStep { position, flags, harvested: self.harvested }
    }
}

#[cfg(test)]
#[path = "ring_tests.rs"]
mod tests;
