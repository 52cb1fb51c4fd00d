//! Values that are read without waiting, in signal handlers too, and replaced as a whole.
//!
//! [`Published`] is read-copy-update with two counts of readers, after the kernel's SRCU
//! (Documentation/RCU/checklist.rst, `kernel/rcu/srcutree.c`). A reader enters its count and then takes
//! the pointer; a writer changes the pointer and then sees each count at zero once. A reader that got the old
//! pointer had entered its count before the change, so a count that is zero afterwards says that it has
//! left. New readers are sent to the other count meanwhile, so that the wait ends on a busy machine.

#[cfg(loom)]
use loom::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicPtr, AtomicUsize, Ordering, fence},
};
use std::fmt;
use std::ptr;
#[cfg(not(loom))]
use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicPtr, AtomicUsize, Ordering, fence},
};

/// At most one value of `T`, which any number of threads look at while one replaces it. None at first.
pub struct Published<T> {
    /// Null, or from `Box::into_raw`.
    current: AtomicPtr<T>,
    /// Number of the count that new readers enter, in its lowest bit.
    entrance: AtomicUsize,
    readers: [AtomicUsize; 2],
    writer: Mutex<()>,
}

// SAFETY: the value goes from the thread that publishes it to the one that drops it, and is looked at by
// any; its pointer is this value's own. Needs what the bounds say.
unsafe impl<T: Send + Sync> Send for Published<T> {}
// SAFETY: as for `Send`.
unsafe impl<T: Send + Sync> Sync for Published<T> {}

impl<T> Default for Published<T> {
    fn default() -> Self {
        Self {
            current: AtomicPtr::new(ptr::null_mut()),
            entrance: AtomicUsize::new(0),
            readers: [AtomicUsize::new(0), AtomicUsize::new(0)],
            writer: Mutex::new(()),
        }
    }
}

/// Presence of a reader, which leaves the count that it entered when this is dropped, by a panic too.
struct Inside<'a>(&'a AtomicUsize);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        // Release, for the Acquire in `wait_for_readers`: what was read was read before.
        self.0.fetch_sub(1, Ordering::Release);
    }
}

impl<T> Published<T> {
    /// Calls `look` with the published value, or `None`. Never waits and allocates nothing, so it may be
    /// called in a signal handler if `look` may. [`update`](Self::update) waits until `look` has returned.
    pub fn read<R>(&self, look: impl FnOnce(Option<&T>) -> R) -> R {
        let count = &self.readers[self.entrance.load(Ordering::Relaxed) & 1];
        count.fetch_add(1, Ordering::Relaxed);
        let _inside = Inside(count);
        // With the fence in `update`: either the writer sees the count, or this sees the new pointer.
        fence(Ordering::SeqCst);
        // Acquire, with the Release in `update`: the value itself is seen too.
        let current = self.current.load(Ordering::Acquire);
        // SAFETY: needs a value that lives while `look` runs. It is freed by `update` alone, which first
        // waits until each count was zero after the pointer changed, and this one is not.
        look(unsafe { current.as_ref() })
    }

    /// Replaces the value by the one that `next` makes of it. Waits until nobody looks at the old one, and
    /// drops that. Updates of several threads run one after the other; a panic in `next` changes nothing.
    ///
    /// Waits for ever if called from within a [`read`](Self::read) or an update of the same value.
    pub fn update(&self, next: impl FnOnce(Option<&T>) -> Option<T>) {
        let _writer = self.lock();
        let current = self.current.load(Ordering::Relaxed);
        // SAFETY: the value is freed by this function alone, and the lock is held.
        let next = next(unsafe { current.as_ref() });
        let next = next.map_or(ptr::null_mut(), |next| Box::into_raw(Box::new(next)));
        self.current.store(next, Ordering::Release);
        fence(Ordering::SeqCst);
        self.wait_for_readers();
        if !current.is_null() {
            // SAFETY: from `Box::into_raw`, no longer published, and nobody looks at it: see above.
            drop(unsafe { Box::from_raw(current) });
        }
    }

    fn lock(&self) -> MutexGuard<'_, ()> {
        // Under the lock nothing is left half done: a panic in `next` comes before any change.
        self.writer.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn wait_for_readers(&self) {
        for count in [0, 1] {
            self.entrance.store(1 - count, Ordering::Relaxed);
            let mut turns = 0;
            while self.readers[count].load(Ordering::Acquire) != 0 {
                pause(turns);
                turns += 1;
            }
        }
    }
}

/// Waits for a while for readers, which are done in less than a microsecond or wait for a disk.
#[cfg(not(loom))]
fn pause(turns: u32) {
    const SPINS: u32 = 100;
    if turns < SPINS {
        std::hint::spin_loop();
    } else {
        std::thread::sleep(std::time::Duration::from_micros(20));
    }
}

#[cfg(loom)]
fn pause(_: u32) {
    loom::thread::yield_now();
}

impl<T> Drop for Published<T> {
    fn drop(&mut self) {
        let current = self.current.load(Ordering::Relaxed);
        if !current.is_null() {
            // SAFETY: from `Box::into_raw`; nobody else has a reference to `self`, so nobody looks.
            drop(unsafe { Box::from_raw(current) });
        }
    }
}

impl<T> fmt::Debug for Published<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Published")
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;
    use std::thread;

    #[test]
    fn readers_see_whole_values_while_others_replace_them() {
        let published = Published::default();
        assert!(published.read(|value: Option<&Vec<u64>>| value.is_none()));
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while !done.load(Ordering::Relaxed) {
                        published.read(|value| {
                            let Some(value) = value else { return };
                            assert!(value.iter().all(|number| *number == value[0]));
                        });
                    }
                });
            }
            for number in 0..2000 {
                published.update(|_| Some(vec![number; 64]));
            }
            done.store(true, Ordering::Relaxed);
        });
        assert_eq!(published.read(|value| value.map(|value| value[0])), Some(1999));
        published.update(|value| value.is_none().then(Vec::new));
        assert!(published.read(|value| value.is_none()));
    }
}
