//! Harvesting: what is offered. `walk` goes through the levels, `takes` takes their words, `cover` says
//! what of them a window is.

mod cover;
mod takes;
mod walk;

use bindery_units::{PageIndex, PageRange};

use self::walk::Walk;
use crate::error::OutOfRange;
use crate::output::{Buffer, NODE_PAGES, Output};
use crate::primitive::{Ordering, fence};
use crate::take::{Look, Store, Swap, Take};
use crate::tree::Tree;
use crate::window::Window;

/// How a harvest into a buffer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Harvest {
    /// Pages in the buffer, from its start. What the buffer holds behind them is unspecified.
    pub pages: usize,
    /// What is still to be harvested because the buffer was full.
    pub rest: Option<Window>,
}

impl Tree {
    /// Appends the dirty pages of a window to `pages`, in order, and clears them. Others may mark
    /// meanwhile: each of their marks is in this list or left for the next.
    ///
    /// Does not block. Costs an atomic operation for every word of the bitmap in which a page is
    /// dirty, and one for every word of the summaries on the way there; nothing for what is clean.
    ///
    /// # Errors
    /// If the tree does not have all pages of the window; then nothing is cleared.
    ///
    /// # Panics
    /// As [`Vec::reserve`], which is asked for 4096 pages whenever there is room for fewer.
    pub fn harvest_into(
        &self,
        window: impl Into<Window>,
        pages: &mut Vec<PageIndex>,
    ) -> Result<(), OutOfRange> {
        self.walk::<Swap, _>(window.into(), pages).map(drop)
    }

    /// As [`harvest_into`](Self::harvest_into), into a buffer that does not grow: nothing is
    /// allocated, and at most as many pages are taken as it has room for.
    ///
    /// # Errors
    /// If the tree does not have all pages of the window; then nothing is cleared.
    pub fn harvest_some(
        &self,
        window: impl Into<Window>,
        buffer: &mut [PageIndex],
    ) -> Result<Harvest, OutOfRange> {
        let mut output = Buffer::new(buffer);
        let rest = self.walk::<Swap, _>(window.into(), &mut output)?;
        Ok(Harvest { pages: output.len(), rest })
    }

    /// As [`harvest_into`](Self::harvest_into), for whoever has the tree alone, as when all vCPUs
    /// are stopped: without atomic operations.
    ///
    /// # Errors
    /// If the tree does not have all pages of the window; then nothing is cleared.
    pub fn harvest_alone(
        &mut self,
        window: impl Into<Window>,
        pages: &mut Vec<PageIndex>,
    ) -> Result<(), OutOfRange> {
        self.walk::<Store, _>(window.into(), pages).map(drop)
    }

    /// Clears the dirty pages of a window and calls `each` with them as runs of consecutive ones, in
    /// order, through a buffer that does not grow. Where it is full, a run may be cut in two.
    ///
    /// # Errors
    /// If the tree does not have all pages of the window; then nothing is cleared.
    ///
    /// # Panics
    /// If the buffer has no room at all.
    pub fn harvest_runs(
        &self,
        window: impl Into<Window>,
        buffer: &mut [PageIndex],
        mut each: impl FnMut(PageRange),
    ) -> Result<(), OutOfRange> {
        self.harvest_through(window.into(), buffer, |pages| {
            for run in pages.chunk_by(|page, next| page.plus(1) == *next) {
                each(PageRange::new(run[0], run.len() as u32));
            }
        })
    }

    /// Clears every page, as a harvest does whose list is thrown away.
    pub fn clear(&self) {
        let mut buffer = vec![PageIndex(0); NODE_PAGES];
        for window in self.windows() {
            let harvested = self.harvest_through(window, &mut buffer, |_| ());
            harvested.expect("a tree has its own pages");
        }
    }

    fn harvest_through(
        &self,
        window: Window,
        buffer: &mut [PageIndex],
        mut each: impl FnMut(&[PageIndex]),
    ) -> Result<(), OutOfRange> {
        assert!(!buffer.is_empty(), "a harvest needs room for a page");
        let mut rest = Some(window);
        while let Some(window) = rest {
            let harvest = self.harvest_some(window, buffer)?;
            each(&buffer[..harvest.pages]);
            rest = harvest.rest;
        }
        Ok(())
    }

    /// Appends the dirty pages of a window to `pages`, in order, and leaves them dirty.
    ///
    /// # Errors
    /// If the tree does not have all pages of the window.
    pub fn list_into(
        &self,
        window: impl Into<Window>,
        pages: &mut Vec<PageIndex>,
    ) -> Result<(), OutOfRange> {
        self.walk::<Look, _>(window.into(), pages).map(drop)
    }

    fn walk<T: Take, O: Output>(
        &self,
        window: Window,
        output: &mut O,
    ) -> Result<Option<Window>, OutOfRange> {
        let count = u64::from(window.range.count);
        self.check(window.base.saturating_add(window.range.first.into()), count)?;
        if count == 0 {
            return Ok(None);
        }
        let stopped_at = if count == self.pages() {
            Walk::<T, O, true>::new(self, window, output).run()
        } else {
            Walk::<T, O, false>::new(self, window, output).run()
        };
        if T::CLEARS && T::SHARES {
            // Pairs with the fence of a mark that found its bit set (`mark`).
            fence(Ordering::SeqCst);
        }
        Ok(stopped_at.map(|page| rest_of(window, page)))
    }
}

/// The window from a page of it on.
fn rest_of(window: Window, page: u64) -> Window {
    let first = (page - window.base) as u32;
    let count = window.range.end().0 - first;
    Window { base: window.base, range: PageRange::new(PageIndex(first), count) }
}
