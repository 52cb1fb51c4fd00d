//! Pages that the next scan tells of whatever the kernel says of them.
//!
//! The kernel notes writes to a guest's own pages, and forgets with the page: one that was written and
//! merged before any scan, or written and thrown away, is found by none. Such pages are noted here by
//! those who hold them. So are those that no scan ever finds, because they lie in a mapping of the
//! store, for as long as they do.

use std::{
    io,
    ops::Range,
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
};

use bindery_sys::mapping::Mapping;

/// A bit for each page of a table, set for those to tell of.
#[derive(Debug)]
pub(crate) struct PendingReports {
    words: Mapping,
    /// At least as many as bits are set; as many when nobody is at work on them.
    count: AtomicU32,
}

impl PendingReports {
    /// Nothing to tell of `pages` pages. Takes memory where pages are added.
    ///
    /// # Errors
    /// As mmap(2).
    pub(crate) fn new(pages: usize) -> io::Result<Self> {
        let words = Mapping::anonymous(pages.div_ceil(64) * size_of::<AtomicU64>())?;
        Ok(Self { words, count: AtomicU32::new(0) })
    }

    /// Adds pages.
    pub(crate) fn add(&self, pages: Range<usize>) {
        for (word, bits) in self.parts(pages) {
            // Before the bits, so that there are never fewer: who finds none does not look.
            self.count.fetch_add(bits.count_ones(), Ordering::Relaxed);
            // Release: pairs with the Acquire of `remove`.
            let there = word.fetch_or(bits, Ordering::Release) & bits;
            self.count.fetch_sub(there.count_ones(), Ordering::Relaxed);
        }
    }

    /// Removes pages. What those who added them did before is seen from here on.
    pub(crate) fn remove(&self, pages: Range<usize>) {
        for (word, bits) in self.parts(pages) {
            // Acquire: pairs with the Release of `add`.
            let there = word.fetch_and(!bits, Ordering::Acquire) & bits;
            self.count.fetch_sub(there.count_ones(), Ordering::Relaxed);
        }
    }

    /// The first of `pages` that are there, one after the other. Costs nothing if none is at all, else
    /// about a nanosecond for every 64 pages before them.
    pub(crate) fn run(&self, pages: Range<usize>) -> Option<Range<usize>> {
        // Relaxed: who waits for those who hold pages sees what they counted.
        if self.count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let first = self.find(pages.clone(), |word| word)?;
        let end = self.find(first..pages.end, |word| !word).unwrap_or(pages.end);
        Some(first..end)
    }

    /// The first page whose bit is set in what `seen` makes of its word.
    fn find(&self, pages: Range<usize>, seen: impl Fn(u64) -> u64) -> Option<usize> {
        let mut at = pages.start;
        while at < pages.end {
            let word = seen(self.word(at / 64).load(Ordering::Relaxed)) >> (at % 64);
            if word != 0 {
                let found = at + word.trailing_zeros() as usize;
                return (found < pages.end).then_some(found);
            }
            at = (at / 64 + 1) * 64;
        }
        None
    }

    /// The words that `pages` are in, with the bits that are theirs.
    fn parts(&self, pages: Range<usize>) -> impl Iterator<Item = (&AtomicU64, u64)> {
        (pages.start / 64..pages.end.div_ceil(64)).map(move |at| {
            let (low, high) = (pages.start.max(at * 64), pages.end.min(at * 64 + 64));
            let bits = u64::MAX.checked_shr(64 - (high - low) as u32).unwrap_or(0);
            (self.word(at), bits << (low % 64))
        })
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at < self.words.bytes() / size_of::<AtomicU64>(), "a page of the table");
        // SAFETY: it is within the mapping, which is zeroed memory, aligned to a page, and lives as
        // long as `self`.
        unsafe { &*self.words.as_ptr().cast::<AtomicU64>().add(at) }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    const PAGES: usize = 200;

    proptest! {
        #[test]
        fn runs_are_those_of_a_set_of_numbers(
            steps in prop::collection::vec((any::<bool>(), 0..PAGES, 0..PAGES), 0..20),
            (from, to) in (0..PAGES, 0..=PAGES),
        ) {
            let (pending_reports, mut model) = (PendingReports::new(PAGES).unwrap(), BTreeSet::new());
            for (add, first, count) in steps {
                let pages = first..(first + count).min(PAGES);
                if add {
                    pending_reports.add(pages.clone());
                    model.extend(pages);
                } else {
                    pending_reports.remove(pages.clone());
                    model.retain(|page| !pages.contains(page));
                }
            }
            prop_assert_eq!(pending_reports.count.load(Ordering::Relaxed) as usize, model.len());
            let expected = (from..to).find(|page| model.contains(page)).map(|first| {
                first..(first..to).find(|page| !model.contains(page)).unwrap_or(to)
            });
            prop_assert_eq!(pending_reports.run(from..to), expected);
        }
    }
}
