//! An operator who watches what is written to a guest.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bindery_dirty::{JoinError, Reader};
use bindery_guest::{Connection, Guest, GuestError, Look};
use bindery_units::{PageIndex, PageRange};

use crate::protocol::{Epoch, RUNS_MAX};

/// A guest that is watched, epoch after epoch. Merging goes on beside it: both are told of every
/// write.
pub(super) struct Watch {
    guest: Arc<Guest>,
    written: Reader,
    /// When the epoch began, unless it is the first one.
    since: Option<Instant>,
    /// Room for an epoch's pages.
    pages: Vec<PageIndex>,
}

/// Why an epoch cannot be told.
#[derive(Debug, thiserror::Error)]
pub(super) enum WatchError {
    #[error("the guest has just left")]
    Gone,
    #[error("the guest cannot be scanned: {0}")]
    Guest(#[from] GuestError),
    #[error("the daemon cannot keep track of another reader: {0}")]
    Reader(#[from] JoinError),
}

impl Watch {
    pub(super) fn begin(guest: Arc<Guest>) -> Result<Self, WatchError> {
        let written = guest.written().join()?;
        Ok(Self { guest, written, since: None, pages: Vec::new() })
    }

    pub(super) fn is_of(&self, guest: &Arc<Guest>) -> bool {
        Arc::ptr_eq(&self.guest, guest)
    }

    /// Ends an epoch, and begins the next.
    pub(super) fn end_epoch(&mut self, name: String) -> Result<Epoch, WatchError> {
        // Regions that it has told of, and nobody has heard yet.
        self.guest.wait_events(Duration::ZERO)?;
        let mut regions: Vec<PageRange> =
            self.guest.regions().iter().map(|region| region.pages).collect();
        regions.sort_unstable_by_key(|range| range.first);
        let mut lane = self.guest.lane()?;
        for range in &regions {
            self.guest.written().collect(&mut *lane, *range, Look::Written)?;
        }
        drop(lane);
        let now = Instant::now();
        self.pages.clear();
        for range in &regions {
            let harvested = self.written.harvest_into(*range, &mut self.pages);
            harvested.expect("regions lie within the pages that a guest may have");
        }
        let epoch_us = self.since.map_or(0, |since| (now - since).as_micros() as u64);
        // What was written before anybody asked is nobody's epoch.
        let dirty = if self.since.is_some() { &self.pages[..] } else { &[] };
        self.since = Some(now);
        let (runs, block_pages) = runs_of(dirty, RUNS_MAX);
        let regions = regions.iter().map(|range| (range.first.0, range.count)).collect();
        Ok(Epoch { guest: name, epoch_us, regions, runs, block_pages })
    }
}

/// Runs of ascending pages, at most `runs_max`, and the size of the blocks that it takes to have so
/// few: 1 where they are few enough.
fn runs_of(pages: &[PageIndex], runs_max: usize) -> (Vec<(u32, u32)>, u32) {
    let mut block_pages = 1;
    loop {
        let mut runs: Vec<(u32, u32)> = Vec::new();
        for page in pages {
            let (block, is_full) = (page.0 & !(block_pages - 1), runs.len() == runs_max);
            match runs.last_mut() {
                Some((first, count)) if block < *first + *count => {}
                Some((first, count)) if block == *first + *count => *count += block_pages,
                _ if is_full => break,
                _ => runs.push((block, block_pages)),
            }
        }
        let is_complete = match (runs.last(), pages.last()) {
            (Some((first, count)), Some(last)) => last.0 < first + count,
            _ => true,
        };
        if is_complete {
            return (runs, block_pages);
        }
        block_pages *= 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(pages: &[u32]) -> Vec<PageIndex> {
        pages.iter().copied().map(PageIndex).collect()
    }

    #[test]
    fn pages_side_by_side_are_one_run() {
        let runs = runs_of(&pages(&[1, 2, 3, 7, 8, 100]), 10);
        assert_eq!(runs, (vec![(1, 3), (7, 2), (100, 1)], 1));
        assert_eq!(runs_of(&[], 10), (vec![], 1));
    }

    #[test]
    fn too_many_runs_are_told_in_blocks() {
        let (runs, block_pages) = runs_of(&pages(&[0, 2, 4, 6, 100, 102]), 2);
        assert_eq!((runs, block_pages), (vec![(0, 8), (100, 4)], 2));
    }
}
