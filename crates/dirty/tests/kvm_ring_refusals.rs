//! Dirty rings that are not as they should be. What no kernel at hand does is done by hand: a ring is memory
//! that the kernel shares with whoever maps the vCPU.
#![cfg(not(loom))]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use bindery_dirty::marks::Marks;
use bindery_dirty::source::{Source, SourceError};
use bindery_sys::kvm::reset_dirty_rings;
use bindery_sys::mapping::Mapping;
use bindery_testkit::kvm::Tracking;
use bindery_testkit::skipped;
use bindery_units::{PAGE_BYTES, PageIndex, PageRange};
use common::{Guest, Oracle};
use kvm_bindings::KVM_DIRTY_LOG_PAGE_OFFSET;
use kvm_ioctls::VcpuFd;

const ENTRIES: u32 = 1024;
const PAGES: u32 = 2000;

/// `KVM_DIRTY_GFN_F_DIRTY` and `KVM_DIRTY_GFN_F_RESET`.
const DIRTY: u32 = 1;
const HARVESTED: u32 = 2;

/// Two vCPUs, a slot of [`PAGES`].
fn start() -> Option<Guest> {
    Guest::with_cpus(&[PAGES as usize], 0, Tracking::Ring { entries: ENTRIES }, 2)
}

/// `struct kvm_dirty_gfn`.
#[repr(C)]
struct Entry {
    flags: AtomicU32,
    slot: AtomicU32,
    offset: AtomicU64,
}

/// A vCPU's ring, to be written to.
struct ByHand(Mapping);

impl ByHand {
    fn of(vcpu: &VcpuFd) -> Self {
        // SAFETY: the descriptor is open as long as it is borrowed.
        let file = unsafe { BorrowedFd::borrow_raw(vcpu.as_raw_fd()) };
        let offset = u64::from(KVM_DIRTY_LOG_PAGE_OFFSET) * PAGE_BYTES as u64;
        let bytes = ENTRIES as usize * size_of::<Entry>();
        Self(Mapping::shared_at(file, offset, bytes, true).unwrap())
    }

    fn entry(&self, at: u32) -> &Entry {
        assert!(at < ENTRIES);
        // SAFETY: the mapping has so many entries, of atomics, and the kernel has pages there.
        unsafe { &*self.0.as_ptr().cast::<Entry>().add(at as usize) }
    }

    /// As the kernel fills an entry.
    fn fill(&self, at: u32, offset: u64) {
        self.entry(at).slot.store(1, Ordering::Relaxed);
        self.entry(at).offset.store(offset, Ordering::Relaxed);
        self.entry(at).flags.store(DIRTY, Ordering::Release);
    }

    fn set_flags(&self, at: u32, flags: u32) {
        self.entry(at).flags.store(flags, Ordering::Release);
    }
}

/// Marks that go on, when one page is marked, with something else.
struct When<'a>(&'a Oracle, u32, &'a (dyn Fn() + Sync));

impl Marks for When<'_> {
    fn mark(&self, page: PageIndex) {
        self.0.mark(page);
        if page.0 == self.1 {
            self.2();
        }
    }

    fn mark_range(&self, _: PageRange) {
        unreachable!("rings have single pages")
    }

    fn mark_words(&self, _: usize, _: &[u64]) {
        unreachable!("rings have single pages")
    }
}

/// Has the first vCPU write pages 1, 2 and 3, and the second 11 and 12.
fn touch_some(guest: &mut Guest) {
    for (cpu, pages) in guest.tiny.cpus().iter_mut().zip([&[1, 2, 3][..], &[11, 12]]) {
        cpu.touch(pages, &mut || panic!("full")).unwrap();
    }
}

#[test]
fn a_ring_that_is_dirty_all_round_is_an_error_with_numbers() {
    let Some(mut guest) = start() else { return };
    let mut source = guest.rings();
    let second = ByHand::of(guest.tiny.vcpus().nth(1).unwrap());
    guest.tiny.cpus()[0].touch(&[1999], &mut || panic!("full")).unwrap();
    (0..ENTRIES).for_each(|at| second.fill(at, u64::from(at) + 7));
    let oracle = Oracle::new(PAGES);
    let error = source.collect(&oracle).unwrap_err();
    assert!(matches!(error, SourceError::RingOverrun { vcpu: 1, entries: ENTRIES }), "{error}");
    let expected = "all 1024 entries of vCPU 1's dirty ring were dirty: the kernel ran over its end, and \
                    pages are lost; take all as written, and give the guest a larger ring or the bitmap";
    assert_eq!(error.to_string(), expected);
    // What is known is marked, and watched again.
    assert_eq!(oracle.take(), (7..ENTRIES + 7).chain([1999]).collect());
    assert_eq!(reset_dirty_rings(&guest.tiny.vm()).unwrap(), 0);
    // Nobody knows where the kernel goes on in that ring: it stays an error. The other one is read.
    guest.tiny.cpus()[0].touch(&[5], &mut || panic!("full")).unwrap();
    assert_eq!(source.collect(&oracle).unwrap_err().to_string(), expected);
    assert_eq!(source.make_room(1, &oracle).unwrap_err().to_string(), expected);
    assert_eq!(source.make_room(0, &oracle).unwrap_err().to_string(), expected);
    assert_eq!(oracle.take(), [5].into());
}

#[test]
fn one_entry_less_is_no_error() {
    let Some(guest) = start() else { return };
    let mut source = guest.rings();
    let second = ByHand::of(guest.tiny.vcpus().nth(1).unwrap());
    (0..ENTRIES - 1).for_each(|at| second.fill(at, at.into()));
    let oracle = Oracle::new(PAGES);
    assert_eq!(source.collect(&oracle).unwrap().pages, u64::from(ENTRIES) - 1);
    assert_eq!(oracle.take(), (0..ENTRIES - 1).collect());
}

#[test]
fn flags_that_no_kernel_sets_are_an_error_with_numbers() {
    let Some(mut guest) = start() else { return };
    let mut source = guest.rings();
    let second = ByHand::of(guest.tiny.vcpus().nth(1).unwrap());
    touch_some(&mut guest);
    second.set_flags(1, DIRTY | HARVESTED);
    let oracle = Oracle::new(PAGES);
    let expected = "vCPU 1: entry 1 of the dirty ring has flags 0x3 after 1 were harvested and not reset: \
                    somebody else harvests or resets it; pages may be lost, so take all as written";
    assert_eq!(source.collect(&oracle).unwrap_err().to_string(), expected);
    // All of the other, and of this what came before.
    assert_eq!(oracle.take(), [1, 2, 3, 11].into());
}

#[test]
fn an_entry_of_no_page_is_an_error_with_numbers() {
    let Some(mut guest) = start() else { return };
    let mut source = guest.rings();
    let second = ByHand::of(guest.tiny.vcpus().nth(1).unwrap());
    touch_some(&mut guest);
    second.fill(2, u64::MAX);
    let oracle = Oracle::new(PAGES);
    for _ in 0..2 {
        let expected = "the dirty ring of vCPU 1 names page 18446744073709551615 of slot 0x1, which has \
                        2000 pages";
        assert_eq!(source.collect(&oracle).unwrap_err().to_string(), expected);
    }
    assert_eq!(oracle.take(), [1, 2, 3, 11, 12].into());
}

/// Somebody resets the rings, after the first was harvested here and before the second is.
#[test]
fn rings_that_were_reset_meanwhile_are_an_error_with_numbers() {
    let Some(mut guest) = start() else { return };
    let (vm, mut source) = (guest.tiny.vm(), guest.rings());
    touch_some(&mut guest);
    let oracle = Oracle::new(PAGES);
    let reset = || assert_eq!(reset_dirty_rings(&vm).unwrap(), 3);
    let error = source.collect(&When(&oracle, 11, &reset)).unwrap_err();
    let expected = "2 entries of the dirty rings were reset, but 5 were harvested here: somebody else \
                    harvests or resets them; pages may be lost, so take all as written";
    assert_eq!(error.to_string(), expected);
    assert_eq!(oracle.take(), [1, 2, 3, 11, 12].into());
    // It goes on from there.
    touch_some(&mut guest);
    assert_eq!(source.collect(&oracle).unwrap().pages, 5);
}

/// Somebody harvests one more page of the first ring, which is lost to whoever asks here.
#[test]
fn entries_that_were_harvested_meanwhile_are_an_error_with_numbers() {
    let Some(mut guest) = start() else { return };
    let mut source = guest.rings();
    let first = ByHand::of(guest.tiny.vcpu());
    touch_some(&mut guest);
    let oracle = Oracle::new(PAGES);
    let harvest = || {
        first.fill(3, 77);
        first.set_flags(3, HARVESTED);
    };
    let error = source.collect(&When(&oracle, 11, &harvest)).unwrap_err();
    assert!(matches!(error, SourceError::RingsReset { harvested: 5, reset: 6 }), "{error}");
    assert!(!oracle.take().contains(&77));
}

#[test]
fn a_machine_of_another_process_is_gone() {
    let Some(mut guest) = start() else { return };
    let mut source = guest.rings();
    touch_some(&mut guest);
    let oracle = Oracle::new(PAGES);
    let expected = "the guest is gone: KVM_RESET_DIRTY_RINGS on the machine answers Input/output error (os \
                    error 5); what was marked before is all that is known";
    assert!(common::holds_in_a_child(|| {
        let failed = source.collect(&oracle).is_err_and(|error| error.to_string() == expected);
        failed && oracle.take() == [1, 2, 3, 11, 12].into()
    }));
}

/// A real one, where real mode is emulated: a run of many instructions writes more pages than the kernel
/// keeps room for, unless it is interrupted in time. To be asked for (`--ignored`), since the kernel warns of
/// it in its log, once.
#[test]
#[ignore = "has the kernel warn (`WARN_ON_ONCE` in kvm_dirty_ring_push)"]
fn a_ring_that_the_kernel_runs_over_is_an_error_with_numbers() {
    const TRIES: usize = 200;
    let panics = std::fs::read_to_string("/proc/sys/kernel/panic_on_warn").unwrap_or_default();
    if panics.trim() != "0" {
        return skipped!("kernel.panic_on_warn is {panics}");
    }
    for _ in 0..TRIES {
        // The smallest: a page of entries.
        let Some(guest) = Guest::start(&[5000], 0, Tracking::Ring { entries: 256 }) else { return };
        let Some((error, marked)) = write_over(guest) else { continue };
        assert!(matches!(error, SourceError::RingOverrun { vcpu: 0, entries: 256 }), "{error:?}");
        return println!("{marked} of {OVER} pages are known: {error}");
    }
    skipped!("in {TRIES} tries no ring was run over: this machine does not emulate real mode");
}

/// As many pages as make two rings overflow.
const OVER: usize = 511;

/// Has a guest write [`OVER`] pages in one run; returns why they could not be collected, and how many were.
fn write_over(mut guest: Guest) -> Option<(SourceError, usize)> {
    let (report, reported) = mpsc::channel();
    // A guest whose ring is broken would leave again and again: its thread ends with the test.
    std::thread::spawn(move || {
        let mut source = guest.rings();
        let oracle = Oracle::new(5000);
        let pages: Vec<usize> = (0..OVER).map(|at| at * 9).collect();
        let mut make_room = || {
            if let Err(error) = source.make_room(0, &oracle) {
                report.send(Some((error, oracle.take().len()))).unwrap();
                loop {
                    std::thread::park();
                }
            }
        };
        guest.tiny.touch_in_runs(OVER, &pages, &mut make_room).unwrap();
        let failed = source.collect(&oracle).err();
        let marked = oracle.take().len();
        assert!(failed.is_some() || marked == OVER, "{marked} pages, and no error");
        report.send(failed.map(|error| (error, marked))).unwrap();
    });
    reported.recv_timeout(Duration::from_secs(20)).unwrap()
}
