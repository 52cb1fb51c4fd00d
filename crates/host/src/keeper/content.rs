//! Memory of a checkpoint, as it is sent to a guest.

use std::time::Instant;

use bindery_checkpoint::CheckpointId;
use bindery_guest::{ServeOptions, Served, SourceLink};
use bindery_units::PageRange;

use super::image::CheckpointImage;
use super::turns::Turn;
use super::{Lease, failed, failure};
use crate::protocol::Failure;

/// Memory of a checkpoint, with the pool that it is in.
pub(super) struct Content {
    pub(super) lease: Lease,
    pub(super) id: CheckpointId,
    pub(super) image: CheckpointImage,
    ahead: Vec<PageRange>,
}

impl Content {
    pub(super) fn open(lease: Lease, id: CheckpointId) -> Result<Self, Failure> {
        let of = |error| failure::of_checkpoint(&error);
        let image = CheckpointImage::new(lease.reader(id).map_err(of)?);
        let image = image.ok_or_else(|| failed("the checkpoint has more than 4 TiB".into()))?;
        // Without it the guest waits more often, and that is all.
        let touched = lease.touched(id).inspect_err(|error| tracing::warn!("{error}"));
        let ahead = image.of_touched(&touched.unwrap_or_default());
        Ok(Self { lease, id, image, ahead })
    }

    /// Sends an operator pages over `link` until no more are wanted. What is touched is recorded once for a
    /// checkpoint: the next ones have it sent ahead, and touch less that is missing.
    pub(super) fn serve_asked(self, link: SourceLink, name: &str, is_lazy: bool) {
        let options = ServeOptions { is_lazy, ..ServeOptions::default() };
        match link.serve(&self.image, self.ahead.clone().into_iter(), options) {
            Ok(served) => {
                let Served { content_pages, zero_pages, faults, damaged, .. } = &served;
                let damaged = damaged.len();
                tracing::info!(
                    checkpoint = name,
                    content_pages,
                    zero_pages,
                    faults,
                    damaged,
                    "a microVM has what it wants of its memory"
                );
                let has_record = self.lease.touched(self.id).is_ok_and(|known| !known.is_empty());
                if !has_record {
                    self.record(&served, name);
                }
            }
            Err(error) => {
                tracing::warn!(checkpoint = name, "a source of a microVM's memory broke: {error}");
            }
        }
    }

    /// Sends the pages over `link` until none is missing.
    pub(super) fn serve(self, link: SourceLink, guest: &str, turn: &Turn) -> bool {
        let begun = Instant::now();
        let ahead = self.ahead.clone().into_iter();
        let may_push = || turn.may_push();
        match link.serve_in_turn(&self.image, ahead, &may_push, ServeOptions::default()) {
            Ok(served) => {
                turn.set_whole();
                self.end(&served, guest, begun);
                true
            }
            Err(error) => {
                tracing::warn!(guest, "a restored guest misses pages, and waits for them: {error}");
                false
            }
        }
    }

    fn end(&self, served: &Served, guest: &str, begun: Instant) {
        let Served { content_pages, zero_pages, faults, damaged, .. } = served;
        let (ms, damaged) = (begun.elapsed().as_millis(), damaged.len());
        tracing::info!(
            guest,
            content_pages,
            zero_pages,
            faults,
            damaged,
            ms,
            "a restored guest has all of its memory"
        );
        self.record(served, guest);
    }

    /// Records what was touched first, for the next restore.
    fn record(&self, served: &Served, guest: &str) {
        let touched = self.image.to_touched(&served.touched);
        if touched.is_empty() {
            return;
        }
        if let Err(error) = self.lease.set_touched(self.id, &touched) {
            tracing::warn!(guest, "what the restore touched is not recorded: {error}");
        }
    }
}
