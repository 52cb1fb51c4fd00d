//! Memory of a guest whose process has Bindery's library in it.

use std::time::Duration;

use bindery_guest::{Connection, Guest, Hush, Lane, LaneLease};
use bindery_units::{PageIndex, PageRange};
use bindery_wire::control::Region;
use bindery_wire::lane::{BLOCKS_MAX, BlockOutcome, BlockState};

use crate::hot::to_split;
use crate::lanes::{jobs, read_all};
use crate::memory::{BlockPages, Changed, Memory, MemoryError, PauseKind};
use crate::pieces::{Piece, cut_blocks};
use crate::place::PlacedBlock;
use crate::process::Process;
use crate::tracker::{Marks, Tracker};

/// Lanes that read at once, if the caller does not say.
pub const LANES: usize = 4;

/// Pages of a run from which on it is worth asking which of them are zero.
const SPARSE_PAGES: u32 = 64;

/// Memory of a connected guest.
///
/// Managed pages are read by the library's own threads, over lanes: it knows where each page is. What is not
/// managed is read from the process by the daemon, as it is in the last pause.
pub struct GuestMemory<'g> {
    guest: &'g Guest,
    marks: Marks<'g>,
    blocks: Vec<PlacedBlock>,
    sizes: Vec<u32>,
    regions: Vec<Region>,
    /// Pieces of the blocks, each with whether its absent pages are zero.
    pieces: Vec<(Piece, bool)>,
    process: Process<'g>,
    lanes_max: usize,
    lanes: Vec<LaneLease<'g>>,
    hush: Option<Hush<'g>>,
}

impl<'g> GuestMemory<'g> {
    /// Prepares the blocks of the guest that `tracker` follows for one transfer. Blocks must be the same, in the same
    /// order, from one transfer to the next, and all of their memory must be there: absent pages are zero.
    ///
    /// # Errors
    /// [`MemoryError`] if the process cannot be looked at, or has no memory where a block was placed.
    pub fn new(tracker: &'g mut Tracker, blocks: Vec<PlacedBlock>) -> Result<Self, MemoryError> {
        let (guest, marks) = tracker.parts();
        let guest: &'g Guest = guest;
        let process = Process::open(guest)?;
        let sizes = blocks.iter().map(|block| block.pages).collect();
        let mut memory = Self {
            guest,
            marks,
            blocks,
            sizes,
            regions: Vec::new(),
            pieces: Vec::new(),
            process,
            lanes_max: LANES,
            lanes: Vec::new(),
            hush: None,
        };
        memory.cut(true)?;
        Ok(memory)
    }

    /// Reads with so many lanes, one at least.
    #[must_use]
    pub fn with_lanes(mut self, lanes: usize) -> Self {
        self.lanes_max = lanes.max(1);
        self
    }

    /// Takes in which regions there are.
    fn cut(&mut self, anew: bool) -> Result<(), MemoryError> {
        self.guest.wait_events(Duration::ZERO)?;
        let regions = self.guest.regions();
        if regions != self.regions || anew {
            let pieces = cut_blocks(&self.blocks, &regions);
            let absent_is_zero = self.process.absent_is_zero(&pieces)?;
            self.pieces = pieces.into_iter().zip(absent_is_zero).collect();
            self.regions = regions;
        }
        Ok(())
    }

    /// Opens lanes, as many as are wanted. Gives them back if one owes an answer.
    fn open_lanes(&mut self, count: usize) -> Result<(), MemoryError> {
        if self.lanes.iter().any(|lane| lane.owes()) {
            self.lanes.clear();
        }
        while self.lanes.len() < count.min(self.lanes_max) {
            self.lanes.push(self.guest.lane()?);
        }
        Ok(())
    }

    /// Returns those of `blocks` that are huge pages.
    fn huge(&mut self, blocks: Vec<PageIndex>) -> Result<Vec<PageIndex>, MemoryError> {
        let (lane, mut samples, mut huge) = (self.lane()?, Vec::new(), Vec::new());
        for blocks in blocks.chunks(BLOCKS_MAX) {
            let firsts: Vec<u32> = blocks.iter().map(|block| block.0).collect();
            samples.clear();
            lane.sample(&firsts, &mut samples)?;
            let found = blocks.iter().zip(&samples);
            let found = found.filter(|(_, sample)| sample.state == BlockState::Huge);
            huge.extend(found.map(|(block, _)| *block));
        }
        Ok(huge)
    }

    fn lane(&mut self) -> Result<&mut dyn Lane, MemoryError> {
        self.open_lanes(1)?;
        Ok(&mut *self.lanes[0])
    }

    /// Returns the ranges that are managed, as the guest numbers pages.
    fn managed(&self) -> Vec<PageRange> {
        self.regions.iter().map(|region| region.pages).collect()
    }

    /// Returns the managed pieces, ascending by the guest's numbers.
    fn managed_pieces(&self) -> Vec<Piece> {
        let managed = self.pieces.iter().map(|(piece, _)| *piece);
        let mut pieces: Vec<Piece> = managed.filter(|piece| piece.managed.is_some()).collect();
        pieces.sort_unstable_by_key(|piece| piece.managed);
        pieces
    }

    /// Asks the guest what was written, while it runs: that only adds to what counts as changed.
    fn ask(&mut self) -> Result<(), MemoryError> {
        let written = self.guest.written();
        let (doubt, regions) = (written.doubt(), self.managed());
        if !self.guest.settle()? {
            return Err(MemoryError::Stalled);
        }
        self.open_lanes(1)?;
        let lane: &mut dyn Lane = &mut *self.lanes[0];
        if written.is_in_doubt() {
            written.survey(lane, &regions, doubt)?;
        } else {
            regions.iter().try_for_each(|range| written.collect(lane, *range))?;
        }
        Ok(())
    }

    /// Asks the paused guest what was written while no page is in transit, and calls `then` before anybody may
    /// move one again.
    fn ask_alone<T>(
        &mut self,
        then: impl FnOnce(&mut Self) -> Result<T, MemoryError>,
    ) -> Result<T, MemoryError> {
        let written = self.guest.written();
        let alone = written.alone();
        let (doubt, regions) = (written.doubt(), self.managed());
        // Seen while nobody may begin anything: whoever owes an answer may be moving pages still.
        if !self.guest.settle()? {
            return Err(MemoryError::Stalled);
        }
        self.open_lanes(1)?;
        let lane: &mut dyn Lane = &mut *self.lanes[0];
        if written.is_in_doubt() {
            alone.survey(lane, &regions, doubt)?;
        } else {
            regions.iter().try_for_each(|range| alone.collect(lane, *range))?;
        }
        let result = then(self);
        drop(alone);
        result
    }

    /// Takes what is marked. No page is in transit.
    fn take_marked(&mut self, kind: PauseKind) -> Result<Changed, MemoryError> {
        let (mut changed, mut runs) = (Changed::default(), Vec::new());
        for at in 0..self.pieces.len() {
            let (piece, absent_is_zero) = self.pieces[at];
            let Some(pages) = piece.guest_pages() else {
                if kind == PauseKind::Last {
                    self.sort_unmanaged(&piece, absent_is_zero, &mut changed)?;
                }
                continue;
            };
            if kind == PauseKind::Last {
                self.mark_written(&piece, pages)?;
            }
            runs.clear();
            self.marks.take(pages, &mut runs);
            for run in &runs {
                let part = piece.part(piece.block_pages(*run)).expect("pages of the piece");
                if run.count < SPARSE_PAGES {
                    changed.pages.push(part.of);
                } else {
                    self.sort_managed(&part, *run, &mut changed)?;
                }
            }
        }
        Ok(changed)
    }

    /// Marks pages that were written and that the guest's scan passed over: in swap, or under way from one frame to
    /// another.
    fn mark_written(&mut self, piece: &Piece, pages: PageRange) -> Result<(), MemoryError> {
        let mut runs = Vec::new();
        self.process.written(piece.address, pages.count, &mut runs)?;
        for run in runs {
            self.marks.mark(PageRange::new(pages.first.plus(run.first.0), run.count));
        }
        Ok(())
    }

    /// Counts pages that nobody tracks and that a last pause has to read.
    fn count_unmanaged(&self) -> Result<u64, MemoryError> {
        let (mut pages, mut content) = (0, Vec::new());
        for (piece, absent_is_zero) in &self.pieces {
            match (piece.managed, absent_is_zero) {
                (Some(_), _) => {}
                (None, false) => pages += u64::from(piece.of.pages.count),
                (None, true) => {
                    self.process.content(piece.address, piece.of.pages.count, &mut content)?;
                    pages += content.iter().map(|run| u64::from(run.count)).sum::<u64>();
                }
            }
        }
        Ok(pages)
    }

    /// Sorts pages that nobody tracks.
    fn sort_unmanaged(
        &self,
        piece: &Piece,
        absent_is_zero: bool,
        changed: &mut Changed,
    ) -> Result<(), MemoryError> {
        if !absent_is_zero {
            changed.pages.push(piece.of);
            return Ok(());
        }
        let mut content = Vec::new();
        self.process.content(piece.address, piece.of.pages.count, &mut content)?;
        sort(piece.of, &content, changed);
        Ok(())
    }

    /// Sorts managed pages, of which those are zero that have no content and are not merged.
    fn sort_managed(
        &mut self,
        part: &Piece,
        pages: PageRange,
        changed: &mut Changed,
    ) -> Result<(), MemoryError> {
        // First: what is merged now and private a moment later is in one list at least.
        let mut content = self.merged(pages)?;
        let mut present = Vec::new();
        self.process.content(part.address, pages.count, &mut present)?;
        content.append(&mut present);
        content.sort_unstable_by_key(|run| run.first);
        sort(part.of, &content, changed);
        Ok(())
    }

    /// Returns the merged ones of `pages`, counted from the first.
    fn merged(&mut self, pages: PageRange) -> Result<Vec<PageRange>, MemoryError> {
        let (mut merged, mut spans, mut at) = (Vec::new(), Vec::new(), pages.first);
        while at < pages.end() {
            let rest = PageRange::new(at, pages.end().0 - at.0);
            let resume = self.lanes[0].report(rest, &mut spans)?;
            merged.extend(spans.iter().map(|span| {
                let first = PageIndex(span.page - pages.first.0);
                PageRange::new(first, span.count)
            }));
            at = resume.unwrap_or(pages.end());
        }
        Ok(merged)
    }
}

/// Adds a run to `changed`: pages within `content`, which ascends by first page and counts from the run's, are to
/// be read, the others are zero.
fn sort(run: BlockPages, content: &[PageRange], changed: &mut Changed) {
    let of = |from: u32, to: u32| BlockPages {
        block: run.block,
        pages: PageRange::new(run.pages.first.plus(from), to - from),
    };
    let mut at = 0;
    for found in content {
        let (from, to) = (found.first.0.max(at), found.end().0.min(run.pages.count));
        if from >= to {
            continue;
        }
        if at < from {
            changed.zeros.push(of(at, from));
        }
        match changed.pages.last_mut() {
            Some(last)
                if last.block == run.block && last.pages.end() == run.pages.first.plus(from) =>
            {
                last.pages.count += to - from;
            }
            _ => changed.pages.push(of(from, to)),
        }
        at = to;
    }
    if at < run.pages.count {
        changed.zeros.push(of(at, run.pages.count));
    }
}

impl Memory for GuestMemory<'_> {
    fn blocks(&self) -> &[u32] {
        &self.sizes
    }

    fn estimate(&mut self) -> Result<u64, MemoryError> {
        self.cut(false)?;
        self.ask()?;
        let unmanaged = self.count_unmanaged()?;
        Ok(unmanaged + self.marks.count(&self.managed_pieces()))
    }

    fn refine(&mut self, fits: u64) -> Result<u64, MemoryError> {
        self.cut(false)?;
        let pieces = self.managed_pieces();
        let left = self.marks.count(&pieces) + self.count_unmanaged()?;
        let hot = self.huge(self.marks.whole_blocks(&pieces))?;
        let chosen: Vec<u32> = to_split(&hot, left, fits).iter().map(|block| block.0).collect();
        let (lane, mut outcomes, mut done) = (self.lane()?, Vec::new(), 0);
        for blocks in chosen.chunks(BLOCKS_MAX) {
            outcomes.clear();
            lane.split(blocks, &mut outcomes)?;
            let is_split = |outcome: &&BlockOutcome| **outcome == BlockOutcome::Split;
            done += outcomes.iter().filter(is_split).count() as u64;
        }
        Ok(done)
    }

    fn before_pause(&mut self) -> Result<(), MemoryError> {
        self.open_lanes(self.lanes_max)?;
        let written = self.guest.written();
        self.hush = Some(written.hush());
        // Requests that were begun end before the guest is stopped.
        drop(written.alone());
        Ok(())
    }

    fn take(&mut self, kind: PauseKind) -> Result<Changed, MemoryError> {
        self.cut(false)?;
        self.ask_alone(|memory| memory.take_marked(kind))
    }

    fn after_pause(&mut self) {
        self.hush = None;
    }

    fn read(&mut self, pages: &[BlockPages], into: &mut [u8]) -> Result<(), MemoryError> {
        self.open_lanes(self.lanes_max)?;
        let parts = parts(&self.pieces, pages);
        read_all(&mut self.lanes, &self.process, jobs(&parts, into))
    }

    fn commit(&mut self) {
        self.marks.commit();
    }

    fn put_back(&mut self) {
        self.hush = None;
        self.marks.put_back();
    }
}

/// Returns the parts of `pieces`, which are ascending, that have the pages of `runs`, in the order of these.
fn parts(pieces: &[(Piece, bool)], runs: &[BlockPages]) -> Vec<(Piece, bool)> {
    let mut parts = Vec::new();
    for run in runs {
        let is_before =
            |piece: &Piece| (piece.of.block, piece.of.pages.end()) <= (run.block, run.pages.first);
        let from = pieces.partition_point(|(piece, _)| is_before(piece));
        let each = pieces[from..]
            .iter()
            .map_while(|(piece, absent_is_zero)| Some((piece.part(*run)?, *absent_is_zero)));
        parts.extend(each);
    }
    parts
}

impl Drop for GuestMemory<'_> {
    fn drop(&mut self) {
        // What was done here is not merging's to pay, who has the lanes next.
        self.lanes.iter_mut().for_each(|lane| _ = lane.gauges());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bindery_units::HostAddress;
    use proptest::prelude::*;

    fn run(block: usize, first: u32, count: u32) -> BlockPages {
        BlockPages { block, pages: PageRange::new(PageIndex(first), count) }
    }

    proptest! {
        #[test]
        fn pages_are_content_or_zero(
            count in 1_u32..100,
            mut content in prop::collection::vec((0_u32..120, 1_u32..30), 0..10),
        ) {
            content.sort_unstable();
            let content: Vec<_> =
                content.iter().map(|(first, count)| PageRange::new(PageIndex(*first), *count)).collect();
            let mut changed = Changed::default();
            sort(run(3, 50, count), &content, &mut changed);
            let has = |runs: &[BlockPages], page| {
                runs.iter().filter(|run| run.pages.contains(PageIndex(page))).count()
            };
            for page in 0..count {
                let expected = content.iter().any(|run| run.contains(PageIndex(page)));
                prop_assert_eq!(has(&changed.pages, 50 + page), usize::from(expected));
                prop_assert_eq!(has(&changed.zeros, 50 + page), usize::from(!expected));
            }
            let all = [changed.pages, changed.zeros].concat();
            prop_assert_eq!(crate::memory::count(&all), u64::from(count));
        }
    }

    #[test]
    fn runs_over_several_pieces_are_found_whole() {
        let piece = |block, first, count, managed: Option<u32>| {
            let address = HostAddress(1 << 40).plus_pages(first);
            let of = run(block, first, count);
            (Piece { of, address, managed: managed.map(PageIndex) }, true)
        };
        let pieces = [piece(0, 0, 5, None), piece(0, 5, 5, Some(70)), piece(2, 0, 9, None)];
        let found = parts(&pieces, &[run(0, 3, 4), run(2, 8, 1)]);
        let expected = [(run(0, 3, 2), None), (run(0, 5, 2), Some(70)), (run(2, 8, 1), None)];
        let found: Vec<_> =
            found.iter().map(|(piece, _)| (piece.of, piece.managed.map(|page| page.0))).collect();
        assert_eq!(found, expected);
    }
}
