//! Locks on ranges of a file that others of this machine see (fcntl(2), `F_OFD_SETLK`).
//!
//! They belong to the open file description, not to the process: any thread may take and drop them,
//! closing another descriptor of the same file drops none, and the kernel drops them when the
//! description's last descriptor is closed, however its process ends.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::holders;
use crate::process::Origin;

/// The locks of one open file description.
#[derive(Debug)]
pub struct RangeLocks {
    file: File,
    /// By start: the end of each range that is locked, and how many times.
    held: Mutex<BTreeMap<u64, (u64, usize)>>,
}

/// Keeps one range locked for as long as it lives. A copy in a child of fork unlocks nothing: the lock
/// belongs to the description, which parent and child share, and is the parent's to give up.
#[derive(Debug)]
#[must_use = "the range is unlocked when this is dropped"]
pub struct RangeLock {
    locks: Arc<RangeLocks>,
    range: Range<u64>,
    origin: Origin,
}

impl RangeLocks {
    /// Locks of `file`'s description, which nobody else takes or drops locks of.
    #[must_use]
    pub fn new(file: File) -> Arc<Self> {
        Arc::new(Self { file, held: Mutex::default() })
    }

    /// Locks a range that other descriptions may lock in this way as well; none if one has excluded
    /// all others. Never blocks. Costs a system call, and the kernel a walk over the file's locks.
    ///
    /// The same range may be shared any number of times; ranges that overlap otherwise may not.
    ///
    /// # Errors
    /// As fcntl(2): `EBADF` if the file is not open for reading, `ENOLCK` when memory is short;
    /// `InvalidInput` if part of the range is locked already.
    pub fn share(self: &Arc<Self>, range: Range<u64>) -> io::Result<Option<RangeLock>> {
        self.take(range, libc::F_RDLCK)
    }

    /// Locks a range that no other description has locked, and can lock from now on; none if one has.
    /// Never blocks.
    ///
    /// # Errors
    /// As [`share`](Self::share); `EBADF` if the file is not open for writing.
    pub fn exclude(self: &Arc<Self>, range: Range<u64>) -> io::Result<Option<RangeLock>> {
        self.take(range, libc::F_WRLCK)
    }

    fn take(
        self: &Arc<Self>,
        range: Range<u64>,
        kind: libc::c_int,
    ) -> io::Result<Option<RangeLock>> {
        let mut held = self.held();
        // Held ranges are disjoint, so the last one that begins before this one's end tells.
        let nearest = held.range(..range.end).next_back();
        let nearest = nearest.map(|(&start, &(end, _))| start..end);
        let same = nearest.as_ref() == Some(&range) && kind == libc::F_RDLCK;
        if !same && nearest.is_some_and(|nearest| range.start < nearest.end) {
            let why = format!("part of the bytes {range:?} is locked already");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        let mut lock = description(&range, kind);
        match fcntl(&self.file, libc::F_OFD_SETLK, &mut lock) {
            Ok(()) => {}
            Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => {
                return Ok(None);
            }
            Err(error) => return Err(error),
        }
        held.entry(range.start).or_insert((range.end, 0)).1 += 1;
        drop(held);
        Ok(Some(RangeLock { locks: self.clone(), range, origin: Origin::here() }))
    }

    /// Whether another description has locked any byte of a range. Never blocks.
    ///
    /// # Errors
    /// As fcntl(2).
    pub fn is_held_elsewhere(&self, range: Range<u64>) -> io::Result<bool> {
        let mut lock = description(&range, libc::F_WRLCK);
        fcntl(&self.file, libc::F_OFD_GETLK, &mut lock)?;
        Ok(libc::c_int::from(lock.l_type) != libc::F_UNLCK)
    }

    /// The processes that have locked a byte of a range by another description, as far as this user may
    /// know. Looks through the descriptors of all processes: for errors, not for decisions.
    #[must_use]
    pub fn holders(&self, range: Range<u64>) -> Vec<u32> {
        holders::of(&self.file, &range)
    }

    fn held(&self) -> MutexGuard<'_, BTreeMap<u64, (u64, usize)>> {
        // Whoever panicked did so before or after it changed the map, never in between.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for RangeLock {
    fn drop(&mut self) {
        if !self.origin.is_here() {
            return;
        }
        let mut held = self.locks.held();
        let Entry::Occupied(mut entry) = held.entry(self.range.start) else {
            unreachable!("a lock is in the map for as long as it lives")
        };
        entry.get_mut().1 -= 1;
        if entry.get().1 > 0 {
            return;
        }
        entry.remove();
        let mut lock = description(&self.range, libc::F_UNLCK);
        // Unlocking the middle of a run of locked ranges splits it, which takes memory; if there is
        // none, the range stays locked until the file is closed: others wait longer, nothing is lost.
        let _ = fcntl(&self.locks.file, libc::F_OFD_SETLK, &mut lock);
    }
}

/// As fcntl(2) takes a range.
///
/// # Panics
/// If the range is empty, or beyond what a file can be long.
fn description(range: &Range<u64>, kind: libc::c_int) -> libc::flock {
    assert!(!range.is_empty() && i64::try_from(range.end).is_ok(), "cannot lock {range:?}");
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: range.start as i64,
        l_len: (range.end - range.start) as i64,
        // Asked for by all commands on open file descriptions.
        l_pid: 0,
    }
}

fn fcntl(file: &File, command: libc::c_int, lock: &mut libc::flock) -> io::Result<()> {
    // SAFETY: needs a descriptor and a flock, for all three commands; both are borrowed.
    match unsafe { libc::fcntl(file.as_fd().as_raw_fd(), command, std::ptr::from_mut(lock)) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opened_twice() -> (tempfile::NamedTempFile, Arc<RangeLocks>, Arc<RangeLocks>) {
        let file = tempfile::NamedTempFile::new().unwrap();
        let [one, other] = [(); 2].map(|()| RangeLocks::new(file.reopen().unwrap()));
        (file, one, other)
    }

    #[test]
    fn readers_share_and_a_writer_is_alone() {
        let (_file, one, other) = opened_twice();
        let shared = one.share(0..4096).unwrap().unwrap();
        let too = other.share(0..8192).unwrap().unwrap();
        assert!(one.exclude(4096..8192).unwrap().is_none());
        assert!(one.is_held_elsewhere(8191..8192).unwrap());
        assert!(!one.is_held_elsewhere(8192..9000).unwrap());
        drop(too);
        assert!(!one.is_held_elsewhere(0..8192).unwrap());
        assert!(one.exclude(0..4096).is_err(), "a lock changes its kind under its holder");
        let alone = one.exclude(4096..8192).unwrap().unwrap();
        assert!(other.share(4096..4097).unwrap().is_none());
        drop((alone, shared));
        assert!(other.exclude(0..1 << 62).unwrap().is_some());
    }

    #[test]
    fn a_range_is_unlocked_with_its_last_lock() {
        let (_file, one, other) = opened_twice();
        let [first, second] = [(); 2].map(|()| one.share(0..4096).unwrap().unwrap());
        let neighbour = one.share(4096..8192).unwrap().unwrap();
        drop(first);
        assert!(other.is_held_elsewhere(0..1).unwrap());
        drop(second);
        assert!(!other.is_held_elsewhere(0..4096).unwrap());
        assert!(other.is_held_elsewhere(4096..4097).unwrap());
        let overlap = one.share(4000..5000).unwrap_err();
        assert_eq!(overlap.kind(), io::ErrorKind::InvalidInput);
        drop(neighbour);
        assert!(!other.is_held_elsewhere(0..1 << 62).unwrap());
    }

    #[test]
    fn locks_outlive_who_took_them_and_end_with_the_description() {
        let (_file, one, other) = opened_twice();
        let lock = one.share(0..4096).unwrap().unwrap();
        drop(one);
        assert!(other.is_held_elsewhere(0..4096).unwrap());
        drop(lock);
        assert!(!other.is_held_elsewhere(0..4096).unwrap());
    }

    #[test]
    fn a_holder_is_named() {
        let (_file, one, other) = opened_twice();
        let last = i64::MAX as u64 - 1;
        assert_eq!(other.holders(last..last + 1), [0_u32; 0]);
        let lock = one.exclude(last..last + 1).unwrap().unwrap();
        assert_eq!(other.holders(last..last + 1), [std::process::id()]);
        assert_eq!(other.holders(0..last), [0_u32; 0]);
        drop(lock);
    }
}
