//! Regions that are longer than one hold, and begin within a block.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use bindery_space::{Reach, Sought};
use bindery_sys::mapping::{self, HUGE_PAGE_BYTES, Mapping};
use bindery_units::PAGE_BYTES;

use crate::common::{huge_kib, start};

/// Pages from the region's begin to where a hold of its tracking would end, were it not cut at blocks.
const HELD_PAGES: usize = 1 << 18;

/// Time in which a write must be done.
const SOON: Duration = Duration::from_secs(10);

#[test]
fn a_block_at_the_end_of_a_hold_is_written_after_its_tracking_has_ended() {
    let Some(space) = start() else { return };
    let memory = Mapping::huge((HELD_PAGES + 2048) * PAGE_BYTES).expect("memory");
    // Two pages, so that the first hold would end in the second page of a block.
    let address = memory.address().plus(2 * PAGE_BYTES);
    let region = space.manage(address, memory.bytes() - 2 * PAGE_BYTES).expect("manage");
    let mut worker = space.worker().expect("worker");
    let mut scan = |reach| {
        let mut spans = Vec::new();
        worker.scan_for(Sought::Written, reach, region.pages, &mut spans, 10_000).expect("scan");
        spans
    };
    let _ = scan(Reach::All);
    // The block comes to be a huge page once it is tracked.
    let block = memory.address().plus(HELD_PAGES * PAGE_BYTES);
    let first = block.0 as *mut u64;
    // SAFETY: memory of the test, which this thread alone writes.
    unsafe {
        mapping::advise(block, HUGE_PAGE_BYTES, libc::MADV_HUGEPAGE).expect("advice");
        first.write_volatile(1);
    }
    if huge_kib(block, HUGE_PAGE_BYTES) == 0 {
        return bindery_testkit::skipped!("the kernel makes no huge pages here");
    }
    // Found to be one, and protected.
    let _ = scan(Reach::All);
    let _ = scan(Reach::All);
    let _ = scan(Reach::Split);
    let (done, is_done) = mpsc::channel();
    let place = block.0;
    thread::spawn(move || {
        for page in 0..HUGE_PAGE_BYTES / PAGE_BYTES {
            let word = (place + page * PAGE_BYTES) as *mut u64;
            // SAFETY: as above: nobody else writes there, and the memory outlives the wait.
            unsafe { word.write_volatile(page as u64 + 7) };
        }
        let _ = done.send(());
    });
    assert!(is_done.recv_timeout(SOON).is_ok(), "a write waits for ever");
    let found = scan(Reach::All);
    assert!(!found.is_empty(), "what was written is found once tracking begins again");
    space.release().expect("release");
}
