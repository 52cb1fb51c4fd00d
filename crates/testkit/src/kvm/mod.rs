//! A tiny guest under KVM, whose memory the caller gives: it counts, fills and sums, so that a test
//! can see whether memory that is merged and broken beneath a guest stays what the guest made it.
//!
//! Concurrency: one thread runs the guest at a time, through `&mut self`; the memory itself may be
//! managed, merged and read by others meanwhile, which is the point.

mod program;

use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use bindery_units::PAGE_BYTES;
use kvm_bindings::{kvm_regs, kvm_userspace_memory_region};
use kvm_ioctls::{Kvm, VcpuExit, VcpuFd, VmFd};

use program::{DONE_PORT, Routine};

/// Where the guest sees the caller's memory; the page of code is at zero.
const DATA_ADDRESS: u64 = 1 << 20;

/// Real mode's reach from one segment base, in pages.
const WINDOW_PAGES: usize = 16;

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
}

/// A guest with one virtual CPU.
#[derive(Debug)]
pub struct TinyGuest {
    vcpu: VcpuFd,
    pages: usize,
    // Fields are dropped in this order: KVM lets go of the code before it is freed.
    _vm: VmFd,
    _code: Box<CodePage>,
}

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
        let kvm = Kvm::new().map_err(TinyGuestError::NoKvm)?;
        let vm = kvm.create_vm().map_err(failing("make a machine"))?;
        // Intel's processors run real mode in a task of their own and need three pages for it.
        vm.set_tss_address(0xFFFB_D000).map_err(failing("place the task state"))?;
        let mut code = Box::new(CodePage([0; PAGE_BYTES]));
        program::install(&mut code.0);
        let slots = [
            (0, std::ptr::from_ref(&*code).addr(), PAGE_BYTES),
            (DATA_ADDRESS, memory.addr(), bytes),
        ];
        for (slot, (guest_address, host_address, bytes)) in slots.into_iter().enumerate() {
            let region = kvm_userspace_memory_region {
                slot: slot as u32,
                flags: 0,
                guest_phys_addr: guest_address,
                memory_size: bytes as u64,
                userspace_addr: host_address as u64,
            };
            // SAFETY: the ranges must stay valid while the machine lives. The code is owned by the
            // guest and freed after the machine; the data is the caller's promise.
            unsafe { vm.set_user_memory_region(region) }.map_err(failing("give it memory"))?;
        }
        let vcpu = vm.create_vcpu(0).map_err(failing("make a CPU"))?;
        Ok(Self { vcpu, pages: bytes / PAGE_BYTES, _vm: vm, _code: code })
    }

    /// The number of pages of its data memory.
    #[must_use]
    pub const fn pages(&self) -> usize {
        self.pages
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
        mut registers: kvm_regs,
    ) -> Result<u64, TinyGuestError> {
        let mut segments = self.vcpu.get_sregs().map_err(failing("read its segments"))?;
        (segments.cs.base, segments.cs.selector) = (0, 0);
        segments.es.base = DATA_ADDRESS + (first_page * PAGE_BYTES) as u64;
        self.vcpu.set_sregs(&segments).map_err(failing("set its segments"))?;
        registers.rip = routine.entry();
        // The bit that is always set.
        registers.rflags = 2;
        self.vcpu.set_regs(&registers).map_err(failing("set its registers"))?;
        loop {
            match self.vcpu.run() {
                Ok(VcpuExit::IoOut(DONE_PORT, _)) => break,
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
