//! Ctrl-C while something is measured: what was started ends, and settings are put back.
//!
//! Guards do both when they are dropped, which a signal that kills the process would prevent. So
//! the signal only sets a flag, and every wait of a measurement fails once it is set.

use std::{
    io,
    sync::{
        OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Error, Result, ensure};
use signal_hook::{
    consts::{SIGINT, SIGTERM},
    iterator::Signals,
    low_level::emulate_default_handler,
};

static CATCHING: OnceLock<()> = OnceLock::new();
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Signals that come so soon after the first are the same request: timeout(1) sends two, one to the
/// process and one to its group.
const ONE_REQUEST: Duration = Duration::from_secs(1);

/// Takes `SIGINT` and `SIGTERM` from now on. A later one kills, should a wait not end.
pub(crate) fn catch() -> io::Result<()> {
    if CATCHING.set(()).is_err() {
        return Ok(());
    }
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    let take = move || {
        let mut first = None;
        for signal in signals.forever() {
            // Relaxed, here and below: the flag stands for itself.
            INTERRUPTED.store(true, Ordering::Relaxed);
            let first: &mut Instant = first.get_or_insert_with(Instant::now);
            if first.elapsed() > ONE_REQUEST {
                // It fails for signals that nobody may take, which these are not.
                let _ = emulate_default_handler(signal);
            }
        }
    };
    thread::Builder::new().name("signals".into()).spawn(take).map(drop)
}

/// Fails once a signal has come.
///
/// # Errors
/// After `SIGINT` or `SIGTERM`.
pub fn check() -> Result<()> {
    let interrupted = INTERRUPTED.load(Ordering::Relaxed);
    ensure!(!interrupted, "interrupted; all that was started has ended");
    Ok(())
}

/// Why a measurement failed: the signal, if one has come. A terminal sends Ctrl-C to what was started
/// as well, whose end looks like a failure of its own.
pub(crate) fn or_why(error: Error) -> Error {
    check().err().unwrap_or(error)
}

/// Sleeps, and fails if a signal has come.
pub(crate) fn rest(duration: Duration) -> Result<()> {
    thread::sleep(duration);
    check()
}
