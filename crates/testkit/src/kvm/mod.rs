//! A tiny guest under KVM, whose memory the caller gives: it counts, fills and sums, so that a test
//! can see whether memory that is merged and broken beneath a guest stays what the guest made it, and
//! whether what it wrote is what KVM's dirty tracking says.
//!
//! Concurrency: one thread runs a CPU at a time, through `&mut self`; the memory itself may be
//! managed, merged and read by others meanwhile, which is the point.

mod cpu;
mod program;
mod tracking;

use std::ops::{Deref, DerefMut};
use std::path::Path;
use std::sync::Arc;

use bindery_sys::kvm::RingEntries;
use bindery_units::PAGE_BYTES;
use kvm_bindings::kvm_userspace_memory_region;
use kvm_ioctls::{Kvm, VcpuFd, VmFd};

pub use cpu::TinyCpu;
pub use tracking::Tracking;

/// Where the guest sees the caller's memory; the pages of code are at zero.
const DATA_ADDRESS: u64 = 1 << 20;

/// Why the tiny guest cannot run.
#[derive(Debug, thiserror::Error)]
pub enum TinyGuestError {
    /// There is no KVM here.
    #[error("/dev/kvm cannot be used ({0}); load the kvm module, or run where it is")]
    NoKvm(kvm_ioctls::Error),
    /// A call of KVM failed.
    #[error("KVM cannot {what}: {source}")]
    Kvm {
        /// What was being done.
        what: &'static str,
        /// What the kernel answered.
        source: kvm_ioctls::Error,
    },
    /// The guest did something else than end its routine.
    #[error("the guest left its program: {0}")]
    Strayed(String),
    /// The way of tracking is not there.
    #[error("KVM cannot track what the guest writes by {how}: {source}")]
    Tracking {
        /// What was asked for.
        how: String,
        /// What the kernel answered.
        source: std::io::Error,
    },
}

/// A guest, which is used as its [first CPU](TinyCpu) where it has one alone.
#[derive(Debug)]
pub struct TinyGuest {
    cpus: Vec<TinyCpu>,
    rings: Option<RingEntries>,
    vm: Arc<VmFd>,
}

/// Three pages that Intel's processors need for real mode, and one of page tables, between the code
/// and the data: so that data may reach over the usual place below 4 GiB.
const TASK_STATE_ADDRESS: usize = 0xD_0000;
const IDENTITY_MAP_ADDRESS: u64 = 0xE_0000;

/// The most CPUs whose code lies below that.
const CPUS_MAX: usize = 0xD0;

impl TinyGuest {
    /// Why no guest can run here, if so: for a test to say before it skips.
    #[must_use]
    pub fn unavailable() -> Option<String> {
        if !Path::new("/dev/kvm").exists() {
            return Some("this machine has no /dev/kvm".to_owned());
        }
        Kvm::new().err().map(|error| TinyGuestError::NoKvm(error).to_string())
    }

    /// A guest whose data memory is `bytes` at `memory`.
    ///
    /// # Safety
    /// The range must be mapped, readable and writable until the guest is dropped, and begin and
    /// end at a page. The guest writes to it behind the compiler's back: nobody may hold a
    /// reference into it while the guest runs.
    ///
    /// # Errors
    /// [`TinyGuestError`] without KVM, or when the kernel refuses.
    ///
    /// # Panics
    /// When the range is not whole pages.
    pub unsafe fn new(memory: *mut u8, bytes: usize) -> Result<Self, TinyGuestError> {
        assert!(
            memory.addr().is_multiple_of(PAGE_BYTES) && bytes.is_multiple_of(PAGE_BYTES),
            "a guest's memory is whole pages"
        );
        // SAFETY: the caller's contract.
        unsafe { Self::tracked(memory, &[bytes / PAGE_BYTES], Tracking::None) }
    }

    /// The same, in slots of so many pages each, one behind the other, whose writes KVM tracks. Slots
    /// have the numbers 1 and up; those of code, 0 and behind the others, are not tracked.
    ///
    /// # Safety
    /// As for [`new`](Self::new).
    ///
    /// # Errors
    /// [`TinyGuestError`] without KVM, without the way of tracking, or when the kernel refuses.
    pub unsafe fn tracked(
        memory: *mut u8,
        slots_pages: &[usize],
        tracking: Tracking,
    ) -> Result<Self, TinyGuestError> {
        // SAFETY: the caller's contract.
        unsafe { Self::with_cpus(memory, slots_pages, tracking, 1) }
    }

    /// The same with so many CPUs, which run independently of each other.
    ///
    /// # Safety
    /// As for [`new`](Self::new).
    ///
    /// # Errors
    /// As [`tracked`](Self::tracked).
    ///
    /// # Panics
    /// Without a CPU, or with more than have room for their code.
    pub unsafe fn with_cpus(
        memory: *mut u8,
        slots_pages: &[usize],
        tracking: Tracking,
        cpus: usize,
    ) -> Result<Self, TinyGuestError> {
        assert!((1..=CPUS_MAX).contains(&cpus), "a guest has 1 to {CPUS_MAX} CPUs, not {cpus}");
        let kvm = Kvm::new().map_err(TinyGuestError::NoKvm)?;
        let vm = kvm.create_vm().map_err(failing("make a machine"))?;
        vm.set_identity_map_address(IDENTITY_MAP_ADDRESS).map_err(failing("place page tables"))?;
        vm.set_tss_address(TASK_STATE_ADDRESS).map_err(failing("place the task state"))?;
        let rings = tracking.enable(&vm)?;
        let pages = slots_pages.iter().sum();
        let make = |number| TinyCpu::new(&vm, number, pages, rings.is_some());
        let cpus = (0..cpus).map(make).collect::<Result<Vec<_>, _>>()?;
        let mut slots: Vec<_> = cpus.iter().map(TinyCpu::code_slot).collect();
        let mut offset = 0;
        for (at, slot_pages) in slots_pages.iter().enumerate() {
            let bytes = slot_pages * PAGE_BYTES;
            let data = kvm_userspace_memory_region {
                flags: tracking.slot_flags(),
                guest_phys_addr: DATA_ADDRESS + offset as u64,
                memory_size: bytes as u64,
                userspace_addr: (memory.addr() + offset) as u64,
                ..kvm_userspace_memory_region::default()
            };
            slots.insert(1 + at, data);
            offset += bytes;
        }
        for (slot, region) in (0..).zip(slots) {
            // SAFETY: the ranges must stay valid while a CPU of the machine runs. Each CPU owns its
            // code; the data is the caller's promise.
            unsafe { vm.set_user_memory_region(kvm_userspace_memory_region { slot, ..region }) }
                .map_err(failing("give it memory"))?;
        }
        Ok(Self { cpus, rings, vm: Arc::new(vm) })
    }

    /// Its CPUs, each for one thread.
    pub fn cpus(&mut self) -> &mut [TinyCpu] {
        &mut self.cpus
    }

    /// Its CPUs as KVM has them, for whoever maps their dirty rings.
    pub fn vcpus(&self) -> impl Iterator<Item = &VcpuFd> {
        self.cpus.iter().map(TinyCpu::vcpu)
    }

    /// The machine, for whoever tracks what it writes.
    #[must_use]
    pub fn vm(&self) -> Arc<VmFd> {
        Arc::clone(&self.vm)
    }

    /// The size of its CPUs' dirty rings, if it has any.
    #[must_use]
    pub const fn rings(&self) -> Option<RingEntries> {
        self.rings
    }
}

impl Deref for TinyGuest {
    type Target = TinyCpu;

    fn deref(&self) -> &TinyCpu {
        &self.cpus[0]
    }
}

impl DerefMut for TinyGuest {
    fn deref_mut(&mut self) -> &mut TinyCpu {
        &mut self.cpus[0]
    }
}

fn failing(what: &'static str) -> impl FnOnce(kvm_ioctls::Error) -> TinyGuestError {
    move |source| TinyGuestError::Kvm { what, source }
}
