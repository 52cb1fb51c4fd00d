//! One virtual CPU of a guest, and what it can be made to do.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use bindery_sys::kvm::EXIT_DIRTY_RING_FULL;
use bindery_units::PAGE_BYTES;
use kvm_bindings::{kvm_regs, kvm_userspace_memory_region};
use kvm_ioctls::{VcpuExit, VcpuFd, VmFd};

use super::program::{self, DONE_PORT, LIST_AT, LIST_MAX, Routine};
use super::{DATA_ADDRESS, TinyGuestError, failing};

/// Real mode's reach from one segment base, in pages.
const WINDOW_PAGES: usize = 16;

/// Entries of a dirty ring that the kernel keeps for what a CPU writes before it stops
/// (`KVM_DIRTY_RING_RSVD_ENTRIES`). Where real mode is emulated, a run writes as much as it likes
/// before it looks at the ring, and over the end of it: so runs are kept shorter than that.
const RING_RESERVE: usize = 64;

/// A virtual CPU of a [`TinyGuest`](super::TinyGuest).
#[derive(Debug)]
pub struct TinyCpu {
    // Before its code: nothing runs it any more when that is freed.
    vcpu: VcpuFd,
    code: Box<CodePage>,
    /// Its number in the guest, which is also the place of its page of code.
    number: usize,
    /// Pages of the guest's data.
    pages: usize,
    has_ring: bool,
}

#[derive(Debug)]
#[repr(align(4096))]
struct CodePage([u8; PAGE_BYTES]);

impl TinyCpu {
    pub(super) fn new(
        vm: &VmFd,
        number: usize,
        pages: usize,
        has_ring: bool,
    ) -> Result<Self, TinyGuestError> {
        let mut code = Box::new(CodePage([0; PAGE_BYTES]));
        program::install(&mut code.0);
        let vcpu = vm.create_vcpu(number as u64).map_err(failing("make a CPU"))?;
        Ok(Self { vcpu, code, number, pages, has_ring })
    }

    /// Where the guest sees its page of code.
    const fn code_address(&self) -> usize {
        self.number * PAGE_BYTES
    }

    /// Its page of code as a slot, without a number.
    pub(super) fn code_slot(&self) -> kvm_userspace_memory_region {
        kvm_userspace_memory_region {
            guest_phys_addr: self.code_address() as u64,
            memory_size: PAGE_BYTES as u64,
            userspace_addr: (&raw const *self.code).addr() as u64,
            ..kvm_userspace_memory_region::default()
        }
    }

    /// As KVM has it, for whoever maps its dirty ring.
    #[must_use]
    pub const fn vcpu(&self) -> &VcpuFd {
        &self.vcpu
    }

    /// The number of pages of the guest's data memory.
    #[must_use]
    pub const fn pages(&self) -> usize {
        self.pages
    }

    /// Adds one to a 32-bit word of each page of `pages`, in order: the first word for the first CPU,
    /// the second for the second. When the dirty ring is full, `make_room` is called, and the guest
    /// goes on. Only the first 4095 MiB can be reached.
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
        let at_once = if self.has_ring { RING_RESERVE / 2 } else { LIST_MAX };
        self.touch_in_runs(at_once, pages, make_room)
    }

    /// The same, in runs of at most `at_once` pages and what the code has room for. With a dirty ring,
    /// and where real mode is emulated, a run longer than the kernel's reserve overruns it, which KVM
    /// warns of in the kernel's log.
    ///
    /// # Errors
    /// As [`touch`](Self::touch).
    ///
    /// # Panics
    /// As [`touch`](Self::touch).
    pub fn touch_in_runs(
        &mut self,
        at_once: usize,
        pages: &[usize],
        make_room: &mut dyn FnMut(),
    ) -> Result<(), TinyGuestError> {
        for some in pages.chunks(at_once.min(LIST_MAX)) {
            let list = &mut self.code.0[LIST_AT..];
            for (entry, page) in list.as_chunks_mut::<4>().0.iter_mut().zip(some) {
                assert!(*page < self.pages, "the guest has {} pages", self.pages);
                let offset = u32::try_from(page * PAGE_BYTES + DATA_ADDRESS as usize);
                let offset = offset.expect("the guest reaches 4 GiB") - DATA_ADDRESS as u32;
                *entry = (offset + 4 * self.number as u32).to_le_bytes();
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
        let code = self.code_address();
        for segment in [&mut segments.cs, &mut segments.ds] {
            (segment.base, segment.selector) = (code as u64, (code >> 4) as u16);
        }
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
