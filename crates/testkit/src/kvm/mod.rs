//! A tiny guest under KVM, whose memory the caller gives: it counts, fills and sums, so that a test
//! can see whether memory that is merged and broken beneath a guest stays what the guest made it, and
//! whether what it wrote is what KVM's dirty tracking says.
//!
//! Concurrency: one thread runs the guest at a time, through `&mut self`; the memory itself may be
//! managed, merged and read by others meanwhile, which is the point.

mod program;
mod tracking;

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bindery_sys::kvm::{EXIT_DIRTY_RING_FULL, RingEntries};
use bindery_units::PAGE_BYTES;
use kvm_bindings::{kvm_regs, kvm_userspace_memory_region};
use kvm_ioctls::{Kvm, VcpuExit, VcpuFd, VmFd};

pub use tracking::Tracking;

use program::{DONE_PORT, LIST_AT, LIST_MAX, Routine};

/// Where the guest sees the caller's memory; the page of code is at zero.
const DATA_ADDRESS: u64 = 1 << 20;

/// Real mode's reach from one segment base, in pages.
const WINDOW_PAGES: usize = 16;

/// Entries of a dirty ring that the kernel keeps for what a CPU writes before it stops
/// (`KVM_DIRTY_RING_RSVD_ENTRIES`). Where real mode is emulated, a run writes as much as it likes
/// before it looks at the ring, and over the end of it: so runs are kept shorter than that.
const RING_RESERVE: usize = 64;

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

/// A guest with one virtual CPU.
#[derive(Debug)]
pub struct TinyGuest {
    vcpu: VcpuFd,
    pages: usize,
    rings: Option<RingEntries>,
    // Fields are dropped in this order: KVM lets go of the code before it is freed.
    vm: Arc<VmFd>,
    code: Box<CodePage>,
}

/// Three pages that Intel's processors need for real mode, and one of page tables, between the code
/// and the data: so that data may reach over the usual place below 4 GiB.
const TASK_STATE_ADDRESS: usize = 0xD_0000;
const IDENTITY_MAP_ADDRESS: u64 = 0xE_0000;

#[derive(Debug)]
#[repr(align(4096))]
struct CodePage([u8; PAGE_BYTES]);

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
    /// have the numbers 1 and up; the one of the code, 0, is not tracked.
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
        let kvm = Kvm::new().map_err(TinyGuestError::NoKvm)?;
        let vm = kvm.create_vm().map_err(failing("make a machine"))?;
        vm.set_identity_map_address(IDENTITY_MAP_ADDRESS).map_err(failing("place page tables"))?;
        vm.set_tss_address(TASK_STATE_ADDRESS).map_err(failing("place the task state"))?;
        let rings = tracking.enable(&vm)?;
        let mut code = Box::new(CodePage([0; PAGE_BYTES]));
        program::install(&mut code.0);
        let mut pages = 0;
        let mut slots = vec![(0, (&raw mut *code).addr(), PAGE_BYTES, 0)];
        for &slot_pages in slots_pages {
            let offset = pages * PAGE_BYTES;
            let address = DATA_ADDRESS + offset as u64;
            let flags = tracking.slot_flags();
            slots.push((address, memory.addr() + offset, slot_pages * PAGE_BYTES, flags));
            pages += slot_pages;
        }
        for (slot, (guest_address, host_address, bytes, flags)) in slots.into_iter().enumerate() {
            let region = kvm_userspace_memory_region {
                slot: slot as u32,
                flags,
                guest_phys_addr: guest_address,
                memory_size: bytes as u64,
                userspace_addr: host_address as u64,
            };
            // SAFETY: the ranges must stay valid while the machine lives. The code is owned by the
            // guest and freed after the machine; the data is the caller's promise.
            unsafe { vm.set_user_memory_region(region) }.map_err(failing("give it memory"))?;
        }
        let vcpu = vm.create_vcpu(0).map_err(failing("make a CPU"))?;
        Ok(Self { vcpu, pages, rings, vm: Arc::new(vm), code })
    }

    /// The number of pages of its data memory.
    #[must_use]
    pub const fn pages(&self) -> usize {
        self.pages
    }

    /// The machine, for whoever tracks what it writes.
    #[must_use]
    pub fn vm(&self) -> Arc<VmFd> {
        Arc::clone(&self.vm)
    }

    /// Its CPU, for whoever maps its dirty ring.
    #[must_use]
    pub const fn vcpu(&self) -> &VcpuFd {
        &self.vcpu
    }

    /// The size of its dirty ring, if it has one.
    #[must_use]
    pub const fn rings(&self) -> Option<RingEntries> {
        self.rings
    }

    /// Adds one to the first 32-bit word of each page of `pages`, in order. When the dirty ring is
    /// full, `make_room` is called, and the guest goes on. Only the first 4095 MiB can be reached.
    ///
    /// # Errors
    /// [`TinyGuestError`] when the guest does not get to its end.
    ///
    /// # Panics
    /// For a page that the guest has not, or cannot reach.
    pub fn touch(
        &mut self,
        pages: &[usize],
        make_room: &mut dyn FnMut(),
    ) -> Result<(), TinyGuestError> {
        let at_once = if self.rings.is_some() { RING_RESERVE / 2 } else { LIST_MAX };
        for some in pages.chunks(at_once) {
            let list = &mut self.code.0[LIST_AT..];
            for (entry, page) in list.as_chunks_mut::<4>().0.iter_mut().zip(some) {
                assert!(*page < self.pages, "the guest has {} pages", self.pages);
                let offset = u32::try_from(page * PAGE_BYTES + DATA_ADDRESS as usize);
                let offset = offset.expect("the guest reaches 4 GiB") - DATA_ADDRESS as u32;
                *entry = offset.to_le_bytes();
            }
            let registers =
                kvm_regs { rsi: LIST_AT as u64, rcx: some.len() as u64, ..kvm_regs::default() };
            self.call_making_room(Routine::Touch, 0, registers, Some(&mut *make_room))?;
        }
        Ok(())
    }

    /// Stores `word` into every word of the pages.
    ///
    /// # Errors
    /// [`TinyGuestError`] when the guest does not get to its end.
    pub fn fill(&mut self, pages: Range<usize>, word: u32) -> Result<(), TinyGuestError> {
        for window in self.windows(pages) {
            let words = window.len() * (PAGE_BYTES / 4);
            let registers = kvm_regs { rax: word.into(), rcx: words as u64, ..kvm_regs::default() };
            self.call(Routine::Fill, window.start, registers)?;
        }
        Ok(())
    }

    /// Adds one, `rounds` times over, to the 32-bit word at `offset` of each page.
    ///
    /// # Errors
    /// [`TinyGuestError`] when the guest does not get to its end.
    ///
    /// # Panics
    /// When the word is not inside its page.
    pub fn increment(
        &mut self,
        pages: Range<usize>,
        offset: u16,
        rounds: u16,
    ) -> Result<(), TinyGuestError> {
        assert!(usize::from(offset) + 4 <= PAGE_BYTES, "the word lies inside its page");
        if rounds == 0 {
            return Ok(());
        }
        for window in self.windows(pages) {
            let registers = kvm_regs {
                rsi: window.len() as u64,
                rbp: offset.into(),
                rdx: rounds.into(),
                ..kvm_regs::default()
            };
            self.call(Routine::Increment, window.start, registers)?;
        }
        Ok(())
    }

    /// The sum of a page's 32-bit words, modulo 2³², as the guest reads them.
    ///
    /// # Errors
    /// [`TinyGuestError`] when the guest does not get to its end.
    pub fn sum(&mut self, page: usize) -> Result<u32, TinyGuestError> {
        let window = self.windows(page..page + 1).remove(0);
        let registers = kvm_regs { rcx: PAGE_BYTES as u64 / 4, ..kvm_regs::default() };
        self.call(Routine::Sum, window.start, registers).map(|rax| rax as u32)
    }

    /// Increments the word at `offset` of every page, over and over, until `stop`; returns how
    /// often each was incremented.
    ///
    /// # Errors
    /// [`TinyGuestError`] when the guest does not get to its end.
    pub fn run_until(&mut self, stop: &AtomicBool, offset: u16) -> Result<u32, TinyGuestError> {
        const ROUNDS: u16 = 8;
        let mut increments = 0;
        // Relaxed: the flag carries no data; who stops the guest joins its thread before looking.
        while !stop.load(Ordering::Relaxed) {
            self.increment(0..self.pages, offset, ROUNDS)?;
            increments += u32::from(ROUNDS);
        }
        Ok(increments)
    }

    fn windows(&self, pages: Range<usize>) -> Vec<Range<usize>> {
        assert!(pages.end <= self.pages, "the guest has {} pages", self.pages);
        let end = pages.end;
        pages.step_by(WINDOW_PAGES).map(|from| from..end.min(from + WINDOW_PAGES)).collect()
    }

    /// Runs a routine on the window that starts at a page; returns RAX.
    fn call(
        &mut self,
        routine: Routine,
        first_page: usize,
        registers: kvm_regs,
    ) -> Result<u64, TinyGuestError> {
        self.call_making_room(routine, first_page, registers, None)
    }

    /// The same; when the dirty ring is full, `make_room` is called.
    fn call_making_room(
        &mut self,
        routine: Routine,
        first_page: usize,
        mut registers: kvm_regs,
        mut make_room: Option<&mut dyn FnMut()>,
    ) -> Result<u64, TinyGuestError> {
        let mut segments = self.vcpu.get_sregs().map_err(failing("read its segments"))?;
        (segments.cs.base, segments.cs.selector) = (0, 0);
        segments.es.base = DATA_ADDRESS + (first_page * PAGE_BYTES) as u64;
        (segments.es.limit, segments.es.g) = match routine {
            Routine::Touch => (u32::MAX, 1),
            _ => (0xFFFF, 0),
        };
        self.vcpu.set_sregs(&segments).map_err(failing("set its segments"))?;
        registers.rip = routine.entry();
        // The bit that is always set.
        registers.rflags = 2;
        self.vcpu.set_regs(&registers).map_err(failing("set its registers"))?;
        loop {
            match self.vcpu.run() {
                Ok(VcpuExit::IoOut(DONE_PORT, _)) => break,
                Ok(VcpuExit::Unsupported(EXIT_DIRTY_RING_FULL)) => match &mut make_room {
                    Some(make_room) => make_room(),
                    None => return Err(TinyGuestError::Strayed("its ring is full".to_owned())),
                },
                Ok(exit) => return Err(TinyGuestError::Strayed(format!("{exit:?}"))),
                // A signal came, or the kernel asks for another try.
                Err(error) if [libc::EINTR, libc::EAGAIN].contains(&error.errno()) => {}
                Err(error) => return Err(failing("run it")(error)),
            }
        }
        Ok(self.vcpu.get_regs().map_err(failing("read its registers"))?.rax)
    }
}

fn failing(what: &'static str) -> impl FnOnce(kvm_ioctls::Error) -> TinyGuestError {
    move |source| TinyGuestError::Kvm { what, source }
}
