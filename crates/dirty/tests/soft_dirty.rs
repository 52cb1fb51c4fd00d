//! Soft-dirty bits: used where the kernel has them, refused where it only says so. In a file of its
//! own, since clearing them is for the whole process.
#![cfg(not(loom))]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use bindery_dirty::source::{Region, SoftDirty, SourceError, probe_soft_dirty};
use bindery_sys::mapping::Mapping;
use bindery_testkit::skipped;
use bindery_units::{PAGE_BYTES, PageIndex, PageRange};
use common::collect;

/// One test, so that no other clears bits meanwhile.
#[test]
fn what_was_written_is_collected_or_the_kernel_is_refused() {
    let memory = Mapping::anonymous(1200 * PAGE_BYTES).unwrap();
    let region = Region { start: memory.address(), pages: PageRange::new(PageIndex(5), 1200) };
    if let Err(error) = probe_soft_dirty() {
        // The write that would clear the bits succeeds all the same.
        std::fs::write("/proc/self/clear_refs", "4").unwrap();
        let refused = SoftDirty::of_self(vec![region]).unwrap_err();
        assert!(matches!(refused, SourceError::Unsupported { .. }), "{refused}");
        assert!(error.to_string().contains("CONFIG_MEM_SOFT_DIRTY"), "{error}");
        return skipped!("{error}");
    }
    let mut source = SoftDirty::of_self(vec![region]).unwrap();
    collect(&mut source, 1205);
    for pages in [vec![0_usize, 511, 512, 1199], vec![], vec![7]] {
        for page in &pages {
            // SAFETY: the page is in the mapping, which is ours. Volatile: for the fault.
            unsafe { memory.as_ptr().add(page * PAGE_BYTES).write_volatile(1) };
        }
        let expected = pages.iter().map(|page| *page as u32 + 5).collect();
        assert_eq!(collect(&mut source, 1205), expected);
    }
}
