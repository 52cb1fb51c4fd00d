//! Verifying checkpoints: everything is read.

use std::collections::HashSet;
use std::ops::ControlFlow;
use std::sync::PoisonError;

use bindery_pool::ObjectId;
use bindery_units::{PAGE_BYTES, PageIndex, PageRange};

use super::Store;
use crate::catalogue::CheckpointId;
use crate::error::CheckpointError;
use crate::manifest::PlacedRun;
use crate::reader::CheckpointReader;

/// Pages that are read at once.
const READ_PAGES: u32 = 256;

/// Pages of a checkpoint that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DamagedRun {
    /// Name of the memory block.
    pub block: String,
    /// Pages of the block.
    pub pages: PageRange,
    /// Error of the first of them.
    pub why: String,
}

/// Result of the verification of a checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerifyReport {
    /// Number of stored pages that were read.
    pub pages: u64,
    /// Pages that cannot be read.
    pub damaged: Vec<DamagedRun>,
    /// Error of the record of touched pages, if it cannot be read; the checkpoint is whole without it.
    pub touched: Option<String>,
}

impl VerifyReport {
    /// Returns true if all of the checkpoint can be read.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.damaged.is_empty()
    }
}

impl Store {
    /// Reads all of a checkpoint, and names what cannot be read. Pages that are damaged are not known any
    /// more: the next checkpoint that has them stores them anew. Blocks.
    ///
    /// # Errors
    /// If the manifest cannot be read: [`CheckpointError::Damaged`], [`CheckpointError::Locked`].
    pub fn verify(&self, id: CheckpointId) -> Result<VerifyReport, CheckpointError> {
        self.verify_watched(id, &mut |_| ControlFlow::Continue(()))
    }

    /// Verifies as [`verify`](Self::verify), and calls `watch` with the number of pages of each piece, damaged
    /// ones included.
    ///
    /// # Errors
    /// As [`verify`](Self::verify); [`CheckpointError::Stopped`] once `watch` breaks.
    pub fn verify_watched(
        &self,
        id: CheckpointId,
        watch: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Result<VerifyReport, CheckpointError> {
        let reader = self.reader(id)?;
        let mut report = VerifyReport::default();
        let mut places = HashSet::new();
        for block in 0..reader.manifest().pages.len() {
            for run in reader.runs(block) {
                let verified = verify_run(&reader, block, *run, (&mut report, &mut places), watch);
                if verified.is_break() {
                    return Err(CheckpointError::Stopped);
                }
            }
        }
        report.touched = self.touched(id).err().map(|error| error.to_string());
        self.forget_pages(id, &places)?;
        Ok(report)
    }

    fn forget_pages(
        &self,
        id: CheckpointId,
        places: &HashSet<(ObjectId, u32)>,
    ) -> Result<(), CheckpointError> {
        if places.is_empty() {
            return Ok(());
        }
        let (summary, _) = self.shared.unlocked(id)?;
        let (domain, _) = self.shared.domain(&summary.domain)?;
        let known = self.shared.state().known(domain);
        if let Some(known) = known.write().unwrap_or_else(PoisonError::into_inner).as_mut() {
            known.forget_pages(places);
        }
        Ok(())
    }
}

fn verify_run(
    reader: &CheckpointReader,
    block: usize,
    run: PlacedRun,
    (report, places): (&mut VerifyReport, &mut HashSet<(ObjectId, u32)>),
    watch: &mut dyn FnMut(u64) -> ControlFlow<()>,
) -> ControlFlow<()> {
    let mut bytes = vec![0; run.pages.count.min(READ_PAGES) as usize * PAGE_BYTES];
    let mut damaged = |pages: PageRange, error: &CheckpointError| {
        let pack = reader.manifest().packs[run.pack as usize];
        let skipped = pages.first.0 - run.pages.first.0;
        places.extend((0..pages.count).map(|page| (pack, run.place + skipped + page)));
        note(report, reader.block_name(block), pages, error);
    };
    if let Err(error) = reader.check_pack(block, run.pages.first) {
        // None of its pages can be read.
        damaged(run.pages, &error);
        return watch(run.pages.count.into());
    }
    let mut pages = 0;
    for piece in run.pages.pieces(READ_PAGES) {
        watch(piece.count.into())?;
        let bytes = &mut bytes[..piece.count as usize * PAGE_BYTES];
        if reader.read(block, piece.first, bytes).is_ok() {
            pages += u64::from(piece.count);
            continue;
        }
        for page in piece.pages() {
            match reader.read(block, page, &mut bytes[..PAGE_BYTES]) {
                Ok(()) => pages += 1,
                Err(error) => damaged(PageRange::new(page, 1), &error),
            }
        }
    }
    report.pages += pages;
    ControlFlow::Continue(())
}

/// Adds pages to the last run, if they go on where it ends.
fn note(report: &mut VerifyReport, block: &str, pages: PageRange, error: &CheckpointError) {
    let goes_on = |last: &&mut DamagedRun| last.block == block && ends_at(last, pages.first);
    match report.damaged.last_mut().filter(goes_on) {
        Some(last) => last.pages.count += pages.count,
        None => {
            let (block, why) = (block.to_owned(), error.to_string());
            report.damaged.push(DamagedRun { block, pages, why });
        }
    }
}

fn ends_at(run: &DamagedRun, page: PageIndex) -> bool {
    run.pages.end() == page
}
