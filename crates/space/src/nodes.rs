//! Nodes that a VMM binds its memory to, with mbind(2).
//!
//! The kernel keeps a policy with each mapping. What is merged lies in mappings of a store, whose pages belong to
//! no guest and stay where they are. Pages that come back are of the nodes that were noted.

use std::io;

use bindery_sys::numa::Policy;
use bindery_units::{HostAddress, PAGE_BYTES, PageIndex, PageRange};

use crate::{Core, LastingAdvice, Space, end_of, region::Region};

/// Pages that are bound in one go, and wait for it: the kernel may be asked to move them.
const BOUND_PAGES: u32 = 4096;

impl Space {
    /// Binds a range of whole pages, of which some are managed. Calls `bind` with each part that is not a store's,
    /// and has the rest come back on the nodes of `policy`.
    ///
    /// # Errors
    /// The first of `bind`, which is called for what follows all the same.
    pub fn bind(
        &self,
        address: HostAddress,
        bytes: usize,
        policy: Policy,
        mut bind: impl FnMut(HostAddress, usize) -> io::Result<()>,
    ) -> io::Result<()> {
        let note = || self.note_advice(address, bytes, LastingAdvice::Nodes(policy));
        note();
        let result = self.core.bind(address, end_of(address, bytes), &mut bind);
        // What was offered may have been taken meanwhile, as it was before.
        note();
        result
    }
}

impl Core {
    fn bind(
        &self,
        start: HostAddress,
        end: HostAddress,
        bind: &mut impl FnMut(HostAddress, usize) -> io::Result<()>,
    ) -> io::Result<()> {
        let (mut at, mut result) = (start, Ok(()));
        for region in self.regions.overlapping(start, end) {
            let pages = region.pages_between(start, end);
            let from = region.address(pages.first);
            result = result.and(bind_between(at, from, bind));
            at = from.plus_pages(pages.count);
            for piece in pages.pieces(BOUND_PAGES) {
                let from = region.address(piece.first);
                let hold = self.hold(from, from.plus_pages(piece.count));
                let bound = if self.regions.has(&region) {
                    bind_held(&region, piece, bind)
                } else {
                    // It was cut or given back while its pages were waited for.
                    drop(hold);
                    self.bind(from, from.plus_pages(piece.count), bind)
                };
                result = result.and(bound);
            }
        }
        result.and(bind_between(at, end, bind))
    }
}

fn bind_between(
    start: HostAddress,
    end: HostAddress,
    bind: &mut impl FnMut(HostAddress, usize) -> io::Result<()>,
) -> io::Result<()> {
    if start < end { bind(start, end.0 - start.0) } else { Ok(()) }
}

/// Binds what is anonymous of pages that are held.
fn bind_held(
    region: &Region,
    pages: PageRange,
    bind: &mut impl FnMut(HostAddress, usize) -> io::Result<()>,
) -> io::Result<()> {
    let is_anonymous = |page: &PageIndex| region.entry(*page).is_anonymous();
    let anonymous: Vec<PageIndex> = pages.pages().filter(is_anonymous).collect();
    let runs = anonymous.chunk_by(|a, b| a.plus(1) == *b);
    runs.map(|run| bind(region.address(run[0]), run.len() * PAGE_BYTES)).fold(Ok(()), Result::and)
}
