//! The budget of mappings: how many the process has, and how many merging may make.
//!
//! Every run of merged pages is a mapping of its own and cuts its neighbour in two, and a page that
//! is written leaves its run as another. A process that reaches `vm.max_map_count` can map nothing
//! more, so merging stops well before: a sixteenth of the limit, and at least 1024, is left to the
//! VMM and to pages that come back. Should even that be used up, a written page is left to the
//! kernel's copy-on-write, which needs no mapping (see [`restore`](crate::restore)).

use std::{
    fs::File,
    io::{self, Read, Seek},
    os::unix::fs::FileExt,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicI64, AtomicU32, Ordering},
    },
};

use bindery_sys::table::Kept;

/// What merging leaves free, at least.
const RESERVE_MAPPINGS_MIN: u32 = 1024;

/// The count is read again from the kernel after so many changes of our own at the earliest.
const REFRESH_CHANGES: i64 = 4096;

/// And not before the changes are this part of the room that is left: while there is much, it makes
/// no difference how much.
const REFRESH_PART: i64 = 4;

#[derive(Debug)]
pub(crate) struct Budget {
    counted: AtomicU32,
    /// Mappings made (at worst) since they were counted.
    changes: AtomicI64,
    /// What they were when the limit was looked at last.
    changes_followed: AtomicI64,
    max: AtomicU32,
    sources: Kept<Mutex<Sources>>,
}

/// Kept open: the count is most wanted when nothing can be opened any more.
#[derive(Debug)]
struct Sources {
    maps: File,
    limit: File,
    buffer: Box<[u8; 16 * 1024]>,
}

impl Budget {
    /// # Errors
    /// When `/proc` is not mounted, or descriptors are short.
    pub(crate) fn new() -> io::Result<Self> {
        let sources = Kept::open(|| {
            Ok(Mutex::new(Sources {
                maps: File::open("/proc/self/maps")?,
                limit: File::open("/proc/sys/vm/max_map_count")?,
                buffer: Box::new([0; 16 * 1024]),
            }))
        })?;
        let (counted, limit) = sources.with(|sources| {
            let mut sources = sources.lock().unwrap_or_else(PoisonError::into_inner);
            io::Result::Ok((sources.count()?, sources.limit()?))
        })?;
        Ok(Self {
            counted: AtomicU32::new(counted),
            changes: AtomicI64::new(0),
            changes_followed: AtomicI64::new(0),
            max: AtomicU32::new(limit.saturating_sub(reserve(limit))),
            sources,
        })
    }

    /// Counts the process's mappings. About 0.3 µs a mapping. What cannot be read stays as it was.
    pub(crate) fn refresh(&self) {
        self.with_sources(|sources| {
            let before = self.changes.load(Ordering::Relaxed);
            if let Ok(counted) = sources.count() {
                self.counted.store(counted, Ordering::Relaxed);
                // Others may have made more meanwhile, which may not have been counted.
                self.changes.fetch_sub(before, Ordering::Relaxed);
            }
            sources.follow_limit(&self.max);
        });
    }

    fn with_sources(&self, work: impl FnOnce(&mut Sources) + Send) {
        self.sources
            .with(|sources| work(&mut sources.lock().unwrap_or_else(PoisonError::into_inner)));
    }

    /// Looks whether the limit was raised or lowered, and counts again what has changed, once it
    /// changes no more or merging has come up against the limit. To be called now and then: nothing
    /// else would notice a limit that is raised when it was reached.
    pub(crate) fn follow(&self) {
        self.with_sources(|sources| sources.follow_limit(&self.max));
        let changes = self.changes.load(Ordering::Relaxed);
        let rests = self.changes_followed.swap(changes, Ordering::Relaxed) == changes;
        if changes > 0 && (rests || !self.allows(1)) {
            self.refresh();
        }
    }

    /// Counts again if the estimate has become vague. Milliseconds for a process of many mappings:
    /// not for while pages are in transit.
    pub(crate) fn settle(&self, mappings: u32) {
        let vague = if self.allows(mappings) {
            let room = i64::from(self.max().saturating_sub(self.now()));
            REFRESH_CHANGES.max(room / REFRESH_PART)
        } else {
            REFRESH_CHANGES / 16
        };
        if self.changes.load(Ordering::Relaxed) > vague {
            self.refresh();
        }
    }

    /// Notes mappings made, at worst.
    pub(crate) fn made(&self, mappings: u32) {
        self.changes.fetch_add(i64::from(mappings), Ordering::Relaxed);
    }

    /// Whether so many more may be made.
    pub(crate) fn allows(&self, mappings: u32) -> bool {
        u64::from(self.now()) + u64::from(mappings) <= u64::from(self.max())
    }

    /// Mappings now, at worst.
    pub(crate) fn now(&self) -> u32 {
        let changes = self.changes.load(Ordering::Relaxed).max(0);
        (i64::from(self.counted.load(Ordering::Relaxed)) + changes).try_into().unwrap_or(u32::MAX)
    }

    /// Mappings that merging may fill up to.
    pub(crate) fn max(&self) -> u32 {
        self.max.load(Ordering::Relaxed)
    }
}

impl Sources {
    fn count(&mut self) -> io::Result<u32> {
        self.maps.rewind()?;
        let mut lines = 0;
        loop {
            let read = self.maps.read(&mut self.buffer[..])?;
            if read == 0 {
                return Ok(lines);
            }
            lines += self.buffer[..read].iter().filter(|&&byte| byte == b'\n').count() as u32;
        }
    }

    /// Sets what merging may fill up to. What cannot be read stays as it was.
    fn follow_limit(&mut self, max: &AtomicU32) {
        if let Ok(limit) = self.limit() {
            max.store(limit.saturating_sub(reserve(limit)), Ordering::Relaxed);
        }
    }

    fn limit(&mut self) -> io::Result<u32> {
        let read = self.limit.read_at(&mut self.buffer[..], 0)?;
        let text = str::from_utf8(&self.buffer[..read]).unwrap_or_default();
        text.trim().parse().map_err(io::Error::other)
    }
}

fn reserve(limit: u32) -> u32 {
    (limit / 16).max(RESERVE_MAPPINGS_MIN)
}

#[cfg(test)]
mod tests {
    use bindery_sys::table;

    use super::*;

    #[test]
    fn the_count_is_the_kernels() {
        table::start().expect("a table");
        let budget = Budget::new().expect("proc");
        let before = budget.now();
        assert!(before > 10 && budget.max() > before);
        budget.made(7);
        assert_eq!(budget.now(), before + 7);
        assert!(!budget.allows(budget.max()));
    }

    #[test]
    fn a_reserve_is_left_at_the_default_limit() {
        assert_eq!(reserve(65_530), 4095);
        assert_eq!(reserve(4000), RESERVE_MAPPINGS_MIN);
    }
}
