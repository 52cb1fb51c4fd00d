//! Which pages of a guest were written: found once, told to everybody who wants to know.
//!
//! To ask a guest's process what was written protects those pages again, so whoever asks takes the
//! answer from all others. It goes into a [`Feed`], in which each reader (merging, an operator who
//! watches, a checkpoint, a migration) has a set of its own and takes from that when it likes.
//!
//! # What holds
//! Every page that was written before [`Written::collect`] was called, in the range that it was called
//! for, is in each reader's set when it returns, or was taken out of it before. An answer that is
//! lost on the way counts as all of its range. While somebody merges the same pages one may come
//! late: a page that is in transit while it would be looked at is found by the next call. Whoever
//! needs all of them, as the last round of a migration does, calls when nobody merges.

use std::sync::Arc;

use bindery_dirty::{Feed, JoinError, Joining, Reader};
use bindery_space::wire::lane::PageSpan;
use bindery_units::{PageIndex, PageRange};

use crate::{GuestError, Lane, PAGES_MAX};

/// Pages of one request: 16 GiB, 10 ms if nothing was written and 100 if all was.
const REQUEST_PAGES: u32 = 1 << 22;

/// What to look for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// Pages that were written since somebody looked before.
    Written,
    /// All pages that are there and private, because it is not known which were written.
    Present,
}

/// The written pages of one guest, for each of their readers.
#[derive(Debug)]
pub struct Written {
    feed: Arc<Feed>,
}

impl Default for Written {
    fn default() -> Self {
        // Address space for every page that a guest may have; memory where pages are written.
        let feed = Feed::new(u64::from(PAGES_MAX)).expect("a guest's pages fit in a tree");
        Self { feed: Arc::new(feed) }
    }
}

impl Written {
    /// A set of its own for another reader, empty at first.
    ///
    /// # Errors
    /// If there is no memory for it, or there are too many readers.
    pub fn join(&self) -> Result<Reader, JoinError> {
        self.feed.join(Joining::Clean)
    }

    /// Asks the guest's process which pages of `range` were written, or are there, and tells every
    /// reader. Blocks as [`Lane::scan`] does, once for each 16 GiB and each full answer.
    ///
    /// # Errors
    /// [`GuestError`]. What was not looked at yet is told as written then: an answer may have been
    /// lost.
    ///
    /// # Panics
    /// If the range is not within [`PAGES_MAX`], as all regions are.
    pub fn collect(
        &self,
        lane: &mut dyn Lane,
        range: PageRange,
        look: Look,
    ) -> Result<(), GuestError> {
        let mut spans: Vec<PageSpan> = Vec::new();
        let mut at = range.first;
        while at < range.end() {
            let rest = range.end().0 - at.0;
            let request = PageRange::new(at, rest.min(REQUEST_PAGES));
            let asked = match look {
                Look::Written => lane.scan(request, &mut spans),
                Look::Present => lane.survey(request, &mut spans),
            };
            let resume = asked.inspect_err(|_| self.tell(PageRange::new(at, rest)))?;
            for span in &spans {
                self.tell(PageRange::new(PageIndex(span.first), span.count));
            }
            at = resume.unwrap_or(request.end());
        }
        Ok(())
    }

    fn tell(&self, range: PageRange) {
        let told = self.feed.mark_range(range.first, u64::from(range.count));
        told.expect("regions lie within the pages that a guest may have");
    }
}
