//! Ctrl-C while something is measured: what was started ends, and settings are put back.
//!
//! Guards do both when they are dropped, which a signal that kills the process would prevent. So
//! the signal only sets a flag, and every wait of a measurement fails once it is set.

use std::{
    io,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use anyhow::{Result, ensure};
use signal_hook::consts::{SIGINT, SIGTERM};

static INTERRUPTED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// Takes `SIGINT` and `SIGTERM` from now on. A second one kills, should a wait not end.
pub(crate) fn catch() -> io::Result<()> {
    if INTERRUPTED.get().is_some() {
        return Ok(());
    }
    let flag = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // In this order: the first signal finds the flag unset, and the second set.
        signal_hook::flag::register_conditional_default(signal, Arc::clone(&flag))?;
        signal_hook::flag::register(signal, Arc::clone(&flag))?;
    }
    // Of two threads that come here at once, one flag is set for nothing; there is one caller.
    let _ = INTERRUPTED.set(flag);
    Ok(())
}

/// Fails once a signal has come.
pub(crate) fn check() -> Result<()> {
    // Relaxed: the flag stands for itself.
    let interrupted = INTERRUPTED.get().is_some_and(|flag| flag.load(Ordering::Relaxed));
    ensure!(!interrupted, "interrupted; all that was started has ended");
    Ok(())
}

/// Sleeps, and fails if a signal has come.
pub(crate) fn rest(duration: Duration) -> Result<()> {
    thread::sleep(duration);
    check()
}
