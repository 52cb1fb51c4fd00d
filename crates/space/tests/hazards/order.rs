//! What happens between two steps of a merge: another thread comes in exactly there.

use std::{
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::Duration,
};

use bindery_units::{HostAddress, Slot};
use bindery_wire::lane::PageOutcome;

use crate::{
    common::{Bench, merged},
    kernel::{Call, UFFDIO_MOVE, UFFDIO_REGISTER, Verdict, supervised},
};

/// A thread that should wait does so at least as long.
const LOOK: Duration = Duration::from_millis(30);

/// Merges pages 32..64 with slots 0..32, and does `between` before the `nth` call that `at` finds.
/// The handlers are not supervised: they serve whatever happens between.
fn merge_with(
    bench: &Bench,
    at: fn(&Call) -> bool,
    nth: u32,
    mut between: impl FnMut() + Send + 'static,
) -> Option<Vec<PageOutcome>> {
    supervised(|kernel| {
        let mut worker = bench.space.worker().expect("worker");
        let mut seen = 0;
        kernel.set_rule(move |call| {
            seen += u32::from(at(&call));
            if at(&call) && seen == nth {
                between();
            }
            Verdict::Go
        });
        let outcomes = bench.merge(&mut worker, 32, 32, Slot(0));
        kernel.be_kind();
        outcomes
    })
}

fn is_move(call: &Call) -> bool {
    call.is_ioctl(UFFDIO_MOVE)
}

fn is_register(call: &Call) -> bool {
    call.is_ioctl(UFFDIO_REGISTER)
}

/// Pages 32..64 are full of their numbers; the others are absent.
fn bench_with(word_of_slot: impl Fn(u32) -> u64) -> Option<Bench> {
    let bench = Bench::new(128, 32)?;
    for offset in 0..32 {
        bench.fill(32 + offset, 100 + u64::from(offset));
        bench.fill_slot(Slot(offset), word_of_slot(offset));
    }
    Some(bench)
}

fn word(address: HostAddress) -> *mut u64 {
    address.0 as *mut u64
}

#[test]
fn zero_filling_in_batches_stops_at_pages_in_transit() {
    let Some(bench) = bench_with(|_| 1) else { return };
    // A fault on page 0, which is absent, fills those behind it. The pages of the run are away then.
    let first = bench.address(0);
    let touch = move || {
        // SAFETY: the page is in the mapping.
        unsafe { word(first).write_volatile(5) };
    };
    let Some(outcomes) = merge_with(&bench, is_move, 2, touch) else { return };
    assert_eq!(outcomes, [PageOutcome::Different; 32]);
    assert!((0..32).all(|offset| bench.holds(32 + offset, 100 + u64::from(offset))));
}

#[test]
fn whoever_touches_a_page_in_transit_waits_for_its_content() {
    let Some(bench) = bench_with(|_| 1) else { return };
    let (address, (tell, told)) = (bench.address(40), mpsc::channel());
    let mut reading = Some(tell);
    let (report, early) = mpsc::channel();
    let touch = move || {
        let tell = reading.take().expect("once");
        let (done, is_done) = mpsc::channel();
        thread::spawn(move || {
            // SAFETY: the page is in the mapping.
            let seen = unsafe { word(address).read_volatile() };
            let _ = done.send(());
            let _ = tell.send(seen);
        });
        let _ = report.send(is_done.recv_timeout(LOOK));
    };
    let Some(_) = merge_with(&bench, is_move, 2, touch) else { return };
    assert_eq!(early.recv().expect("looked"), Err(RecvTimeoutError::Timeout), "it waits");
    let seen = told.recv_timeout(Duration::from_secs(10)).expect("it is woken");
    assert_eq!(seen, 108, "and finds what the page held");
}

#[test]
fn a_write_between_mapping_and_protecting_is_kept() {
    let Some(bench) = bench_with(|offset| 100 + u64::from(offset)) else { return };
    let address = bench.address(37);
    let write = move || {
        // SAFETY: the page is in the mapping.
        unsafe { word(address).add(1).write_volatile(9) };
    };
    let Some(outcomes) = merge_with(&bench, is_register, 1, write) else { return };
    let mut expected = merged(32);
    expected[5] = PageOutcome::Never;
    assert_eq!(outcomes, expected, "what was written is no slot's page");
    // Whoever writes it next finds the page as it is, whatever becomes of the slot.
    bench.fill_slot(Slot(5), 0xdead);
    // SAFETY: as above.
    unsafe { word(address).add(2).write_volatile(10) };
    let words: Vec<u64> = (0..4)
        // SAFETY: as above.
        .map(|at| unsafe { word(address).add(at).read_volatile() })
        .collect();
    assert_eq!(words, [105, 9, 10, 105]);
    let mut worker = bench.space.worker().expect("worker");
    worker.unmerge(bench.all(), u32::MAX);
    worker.mend(bench.all());
    // SAFETY: as above.
    assert_eq!(unsafe { word(address).add(1).read_volatile() }, 9);
    assert!(
        (0..32).filter(|&page| page != 5).all(|page| bench.holds(32 + page, 100 + u64::from(page)))
    );
}
