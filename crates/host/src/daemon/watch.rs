//! An operator who watches what is written to a guest.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bindery_dirty::{JoinError, Reader};
use bindery_guest::{Connection, Guest, GuestError};
use bindery_units::{PageIndex, PageRange};

use crate::protocol::{Epoch, RUNS_MAX};

/// Runs of pages taken from the guest's written ones at a time.
const HARVEST_RUNS: usize = 1 << 12;

/// A guest that is watched, epoch after epoch. Merging goes on beside it: both are told of every
/// write.
pub(super) struct Watch {
    guest: Arc<Guest>,
    written: Reader,
    /// Its regions when it was last asked.
    regions: Vec<PageRange>,
    /// When the epoch began, unless it is the first one of these regions.
    since: Option<Instant>,
}

/// Why an epoch cannot be told.
#[derive(Debug, thiserror::Error)]
pub(super) enum WatchError {
    #[error("the guest has just left")]
    Gone,
    #[error("the guest has not answered an earlier question yet: is it stopped? Try again later")]
    Stalled,
    #[error("the guest cannot be asked what was written: {0}")]
    Guest(#[from] GuestError),
    #[error("the guest cannot be watched by one more: {0}")]
    Reader(#[from] JoinError),
}

impl Watch {
    pub(super) fn begin(guest: Arc<Guest>) -> Result<Self, WatchError> {
        let written = guest.written().visit()?;
        Ok(Self { guest, written, regions: Vec::new(), since: None })
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
        self.ask(&regions)?;
        if regions != self.regions {
            // Memory that is new was written before anybody looked.
            self.since = None;
            self.regions.clone_from(&regions);
        }
        let now = Instant::now();
        let mut runs = Runs::new(RUNS_MAX);
        match self.since {
            Some(_) => self.take_written(&regions, &mut runs),
            // What was written before anybody asked is nobody's epoch.
            None => self.written.clear(),
        }
        let epoch_us = self.since.map_or(0, |since| (now - since).as_micros() as u64);
        self.since = Some(now);
        let regions = regions.iter().map(|range| (range.first.0, range.count)).collect();
        let Runs { runs, block_pages, .. } = runs;
        Ok(Epoch { guest: name, epoch_us, regions, runs, block_pages })
    }

    /// Asks the guest what was written.
    fn ask(&self, regions: &[PageRange]) -> Result<(), WatchError> {
        let written = self.guest.written();
        let doubt = written.doubt();
        // Each question to a guest that does not answer would take a lane of its own.
        if !self.guest.settle()? {
            return Err(WatchError::Stalled);
        }
        let mut lane = self.guest.lane()?;
        let asked = if written.is_in_doubt() {
            written.survey(&mut *lane, regions, doubt)
        } else {
            regions.iter().try_for_each(|range| written.collect(&mut *lane, *range))
        };
        // What this cost is not merging's to pay, who has the lane next.
        lane.gauges();
        Ok(asked?)
    }

    fn take_written(&self, regions: &[PageRange], runs: &mut Runs) {
        let mut buffer = vec![PageRange::default(); HARVEST_RUNS];
        for range in regions {
            let harvested = self.written.harvest_runs(*range, &mut buffer, |run| runs.add(run));
            harvested.expect("regions lie within the pages that a guest may have");
        }
    }
}

/// Runs of pages, as (first, count): at most so many. Where there would be more, they begin and end at
/// multiples of more and more pages.
#[derive(Debug)]
struct Runs {
    runs: Vec<(u32, u32)>,
    block_pages: u32,
    most: usize,
}

impl Runs {
    const fn new(most: usize) -> Self {
        Self { runs: Vec::new(), block_pages: 1, most }
    }

    /// Adds pages behind all that were added before.
    fn add(&mut self, pages: PageRange) {
        loop {
            let start = pages.first.0 & !(self.block_pages - 1);
            let end = pages.end().0.next_multiple_of(self.block_pages);
            let is_full = self.runs.len() == self.most;
            match self.runs.last_mut() {
                Some((first, count)) if start <= *first + *count => {
                    *count = (*count).max(end - *first);
                    return;
                }
                _ if is_full => self.coarsen(),
                _ => {
                    self.runs.push((start, end - start));
                    return;
                }
            }
        }
    }

    fn coarsen(&mut self) {
        self.block_pages *= 2;
        let fine = std::mem::take(&mut self.runs);
        fine.into_iter()
            .for_each(|(first, count)| self.add(PageRange::new(PageIndex(first), count)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(pages: &[u32], most: usize) -> (Vec<(u32, u32)>, u32) {
        let mut runs = Runs::new(most);
        pages.iter().for_each(|page| runs.add(PageRange::new(PageIndex(*page), 1)));
        (runs.runs, runs.block_pages)
    }

    #[test]
    fn pages_side_by_side_are_one_run() {
        assert_eq!(runs(&[1, 2, 3, 7, 8, 100], 10), (vec![(1, 3), (7, 2), (100, 1)], 1));
        assert_eq!(runs(&[], 10), (vec![], 1));
    }

    #[test]
    fn too_many_runs_are_told_in_blocks() {
        assert_eq!(runs(&[0, 2, 4, 6, 100, 102], 2), (vec![(0, 8), (100, 4)], 2));
        let far_apart: Vec<u32> = (0..1000).map(|page| page * 100).collect();
        let (runs, block_pages) = runs(&far_apart, 16);
        assert!(runs.len() <= 16 && block_pages > 1);
        let has =
            |page: u32| runs.iter().any(|(first, count)| (*first..first + count).contains(&page));
        assert!(far_apart.iter().all(|page| has(*page)));
    }
}
