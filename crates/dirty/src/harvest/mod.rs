//! Harvesting: what is offered. `walk` goes through the levels, `takes` takes their words, `cover` says
//! what of them a window is; `pages` and `runs` list what was taken, in a `list`.

mod cover;
mod list;
mod output;
mod pages;
mod runs;
mod takes;
mod walk;

use bindery_units::{PageIndex, PageRange};

use self::list::{Buffer, List};
use self::output::Output;
use self::pages::Pages;
use self::runs::Runs;
use self::walk::Walk;
use crate::error::OutOfRange;
use crate::primitive::{Ordering, fence};
use crate::take::{Look, Store, Swap, Take};
use crate::tree::Tree;
use crate::window::Window;

/// Runs that are listed at a time where all is cleared.
const CLEARED_RUNS: usize = 1024;

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
        self.walk::<Swap, _>(window.into(), &mut Pages(pages)).map(drop)
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
        let mut pages = Buffer::new(buffer);
        let rest = self.walk::<Swap, _>(window.into(), &mut Pages(&mut pages))?;
        Ok(Harvest { pages: pages.listed().len(), rest })
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
        self.walk::<Store, _>(window.into(), &mut Pages(pages)).map(drop)
    }

    /// As [`harvest_into`](Self::harvest_into), as runs of consecutive pages, none of which is next to
    /// another: far less to write where pages are dirty in numbers.
    ///
    /// # Errors
    /// If the tree does not have all pages of the window; then nothing is cleared.
    ///
    /// # Panics
    /// As [`Vec::reserve`], which is asked for 2081 runs whenever there is room for fewer.
    pub fn harvest_runs_into(
        &self,
        window: impl Into<Window>,
        runs: &mut Vec<PageRange>,
    ) -> Result<(), OutOfRange> {
        self.walk_runs::<Swap, _>(window.into(), runs).map(drop)
    }

    /// As [`harvest_runs_into`](Self::harvest_runs_into), for whoever has the tree alone.
    ///
    /// # Errors
    /// If the tree does not have all pages of the window; then nothing is cleared.
    pub fn harvest_runs_alone(
        &mut self,
        window: impl Into<Window>,
        runs: &mut Vec<PageRange>,
    ) -> Result<(), OutOfRange> {
        self.walk_runs::<Store, _>(window.into(), runs).map(drop)
    }

    /// As [`harvest_runs_into`](Self::harvest_runs_into), through a buffer that does not grow, and calls
    /// `each` with them. Where the buffer is full, a run may be cut in two.
    ///
    /// # Errors
    /// If the tree does not have all pages of the window; then nothing is cleared.
    ///
    /// # Panics
    /// If the buffer has no room at all.
    pub fn harvest_runs(
        &self,
        window: impl Into<Window>,
        buffer: &mut [PageRange],
        mut each: impl FnMut(PageRange),
    ) -> Result<(), OutOfRange> {
        assert!(!buffer.is_empty(), "a harvest needs room for a run");
        let mut rest = Some(window.into());
        while let Some(window) = rest {
            let mut runs = Buffer::new(buffer);
            rest = self.walk_runs::<Swap, _>(window, &mut runs)?;
            runs.listed().iter().for_each(|run| each(*run));
        }
        Ok(())
    }

    /// Clears every page, as a harvest does whose list is thrown away.
    pub fn clear(&self) {
        let mut buffer = [PageRange::default(); CLEARED_RUNS];
        for window in self.windows() {
            let cleared = self.harvest_runs(window, &mut buffer, |_| ());
            cleared.expect("a tree has its own pages");
        }
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
        self.walk::<Look, _>(window.into(), &mut Pages(pages)).map(drop)
    }

    fn walk_runs<T: Take, L: List<Entry = PageRange>>(
        &self,
        window: Window,
        list: &mut L,
    ) -> Result<Option<Window>, OutOfRange> {
        let mut runs = Runs::new(list);
        let rest = self.walk::<T, _>(window, &mut runs)?;
        runs.finish();
        Ok(rest)
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
