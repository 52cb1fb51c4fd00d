//! Serving faults: absent pages are fetched and installed, in the thread that touched them.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use bindery_sys::userfault::Userfault;
use bindery_units::{HostAddress, PAGE_BYTES};

use crate::buffers;
use crate::sigbus::Serve;
use crate::source::{FETCH_PAGES_MAX, PageSource};

/// Server of the faults of one memory.
pub(crate) struct PageServer {
    pub(crate) start: HostAddress,
    pub(crate) pages: usize,
    /// Context that the memory is registered with.
    pub(crate) userfault: Userfault,
    pub(crate) source: Arc<dyn PageSource>,
}

impl PageServer {
    fn page_of(&self, address: HostAddress) -> usize {
        (address.0 - self.start.0) / PAGE_BYTES
    }

    /// Fetches pages and installs them. Returns true if the first of them can be read now.
    fn fetch(&self, pages: Range<usize>) -> bool {
        let fetched = buffers::lend(|buffer| {
            let content = &mut buffer[..pages.len() * PAGE_BYTES];
            self.source.fetch(pages.start, content) && self.install(pages.start, content).is_ok()
        });
        fetched.unwrap_or(false)
    }

    /// Installs pages from `first_page` on, passing over those that are there. Allocates nothing.
    ///
    /// # Errors
    /// The error number of the first page that could not be installed.
    ///
    /// # Panics
    /// If `content` is not whole pages, or more than the memory has from there on.
    pub(crate) fn install(&self, first_page: usize, content: &[u8]) -> Result<(), i32> {
        assert!(content.len().is_multiple_of(PAGE_BYTES), "pages are installed whole");
        let pages = content.len() / PAGE_BYTES;
        assert!(first_page <= self.pages && pages <= self.pages - first_page, "too many pages");
        let mut at = 0;
        while at < content.len() {
            let destination = self.start.plus(first_page * PAGE_BYTES + at);
            let source = HostAddress(content[at..].as_ptr().addr());
            // SAFETY: `content` is readable to its end. The range is this memory's, of which nobody
            // expects anything but what its source or its owner puts there.
            match unsafe { self.userfault.copy(destination, source, content.len() - at) } {
                Ok(()) => break,
                // Somebody else, perhaps in another process, was first.
                Err(stopped) if stopped.errno == libc::EEXIST => at += PAGE_BYTES,
                Err(stopped) if stopped.errno == libc::EAGAIN => at += stopped.done,
                Err(stopped) => return Err(stopped.errno),
            }
        }
        Ok(())
    }
}

impl Serve for PageServer {
    fn serve(&self, address: HostAddress) -> bool {
        let page = self.page_of(address);
        let window = self.source.window(page);
        let start = window.start.min(page).max((page + 1).saturating_sub(FETCH_PAGES_MAX));
        let end = window.end.clamp(page + 1, self.pages).min(start + FETCH_PAGES_MAX);
        // One page that cannot be read must not take its neighbours with it.
        if self.fetch(start..end) || (end - start > 1 && self.fetch(page..page + 1)) {
            return true;
        }
        self.source.lost(page);
        false
    }
}

impl fmt::Debug for PageServer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "PageServer({} pages at {:#x})", self.pages, self.start.0)
    }
}
