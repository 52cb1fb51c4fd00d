//! Filling bound memory: what the serving thread does for a fault, and with what the daemon sends.

use std::{thread, time::Duration};

use bindery_sys::userfault::Stopped;
use bindery_units::{HostAddress, PAGE_BYTES, PageIndex, PageRange};

use super::{Source, table::Found};

/// Pages filled under one hold of the table's lock: some tens of microseconds.
const STEP_PAGES: u32 = 32;

/// Pages filled with zeros for one fault, as in managed memory.
const ZERO_FILL_PAGES: u32 = 64;

/// Time to wait for memory before a page is filled again.
const MEMORY_PAUSE: Duration = Duration::from_millis(1);

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
        let found = self.lock().table.fault(address);
        match found {
            Found::Missing(page, is_new) => is_new.then_some(page),
            Found::Decided(count) => {
                self.fill_zeros(address, count.min(ZERO_FILL_PAGES));
                None
            }
            Found::Nothing => {
                // It is unmapped or let go, and whoever touched it looks again.
                self.wake(address);
                None
            }
        }
    }

    /// Fills pages that are decided and may be absent.
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
            let Some((start, run)) = state.table.first_missing(rest, u32::MAX) else { return };
            state.table.decide(run);
            drop(state);
            self.wake_who_asked(start, run);
            at = run.end();
        }
    }

    /// Wakes those who wait for pages of a run that begins at an address: they are answered here.
    fn wake_who_asked(&self, start: HostAddress, run: PageRange) {
        let mut rest = run;
        loop {
            let asked = self.lock().table.first_asked(rest);
            let Some((_, page)) = asked else { return };
            self.fill_zeros(start.plus_pages(page.0 - run.first.0), 1);
            rest = PageRange::new(page.plus(1), run.end().0 - page.0 - 1);
            if rest.is_empty() {
                return;
            }
        }
    }

    /// Fills those of some pages that are missing.
    pub(crate) fn fill(&self, pages: PageRange, content: Content) {
        let (mut at, mut step) = (pages.first, STEP_PAGES);
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

    fn wake(&self, address: HostAddress) {
        let woken = self.faults.wake(address, PAGE_BYTES);
        assert!(woken.is_ok(), "waking a page cannot fail");
    }
}
