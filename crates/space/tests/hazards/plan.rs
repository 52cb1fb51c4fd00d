//! Which call fails, how, and walking through all of them.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use bindery_units::PAGE_BYTES;

use crate::kernel::{Call, Kernel, UFFDIO_MOVE, Verdict};

/// More calls of one kind than a life makes.
const CALLS_MAX: u64 = 3000;

/// A tenth of a second each, for a life that is to move on.
const PATIENCE: u32 = 300;

/// A way for one kind of call to fail.
pub(crate) struct Failure {
    pub(crate) name: &'static str,
    pub(crate) concerns: fn(&Call) -> bool,
    pub(crate) fails: fn(&Call) -> Verdict,
}

/// Which call fails.
#[derive(Default)]
pub(crate) struct Plan {
    armed: AtomicBool,
    seen: AtomicU64,
    nth: AtomicU64,
    /// How many in a row.
    times: AtomicU64,
}

impl Plan {
    fn decide(&self, failure: &Failure, call: &Call) -> Verdict {
        if !self.armed.load(Ordering::SeqCst) || !(failure.concerns)(call) {
            return Verdict::Go;
        }
        let nth = self.nth.load(Ordering::SeqCst);
        let at = self.seen.fetch_add(1, Ordering::SeqCst) + 1;
        if (nth..nth + self.times.load(Ordering::SeqCst)).contains(&at) {
            (failure.fails)(call)
        } else {
            Verdict::Go
        }
    }

    pub(crate) fn arm(&self, nth: u64, times: u64) {
        self.seen.store(0, Ordering::SeqCst);
        self.nth.store(nth, Ordering::SeqCst);
        self.times.store(times, Ordering::SeqCst);
        self.armed.store(true, Ordering::SeqCst);
    }

    /// Whether a call failed.
    pub(crate) fn disarm(&self) -> bool {
        self.armed.store(false, Ordering::SeqCst);
        self.seen.load(Ordering::SeqCst) >= self.nth.load(Ordering::SeqCst)
    }
}

/// Has each call fail that a failure concerns, until a life meets none: first one alone, then three
/// in a row. `live` arms the plan and says whether a call failed.
pub(crate) fn walk(
    kernel: &Kernel,
    failure: &'static Failure,
    mut live: impl FnMut(&Plan, u64, u64) -> bool,
) {
    let plan = Arc::new(Plan::default());
    let rule = Arc::clone(&plan);
    kernel.set_rule(move |call| rule.decide(failure, &call));
    let watchdog = Watchdog::start(failure.name, Arc::clone(&plan));
    for times in [1, 3] {
        let mut nth = 1;
        while live(&plan, nth, times) {
            nth += 1;
            assert!(nth < CALLS_MAX, "{}: calls without end", failure.name);
        }
        println!("{}, {times} at once: {} lives", failure.name, nth - 1);
        assert!(nth > 1, "{}: no such call is made", failure.name);
    }
    drop(watchdog);
    kernel.be_kind();
}

/// Ends the process if a life hangs: it cannot be ended otherwise.
struct Watchdog(Arc<AtomicBool>);

impl Watchdog {
    fn start(name: &'static str, plan: Arc<Plan>) -> Self {
        let ended = Arc::new(AtomicBool::new(false));
        let end = Arc::clone(&ended);
        thread::spawn(move || {
            let (mut last, mut quiet) = (0, 0);
            while !end.load(Ordering::SeqCst) {
                thread::sleep(Duration::from_millis(100));
                let now = plan.nth.load(Ordering::SeqCst);
                quiet = if now == last { quiet + 1 } else { 0 };
                last = now;
                if quiet > PATIENCE {
                    eprintln!("{name}, call {now}: nothing moves");
                    std::process::abort();
                }
            }
        });
        Self(ended)
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

pub(crate) const ENOMEM: fn(&Call) -> Verdict = |_| Verdict::Fail(libc::ENOMEM);
pub(crate) const EAGAIN: fn(&Call) -> Verdict = |_| Verdict::Fail(libc::EAGAIN);
pub(crate) const EBUSY: fn(&Call) -> Verdict = |_| Verdict::Fail(libc::EBUSY);
pub(crate) const EEXIST: fn(&Call) -> Verdict = |_| Verdict::Fail(libc::EEXIST);

pub(crate) fn is_remap(call: &Call) -> bool {
    call.number == libc::SYS_mremap
}

pub(crate) fn is_own_mapping(call: &Call) -> bool {
    call.number == libc::SYS_mmap && !call.is_mmap_over()
}

/// The kernel unmapped what was to be replaced, and then had no memory.
pub(crate) fn unmapped_first(call: &Call) -> Verdict {
    let (start, bytes) = match call.number {
        libc::SYS_mremap => (call.arguments[4], call.arguments[2]),
        _ => (call.arguments[0], call.arguments[1]),
    };
    // SAFETY: the caller replaces the range, and handles that it is gone if it could not.
    let gone = unsafe { libc::munmap(start as *mut _, bytes as usize) };
    assert_eq!(gone, 0, "what is mapped can be unmapped");
    Verdict::Fail(libc::ENOMEM)
}

/// Word of the argument of `UFFDIO_MOVE` and `UFFDIO_COPY` for the length, and for what was done.
const LENGTH: usize = 2;
const DONE: usize = 4;

/// One page moves, and the kernel says that it was there already.
pub(crate) fn moved_and_denied(call: &Call) -> Verdict {
    // SAFETY: `UFFDIO_MOVE` has five words.
    unsafe {
        call.words().add(LENGTH).write(PAGE_BYTES as u64);
        if call.perform() == 0 {
            call.words().add(DONE).write(-i64::from(libc::EEXIST) as u64);
            return Verdict::Fail(libc::EEXIST);
        }
    }
    Verdict::Fail(libc::EBUSY)
}

/// The same, and nobody can be asked what really moved.
pub(crate) fn denied_or_out_of_memory(call: &Call) -> Verdict {
    if call.is_ioctl(UFFDIO_MOVE) { moved_and_denied(call) } else { Verdict::Fail(libc::ENOMEM) }
}

/// One page moves, and the rest is to be tried again.
pub(crate) fn moved_in_part(call: &Call) -> Verdict {
    // SAFETY: as above.
    unsafe {
        let asked = call.words().add(LENGTH).read();
        if asked == PAGE_BYTES as u64 {
            return Verdict::Go;
        }
        call.words().add(LENGTH).write(PAGE_BYTES as u64);
        match call.perform() {
            0 => Verdict::Fail(libc::EAGAIN),
            errno => Verdict::Fail(errno),
        }
    }
}
