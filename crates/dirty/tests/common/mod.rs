//! What all tests of sources need: a set that checks what it is told, and a guest with its memory.
#![allow(dead_code, reason = "each test uses some of it")]

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use bindery_dirty::marks::{Drain, Marks};
use bindery_dirty::source::{KvmBitmap, KvmRings, MemorySlot, Protection, Source};
use bindery_sys::mapping::Mapping;
use bindery_testkit::kvm::{TinyGuest, Tracking};
use bindery_testkit::skipped;
use bindery_units::{PAGE_BYTES, PageIndex, PageRange};
use kvm_ioctls::VmFd;

/// A set of pages, slow and plain.
#[derive(Debug, Default)]
pub(crate) struct Oracle {
    pages: u32,
    marked: Mutex<BTreeSet<u32>>,
}

impl Oracle {
    pub(crate) fn new(pages: u32) -> Self {
        Self { pages, marked: Mutex::default() }
    }

    pub(crate) fn take(&self) -> BTreeSet<u32> {
        std::mem::take(&mut *self.marked.lock().unwrap())
    }
}

impl Marks for Oracle {
    fn mark(&self, page: PageIndex) {
        assert!(page.0 < self.pages, "page {} of {}", page.0, self.pages);
        self.marked.lock().unwrap().insert(page.0);
    }

    fn mark_range(&self, pages: PageRange) {
        pages.pages().for_each(|page| self.mark(page));
    }

    fn mark_words(&self, first_word: usize, words: &[u64]) {
        assert!(first_word + words.len() <= (self.pages as usize).div_ceil(64));
        for (word, first) in words.iter().zip((first_word as u32 * 64..).step_by(64)) {
            (0..64)
                .filter(|bit| word >> bit & 1 == 1)
                .for_each(|bit| self.mark(PageIndex(first + bit)));
        }
    }
}

impl Drain for Oracle {
    fn drain(&self, into: &dyn Marks) -> u64 {
        let taken = self.take();
        taken.iter().for_each(|page| into.mark(PageIndex(*page)));
        taken.len() as u64
    }
}

/// Stops what runs beside a test when that ends, also by a failure: a scope waits for its threads.
pub(crate) struct StopAtEnd<'a>(pub(crate) &'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A guest in memory of its own, in slots of so many pages each.
pub(crate) struct Guest {
    // First: it lets go of the memory before that is unmapped.
    pub(crate) tiny: TinyGuest,
    pub(crate) memory: Mapping,
    pub(crate) slots: Vec<MemorySlot>,
}

impl Guest {
    /// None, loudly, without KVM. The first slot shows page `first` and on.
    pub(crate) fn start(slots_pages: &[usize], first: u32, tracking: Tracking) -> Option<Self> {
        Self::with_cpus(slots_pages, first, tracking, 1)
    }

    /// The same with so many CPUs.
    pub(crate) fn with_cpus(
        slots_pages: &[usize],
        first: u32,
        tracking: Tracking,
        cpus: usize,
    ) -> Option<Self> {
        if let Some(why) = TinyGuest::unavailable() {
            skipped!("{why}");
            return None;
        }
        let pages: usize = slots_pages.iter().sum();
        let memory = Mapping::anonymous(pages * PAGE_BYTES).unwrap();
        // SAFETY: the mapping is dropped after the guest; the tests read it through raw pointers.
        let tiny = unsafe { TinyGuest::with_cpus(memory.as_ptr(), slots_pages, tracking, cpus) };
        let tiny = match tiny {
            Ok(tiny) => tiny,
            Err(error @ bindery_testkit::kvm::TinyGuestError::Tracking { .. }) => {
                skipped!("{error}");
                return None;
            }
            Err(error) => panic!("{error}"),
        };
        let mut slots = Vec::new();
        let mut next = PageIndex(first);
        for (id, pages) in (1..).zip(slots_pages) {
            slots.push(MemorySlot { id, pages: PageRange::new(next, *pages as u32) });
            next = next.plus(*pages as u32);
        }
        Some(Self { tiny, memory, slots })
    }

    pub(crate) fn bitmap(
        &self,
        protection: Protection,
        initially_set: bool,
    ) -> KvmBitmap<Arc<VmFd>> {
        let vm = self.tiny.vm();
        match protection {
            Protection::AtOnce => KvmBitmap::plain(vm, &self.slots),
            _ => KvmBitmap::manual(vm, &self.slots, protection, initially_set),
        }
        .unwrap()
    }

    pub(crate) fn rings(&self) -> KvmRings<Arc<VmFd>> {
        let entries = self.tiny.rings().expect("the guest has rings");
        KvmRings::new(self.tiny.vm(), self.tiny.vcpus(), entries, &self.slots).unwrap()
    }

    pub(crate) fn touch(&mut self, pages: &BTreeSet<u32>) {
        let pages: Vec<usize> = pages.iter().map(|page| *page as usize).collect();
        self.tiny.touch(&pages, &mut || panic!("no ring, or not so many pages")).unwrap();
    }
}

/// Whether something holds in another process, with the same memory.
pub(crate) fn holds_in_a_child(holds: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child makes system calls and compares, and leaves without running anything else
    // of this process.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let holds = holds();
        // SAFETY: as above.
        unsafe { libc::_exit(i32::from(!holds)) };
    }
    let mut status = 0;
    // SAFETY: the child is ours, and waited for once.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
}

/// Collects into a set of `pages` pages.
pub(crate) fn collect(source: &mut impl Source, pages: u32) -> BTreeSet<u32> {
    let oracle = Oracle::new(pages);
    let collected = source.collect(&oracle).unwrap();
    let found = oracle.take();
    assert_eq!(collected.pages, found.len() as u64);
    found
}

/// `pages` as a guest's space has them whose first slot shows page `first`.
pub(crate) fn shifted(pages: &BTreeSet<u32>, first: u32) -> BTreeSet<u32> {
    pages.iter().map(|page| page + first).collect()
}
