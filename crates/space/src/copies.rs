//! Which pages of a mapping of the store the kernel copied.
//!
//! A copy is there and is not the file's. One that is in swap looks to the kernel's scan as a mark does,
//! which it leaves where a page of the store was taken away and its protection is to stay: such pages
//! are brought back to be told apart.

use bindery_sys::{
    mapping, memory,
    pagemap::{Query, category},
};
use bindery_units::{HostAddress, PAGE_BYTES};

use crate::descriptors::Pagemap;
use crate::transfer::{PageSet, scan_window};

/// Looks for what was in swap: between being brought back and the next look it may go there again.
const LOOKS_MAX: u32 = 8;

/// Pages that are not the file's.
const OWN: Query = Query {
    require: category::FILE,
    any_of: category::PRESENT | category::SWAPPED,
    invert: category::FILE,
    report: category::PRESENT | category::SWAPPED,
    protect: false,
    refuse_unprotectable: false,
};

/// Pages of a window, its first being page 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Copies {
    /// Those that the kernel copied.
    pub(crate) copied: PageSet,
    /// Those of which that cannot be told: in swap, and there is no memory to bring them back; or all
    /// others, if the kernel does not say where pages are.
    pub(crate) unknown: PageSet,
}

/// Looks at `count` pages from `start` on, which are mapped from the store; copies among them were there a
/// moment ago. Costs a scan, unless some may be in swap. Does not wait for a handler: reads are never held
/// up there.
pub(crate) fn find_copies(pagemap: &Pagemap, start: HostAddress, count: u32) -> Copies {
    let mut copies = Copies::default();
    for _ in 0..LOOKS_MAX {
        let mut away = PageSet::default();
        let is_scanned = scan_window(pagemap, start, count, OWN, |pages, categories| {
            let found =
                if categories & category::PRESENT != 0 { &mut copies.copied } else { &mut away };
            *found = found.or(pages);
        });
        if !is_scanned {
            let unknown = PageSet::first(count).without(copies.copied);
            return Copies { unknown, ..copies };
        }
        // A copy stays one when it goes to swap.
        copies.unknown = away.without(copies.copied);
        // Marks are common, and bringing in what they stand for takes a tenth of what merging does.
        if copies.unknown.is_empty() || !memory::has_swap() {
            return Copies { unknown: PageSet::default(), ..copies };
        }
        for (first, count) in copies.unknown.spans() {
            if !bring_back(start.plus_pages(first), count) {
                (first..first + count).for_each(|page| _ = bring_back(start.plus_pages(page), 1));
            }
        }
    }
    copies
}

/// Whether all of so many pages are there.
fn bring_back(start: HostAddress, pages: u32) -> bool {
    let bytes = pages as usize * PAGE_BYTES;
    // SAFETY: bringing pages back changes no content.
    unsafe { mapping::advise(start, bytes, libc::MADV_POPULATE_READ) }.is_ok()
}

#[cfg(test)]
mod tests {
    use std::os::{fd::AsFd, unix::fs::FileExt};

    use bindery_sys::{
        mapping::Mapping,
        memfd, table,
        userfault::{feature, mode},
    };
    use bindery_testkit::machine::SwapGuard;

    use super::*;
    use crate::descriptors::Userfault;
    use crate::transfer::find_pages;

    const PAGES: u32 = 8;
    const BYTES: usize = PAGES as usize * PAGE_BYTES;

    const AWAY: Query = Query {
        require: category::SWAPPED,
        any_of: 0,
        invert: 0,
        report: category::SWAPPED,
        protect: false,
        refuse_unprotectable: false,
    };

    fn set(pages: &[u32]) -> PageSet {
        let mut set = PageSet::default();
        pages.iter().for_each(|&page| set.insert(page));
        set
    }

    /// Pages of a file, mapped privately.
    fn of_a_file() -> Mapping {
        let file = memfd::create("copies", BYTES as u64).expect("memfd");
        file.write_all_at(&[7; BYTES], 0).expect("memfd");
        let memory = Mapping::anonymous(BYTES).expect("memory");
        // SAFETY: the memory is ours.
        unsafe { mapping::replace_with_file(memory.address(), BYTES, file.as_fd(), 0) }
            .expect("mapping");
        memory
    }

    fn write(memory: &Mapping, page: u32) {
        // SAFETY: the page is in the mapping.
        unsafe { memory.as_ptr().add(page as usize * PAGE_BYTES).write_volatile(9) };
    }

    #[test]
    fn copies_are_told_in_swap_too() {
        table::start().expect("a table");
        let pagemap = Pagemap::of_self().expect("pagemap");
        let memory = of_a_file();
        let start = memory.address();
        // SAFETY: the memory is readable and reaches to the file's end.
        unsafe { mapping::read_around(start, BYTES) };
        write(&memory, 2);
        write(&memory, 5);
        let copies = Copies { copied: set(&[2, 5]), unknown: PageSet::default() };
        assert_eq!(find_copies(&pagemap, start, PAGES), copies);

        // Where the build is: /tmp may be in memory, which holds no swap.
        let program = std::env::current_exe().expect("program");
        let directory = tempfile::tempdir_in(program.parent().expect("its directory"));
        let directory = directory.expect("directory");
        let swap = match SwapGuard::add(directory.path(), 16) {
            Ok(swap) => swap,
            Err(error) => return bindery_testkit::skipped!("{error}"),
        };
        // SAFETY: paging out changes no content.
        unsafe { mapping::advise(start, BYTES, libc::MADV_PAGEOUT) }.expect("page out");
        assert_eq!(
            find_pages(&pagemap, start, PAGES, AWAY),
            Some(set(&[2, 5])),
            "they went to swap"
        );
        assert_eq!(find_copies(&pagemap, start, PAGES), copies);
        drop(swap);
    }

    #[test]
    fn marks_are_no_copies() {
        table::start().expect("a table");
        let faults = match Userfault::open(feature::PAGEFAULT_FLAG_WP | feature::WP_HUGETLBFS_SHMEM)
        {
            Ok(faults) => faults,
            Err(error) => return bindery_testkit::skipped!("userfaultfd: {error}"),
        };
        let (memory, pagemap) = (of_a_file(), Pagemap::of_self().expect("pagemap"));
        let start = memory.address();
        write(&memory, 3);
        // SAFETY: nobody writes to what is protected.
        unsafe { faults.register(start, BYTES, mode::WP) }.expect("register");
        faults.write_protect(start, BYTES, true).expect("protect");
        let marked = find_pages(&pagemap, start, PAGES, AWAY).expect("a scan");
        assert_eq!(
            marked,
            PageSet::first(PAGES).without(set(&[3])),
            "what is not mapped is marked"
        );
        let copies = Copies { copied: set(&[3]), unknown: PageSet::default() };
        assert_eq!(find_copies(&pagemap, start, PAGES), copies);
    }
}
