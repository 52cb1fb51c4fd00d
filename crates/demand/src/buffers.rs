//! Buffers for pages on their way, which a signal handler can have without allocating.

use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use bindery_sys::mapping::Mapping;
use bindery_units::PAGE_BYTES;

use crate::source::FETCH_PAGES_MAX;

const BUFFER_BYTES: usize = FETCH_PAGES_MAX * PAGE_BYTES;

/// Buffers of a process, shared by all memory in it: one for each bit of a word. Each takes memory once it
/// has been used.
struct Buffers {
    /// Bits of the buffers that are lent.
    taken: AtomicU32,
    mapping: Mapping,
}

static BUFFERS: OnceLock<Result<Buffers, i32>> = OnceLock::new();

/// Makes the process's buffers, if there are none yet.
///
/// # Errors
/// As mmap(2), whenever the first call failed.
pub(crate) fn make() -> io::Result<()> {
    let bytes = u32::BITS as usize * BUFFER_BYTES;
    let buffers = BUFFERS.get_or_init(|| match Mapping::anonymous(bytes) {
        Ok(mapping) => Ok(Buffers { taken: AtomicU32::new(0), mapping }),
        Err(error) => Err(error.raw_os_error().unwrap_or(libc::ENOMEM)),
    });
    buffers.as_ref().map(|_| ()).map_err(|errno| io::Error::from_raw_os_error(*errno))
}

/// Lends a buffer of [`FETCH_PAGES_MAX`] pages, page-aligned, to `work`. Returns `None` if none were
/// [made](make).
///
/// Waits for a buffer while all are lent: a thread that has one has all that it needs to return it, since
/// the handler is not interrupted.
pub(crate) fn lend<R>(work: impl FnOnce(&mut [u8]) -> R) -> Option<R> {
    let buffers = BUFFERS.get()?.as_ref().ok()?;
    Some(buffers.with(work))
}

impl Buffers {
    fn with<R>(&self, work: impl FnOnce(&mut [u8]) -> R) -> R {
        let lent = LentBuffer { buffers: self, number: self.take() };
        let start = self.mapping.as_ptr().wrapping_add(lent.number as usize * BUFFER_BYTES);
        // SAFETY: the mapping has a buffer for each bit, readable, writable and initialised; the bit is
        // set by this thread alone until `lent` goes.
        work(unsafe { std::slice::from_raw_parts_mut(start, BUFFER_BYTES) })
    }

    /// Takes a free buffer and returns its number.
    fn take(&self) -> u32 {
        let mut taken = self.taken.load(Ordering::Relaxed);
        loop {
            let free = taken.trailing_ones();
            if free == u32::BITS {
                std::thread::yield_now();
                taken = self.taken.load(Ordering::Relaxed);
                continue;
            }
            // Acquire, with the Release of `LentBuffer`: the last one who had it is done with it.
            let (acquire, relaxed) = (Ordering::Acquire, Ordering::Relaxed);
            match self.taken.compare_exchange(taken, taken | 1 << free, acquire, relaxed) {
                Ok(_) => return free,
                Err(now) => taken = now,
            }
        }
    }
}

struct LentBuffer<'a> {
    buffers: &'a Buffers,
    number: u32,
}

impl Drop for LentBuffer<'_> {
    fn drop(&mut self) {
        self.buffers.taken.fetch_and(!(1 << self.number), Ordering::Release);
    }
}
