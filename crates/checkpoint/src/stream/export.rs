//! Checkpoints written as a stream.

use std::io::Write;
use std::ops::ControlFlow;

use bindery_units::{PAGE_BYTES, PageRange};

use super::chunk::CHUNK_PAGES;
use super::writer::{Exported, StreamWriter};
use crate::catalogue::CheckpointId;
use crate::error::CheckpointError;
use crate::manifest::PlacedRun;
use crate::seal::SecretKey;
use crate::store::Store;

/// Ways to export a checkpoint.
#[derive(Clone, Debug, Default)]
pub struct ExportOptions {
    /// Key that the stream is encrypted with; without one it is readable to all, whatever the domain's is.
    pub key: Option<SecretKey>,
}

impl Store {
    /// Writes a checkpoint as a stream, and flushes it. Blocks.
    ///
    /// # Errors
    /// [`CheckpointError::Export`] with the error of `into`; if the checkpoint cannot be read. What was
    /// written until then is no whole stream, and is refused by [`import`](Self::import).
    pub fn export(
        &self,
        id: CheckpointId,
        into: &mut dyn Write,
        options: &ExportOptions,
    ) -> Result<Exported, CheckpointError> {
        self.export_watched(id, into, options, &mut |_| ControlFlow::Continue(()))
    }

    /// Writes as [`export`](Self::export), and calls `watch` with the number of pages after each piece.
    ///
    /// # Errors
    /// As [`export`](Self::export); [`CheckpointError::Stopped`] once `watch` breaks.
    pub fn export_watched(
        &self,
        id: CheckpointId,
        into: &mut dyn Write,
        options: &ExportOptions,
        watch: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Result<Exported, CheckpointError> {
        let reader = self.reader(id)?;
        let description = &reader.manifest().description;
        let mut stream = StreamWriter::begin(into, description, options.key.as_ref())?;
        let mut bytes = vec![0; CHUNK_PAGES as usize * PAGE_BYTES];
        for block in 0..reader.manifest().pages.len() {
            for run in stretches(reader.runs(block)) {
                for pages in run.pieces(CHUNK_PAGES) {
                    let bytes = &mut bytes[..pages.count as usize * PAGE_BYTES];
                    reader.read(block, pages.first, bytes)?;
                    stream.put(block as u16, pages.first, bytes)?;
                    if watch(pages.count.into()).is_break() {
                        return Err(CheckpointError::Stopped);
                    }
                }
            }
        }
        stream.end()
    }
}

/// Returns stretches of stored pages, wherever they lie.
fn stretches(runs: &[PlacedRun]) -> impl Iterator<Item = PageRange> + '_ {
    let follows = |before: &PlacedRun, next: &PlacedRun| before.pages.end() == next.pages.first;
    runs.chunk_by(follows).map(|runs| {
        let count = runs.iter().map(|run| run.pages.count).sum();
        PageRange::new(runs[0].pages.first, count)
    })
}
