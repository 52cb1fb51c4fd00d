//! What a VMM advised about its memory for good: mappings that are made there later get it too.
//!
//! QEMU keeps guest RAM out of children of fork, and out of core dumps where it is started with
//! `dump-guest-core=off`, as libvirt does.

use std::{
    io,
    sync::atomic::{AtomicBool, Ordering},
};

use bindery_sys::{mapping, maps::Advised};
use bindery_units::HostAddress;

use crate::region::Region;

/// [`Advised`], as it changes.
#[derive(Debug, Default)]
pub(crate) struct Advice {
    dont_fork: AtomicBool,
    dont_dump: AtomicBool,
}

impl From<Advised> for Advice {
    fn from(advised: Advised) -> Self {
        let Advised { dont_fork, dont_dump } = advised;
        Self { dont_fork: AtomicBool::new(dont_fork), dont_dump: AtomicBool::new(dont_dump) }
    }
}

impl Region {
    /// What was advised last.
    pub(crate) fn advised(&self) -> Advised {
        // Relaxed, as below: whoever notes advice orders it by the lock of the held ranges.
        Advised {
            dont_fork: self.advice.dont_fork.load(Ordering::Relaxed),
            dont_dump: self.advice.dont_dump.load(Ordering::Relaxed),
        }
    }

    /// Notes `MADV_DONTFORK`, `MADV_DONTDUMP` or the opposite of one.
    pub(crate) fn note_advice(&self, advice: i32) {
        match advice {
            libc::MADV_DONTFORK => self.advice.dont_fork.store(true, Ordering::Relaxed),
            libc::MADV_DOFORK => self.advice.dont_fork.store(false, Ordering::Relaxed),
            libc::MADV_DONTDUMP => self.advice.dont_dump.store(true, Ordering::Relaxed),
            libc::MADV_DODUMP => self.advice.dont_dump.store(false, Ordering::Relaxed),
            other => panic!("advice {other} is nothing to be noted"),
        }
    }

    /// Advises a mapping that was just made in the region, and has no advice yet.
    ///
    /// # Safety
    /// The caller holds the range.
    pub(crate) unsafe fn advise_mapping(&self, start: HostAddress, bytes: usize) -> io::Result<()> {
        for advice in self.advised().changes(Some(Advised::default())) {
            // SAFETY: the caller's contract; the advice keeps the content.
            unsafe { mapping::advise(start, bytes, advice)? };
        }
        Ok(())
    }
}
