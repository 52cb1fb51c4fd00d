//! Content that the guest's memory is to hold.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};

use bindery_guest::{Image, ImageError};
use bindery_units::{PAGE_BYTES, PageIndex, PageRange};

/// Pages of the guest's memory.
pub(crate) const PAGES: u32 = 8192;

/// Page of the image that its first page is filled from.
pub(crate) const FIRST: u32 = 1000;

/// Returns true for pages that the image knows to be zero: runs of three.
pub(crate) const fn is_zero(page: u32) -> bool {
    page % 16 >= 13
}

/// Returns a word of a page.
pub(crate) fn word(page: u32, at: usize) -> u64 {
    if is_zero(page) { 0 } else { plain_word(page, at) }
}

fn plain_word(page: u32, at: usize) -> u64 {
    (u64::from(page) << 32 | at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1
}

fn put(first: PageIndex, into: &mut [u8], word: impl Fn(u32, usize) -> u64) {
    for (page, bytes) in into.chunks_mut(PAGE_BYTES).enumerate() {
        let page = first.0 - FIRST + page as u32;
        assert!(page < PAGES, "no page beyond the range is read");
        for (at, chunk) in bytes.chunks_mut(8).enumerate() {
            chunk.copy_from_slice(&word(page, at).to_ne_bytes());
        }
    }
}

fn zeros_from(page: PageIndex) -> Option<PageRange> {
    let offset = page.0 - FIRST;
    let first = offset - offset % 16 + 13;
    (offset % 16 >= 13).then(|| PageRange::new(PageIndex(FIRST + first), 3))
}

/// Every page's own words.
pub(crate) struct Content;

impl Image for Content {
    fn read(&self, first: PageIndex, into: &mut [u8]) -> Result<(), ImageError> {
        put(first, into, word);
        Ok(())
    }

    fn zero_run(&self, page: PageIndex) -> Option<PageRange> {
        zeros_from(page)
    }
}

/// Image without zeros, as fast as memory.
pub(crate) struct Plain;

impl Image for Plain {
    fn read(&self, first: PageIndex, into: &mut [u8]) -> Result<(), ImageError> {
        into.fill(first.0 as u8 | 1);
        Ok(())
    }

    fn zero_run(&self, _: PageIndex) -> Option<PageRange> {
        None
    }
}

/// Image with pages that are damaged.
pub(crate) struct Damaged(pub(crate) BTreeSet<u32>);

impl Image for Damaged {
    fn read(&self, first: PageIndex, into: &mut [u8]) -> Result<(), ImageError> {
        let pages = first.0 - FIRST..first.0 - FIRST + (into.len() / PAGE_BYTES) as u32;
        Content.read(first, into)?;
        match self.0.range(pages).next() {
            Some(&page) => Err(ImageError::Damaged(PageIndex(FIRST + page))),
            None => Ok(()),
        }
    }

    fn zero_run(&self, page: PageIndex) -> Option<PageRange> {
        zeros_from(page)
    }
}

/// Image that answers as from far away.
pub(crate) struct Slow;

impl Image for Slow {
    fn read(&self, first: PageIndex, into: &mut [u8]) -> Result<(), ImageError> {
        std::thread::sleep(std::time::Duration::from_millis(3));
        Content.read(first, into)
    }

    fn zero_run(&self, page: PageIndex) -> Option<PageRange> {
        zeros_from(page)
    }
}

/// An image that cannot be read for a while.
pub(crate) struct Refusing<'a>(pub(crate) &'a AtomicBool);

impl Image for Refusing<'_> {
    fn read(&self, first: PageIndex, into: &mut [u8]) -> Result<(), ImageError> {
        if self.0.load(Ordering::Relaxed) && first.0 > FIRST + PAGES / 2 {
            return Err(ImageError::Unavailable("the network is down".into()));
        }
        Content.read(first, into)
    }

    fn zero_run(&self, page: PageIndex) -> Option<PageRange> {
        zeros_from(page)
    }
}
