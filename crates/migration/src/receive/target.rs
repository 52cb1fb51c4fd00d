//! Memory that received pages go to.

use std::io;

use bindery_page::{KEYED_DIGEST_BYTES, KeyedDigest};
use bindery_units::{PageIndex, PageRange};

/// Memory of the guest at the destination. It is zero before the first call.
///
/// Calls for one page come in order; calls for different rows of 64 pages may come from several threads, each of
/// which has a target of its own.
pub trait Target {
    /// Writes whole pages from `first` on.
    ///
    /// # Errors
    /// The memory's own.
    fn put(&mut self, block: u16, first: PageIndex, bytes: &[u8]) -> io::Result<()>;

    /// Makes pages zero, which were not before.
    ///
    /// # Errors
    /// The memory's own.
    fn zeros(&mut self, block: u16, pages: PageRange) -> io::Result<()>;

    /// Writes bytes within a page that was put before.
    ///
    /// # Errors
    /// The memory's own.
    fn patch(&mut self, block: u16, page: PageIndex, offset: usize, bytes: &[u8])
    -> io::Result<()>;

    /// Puts a page that is known by its digest. Returns false if it is not known.
    ///
    /// A digest is as good as a comparison only if the key was kept from guests.
    ///
    /// # Errors
    /// The memory's own.
    fn adopt(&mut self, _block: u16, _page: PageIndex, _digest: &KeyedDigest) -> io::Result<bool> {
        Ok(false)
    }

    /// Notes that the content of a page is lost: whoever touches it is to get an error.
    ///
    /// # Errors
    /// The memory's own.
    fn damaged(&mut self, block: u16, page: PageIndex) -> io::Result<()>;
}

/// Returns the digest that a frame has.
pub(crate) const fn digest_of(bytes: &[u8; KEYED_DIGEST_BYTES]) -> KeyedDigest {
    KeyedDigest(*bytes)
}
