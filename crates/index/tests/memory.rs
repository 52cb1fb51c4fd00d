//! What a key costs, counted by the allocator.

#![cfg(not(loom))]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use bindery_index::{Heads, Index, Inserted, pin};
use bindery_units::ByteCount;
use rand::{Rng, SeedableRng, rngs::SmallRng};

struct Counting;

static ALLOCATED: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes to the system's allocator with the caller's own promises; counting does
// not touch the memory.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        ALLOCATED.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Bytes a key that an index of `keys` keys takes, and what it says of itself. It could grow to
/// 64 GiB of unique pages, the array of chunks for which is counted too.
fn measure(root_bits: u32, keys: u64) -> (f64, ByteCount) {
    let before = ALLOCATED.load(Ordering::Relaxed);
    let index = Index::with_capacity(root_bits, 1 << 24, Heads);
    let mut random = SmallRng::seed_from_u64(u64::from(root_bits));
    for value in 0..keys {
        let key = random.random::<u64>();
        assert!(matches!(index.insert(&key, value, &pin()), Ok(Inserted::New(_))));
    }
    let taken = ALLOCATED.load(Ordering::Relaxed) - before;
    let said = index.memory();
    assert!(said.0 <= taken as u64, "{said} said, {taken} bytes taken");
    assert!(said.0 as f64 > 0.98 * taken as f64, "{said} said, {taken} bytes taken");
    (taken as f64 / keys as f64, said)
}

/// One test, because the allocator counts the whole process.
#[test]
fn a_key_costs_less_than_32_bytes() {
    // Interpreted, a small index's fixed parts would be measured instead.
    let keys_at_full = if cfg!(miri) { return } else { 1_000_000_u64 };
    let suiting = Index::with_capacity(0, 1, Heads);
    // Also right after a block of 2 MiB has been made, before the first of its leaves is needed or
    // when it is, and at the fewest keys for their roots.
    for keys in [keys_at_full, 508_000, 525_000, 640_000, 700_000, 350_000, 200_000, 3_000_000] {
        let root_bits = suiting.root_bits_for(keys);
        let (bytes, said) = measure(root_bits, keys);
        println!("{keys} keys, 2^{root_bits} roots: {bytes:.2} bytes a key, {said} in all");
        assert!(bytes <= 32.0, "{bytes:.2} bytes a key");
    }
    // Without roots to speak of, nodes take their place.
    let (bytes, _) = measure(0, keys_at_full);
    println!("{keys_at_full} keys, 1 root: {bytes:.2} bytes a key");
    assert!(bytes <= 32.0, "{bytes:.2} bytes a key");
}
