//! I/O into pages that the kernel has pinned: it writes to a page itself, wherever that is moved, and
//! no protection and no scan sees it.

use std::io::Write;

use bindery_units::{PAGE_BYTES, Slot};
use bindery_wire::lane::PageOutcome;

use crate::{
    common::{Bench, merged},
    ring::Ring,
};

/// A page of memory that a ring holds for I/O, and a pipe to read from.
struct Pinned {
    ring: Ring,
    reader: std::io::PipeReader,
    writer: std::io::PipeWriter,
}

impl Pinned {
    /// Pins a page as a registered buffer. Nothing where there is no io_uring.
    fn new(bench: &Bench, page: u32) -> Option<Self> {
        let ring = match Ring::new() {
            Ok(ring) => ring,
            Err(error) => {
                bindery_testkit::skipped!("io_uring: {error}");
                return None;
            }
        };
        ring.register(bench.address(page), PAGE_BYTES).expect("a registered buffer");
        let (reader, writer) = std::io::pipe().expect("pipe");
        Some(Self { ring, reader, writer })
    }

    /// The kernel fills the page that it pinned.
    fn fill(&mut self, bench: &Bench, page: u32, word: u64) {
        self.writer.write_all(&word.to_ne_bytes().repeat(PAGE_BYTES / 8)).expect("a page fits");
        let done = self.ring.read_fixed(&self.reader, bench.address(page), PAGE_BYTES as u32);
        assert_eq!(done, PAGE_BYTES as i32);
        assert!(bench.holds(page, word), "what was read is in the page that the guest sees");
    }
}

fn bench() -> Option<Bench> {
    let bench = Bench::new(64, 64)?;
    for page in 0..64 {
        bench.fill(page, 2);
        bench.fill_slot(Slot(page), 2);
    }
    Some(bench)
}

#[test]
fn a_pinned_page_is_left_where_it_is() {
    let Some(bench) = bench() else { return };
    let Some(mut pinned) = Pinned::new(&bench, 3) else { return };
    let mut worker = bench.space.worker().expect("worker");
    let outcomes = bench.merge(&mut worker, 0, 8, Slot(0));
    assert_eq!(outcomes[3], PageOutcome::Busy);
    assert_eq!(outcomes.iter().filter(|&&page| page == PageOutcome::Merged).count(), 7);
    pinned.fill(&bench, 3, 77);
    drop(pinned);
}

#[test]
fn a_merged_page_comes_back_before_it_is_pinned() {
    let Some(bench) = bench() else { return };
    let mut worker = bench.space.worker().expect("worker");
    assert_eq!(bench.merge(&mut worker, 0, 64, Slot(0)), merged(64));
    let Some(mut pinned) = Pinned::new(&bench, 3) else { return };
    pinned.fill(&bench, 3, 77);
    // Whatever is done to it, it stays the page that the kernel writes to.
    assert_eq!(bench.merge(&mut worker, 3, 1, Slot(3)).len(), 1);
    pinned.fill(&bench, 3, 2);
    worker.lost(&mut Vec::new(), 64);
    assert_eq!(bench.merge(&mut worker, 3, 1, Slot(3)), [PageOutcome::Busy]);
    worker.unmerge(bench.all(), u32::MAX);
    pinned.fill(&bench, 3, 78);
    worker.mend(bench.all());
    pinned.fill(&bench, 3, 79);
    bench.space.release().expect("release");
    pinned.fill(&bench, 3, 80);
    assert!((4..64).all(|page| bench.holds(page, 2)));
}
