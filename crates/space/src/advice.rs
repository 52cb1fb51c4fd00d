//! What a VMM advised about its memory for good: mappings that are made there later get it too.
//!
//! Pages that come back are of the nodes that it bound its memory to, as well.
//!
//! QEMU keeps guest RAM out of children of fork, and out of core dumps where it is started with
//! `dump-guest-core=off`, as libvirt does.

use std::{
    collections::BTreeMap,
    io,
    sync::{PoisonError, RwLock, RwLockReadGuard},
};

use bindery_sys::{huge, mapping, maps::Advised, numa};
use bindery_units::{HostAddress, PAGE_BYTES, PageIndex, PageRange};

use crate::region::Region;

/// Advice that memory keeps until the opposite is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LastingAdvice {
    /// `MADV_DONTFORK`, or `MADV_DOFORK` where it is false.
    DontFork(bool),
    /// `MADV_DONTDUMP`, or `MADV_DODUMP` where it is false.
    DontDump(bool),
    /// `MADV_HUGEPAGE`, or `MADV_NOHUGEPAGE` where it is false.
    Huge(bool),
    /// Policy of mbind(2).
    Nodes(numa::Policy),
}

impl LastingAdvice {
    /// Returns what `advice`, `MADV_*`, says for good. `None` for other advice.
    #[must_use]
    pub const fn of(advice: i32) -> Option<Self> {
        match advice {
            libc::MADV_DONTFORK => Some(Self::DontFork(true)),
            libc::MADV_DOFORK => Some(Self::DontFork(false)),
            libc::MADV_DONTDUMP => Some(Self::DontDump(true)),
            libc::MADV_DODUMP => Some(Self::DontDump(false)),
            libc::MADV_HUGEPAGE => Some(Self::Huge(true)),
            libc::MADV_NOHUGEPAGE => Some(Self::Huge(false)),
            _ => None,
        }
    }

    /// Returns how memory is advised that was `before`.
    const fn after(self, before: Advised) -> Advised {
        match self {
            Self::DontFork(dont_fork) => Advised { dont_fork, ..before },
            Self::DontDump(dont_dump) => Advised { dont_dump, ..before },
            Self::Huge(wanted) => Advised { huge: huge_advice(wanted), ..before },
            Self::Nodes(nodes) => Advised { nodes, ..before },
        }
    }
}

const fn huge_advice(wanted: bool) -> huge::Advice {
    if wanted { huge::Advice::Wanted } else { huge::Advice::Unwanted }
}

/// The advice of each kind that was given last for a range, if any was. Nodes are not among it: the kernel is
/// asked for them when the range is taken.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Noted {
    dont_fork: Option<bool>,
    dont_dump: Option<bool>,
    huge: Option<bool>,
}

impl Noted {
    pub(crate) const fn note(&mut self, advice: LastingAdvice) {
        match advice {
            LastingAdvice::DontFork(dont) => self.dont_fork = Some(dont),
            LastingAdvice::DontDump(dont) => self.dont_dump = Some(dont),
            LastingAdvice::Huge(wanted) => self.huge = Some(wanted),
            LastingAdvice::Nodes(_) => {}
        }
    }

    /// Returns what was advised for memory of which `before` was advised earlier.
    pub(crate) fn after(&self, before: Advised) -> Advised {
        Advised {
            dont_fork: self.dont_fork.unwrap_or(before.dont_fork),
            dont_dump: self.dont_dump.unwrap_or(before.dont_dump),
            huge: self.huge.map_or(before.huge, huge_advice),
            ..before
        }
    }
}

/// What was advised for each page of a table: of each run of pages that are alike, its first page. The
/// last run ends where the table does.
#[derive(Debug)]
pub(crate) struct Advice(RwLock<BTreeMap<PageIndex, Advised>>);

impl Advice {
    /// Takes the advice of a table's pages, of which `first` is the first: for each run the first page,
    /// ascending.
    pub(crate) fn new(
        first: PageIndex,
        runs: impl IntoIterator<Item = (PageIndex, Advised)>,
    ) -> Self {
        let mut all: BTreeMap<_, _> = runs.into_iter().collect();
        all.entry(first).or_default();
        join(&mut all, first, PageIndex(u32::MAX));
        Self(RwLock::new(all))
    }

    fn read(&self) -> RwLockReadGuard<'_, BTreeMap<PageIndex, Advised>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns how a page is advised, and which of `pages` around it, that has it, are so too. Allocates
    /// nothing.
    pub(crate) fn run(&self, page: PageIndex, pages: PageRange) -> (Advised, PageRange) {
        let runs = self.read();
        let (first, advised) = at(&runs, page);
        let next = runs.range(page.plus(1)..).next().map_or(pages.end(), |(next, _)| *next);
        let (first, end) = (first.max(pages.first), next.min(pages.end()));
        (advised, PageRange::new(first, end.0 - first.0))
    }

    /// Notes advice for pages of the table.
    pub(crate) fn note(&self, pages: PageRange, advice: LastingAdvice) {
        let mut runs = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let (first, end) = (pages.first, pages.end());
        for cut in [first, end] {
            let (_, advised) = at(&runs, cut);
            runs.insert(cut, advised);
        }
        for (_, advised) in runs.range_mut(first..end) {
            *advised = advice.after(*advised);
        }
        join(&mut runs, first, end);
    }
}

fn at(runs: &BTreeMap<PageIndex, Advised>, page: PageIndex) -> (PageIndex, Advised) {
    let (first, advised) = runs.range(..=page).next_back().expect("a table begins with a run");
    (*first, *advised)
}

/// Joins runs that are alike, of those that begin at two pages or between.
fn join(runs: &mut BTreeMap<PageIndex, Advised>, first: PageIndex, end: PageIndex) {
    let mut before = runs.range(..first).next_back().map(|(_, advised)| *advised);
    let mut same = Vec::new();
    for (page, advised) in runs.range(first..=end) {
        if before == Some(*advised) {
            same.push(*page);
        }
        before = Some(*advised);
    }
    for page in same {
        runs.remove(&page);
    }
}

impl Region {
    /// Advises a mapping of a store that was just made in the region, and has no advice yet. A store's pages are
    /// of no guest's nodes.
    ///
    /// # Safety
    /// The caller holds the range.
    pub(crate) unsafe fn advise_mapping(&self, start: HostAddress, bytes: usize) -> io::Result<()> {
        for (advised, start, bytes) in self.advised_runs(start, bytes) {
            for advice in advised.changes(Some(Advised::default())) {
                // SAFETY: the caller's contract; the advice keeps the content.
                unsafe { mapping::advise(start, bytes, advice)? };
            }
        }
        Ok(())
    }

    /// Advises anonymous memory that was just mapped in the region, and has no advice yet.
    ///
    /// # Safety
    /// The caller holds the range.
    pub(crate) unsafe fn advise_anonymous(
        &self,
        start: HostAddress,
        bytes: usize,
    ) -> io::Result<()> {
        // SAFETY: the caller's contract.
        unsafe { self.advise_mapping(start, bytes)? };
        for (advised, start, bytes) in self.advised_runs(start, bytes) {
            // SAFETY: the caller's contract.
            unsafe { bind(advised.nodes, start, bytes) };
        }
        Ok(())
    }

    /// Returns the runs of a range of the region that are advised alike, ascending: how, and where.
    fn advised_runs(
        &self,
        start: HostAddress,
        bytes: usize,
    ) -> impl Iterator<Item = (Advised, HostAddress, usize)> {
        let mut rest = self.pages_between(start, start.plus(bytes));
        std::iter::from_fn(move || {
            let (advised, run) = (!rest.is_empty()).then(|| self.advised_run(rest.first, rest))?;
            rest = PageRange::new(run.end(), rest.end().0 - run.end().0);
            Some((advised, self.address(run.first), run.count as usize * PAGE_BYTES))
        })
    }
}

/// Binds new anonymous memory to the nodes that its pages are to come from.
///
/// # Safety
/// The caller owns the memory.
pub(crate) unsafe fn bind(nodes: numa::Policy, start: HostAddress, bytes: usize) {
    if nodes != numa::Policy::default() {
        // Where that cannot be done, pages of another node are better than none.
        // SAFETY: the caller's contract.
        let _ = unsafe { nodes.set(start, bytes) };
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn range(first: u32, count: u32) -> PageRange {
        PageRange::new(PageIndex(first), count)
    }

    fn advice(number: u32) -> LastingAdvice {
        let all = [
            libc::MADV_DONTFORK,
            libc::MADV_DOFORK,
            libc::MADV_DONTDUMP,
            libc::MADV_DODUMP,
            libc::MADV_HUGEPAGE,
            libc::MADV_NOHUGEPAGE,
        ];
        LastingAdvice::of(all[number as usize]).expect("it lasts")
    }

    #[test]
    fn other_advice_does_not_last() {
        assert_eq!(LastingAdvice::of(libc::MADV_DONTNEED), None);
    }

    proptest! {
        /// Each page has what was noted for it last, and runs are as long as they can be.
        #[test]
        fn pages_are_advised_as_an_array_of_them_says(
            begun in prop::collection::vec((100u32..164, any::<bool>()), 0..4),
            notes in prop::collection::vec((0u32..64, 1u32..64, 0u32..6), 0..20),
        ) {
            let begun: BTreeMap<_, _> = begun.into_iter().collect();
            let mut pages = [Advised::default(); 64];
            for (first, dont_fork) in &begun {
                pages[*first as usize - 100..].fill(Advised { dont_fork: *dont_fork, ..Advised::default() });
            }
            let runs = begun.iter().map(|(first, dont_fork)| {
                (PageIndex(*first), Advised { dont_fork: *dont_fork, ..Advised::default() })
            });
            let noted = Advice::new(PageIndex(100), runs);
            for (first, count, number) in notes {
                let count = count.min(64 - first);
                noted.note(range(100 + first, count), advice(number));
                for page in &mut pages[first as usize..][..count as usize] {
                    *page = advice(number).after(*page);
                }
            }
            for (at, wanted) in (0..).zip(pages) {
                let (advised, run) = noted.run(PageIndex(100 + at as u32), range(100, 64));
                prop_assert_eq!(advised, wanted);
                let alike = |page: &Advised| *page == wanted;
                let before = pages[..at].iter().rev().take_while(|page| alike(page)).count();
                let after = pages[at..].iter().take_while(|page| alike(page)).count();
                prop_assert_eq!(run, range((100 + at - before) as u32, (before + after) as u32));
            }
        }
    }
}
