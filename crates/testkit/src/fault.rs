//! Has the Nth call of a named operation fail, so that a test can walk through every failure that
//! a run can meet: N = 1, 2, 3 … until the run gets through without one.
//!
//! The code under test asks [`check`] before the operation. Without a plan that is one relaxed
//! load. A plan is armed by a test in the same process, or by [`VARIABLE`] for a process that the
//! test starts.
//!
//! Concurrency: one plan is armed at a time; arming waits for the one before. Calls are counted
//! across all threads, and exactly one call meets the failure.

use std::io;
use std::str::FromStr;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Arms a plan in a process from its start: `OPERATION:NTH:ERRNO`, for example
/// `store.grow:3:12`.
pub const VARIABLE: &str = "BINDERY_FAULT";

/// The environment was not looked at yet.
const UNKNOWN: u8 = 0;
const DISARMED: u8 = 1;
const ARMED: u8 = 2;

static STATE: AtomicU8 = AtomicU8::new(UNKNOWN);
static ACTIVE: Mutex<Option<Plan>> = Mutex::new(None);
static CALLS: AtomicU64 = AtomicU64::new(0);

/// Held while a plan is armed.
static TURN: Mutex<()> = Mutex::new(());

/// Which call fails, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The operation's name.
    pub operation: String,
    /// Which call fails, counted from one.
    pub nth: u64,
    /// The error that it gets.
    pub errno: i32,
}

impl Plan {
    /// Arms the plan until the guard is dropped; waits for another thread's plan to end.
    #[must_use]
    pub fn arm(self) -> Armed {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        activate(self);
        Armed { _turn: turn }
    }
}

impl FromStr for Plan {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || format!("expected OPERATION:NTH:ERRNO, found {text:?}");
        let mut fields = text.split(':');
        let mut next = || fields.next().ok_or_else(expected);
        let (operation, nth, errno) = (next()?.to_owned(), next()?, next()?);
        Ok(Self {
            operation,
            nth: nth.parse().map_err(|_| expected())?,
            errno: errno.parse().map_err(|_| expected())?,
        })
    }
}

/// An armed plan.
#[derive(Debug)]
pub struct Armed {
    _turn: MutexGuard<'static, ()>,
}

impl Armed {
    /// Whether the failure was met.
    #[must_use]
    pub fn fired(&self) -> bool {
        let plan = ACTIVE.lock().unwrap_or_else(PoisonError::into_inner);
        plan.as_ref().is_some_and(|plan| CALLS.load(Ordering::Relaxed) >= plan.nth)
    }
}

impl Drop for Armed {
    fn drop(&mut self) {
        STATE.store(DISARMED, Ordering::Relaxed);
        *ACTIVE.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// Fails when the armed plan says that this call does.
///
/// # Errors
/// The plan's error, once.
#[inline]
pub fn check(operation: &str) -> io::Result<()> {
    // Relaxed: threads that were started after arming see it; for others the count starts a little
    // later, which no test can tell from being late.
    if STATE.load(Ordering::Relaxed) == DISARMED { Ok(()) } else { count(operation) }
}

#[cold]
fn count(operation: &str) -> io::Result<()> {
    if STATE.load(Ordering::Relaxed) == UNKNOWN {
        arm_from_environment();
    }
    let active = ACTIVE.lock().unwrap_or_else(PoisonError::into_inner);
    match active.as_ref() {
        // Under the lock, so that no other thread's call comes between counting and comparing.
        Some(plan)
            if plan.operation == operation
                && CALLS.fetch_add(1, Ordering::Relaxed) + 1 == plan.nth =>
        {
            Err(io::Error::from_raw_os_error(plan.errno))
        }
        _ => Ok(()),
    }
}

fn activate(plan: Plan) {
    let mut active = ACTIVE.lock().unwrap_or_else(PoisonError::into_inner);
    *active = Some(plan);
    CALLS.store(0, Ordering::Relaxed);
    STATE.store(ARMED, Ordering::Relaxed);
}

fn arm_from_environment() {
    match std::env::var(VARIABLE) {
        Ok(text) => match text.parse() {
            Ok(plan) => activate(plan),
            Err(error) => panic!("{VARIABLE}: {error}"),
        },
        Err(_) => STATE.store(DISARMED, Ordering::Relaxed),
    }
}

/// Runs `run` with the first call of `operation` failing, then the second, and so on, until a run
/// meets no failure; returns how many failures there were.
///
/// # Panics
/// When `limit` failures are not the end of it: the operation is then called without bound.
pub fn until_survived(operation: &str, errno: i32, limit: u64, mut run: impl FnMut(u64)) -> u64 {
    for nth in 1..=limit {
        let armed = Plan { operation: operation.to_owned(), nth, errno }.arm();
        run(nth);
        if !armed.fired() {
            return nth - 1;
        }
    }
    panic!("{operation} was still called after {limit} failures");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn three_calls() -> Result<(), io::Error> {
        (0..3).try_for_each(|_| check("test.operation"))
    }

    #[test]
    fn every_call_fails_once_and_then_the_run_survives() {
        let mut failures = Vec::new();
        let met = until_survived("test.operation", 12, 100, |nth| {
            failures.push((nth, three_calls().map_err(|error| error.raw_os_error())));
        });
        assert_eq!(met, 3);
        let failed = Err(Some(12));
        assert_eq!(failures, [(1, failed), (2, failed), (3, failed), (4, Ok(()))]);
        assert!(three_calls().is_ok());
    }

    #[test]
    fn one_of_many_threads_meets_the_failure() {
        let armed = Plan { operation: "test.threads".to_owned(), nth: 500, errno: 5 }.arm();
        let failed: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| (0..1000).filter(|_| check("test.threads").is_err()).count())
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(failed, 1);
        assert!(armed.fired());
        assert!(check("test.another").is_ok());
    }

    #[test]
    fn plans_are_read_as_they_are_documented() {
        let plan: Plan = "store.grow:3:12".parse().unwrap();
        assert_eq!(plan, Plan { operation: "store.grow".to_owned(), nth: 3, errno: 12 });
        for wrong in ["", "store.grow", "store.grow:x:12", "store.grow:3:ENOMEM"] {
            assert!(wrong.parse::<Plan>().is_err(), "{wrong}");
        }
    }
}
