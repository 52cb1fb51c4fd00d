//! Every call that the managed space makes fails once, at every place where it is made: no byte may
//! be lost, whatever is done to the memory meanwhile, and what cannot be done is an ordinary answer.

use std::sync::Arc;

use bindery_sys::mapping;
use bindery_units::PAGE_BYTES;
use bindery_wire::lane::{PageOutcome, Run, RunTarget};

use crate::{
    alone::alone,
    common::split,
    guest::{Guest, Lived},
    kernel::{
        Call, Kernel, PAGEMAP_SCAN, UFFDIO_COPY, UFFDIO_MOVE, UFFDIO_REGISTER, UFFDIO_UNREGISTER,
        UFFDIO_WRITEPROTECT, UFFDIO_ZEROPAGE, Verdict, supervised,
    },
    plan::{
        EAGAIN, EBUSY, EEXIST, ENOMEM, Failure, Plan, denied_or_out_of_memory, is_own_mapping,
        is_remap, moved_and_denied, moved_in_part, unmapped_first, walk,
    },
};

const PAGES: u32 = 256;
/// Pages 0..192 have slots that hold what they do, each two.
const SLOTS: u32 = 2 * PAGES;

/// Everything that is done to managed memory, from taking it to giving it back.
fn live(guest: &mut Guest) -> Lived {
    let space = Arc::clone(&guest.bench.space);
    guest.bench.region = space.manage(guest.bench.memory.address(), guest.bytes())?;
    for page in 0..PAGES {
        guest.write(page, if page < 192 { u64::from(page) + 1 } else { u64::from(page / 224) });
    }
    // 192..224 are zeros. Some pages are not what their slots are.
    [3, 70, 71].into_iter().for_each(|page| guest.write(page, 5000 + u64::from(page)));
    let mut worker = space.worker()?;
    // Without a mapping to be had blocks are split as their pages are merged.
    let _ = split(&mut worker, guest.bench.all());
    let mut written = Vec::new();
    worker.scan(guest.bench.all(), &mut written, 1000)?;
    for first in (0..192).step_by(64) {
        guest.merge(&mut worker, first, 64, first);
    }
    let zeros = Run { page: guest.bench.page(190).0, count: 60, slot: 0, target: RunTarget::Zeros };
    if let Ok(segments) = guest.bench.pin() {
        worker.merge(&segments, &[zeros], &mut Vec::new());
    }
    guest.verify("merged");
    guest.believes_what_is(&worker, "merged");
    for page in (0..40).step_by(3).chain(100..110).chain([200, 230]) {
        guest.write(page, 7000 + u64::from(page));
    }
    guest.verify("broken");
    guest.hear(&mut worker);
    guest.believes_what_is(&worker, "broken");
    written.clear();
    worker.scan(guest.bench.all(), &mut written, 1000)?;
    let again = || (0..40).step_by(3);
    again().for_each(|page| guest.write(page, 8000 + u64::from(page)));
    written.clear();
    worker.scan(guest.bench.all(), &mut written, 1000)?;
    // However they came back, and whatever they lie in now.
    let is_told =
        |page| written.iter().any(|span| (span.first..span.first + span.count).contains(&page));
    let pending_reports: Vec<u32> =
        again().filter(|page| !is_told(guest.bench.page(*page).0)).collect();
    assert!(
        pending_reports.is_empty(),
        "{pending_reports:?} were written, and not found by {written:?}"
    );
    let thrown_away = guest.bench.address(40);
    space.discard(thrown_away, 30 * PAGE_BYTES, libc::MADV_DONTNEED).inspect_err(|_| {
        // Some of the pages are zeros, the others are what they were.
        for page in 40..70 {
            if guest.bench.holds(page, 0) {
                guest.holds[page as usize] = 0;
            }
        }
    })?;
    guest.holds[40..70].fill(0);
    guest.verify("discarded");
    guest.hear(&mut worker);
    guest.write(3, 4);
    guest.merge(&mut worker, 3, 1, 3);
    guest.verify("merged alone");
    // Others to merge with, for those that are merged already.
    guest.merge(&mut worker, 72, 60, PAGES + 72);
    guest.verify("merged elsewhere");
    worker.mend(guest.bench.all());
    guest.verify("mended");
    for page in 0..10 {
        guest.write(page, u64::from(page) + 1);
    }
    guest.merge(&mut worker, 0, 64, 0);
    worker.unmerge(guest.bench.all(), 40);
    guest.verify("unmerged");
    guest.hear(&mut worker);
    guest.believes_what_is(&worker, "unmerged");
    space.release()?;
    Ok(())
}

/// One life with a plan. Whether a call failed.
fn live_through(guest: &mut Guest, plan: &Plan, nth: u64, times: u64) -> bool {
    let (failed, lived) = guest.suffer(plan, (nth, times), live);
    // Whatever was refused can be done once the kernel is kind again.
    guest.bench.space.release().unwrap_or_else(|error| panic!("{error}, after {lived:?}"));
    guest.believes_nothing();
    guest.verify("given back");
    // CoW copies stay with us: their owner maps other memory there.
    let memory = &guest.bench.memory;
    guest.bench.space.forget(memory.address(), memory.bytes());
    // SAFETY: the memory is this test's.
    unsafe { mapping::replace_with_anonymous(memory.address(), memory.bytes()) }
        .expect("fresh memory");
    guest.holds.fill(0);
    failed
}

fn lives_through(name: &str, failures: &'static [Failure]) {
    let work = |kernel: &Kernel| {
        let Some(mut guest) = Guest::new(PAGES, SLOTS) else { return };
        guest.bench.space.release().expect("release");
        for failure in failures {
            walk(kernel, failure, |plan, nth, times| live_through(&mut guest, plan, nth, times));
        }
    };
    alone(name, || _ = supervised(work));
}

#[test]
fn mappings_that_cannot_be_made_lose_nothing() {
    lives_through(
        "faults::mappings_that_cannot_be_made_lose_nothing",
        &[
            Failure { name: "mmap over: ENOMEM", concerns: Call::is_mmap_over, fails: ENOMEM },
            Failure {
                name: "mmap over: gone",
                concerns: Call::is_mmap_over,
                fails: unmapped_first,
            },
            Failure { name: "mmap: ENOMEM", concerns: is_own_mapping, fails: ENOMEM },
            Failure { name: "mremap: ENOMEM", concerns: is_remap, fails: ENOMEM },
            Failure { name: "mremap: gone", concerns: is_remap, fails: unmapped_first },
        ],
    );
}

#[test]
fn pages_that_cannot_be_moved_lose_nothing() {
    const MOVE: fn(&Call) -> bool = |call| call.is_ioctl(UFFDIO_MOVE);
    const MOVE_OR_SCAN: fn(&Call) -> bool =
        |call| call.is_ioctl(UFFDIO_MOVE) || call.is_ioctl(PAGEMAP_SCAN);
    lives_through(
        "faults::pages_that_cannot_be_moved_lose_nothing",
        &[
            Failure { name: "move: EBUSY", concerns: MOVE, fails: EBUSY },
            Failure { name: "move: EAGAIN", concerns: MOVE, fails: EAGAIN },
            Failure { name: "move: ENOMEM", concerns: MOVE, fails: ENOMEM },
            Failure { name: "move: in part", concerns: MOVE, fails: moved_in_part },
            Failure { name: "move: false EEXIST", concerns: MOVE, fails: moved_and_denied },
            Failure {
                name: "move, and scan",
                concerns: MOVE_OR_SCAN,
                fails: denied_or_out_of_memory,
            },
        ],
    );
}

#[test]
fn pages_that_cannot_be_filled_lose_nothing() {
    const ZERO: fn(&Call) -> bool = |call| call.is_ioctl(UFFDIO_ZEROPAGE);
    const COPY: fn(&Call) -> bool =
        |call| call.is_ioctl(UFFDIO_COPY) || call.is_ioctl(UFFDIO_ZEROPAGE);
    lives_through(
        "faults::pages_that_cannot_be_filled_lose_nothing",
        &[
            Failure { name: "zero: ENOMEM", concerns: ZERO, fails: ENOMEM },
            Failure { name: "zero: EAGAIN", concerns: ZERO, fails: EAGAIN },
            Failure { name: "zero: EEXIST", concerns: ZERO, fails: EEXIST },
            Failure { name: "zero or copy: EAGAIN", concerns: COPY, fails: EAGAIN },
        ],
    );
}

#[test]
fn memory_that_cannot_be_watched_loses_nothing() {
    const REGISTER: fn(&Call) -> bool = |call| call.is_ioctl(UFFDIO_REGISTER);
    const UNREGISTER: fn(&Call) -> bool = |call| call.is_ioctl(UFFDIO_UNREGISTER);
    const PROTECT: fn(&Call) -> bool = |call| call.is_ioctl(UFFDIO_WRITEPROTECT);
    lives_through(
        "faults::memory_that_cannot_be_watched_loses_nothing",
        &[
            Failure { name: "register: ENOMEM", concerns: REGISTER, fails: ENOMEM },
            Failure { name: "unregister: ENOMEM", concerns: UNREGISTER, fails: ENOMEM },
            Failure { name: "protect: ENOMEM", concerns: PROTECT, fails: ENOMEM },
            Failure { name: "protect: EAGAIN", concerns: PROTECT, fails: EAGAIN },
        ],
    );
}

#[test]
fn questions_and_advice_that_fail_lose_nothing() {
    const SCAN: fn(&Call) -> bool = |call| call.is_ioctl(PAGEMAP_SCAN);
    const ADVICE: fn(&Call) -> bool = |call| call.number == libc::SYS_madvise;
    lives_through(
        "faults::questions_and_advice_that_fail_lose_nothing",
        &[
            Failure { name: "scan: ENOMEM", concerns: SCAN, fails: ENOMEM },
            Failure { name: "advice: ENOMEM", concerns: ADVICE, fails: ENOMEM },
        ],
    );
}

/// Memory of which some pages are equal to their slots and every third is not, so that it comes back.
fn unequal(guest: &mut Guest) -> Lived {
    let space = Arc::clone(&guest.bench.space);
    guest.bench.region = space.manage(guest.bench.memory.address(), guest.bytes())?;
    guest.fill_slots();
    for page in 0..64 {
        let equal = u64::from(page) + 1;
        guest.write(page, if page % 3 == 0 { 9000 + equal } else { equal });
    }
    Ok(())
}

/// Whether a call fills a page between two addresses.
fn fills(call: &Call, request: u64, (start, end): (u64, u64)) -> bool {
    // SAFETY: moves and copies have five words, the first of them where to.
    call.is_ioctl(request) && (start..end).contains(&unsafe { call.words().read() })
}

#[test]
fn pages_come_back_whatever_the_kernel_refuses_for_good() {
    let work = |kernel: &Kernel| {
        let Some(mut guest) = Guest::new(64, SLOTS) else { return };
        guest.bench.space.release().expect("release");
        let memory = &guest.bench.memory;
        let place = (memory.address().0 as u64, (memory.address().0 + memory.bytes()) as u64);
        for errno in [libc::EFAULT, libc::EINVAL, libc::ENOMEM, libc::EAGAIN] {
            unequal(&mut guest).expect("managed");
            let mut worker = guest.bench.space.worker().expect("a worker");
            kernel.set_rule(move |call| match call {
                call if fills(&call, UFFDIO_MOVE, place) => Verdict::Fail(libc::EBUSY),
                call if fills(&call, UFFDIO_COPY, place) => Verdict::Fail(errno),
                _ => Verdict::Go,
            });
            let outcomes = guest.merge(&mut worker, 0, 64, 0);
            kernel.be_kind();
            let different = outcomes.iter().filter(|&&outcome| outcome == PageOutcome::Different);
            assert_eq!(different.count(), 22, "{errno}: {outcomes:?}");
            guest.verify("given back");
            // They are what they were in every way: written, scanned and merged.
            (0..64).step_by(3).for_each(|page| guest.write(page, u64::from(page) + 1));
            guest.verify("written");
            let outcomes = guest.merge(&mut worker, 0, 64, 0);
            let merged = |outcome: &PageOutcome| {
                [PageOutcome::Merged, PageOutcome::Already].contains(outcome)
            };
            assert!(outcomes.iter().all(merged), "{errno}: {outcomes:?}");
            guest.verify("merged");
            guest.bench.space.release().expect("release");
            guest.believes_nothing();
            guest.verify("released");
        }
    };
    alone("faults::pages_come_back_whatever_the_kernel_refuses_for_good", || _ = supervised(work));
}

#[test]
fn pages_stay_where_the_kernel_does_not_say_where_they_are() {
    let work = |kernel: &Kernel| {
        let Some(mut guest) = Guest::new(64, SLOTS) else { return };
        guest.bench.space.release().expect("release");
        for errno in [libc::EINVAL, libc::EBADF, libc::ENOMEM] {
            unequal(&mut guest).expect("managed");
            let mut worker = guest.bench.space.worker().expect("a worker");
            // Pages have moved, or have not, before the kernel falls silent.
            let mut is_silent = false;
            kernel.set_rule(move |call| {
                if call.is_ioctl(UFFDIO_MOVE) {
                    is_silent = true;
                    return moved_and_denied(&call);
                }
                let fails = is_silent && call.is_ioctl(PAGEMAP_SCAN);
                if fails { Verdict::Fail(errno) } else { Verdict::Go }
            });
            let outcomes = guest.merge(&mut worker, 0, 64, 0);
            guest.verify("nothing was merged");
            assert!(outcomes.iter().all(|&outcome| outcome == PageOutcome::Busy), "{outcomes:?}");
            // From the start, and where pages have other slots and are mended.
            kernel.set_rule(move |call| {
                let fails = call.is_ioctl(PAGEMAP_SCAN);
                if fails { Verdict::Fail(errno) } else { Verdict::Go }
            });
            let outcomes = guest.merge(&mut worker, 0, 64, 0);
            assert!(outcomes.iter().all(|&outcome| outcome == PageOutcome::Busy), "{outcomes:?}");
            worker.mend(guest.bench.all());
            guest.verify("silent");
            kernel.be_kind();
            guest.merge(&mut worker, 0, 64, 0);
            guest.verify("merged");
            guest.bench.space.release().expect("release");
            guest.believes_nothing();
            guest.verify("released");
        }
    };
    alone("faults::pages_stay_where_the_kernel_does_not_say_where_they_are", || {
        _ = supervised(work);
    });
}

#[test]
fn what_was_mended_and_cannot_be_watched_stays_private() {
    let work = |kernel: &Kernel| {
        let Some(mut guest) = Guest::new(64, SLOTS) else { return };
        guest.bench.space.release().expect("release");
        for errno in [libc::EINVAL, libc::ENOMEM] {
            unequal(&mut guest).expect("managed");
            let mut worker = guest.bench.space.worker().expect("a worker");
            guest.merge(&mut worker, 0, 64, 0);
            // Private again, each in a mapping of its own.
            (0..64).for_each(|page| guest.write(page, 100 + u64::from(page)));
            guest.hear(&mut worker);
            let memory = &guest.bench.memory;
            let place = (memory.address().0 as u64, (memory.address().0 + memory.bytes()) as u64);
            kernel.set_rule(move |call| {
                let fails = fills(&call, UFFDIO_REGISTER, place);
                if fails { Verdict::Fail(errno) } else { Verdict::Go }
            });
            worker.mend(guest.bench.all());
            kernel.be_kind();
            guest.verify("mended");
            (0..64).for_each(|page| guest.write(page, u64::from(page) + 1));
            guest.merge(&mut worker, 0, 64, 0);
            guest.verify("left alone, or merged");
            guest.bench.space.release().expect("release");
            guest.believes_nothing();
            guest.verify("released");
        }
    };
    alone("faults::what_was_mended_and_cannot_be_watched_stays_private", || _ = supervised(work));
}
