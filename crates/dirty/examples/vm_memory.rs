//! A VMM in Rust whose guest memory knows which pages were written: a checkpoint of everything, then
//! one of what changed, while a device goes on writing.
//!
//! `cargo run -p bindery-dirty --features vm-memory --example vm_memory`

use std::error::Error;

use bindery_dirty::vm_memory::TreeBitmap;
use bindery_units::{PAGE_BYTES, PageIndex, PageRange};
use vm_memory::bitmap::NewBitmap;
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, MmapRegion};

const GUEST_BYTES: usize = 64 << 20;
const WHOLE: PageRange =
    PageRange { first: PageIndex(0), count: (GUEST_BYTES / PAGE_BYTES) as u32 };

/// Guest memory as with `AtomicBitmap`, with another type in its place.
type Memory = GuestMemoryMmap<TreeBitmap>;

fn main() -> Result<(), Box<dyn Error>> {
    let memory = Memory::from_ranges(&[(GuestAddress(0), GUEST_BYTES)])?;
    let tree = tree_of(&memory)?;

    // The guest boots; the first checkpoint saves what it wrote.
    memory.write_slice(&[0x90; 4 << 20], GuestAddress(0x10_0000))?;
    let mut pages = Vec::new();
    tree.harvest_into(WHOLE, &mut pages)?;
    println!("the first checkpoint has {} pages", pages.len());

    // A device writes from its own thread, and the next checkpoint has that and no more.
    std::thread::scope(|scope| {
        scope.spawn(|| {
            (0..100).try_for_each(|packet| memory.write_obj(packet, GuestAddress(packet * 0x5000)))
        });
    });
    pages.clear();
    tree.harvest_into(WHOLE, &mut pages)?;
    println!("the second one has {} pages, of which the last is {}", pages.len(), pages[99].0);

    // It could not be stored: nothing is lost.
    tree.mark_pages(0, &pages)?;
    println!("{} pages wait for the next, in {} runs", tree.count(), tree.runs().count());
    Ok(())
}

fn tree_of(memory: &Memory) -> Result<std::sync::Arc<bindery_dirty::Tree>, Box<dyn Error>> {
    let region = memory.iter().next().ok_or("the memory has a region")?;
    let region: &MmapRegion<TreeBitmap> = region;
    let bitmap = region.bitmap();
    debug_assert_eq!(bitmap.page_bytes(), TreeBitmap::with_len(1).page_bytes());
    Ok(bitmap.tree().ok_or("the region has pages")?.clone())
}

#[test]
fn it_runs() {
    main().unwrap();
}
