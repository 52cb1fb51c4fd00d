//! What is particular to a guest's memory: it ends somewhere, and it is written while it is read.

use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bindery_page::{DigestKey, Examined, Form, PAGE_BYTES};

/// Three pages, of which only the middle one may be touched.
struct Fenced(*mut u8);

// SAFETY: the mapping belongs to no thread. What races on it is the matter of these tests.
unsafe impl Sync for Fenced {}

impl Fenced {
    fn new() -> Self {
        // SAFETY: a fresh anonymous mapping at a place of the kernel's choice touches nothing else.
        let start = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            libc::mmap(ptr::null_mut(), 3 * PAGE_BYTES, libc::PROT_NONE, flags, -1, 0)
        };
        assert_ne!(start, libc::MAP_FAILED, "no memory for three pages");
        let fenced = Self(start.cast::<u8>().wrapping_add(PAGE_BYTES));
        // SAFETY: the middle page is part of the mapping just made.
        let allowed = unsafe {
            libc::mprotect(fenced.page().cast(), PAGE_BYTES, libc::PROT_READ | libc::PROT_WRITE)
        };
        assert_eq!(allowed, 0, "the middle page cannot be opened");
        fenced
    }

    fn page(&self) -> *mut u8 {
        self.0
    }
}

impl Drop for Fenced {
    fn drop(&mut self) {
        // SAFETY: this is the mapping that `new` made, and nobody else knows of it.
        unsafe { libc::munmap(self.0.wrapping_sub(PAGE_BYTES).cast(), 3 * PAGE_BYTES) };
    }
}

fn key() -> DigestKey {
    DigestKey::from_secret(&[7; 32])
}

/// A read outside the page would kill the test.
#[test]
fn nothing_outside_the_page_is_read() {
    let (a, b) = (Fenced::new(), Fenced::new());
    let key = key();
    for form in Form::available() {
        // SAFETY: both pages are readable, and aligned as mappings are.
        unsafe {
            assert!(form.is_zero_at(a.page()), "{}", form.name());
            assert!(form.equal_at(a.page(), b.page()), "{}", form.name());
            let fence = a.page().wrapping_add(PAGE_BYTES);
            assert_eq!(form.examine_at(a.page(), fence, &key), Examined::Zero, "{}", form.name());
            assert_eq!(
                form.digest_at(a.page(), &key),
                bindery_page::digest(&[0; PAGE_BYTES], &key)
            );
        }
    }
}

/// What is examined next is fetched ahead, and may not be there any more when its turn comes.
#[test]
fn what_is_fetched_ahead_may_be_any_address() {
    let fenced = Fenced::new();
    let (page, fence) = (fenced.page(), fenced.page().wrapping_add(PAGE_BYTES));
    // SAFETY: the middle page is ours to write.
    unsafe { page.write_bytes(1, PAGE_BYTES) };
    let content = Examined::Content(bindery_page::digest(&[1; PAGE_BYTES], &key()));
    for next in [ptr::null(), ptr::without_provenance(usize::MAX), fence.cast_const()] {
        for form in Form::available() {
            // SAFETY: the page is readable and aligned; what comes next need not be.
            let examined = unsafe { form.examine_at(page, next, &key()) };
            assert_eq!(examined, content, "{}", form.name());
        }
    }
}

/// The last byte of a page flips between 0 and 1 while the page is examined. A pass that reads it
/// twice finds it set, and then digests a page of zeroes as content.
#[test]
fn zero_and_digest_are_of_the_same_bytes() {
    let key = key();
    let fenced = Fenced::new();
    let mut flipped = [0; PAGE_BYTES];
    flipped[PAGE_BYTES - 1] = 1;
    let content = Examined::Content(bindery_page::digest(&flipped, &key));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let last = fenced.page().wrapping_add(PAGE_BYTES - 1);
            for byte in (0..=1).cycle() {
                // SAFETY: the byte is within the page, which outlives the thread. The reader reads
                // it volatile, as it does a guest's.
                unsafe { last.write_volatile(byte) };
                if stop.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        for form in Form::available() {
            let deadline = Instant::now() + Duration::from_millis(300);
            let (mut zeroes, mut contents) = (0_u64, 0_u64);
            while Instant::now() < deadline {
                // SAFETY: the page is readable and aligned; that it is written is allowed.
                match unsafe { form.examine_at(fenced.page(), fenced.page(), &key) } {
                    Examined::Zero => zeroes += 1,
                    found => {
                        stop.store(found != content, Ordering::Relaxed);
                        assert_eq!(found, content, "{} read a byte twice", form.name());
                        contents += 1;
                    }
                }
            }
            println!("{}: {zeroes} times zero, {contents} times content", form.name());
        }
        stop.store(true, Ordering::Relaxed);
    });
}
