//! Soft-dirty bits: used where the kernel has them, refused where it only says so. In a file of its
//! own, since clearing them is for the whole process.
//!
//! Debian's kernels have them: guests of those run [`elsewhere`], which is nothing here.
#![cfg(not(loom))]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bindery_dirty::marks::Marks;
use bindery_dirty::source::{
    Region, SoftDirty, Source, SourceError, WrittenPages, probe_soft_dirty,
};
use bindery_sys::mapping::{self, Mapping};
use bindery_testkit::guest::{GuestError, Kernel, is_elsewhere, run_test};
use bindery_testkit::skipped;
use bindery_units::{PAGE_BYTES, PageIndex, PageRange};
use common::{StopAtEnd, collect};
use rand::{Rng, SeedableRng, rngs::SmallRng};

/// No multiple of the pages that are read at once, nor is the place of the first.
const PAGES: u32 = 1300;
const FIRST: u32 = 5;
const END: u32 = FIRST + PAGES;

/// Collections beside the writer.
const EPOCHS: u32 = 100;
const PATIENCE: Duration = Duration::from_secs(20);

/// Memory of small pages: the bit of a huge page stands for all of it.
struct Memory(Mapping);

impl Memory {
    fn new() -> Self {
        let memory = Mapping::anonymous(PAGES as usize * PAGE_BYTES).unwrap();
        // SAFETY: small pages hold the same content. A mapping with advice is not joined with a new
        // neighbour either, all of whose pages count as written.
        unsafe {
            mapping::advise(memory.address(), memory.bytes(), libc::MADV_NOHUGEPAGE).unwrap();
        }
        Self(memory)
    }

    fn region(&self) -> Region {
        Region { start: self.0.address(), pages: PageRange::new(PageIndex(FIRST), PAGES) }
    }

    /// The first word of a page.
    fn word(&self, page: u32) -> &AtomicU64 {
        assert!(page < PAGES);
        // SAFETY: the word is in the mapping, aligned, and used through this alone.
        unsafe { &*self.0.as_ptr().add(page as usize * PAGE_BYTES).cast() }
    }

    fn write<'a>(&self, pages: impl IntoIterator<Item = &'a u32>) {
        for page in pages {
            self.word(*page).fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// On this machine's kernel, whatever it is.
#[test]
fn what_was_written_is_collected_or_the_kernel_is_refused() {
    let memory = Memory::new();
    let Err(error) = probe_soft_dirty() else { return what_was_written_is_collected_once() };
    // The write that would clear the bits succeeds all the same.
    std::fs::write("/proc/self/clear_refs", "4").unwrap();
    let refused = SoftDirty::of_self(vec![memory.region()]).unwrap_err();
    assert!(matches!(refused, SourceError::Unsupported { .. }), "{refused}");
    let expected = "soft-dirty tracking cannot be used here: the bit of a page was not set after a write, \
                    clear after clearing, not set after a second write: this kernel has no \
                    CONFIG_MEM_SOFT_DIRTY (clearing succeeds all the same)";
    assert_eq!(error.to_string(), expected);
}

#[test]
fn linux_5_10_finds_what_was_written() {
    show_on(Kernel::Oldest, "5.10.");
}

#[test]
fn linux_6_1_finds_what_was_written() {
    show_on(Kernel::Stable, "6.1.");
}

#[test]
fn linux_6_12_finds_what_was_written() {
    show_on(Kernel::Backports, "6.12.");
}

fn show_on(kernel: Kernel, version: &str) {
    let output = match run_test(kernel, "elsewhere") {
        Ok(output) => output,
        Err(error @ GuestError::NoKit { .. }) => {
            return skipped!("soft-dirty bits on Linux {version}: {error}");
        }
        Err(error) => panic!("{error}"),
    };
    print!("{output}");
    assert!(output.contains(&format!("shown on Linux {version}")), "{output}");
}

/// In a guest. One test, so that no other clears bits meanwhile.
#[test]
fn elsewhere() {
    if !is_elsewhere() {
        return;
    }
    probe_soft_dirty().unwrap();
    what_was_written_is_collected_once();
    huge_and_new_pages_count_whole();
    a_writer_that_stands_still_meanwhile_loses_nothing();
    a_write_between_reading_and_clearing_is_lost();
    kernels_without_scans_say_so();
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    println!("shown on Linux {release}");
}

fn what_was_written_is_collected_once() {
    let memory = Memory::new();
    let mut source = SoftDirty::of_self(vec![memory.region()]).unwrap();
    assert!(source.abilities().first_has_more);
    collect(&mut source, END);
    let mut random = SmallRng::seed_from_u64(1);
    let drawn =
        (0..20).map(|count| (0..count * 16).map(|_| random.random_range(0..PAGES)).collect());
    let edges: [BTreeSet<u32>; 3] = [[0, 511, 512, 1023, 1024, 1299].into(), [].into(), [7].into()];
    for pages in edges.into_iter().chain(drawn.collect::<Vec<_>>()) {
        memory.write(&pages);
        assert_eq!(collect(&mut source, END), common::shifted(&pages, FIRST));
        assert_eq!(collect(&mut source, END), BTreeSet::new(), "nothing twice");
    }
}

/// More than was written, and never less.
fn huge_and_new_pages_count_whole() {
    let memory = Memory::new();
    let (start, bytes) = (memory.0.address(), memory.0.bytes());
    let mut source = SoftDirty::of_self(vec![memory.region()]).unwrap();
    // SAFETY: huge pages hold the same content; what is mapped anew is ours.
    unsafe { mapping::advise(start, bytes, libc::MADV_HUGEPAGE).unwrap() };
    memory.write(&(0..PAGES).collect::<Vec<_>>());
    collect(&mut source, END);
    for page in [0, 600, PAGES - 1] {
        memory.write(&[page]);
        let found = collect(&mut source, END);
        assert!(found.contains(&(page + FIRST)), "page {page} of {} found", found.len());
        assert_eq!(collect(&mut source, END), [].into());
    }
    // SAFETY: as above.
    unsafe { mapping::replace_with_anonymous(start.plus_pages(100), 7 * PAGE_BYTES).unwrap() };
    let found = collect(&mut source, END);
    assert!((100..107).all(|page| found.contains(&(page + FIRST))), "{found:?}");
}

/// A writer that stands still when it is asked to. Not by a lock, which it might never get or give.
#[derive(Default)]
struct Writer {
    is_to_stand: AtomicBool,
    stands: AtomicBool,
    stop: AtomicBool,
}

impl Writer {
    fn run(&self, memory: &Memory) {
        let mut random = SmallRng::seed_from_u64(2);
        while !self.stop.load(Ordering::Relaxed) {
            // Release: its writes before come before whatever is done while it stands.
            self.stands.store(self.is_to_stand.load(Ordering::Acquire), Ordering::Release);
            match self.stands.load(Ordering::Relaxed) {
                true => std::thread::yield_now(),
                false => memory.write(&[random.random_range(0..PAGES)]),
            }
        }
    }

    fn meanwhile<T>(&self, run: impl FnOnce() -> T) -> T {
        self.is_to_stand.store(true, Ordering::Release);
        wait_until("the writer stands still", || self.stands.load(Ordering::Acquire));
        let done = run();
        self.is_to_stand.store(false, Ordering::Release);
        wait_until("the writer writes", || !self.stands.load(Ordering::Acquire));
        done
    }
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::yield_now();
    }
}

/// What is read after each collection, of the pages that it found, is the memory in the end.
fn a_writer_that_stands_still_meanwhile_loses_nothing() {
    let memory = Memory::new();
    let mut source = SoftDirty::of_self(vec![memory.region()]).unwrap();
    let mut copy = vec![0; PAGES as usize];
    let mut take = |pages: BTreeSet<u32>| {
        for page in pages.iter().map(|page| page - FIRST) {
            copy[page as usize] = memory.word(page).load(Ordering::Relaxed);
        }
        pages.len()
    };
    take(collect(&mut source, END));
    let writer = Writer::default();
    let copied: usize = std::thread::scope(|scope| {
        scope.spawn(|| writer.run(&memory));
        let _stop = StopAtEnd(&writer.stop);
        let epoch = |_| {
            let pages = writer.meanwhile(|| collect(&mut source, END));
            // Beside the writer again: what it writes from now on is for the next.
            let copied = take(pages);
            std::thread::sleep(Duration::from_micros(200));
            copied
        };
        (0..EPOCHS).map(epoch).sum()
    });
    take(collect(&mut source, END));
    for (page, copied) in copy.iter().enumerate() {
        assert_eq!(*copied, memory.word(page as u32).load(Ordering::Relaxed), "page {page}");
    }
    assert!(copied > EPOCHS as usize, "{copied} pages were copied beside the writer");
    println!("{copied} pages were copied beside a writer");
}

/// Why [`Abilities::beside_writers`](bindery_dirty::source::Abilities::beside_writers) says no.
fn a_write_between_reading_and_clearing_is_lost() {
    struct Late<'a>(&'a Memory, Cell<u32>);
    impl Marks for Late<'_> {
        fn mark(&self, _: PageIndex) {
            self.1.set(self.1.get() + 1);
            self.0.write(&[3]);
        }
        fn mark_range(&self, _: PageRange) {}
        fn mark_words(&self, _: usize, _: &[u64]) {}
    }
    let memory = Memory::new();
    let mut source = SoftDirty::of_self(vec![memory.region()]).unwrap();
    assert!(!source.abilities().beside_writers);
    memory.write(&[3]);
    collect(&mut source, END);
    memory.write(&[9]);
    let late = Late(&memory, Cell::new(0));
    source.collect(&late).unwrap();
    assert_eq!(late.1.get(), 1, "page 9, and not page 3, which was read before");
    assert_eq!(collect(&mut source, END), [].into());
}

/// `PAGEMAP_SCAN` is there since Linux 6.7.
fn kernels_without_scans_say_so() {
    let error = WrittenPages::of_self(vec![Memory::new().region()]).unwrap_err();
    match &error {
        SourceError::Unsupported { .. } => {
            let expected = "a scan for written pages cannot be used here: this kernel has no \
                            PAGEMAP_SCAN (Linux 6.7)";
            assert_eq!(error.to_string(), expected);
        }
        // It has the scan, and nobody has registered the memory.
        SourceError::NotWatched { pages, .. } => assert_eq!(*pages, PAGES),
        error => panic!("{error}"),
    }
    println!("{error}");
}
