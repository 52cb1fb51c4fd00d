//! Locks of lists that workers fill together.

use std::sync::{Mutex, MutexGuard};

/// Locks what workers fill together. Short, and never while a guest is asked anything.
///
/// # Panics
/// If a worker panicked with it, which ends the engine.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no worker panicked while it held a list")
}

/// Returns what [`locked`] locks, where nobody else can hold it.
///
/// # Panics
/// As [`locked`].
pub(crate) fn locked_mut<T>(mutex: &mut Mutex<T>) -> &mut T {
    mutex.get_mut().expect("no worker panicked while it held a list")
}
