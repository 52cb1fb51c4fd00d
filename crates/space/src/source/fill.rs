//! Filling bound memory: what the serving thread does for a fault, and with what the daemon sends.

use std::{thread, time::Duration};

use bindery_sys::userfault::Stopped;
use bindery_units::{HostAddress, PAGE_BYTES, PageIndex, PageRange};

use super::{Source, table::Found};

/// Pages filled under one hold of the table's lock: some tens of microseconds.
const STEP_PAGES: u32 = 32;

/// Time to wait for memory before a page is filled again.
const MEMORY_PAUSE: Duration = Duration::from_millis(1);

/// Times that a page of the window is tried which cannot be read, before the page counts as damaged.
const UNREADABLE_MAX: u32 = 1000;

/// Content that pages are filled with.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Content {
    /// Copies, the first of which is here.
    Copy(HostAddress),
    /// Marks on which a reader gets `SIGBUS`.
    Damaged,
}

impl Source {
    /// Answers a fault as far as that needs no source. Returns the page that is to be asked for.
    pub(crate) fn answer(&self, address: HostAddress) -> Option<PageIndex> {
        // Locked until it is answered: what is decided could be let go otherwise, and be somebody else's.
        let state = self.lock();
        match state.table.fault(address) {
            Found::Missing(page, is_new) => is_new.then_some(page),
            Found::Decided(count) => {
                self.fill_zeros(address, count);
                None
            }
            Found::Nothing => {
                // It is unmapped or let go, and whoever touched it looks again.
                self.wake(address);
                None
            }
        }
    }

    /// Fills pages that are decided and may be absent. The table is locked.
    fn fill_zeros(&self, address: HostAddress, count: u32) {
        // SAFETY: decided pages that are absent are zero ones, and stay decided.
        let zero = |count: u32| unsafe {
            self.faults
                .zero(address, count as usize * PAGE_BYTES, true)
                .map_err(|stopped| stopped.done)
        };
        if zero(count).is_err_and(|done| done == 0) && zero(1).is_err() {
            // It is there already. Otherwise we hear of it again.
            self.wake(address);
        }
    }

    /// Notes that pages are zero. Nothing is mapped there until somebody touches them.
    pub(crate) fn fill_with_zeros(&self, pages: PageRange) {
        let mut at = pages.first;
        while at < pages.end() {
            let rest = PageRange::new(at, pages.end().0 - at.0);
            let mut state = self.lock();
            let Some((_, run)) = state.table.first_missing(rest, u32::MAX) else { return };
            state.table.decide(run);
            drop(state);
            self.wake_who_asked(run);
            at = run.end();
        }
    }

    /// Wakes those who wait for pages of a run: they are answered here.
    fn wake_who_asked(&self, run: PageRange) {
        let mut rest = run;
        loop {
            let state = self.lock();
            let Some((address, page)) = state.table.first_asked(rest) else { return };
            self.fill_zeros(address, 1);
            drop(state);
            rest = PageRange::new(page.plus(1), run.end().0 - page.0 - 1);
            if rest.is_empty() {
                return;
            }
        }
    }

    /// Fills those of some pages that are missing.
    pub(crate) fn fill(&self, pages: PageRange, mut content: Content) {
        let (mut at, mut step) = (pages.first, STEP_PAGES);
        let mut unreadable = 0;
        while at < pages.end() {
            let mut state = self.lock();
            let rest = PageRange::new(at, pages.end().0 - at.0);
            let Some((start, run)) = state.table.first_missing(rest, step) else { return };
            let filled = self.transfer(start, run, run.first.0 - pages.first.0, content);
            let done =
                filled.map_or_else(|stopped| (stopped.done / PAGE_BYTES) as u32, |()| run.count);
            state.table.decide(PageRange::new(run.first, done));
            at = run.first.plus(done);
            let Err(Stopped { errno, .. }) = filled else { continue };
            match errno {
                libc::EAGAIN => {}
                libc::ENOMEM => {
                    drop(state);
                    thread::sleep(MEMORY_PAUSE);
                }
                // The window cannot be read: it was swapped out, and does not come back. For a while.
                libc::EFAULT if run.count == 1 => {
                    drop(state);
                    thread::sleep(MEMORY_PAUSE);
                    unreadable += 1;
                    if unreadable >= UNREADABLE_MAX {
                        content = Content::Damaged;
                    }
                }
                // It ends a mapping, or leaves one.
                _ if run.count > 1 && done < run.count && errno != libc::EEXIST => step = 1,
                // Something is there, or it is no memory of ours any more.
                _ => {
                    state.table.decide(PageRange::new(at, 1));
                    drop(state);
                    self.wake(start.plus_pages(done));
                    at = at.plus(1);
                }
            }
        }
    }

    fn transfer(
        &self,
        start: HostAddress,
        run: PageRange,
        offset: u32,
        content: Content,
    ) -> Result<(), Stopped> {
        let bytes = run.count as usize * PAGE_BYTES;
        // SAFETY: the table is locked: the pages are missing, and this is what they are to hold. The window is
        // readable for as many pages as were checked.
        unsafe {
            match content {
                Content::Copy(source) => self.faults.copy(start, source.plus_pages(offset), bytes),
                Content::Damaged => self.faults.poison(start, bytes),
            }
        }
    }

    /// Wakes whoever waits for pages between two addresses, which are decided or bound no more.
    pub(super) fn wake_between(&self, extent: Option<(HostAddress, HostAddress)>) {
        let Some((start, end)) = extent else { return };
        let woken = self.faults.wake(start, end.0 - start.0);
        assert!(woken.is_ok(), "waking pages cannot fail");
    }

    fn wake(&self, address: HostAddress) {
        let woken = self.faults.wake(address, PAGE_BYTES);
        assert!(woken.is_ok(), "waking a page cannot fail");
    }
}
