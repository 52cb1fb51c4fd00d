//! Filling memory by a userfaultfd of the VMM's, where it was managed before.
//!
//! The kernel fills one mapping at a time. What was managed may lie in several, for pages that came back from
//! a store have one of their own: it is filled part by part.

use std::ffi::c_void;

use bindery_sys::maps;
use bindery_units::HostAddress;
use libc::c_int;

use crate::answer::Errno;
use crate::watch::{UFFDIO_CONTINUE, UFFDIO_COPY, UFFDIO_MOVE, UFFDIO_POISON, UFFDIO_ZEROPAGE};
use crate::{kernel, managed};

/// After the kernel refused a request, with the reason in `errno`: fills memory part by part if the only
/// reason is that it lies in several mappings, as memory does that was managed. Answers as ioctl(2).
///
/// # Safety
/// `argument` is what the VMM gives to that request on `file`.
pub(crate) unsafe fn after_refused(file: c_int, request: u32, argument: *mut c_void) -> c_int {
    let may_be_ours = managed::get().is_some() || managed::is_copy();
    let filling = Filling::of(request).filter(|filling| may_be_ours && filling.lies_apart());
    let Some(filling) = filling else { return -1 };
    let before = Errno::last();
    // SAFETY: the caller's contract: the structure of the request, which the kernel has read.
    let asked = unsafe { filling.read(argument) };
    let Some(lengths) = filling.lengths_within_mappings(asked) else {
        before.set();
        return -1;
    };
    let (mut done, mut errno) = (0, before);
    for bytes in lengths {
        let mut part = filling.part(asked, done, bytes);
        // SAFETY: the caller's contract: a part of what the VMM asks for.
        let result = unsafe { kernel::ioctl(file, request.into(), part.as_mut_ptr().cast()) };
        errno = Errno::last();
        done += u64::try_from(part[filling.done].cast_signed()).unwrap_or(0);
        if result != 0 {
            break;
        }
    }
    let is_done = done == asked[filling.bytes];
    let errno = if done > 0 { Errno(libc::EAGAIN) } else { errno };
    let answer = if done > 0 { done } else { i64::from(-errno.0).cast_unsigned() };
    // SAFETY: as above; the kernel has written there.
    unsafe { argument.cast::<u64>().add(filling.done).write_unaligned(answer) };
    if is_done {
        return 0;
    }
    errno.set();
    -1
}

/// The words of the longest structure.
const WORDS: usize = 5;

/// A request that fills memory, whose structure is all words of 64 bits: the first is the first byte
/// to be filled. Which of them is what.
#[derive(Clone, Copy)]
struct Filling {
    request: u32,
    /// Where the content comes from, if from anywhere.
    source: Option<usize>,
    /// How many bytes are to be filled.
    bytes: usize,
    /// How many bytes were, or the error: the last.
    done: usize,
}

impl Filling {
    const fn of(request: u32) -> Option<Self> {
        match request {
            UFFDIO_COPY | UFFDIO_MOVE => Some(Self { request, source: Some(1), bytes: 2, done: 4 }),
            UFFDIO_ZEROPAGE | UFFDIO_CONTINUE | UFFDIO_POISON => {
                Some(Self { request, source: None, bytes: 1, done: 3 })
            }
            _ => None,
        }
    }

    /// True if `errno` is what the kernel says of memory that is not all in one mapping.
    fn lies_apart(self) -> bool {
        let errno = if self.request == UFFDIO_MOVE { libc::EINVAL } else { libc::ENOENT };
        Errno::last() == Errno(errno)
    }

    /// # Safety
    /// `argument` is what the VMM gives to the request.
    unsafe fn read(self, argument: *const c_void) -> [u64; WORDS] {
        let mut words = [0; WORDS];
        for (at, word) in words[..=self.done].iter_mut().enumerate() {
            // SAFETY: the caller's contract.
            *word = unsafe { argument.cast::<u64>().add(at).read_unaligned() };
        }
        words
    }

    /// Returns the request for `bytes` of what was asked for, from an offset on.
    fn part(self, asked: [u64; WORDS], offset: u64, bytes: u64) -> [u64; WORDS] {
        let mut part = asked;
        part[0] += offset;
        if let Some(source) = self.source {
            part[source] += offset;
        }
        (part[self.bytes], part[self.done]) = (bytes, 0);
        part
    }

    /// The lengths of the parts that lie in one mapping each, and so do what is moved to them. `None` if
    /// all of it does, or if there are holes.
    fn lengths_within_mappings(self, asked: [u64; WORDS]) -> Option<Vec<u64>> {
        let mut ends = ends_of_mappings(asked[0], asked[self.bytes])?;
        if self.request == UFFDIO_MOVE {
            ends.extend(ends_of_mappings(asked[1], asked[self.bytes])?);
        }
        ends.sort_unstable();
        ends.dedup();
        let starts = std::iter::once(0).chain(ends.iter().copied());
        (ends.len() > 1).then(|| starts.zip(&ends).map(|(start, end)| end - start).collect())
    }
}

/// Where the mappings of a range end, counted from its first byte. `None` if it has holes.
fn ends_of_mappings(start: u64, bytes: u64) -> Option<Vec<u64>> {
    let (start, end) = (HostAddress(start as usize), start.checked_add(bytes)?);
    let between = || maps::between(start, HostAddress(end as usize));
    let areas = managed::with_own_table(between).ok()?;
    let mut at = start;
    areas.iter().try_for_each(|area| {
        let follows = area.start == at;
        at = area.end;
        follows.then_some(())
    })?;
    let offset = |area: &maps::Area| (area.end.0 - start.0) as u64;
    (at.0 as u64 == end).then(|| areas.iter().map(offset).collect())
}
