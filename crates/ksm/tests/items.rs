//! Pages that KSM knows are counted in four files, between which ksmd moves each page that it looks at.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use std::time::{Duration, Instant};

use bindery_ksm::Meter;
use common::{Memory, ksm, wait_until};

const PAGES: usize = 2000;

/// ksmd works for a hundredth of it: reading the files once, whatever ksmd does, fails dozens of times.
const TIME: Duration = Duration::from_secs(3);

#[test]
fn no_page_is_missed_because_ksmd_looks_at_it() {
    let Some(_ksm) = ksm("no_page_is_missed_because_ksmd_looks_at_it") else { return };
    let _memory = Memory::offer(PAGES);
    let meter = Meter::new().unwrap();
    wait_until("all pages", || meter.items().unwrap().all == PAGES as u64);
    // From the second scan on a page is taken out of the unstable tree and put back.
    let begun = meter.full_scans().unwrap();
    wait_until("two scans", || meter.full_scans().unwrap() > begun + 1);
    let deadline = Instant::now() + TIME;
    while Instant::now() < deadline {
        assert_eq!(meter.items().unwrap().all, PAGES as u64);
    }
}
