//! Memory of a child of fork that its parent had under management.
//!
//! Pages that were merged when the child was made lie in private mappings of a store there, which for
//! the kernel is memory of a file: what is thrown away shows the file again, and some advice is refused.
//! So before a call that would tell the difference, what lies in such mappings becomes private anonymous
//! memory, which then stays so.
//!
//! What is a store's is told by the name of its file. The tables that the child has a copy of would not
//! do: a child that no fork handler heard of may have them in the midst of a change. As in the parent,
//! a call about other memory takes no lock and allocates nothing.

use std::ffi::c_void;
use std::io;
use std::ptr::copy_nonoverlapping;
use std::sync::atomic::{AtomicBool, Ordering};

use bindery_sys::mapping;
use bindery_sys::maps::{self, Advised, AdvisedMappings, Line};
use bindery_units::HostAddress;
use bindery_wire::control::is_store;
use libc::{MAP_ANONYMOUS, MAP_FIXED, MAP_NORESERVE, MAP_PRIVATE};

use crate::answer::{Errno, checked};
use crate::{kernel, managed};

/// Bytes copied at a time: so much more memory is needed meanwhile.
const CHUNK_BYTES: usize = 2 << 20;

/// Pieces found at a time.
const PIECES: usize = 64;

/// What a call leaves of the content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    Stays,
    Goes,
}

/// A range of a store's mapping, and what may be done there.
#[derive(Clone, Copy, Debug, Default)]
struct Piece {
    start: usize,
    bytes: usize,
    protection: i32,
}

/// Before a call about a range: if this is a child, makes what lies in mappings of a store private
/// anonymous memory, with its content or without.
///
/// # Errors
/// The kernel's, if memory or mappings are short: the call must not be made.
pub(crate) fn before(address: usize, bytes: usize, content: Content) -> Result<(), Errno> {
    if !managed::is_copy() || !has_store()? {
        return Ok(());
    }
    let end = address.saturating_add(bytes);
    let mut advised: Option<AdvisedMappings> = None;
    loop {
        let mut pieces = [Piece::default(); PIECES];
        let count = find(address, end, &mut pieces)?;
        for piece in &pieces[..count] {
            // What is replaced keeps its advice, so it is read once.
            let advised = match &mut advised {
                Some(advised) => advised,
                None => advised.insert(AdvisedMappings::of_self()?),
            };
            piece.make_private(advised.at(HostAddress(piece.start)), content)?;
        }
        if count < PIECES {
            return Ok(());
        }
    }
}

/// True if any store is mapped here. Mappings of a store come from the parent alone, so what has none
/// will have none.
fn has_store() -> io::Result<bool> {
    static HAS_NONE: AtomicBool = AtomicBool::new(false);
    static HAS_SOME: AtomicBool = AtomicBool::new(false);
    // Relaxed: flags alone, and whoever finds neither looks.
    if HAS_NONE.load(Ordering::Relaxed) || HAS_SOME.load(Ordering::Relaxed) {
        return Ok(HAS_SOME.load(Ordering::Relaxed));
    }
    let found = find(0, usize::MAX, &mut [Piece::default(); PIECES])? > 0;
    let flag = if found { &HAS_SOME } else { &HAS_NONE };
    flag.store(true, Ordering::Relaxed);
    Ok(found)
}

/// Finds the first pieces of a range that are a store's. Returns how many.
fn find(start: usize, end: usize, pieces: &mut [Piece; PIECES]) -> io::Result<usize> {
    let mut count = 0;
    maps::each_between(HostAddress(start), HostAddress(end), |line| {
        if count < PIECES && is_of_store(line) {
            pieces[count] = Piece::of(line);
            count += 1;
        }
    })?;
    Ok(count)
}

/// True for a private mapping of a store: a file in memory, so named by whoever made it.
fn is_of_store(line: &Line<'_>) -> bool {
    line.permissions.ends_with('p') && is_store(line.name)
}

impl Piece {
    fn of(line: &Line<'_>) -> Self {
        let bits = [libc::PROT_READ, libc::PROT_WRITE, libc::PROT_EXEC];
        let letters = line.permissions.bytes().zip(bits);
        let protection = letters.filter(|&(letter, _)| letter != b'-').map(|(_, bit)| bit).sum();
        Self { start: line.start, bytes: line.end - line.start, protection }
    }

    fn make_private(self, advised: Advised, content: Content) -> Result<(), Errno> {
        let is_locked = self.is_locked();
        if content == Content::Stays {
            self.replace_with_copies(advised)?;
        } else if is_locked {
            // The kernel refuses to throw it away.
            return Ok(());
        } else {
            map(self.start, self.bytes, self.protection, MAP_FIXED)?;
            advise(advised, self.start, self.bytes)?;
        }
        if is_locked {
            // SAFETY: it was locked before; the content stays.
            checked(unsafe { kernel::mlock(self.start as *const c_void, self.bytes) })?;
        }
        Ok(())
    }

    /// Puts copies of the pages in their place. The child's other threads may read meanwhile.
    fn replace_with_copies(self, advised: Advised) -> Result<(), Errno> {
        if self.protection & libc::PROT_READ == 0 {
            // SAFETY: it is replaced next, by memory that is protected as it was.
            checked(unsafe {
                kernel::mprotect(self.start as *mut c_void, self.bytes, libc::PROT_READ)
            })?;
        }
        for at in (self.start..self.start + self.bytes).step_by(CHUNK_BYTES) {
            let bytes = CHUNK_BYTES.min(self.start + self.bytes - at);
            let copy = map(0, bytes, libc::PROT_READ | libc::PROT_WRITE, 0)?;
            // SAFETY: the source is readable, the copy ours; what is replaced holds the same bytes.
            let placed = unsafe {
                copy_nonoverlapping(at as *const u8, copy as *mut u8, bytes);
                checked(kernel::mprotect(copy as *mut c_void, bytes, self.protection))
                    .and_then(|()| advise(advised, copy, bytes))
                    .and_then(|()| {
                        Ok(mapping::remap_over(HostAddress(copy), HostAddress(at), bytes)?)
                    })
            };
            if placed.is_err() {
                // SAFETY: the copy is ours, and still where it was.
                let _ = unsafe { kernel::munmap(copy as *mut c_void, bytes) };
                return placed;
            }
        }
        Ok(())
    }

    /// True for locked memory: the kernel refuses this advice there, and takes it otherwise.
    fn is_locked(self) -> bool {
        // SAFETY: the advice keeps content.
        let cold =
            unsafe { kernel::madvise(self.start as *mut c_void, self.bytes, libc::MADV_COLD) };
        cold != 0 && Errno::last() == Errno(libc::EINVAL)
    }
}

/// Advises memory that was just mapped, as `advised`.
pub(crate) fn advise(advised: Advised, start: usize, bytes: usize) -> Result<(), Errno> {
    for advice in advised.changes(Some(Advised::default())) {
        // SAFETY: the advice keeps content.
        checked(unsafe { kernel::madvise(start as *mut c_void, bytes, advice) })?;
    }
    Ok(())
}

fn map(address: usize, bytes: usize, protection: i32, flags: i32) -> Result<usize, Errno> {
    let flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | flags;
    // SAFETY: with MAP_FIXED it is a piece whose content the caller throws away, else nothing.
    let mapped = unsafe { kernel::mmap(address as *mut c_void, bytes, protection, flags, -1, 0) };
    if mapped == libc::MAP_FAILED { Err(Errno::last()) } else { Ok(mapped as usize) }
}
