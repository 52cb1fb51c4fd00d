//! A guest writes all the time while its memory is copied by what a source says: after the last
//! collection the copy is the memory. A page that was read before it was watched again, a mark that
//! was lost, or a bit that was cleared unseen leaves an old word in the copy. (Where KVM emulates real
//! mode it notes every write of the guest, whether its page is watched or not: there the first of the
//! three shows only in scans.)
#![cfg(not(loom))]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bindery_dirty::marks::Marks;
use bindery_dirty::source::{
    KvmBitmap, KvmRings, Protection, Region, Software, Source, Union, WrittenPages,
};
use bindery_sys::mapping::{self, Mapping};
use bindery_sys::userfault::{Userfault, feature, mode};
use bindery_testkit::kvm::Tracking;
use bindery_testkit::skipped;
use bindery_units::{PAGE_BYTES, PageIndex, PageRange};
use common::{Guest, Oracle};
use rand::{Rng, SeedableRng, rngs::SmallRng};

/// No multiple of 64, in two slots.
const SLOTS_PAGES: [usize; 2] = [1500, 999];
const PAGES: u32 = 2499;

/// Pages copied beside the running guest, in at least so many collections.
const COPIES: usize = 100_000;
const EPOCHS: usize = 200;

/// How long nothing may be there to be copied, on a machine that does much else.
const PATIENCE: Duration = Duration::from_secs(20);

/// What is copied, page by page.
struct Copy {
    memory: *const u8,
    copy: Mapping,
}

// SAFETY: the memory is the guest's mapping, which lives as long as the test; it is read as memory
// that others write.
unsafe impl Sync for Copy {}

impl Copy {
    fn of(guest: &Guest) -> Self {
        let copy = Mapping::anonymous(PAGES as usize * PAGE_BYTES).unwrap();
        Self { memory: guest.memory.as_ptr(), copy }
    }

    fn page(&self, page: u32) {
        let offset = page as usize * PAGE_BYTES;
        // SAFETY: both are mapped, page-aligned, and have so many pages.
        unsafe { mapping::copy_page(self.memory.add(offset), self.copy.as_ptr().add(offset)) };
    }

    /// The first words of pages that differ, when nobody writes.
    fn differences(&self) -> Vec<(usize, u64, u64)> {
        let word = |base: *const u8, page: usize| {
            // SAFETY: as above, and nobody writes.
            unsafe { base.add(page * PAGE_BYTES).cast::<u64>().read_volatile() }
        };
        (0..PAGES as usize)
            .map(|page| (page, word(self.memory, page), word(self.copy.as_ptr(), page)))
            .filter(|(_, memory, copy)| memory != copy)
            .collect()
    }
}

/// Writes pages at random, mostly a few hot ones, until it is told to stop.
fn write_on(guest: &mut Guest, stop: &AtomicBool, make_room: &mut dyn FnMut()) -> u64 {
    let mut random = SmallRng::seed_from_u64(1);
    let mut written = 0;
    while !stop.load(Ordering::Relaxed) {
        let pages: Vec<usize> = (0..200)
            .map(|_| match random.random_bool(0.5) {
                true => random.random_range(0..40) * 61,
                false => random.random_range(0..PAGES as usize),
            })
            .collect();
        guest.tiny.touch(&pages, make_room).unwrap();
        written += pages.len() as u64;
    }
    written
}

/// What happens beside collecting.
struct Beside<C, R, D> {
    /// Called with each page before it is read.
    clear: C,
    /// Called when the ring is full.
    make_room: R,
    /// Writes as well, until it is told to stop.
    device: D,
}

type Clear<S> = fn(&mut S, PageRange);
type MakeRoom<S> = fn(&mut S, &dyn Marks);
type Device = fn(&AtomicBool);

fn nothing<S>() -> Beside<Clear<S>, MakeRoom<S>, Device> {
    Beside { clear: |_, _| {}, make_room: |_, _| panic!("it has no ring"), device: |_| {} }
}

/// Copies by the marks while the guest writes.
fn follow<S: Source + Send>(
    guest: &mut Guest,
    source: S,
    beside: Beside<
        impl Fn(&mut S, PageRange),
        impl Fn(&mut S, &dyn Marks) + Sync,
        impl Fn(&AtomicBool) + Sync,
    >,
) {
    let Beside { clear, make_room, device } = beside;
    let copy = Copy::of(guest);
    let (marks, stop) = (Oracle::new(PAGES), AtomicBool::new(false));
    let source = Mutex::new(source);
    let epoch = || {
        let mut source = source.lock().unwrap();
        source.collect(&marks).unwrap();
        let pages = marks.take();
        for page in &pages {
            clear(&mut source, PageRange::new(PageIndex(*page), 1));
        }
        drop(source);
        pages.iter().for_each(|page| copy.page(*page));
        pages.len()
    };
    let (copied, written) = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            write_on(guest, &stop, &mut || make_room(&mut source.lock().unwrap(), &marks))
        });
        scope.spawn(|| device(&stop));
        let (mut copied, mut epochs, mut moved) = (0, 0, Instant::now());
        while (copied < COPIES || epochs < EPOCHS) && moved.elapsed() < PATIENCE {
            let pages = epoch();
            if pages > 0 {
                moved = Instant::now();
            }
            copied += pages;
            epochs += 1;
        }
        stop.store(true, Ordering::Relaxed);
        (copied, writer.join().unwrap())
    });
    epoch();
    assert!(copied >= COPIES, "{copied} pages were copied, {written} written");
    assert_eq!(copy.differences(), []);
}

#[test]
fn by_the_plain_bitmap() {
    let Some(mut guest) = Guest::start(&SLOTS_PAGES, 0, Tracking::Bitmap) else { return };
    let source = guest.bitmap(Protection::AtOnce, false);
    follow(&mut guest, source, nothing());
}

#[test]
fn by_the_bitmap_cleared_by_hand() {
    for initially_set in [false, true] {
        let tracking = Tracking::ManualBitmap { initially_set };
        let Some(mut guest) = Guest::start(&SLOTS_PAGES, 0, tracking) else { return };
        let source = guest.bitmap(Protection::Cleared, initially_set);
        follow(&mut guest, source, nothing());
    }
}

#[test]
fn by_the_bitmap_cleared_page_by_page() {
    let tracking = Tracking::ManualBitmap { initially_set: false };
    let Some(mut guest) = Guest::start(&SLOTS_PAGES, 0, tracking) else { return };
    let source = guest.bitmap(Protection::ClearedByCaller, false);
    let clear = |source: &mut KvmBitmap<_>, pages| source.clear(pages).unwrap();
    let Beside { make_room, device, .. } = nothing();
    follow(&mut guest, source, Beside { clear, make_room, device });
}

#[test]
fn by_the_rings() {
    let Some(mut guest) = Guest::start(&SLOTS_PAGES, 0, Tracking::Ring { entries: 1024 }) else {
        return;
    };
    let source = guest.rings();
    let make_room = |source: &mut KvmRings<_>, marks: &dyn Marks| {
        source.make_room(0, marks).unwrap();
    };
    let Beside { clear, device, .. } = nothing();
    follow(&mut guest, source, Beside { clear, make_room, device });
}

#[test]
fn by_scans_of_the_guest_s_memory() {
    let Some(mut guest) = Guest::start(&SLOTS_PAGES, 0, Tracking::None) else { return };
    let features = feature::PAGEFAULT_FLAG_WP | feature::WP_UNPOPULATED | feature::WP_ASYNC;
    let context = match Userfault::open(features) {
        Ok(context) => context,
        Err(error) => return skipped!("userfaultfd with WP_ASYNC: {error}"),
    };
    let (start, bytes) = (guest.memory.address(), guest.memory.bytes());
    // SAFETY: nobody waits in asynchronous write protection.
    unsafe { context.register(start, bytes, mode::WP).unwrap() };
    let region = Region { start, pages: PageRange::new(PageIndex(0), PAGES) };
    let source = WrittenPages::of_self(vec![region]).unwrap();
    follow(&mut guest, source, nothing());
}

/// A device writes through the process's mapping, which KVM does not see, and marks.
#[test]
fn by_the_plain_bitmap_and_a_device_s_marks() {
    let Some(mut guest) = Guest::start(&SLOTS_PAGES, 0, Tracking::Bitmap) else { return };
    let device = Oracle::new(PAGES);
    let source = Union(guest.bitmap(Protection::AtOnce, false), Software::new(&device));
    let memory = guest.memory.address();
    let write = |stop: &AtomicBool| {
        let mut random = SmallRng::seed_from_u64(2);
        while !stop.load(Ordering::Relaxed) {
            let page = random.random_range(0..PAGES);
            let word = (memory.plus_pages(page).0 + 4) as *mut u32;
            // SAFETY: the guest's mapping outlives the thread; the guest writes another word.
            unsafe { word.write_volatile(word.read_volatile() + 1) };
            device.mark(PageIndex(page));
        }
    };
    let Beside { clear, make_room, .. } = nothing();
    follow(&mut guest, source, Beside { clear, make_room, device: write });
}
