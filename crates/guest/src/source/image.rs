//! Content of a guest's memory, by page.

use bindery_units::{PageIndex, PageRange};

/// Content that a source serves pages from.
pub trait Image: Sync {
    /// Reads pages from `first` on: as many as fill `into`, at most
    /// [`SLOT_PAGES`](bindery_wire::source::SLOT_PAGES), none of which is known to be zero. Called by two threads
    /// at once; a guest waits for some of the calls.
    ///
    /// # Errors
    /// [`ImageError`].
    fn read(&self, first: PageIndex, into: &mut [u8]) -> Result<(), ImageError>;

    /// Returns the run of zero pages that a page is in, as far as that is known without reading. `None` for a
    /// page that is to be read.
    fn zero_run(&self, page: PageIndex) -> Option<PageRange>;
}

/// Why pages could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// The content of this page is lost; the pages before it were read. Those behind are read again.
    #[error("page {0:?} of the image is damaged")]
    Damaged(PageIndex),
    /// The image cannot be read now.
    #[error("the image cannot be read: {0}")]
    Unavailable(#[source] Box<dyn std::error::Error + Send + Sync>),
}
