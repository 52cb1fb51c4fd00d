//! Mending: joining the mappings that restored pages left apart.
//!
//! A restored page is a mapping of its own, because the kernel joins anonymous mappings only if they
//! were populated where they lie. Where many pages broke, a run is mended: its pages are moved into
//! one spare mapping, and that is moved over the whole run, in one step. (Mapping fresh memory over
//! the run and moving the pages back would leave an instant between mapping and registering it in
//! which a guest finds its pages absent and the kernel gives it zeros.) Moved pages count as written
//! at the next scan.

use std::{fs, thread, time::Duration};

use bindery_sys::{
    mapping::{self, HUGE_PAGE_BYTES},
    maps,
    userfault::mode,
};
use bindery_units::{HostAddress, PAGE_BYTES, PageIndex, PageRange};

use crate::{
    Core,
    agent::log,
    region::Region,
    restore::put_in_place,
    return_pages::{cow_copy, give_back},
    spare::Spare,
    transfer::{
        HERE, MADV_DONTNEED_LOCKED, PageSet, WINDOW_PAGES, errno_of, find_pages, may_pass, take,
    },
};

/// Tries to register memory while the kernel is out of it, and the pause between two.
const REGISTERS_MAX: u32 = 100;
const REGISTER_PAUSE: Duration = Duration::from_micros(100);

impl Core {
    /// Joins mappings of anonymous pages among `pages`. The caller keeps the region mapped.
    pub(crate) fn mend(&self, region: &Region, pages: PageRange, spare: &mut Spare) {
        let seams = seams(region, pages);
        for window in pages.pieces(WINDOW_PAGES) {
            let torn = seams.iter().any(|&seam| window.contains(seam));
            let mut at = window.first;
            while torn && at < window.end() {
                let rest = PageRange::new(at, window.end().0 - at.0);
                let run = anonymous_run(region, rest);
                if run.count > 1 {
                    self.mend_run(region, run, spare);
                }
                at = run.end().max(at.plus(1));
            }
        }
        self.budget.refresh();
        self.pagemap.say_failure();
    }

    fn mend_run(&self, region: &Region, run: PageRange, spare: &mut Spare) {
        let (start, bytes) = (region.address(run.first), run.count as usize * PAGE_BYTES);
        let is_split = || region.blocks(run).all(|block| region.is_split(block.first));
        if !is_split() {
            return;
        }
        let Ok(joined) = spare.peek(run.count as usize) else { return };
        // SAFETY: spare pages are ours; what earlier work may have left in them is wanted no more.
        // The target of a move must be registered, for writes only, since nobody but us touches it.
        let ready = unsafe {
            mapping::advise(joined, bytes, MADV_DONTNEED_LOCKED)
                .and_then(|()| self.guest_faults.register(joined, bytes, mode::WP))
        };
        if ready.is_err() {
            return;
        }
        // Registered or not, one mapping or two: pages of a chunk that is no longer the same all over
        // cannot be moved together. So these are used up, whatever comes.
        spare.take(run.count as usize);
        let _hold = self.hold(start, start.plus_pages(run.count));
        if anonymous_run(region, run) != run || !is_split() {
            return spare.discard(joined, run.count as usize);
        }
        let wanted = PageSet::first(run.count);
        // SAFETY: the run is held and anonymous; the spare pages are empty and ours.
        let Some(moved) = (unsafe { take(self, region, joined, start, wanted) }) else {
            return spare.discard(joined, run.count as usize);
        };
        // A page that is pinned or locked stays, and its mapping with it.
        let is_empty =
            find_pages(&self.pagemap, start, run.count, HERE) == Some(PageSet::default());
        let placed = is_empty
            // SAFETY: all pages of the run are in the spare mapping, absent ones absent.
            && unsafe { put_in_place(region, spare, joined, (start, bytes)) }.is_ok();
        if placed {
            self.watch_mended(region, run);
        } else {
            // SAFETY: the run is held, the pages are in the spare mapping, their places are absent.
            // Copies that stay behind go with the spare pages.
            unsafe { give_back(self, region, joined, start, moved) };
            spare.discard(joined, run.count as usize);
        }
    }

    /// Registers a run that was put in place. If that cannot be done its pages are CoW copies: private
    /// memory that nobody watches.
    fn watch_mended(&self, region: &Region, run: PageRange) {
        let (start, bytes) = (region.address(run.first), run.count as usize * PAGE_BYTES);
        for tries in 1.. {
            // SAFETY: pages that are absent now are zero ones.
            let registered =
                unsafe { self.guest_faults.register(start, bytes, mode::MISSING | mode::WP) };
            match registered {
                Ok(()) => return,
                Err(error) if may_pass(errno_of(&error)) && tries < REGISTERS_MAX => {
                    thread::sleep(REGISTER_PAUSE);
                }
                Err(error) => {
                    log::say(format_args!(
                        "{} pages from {start} on cannot be watched any more ({error}): they stay \
                         private",
                        run.count
                    ));
                    break;
                }
            }
        }
        for page in run.pages() {
            region.change_entry(page, cow_copy);
        }
    }
}

/// Pages among `pages` at which one anonymous mapping ends and the next begins.
fn seams(region: &Region, pages: PageRange) -> Vec<PageIndex> {
    let list = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let (low, high) =
        (region.address(pages.first), region.address(pages.first).plus_pages(pages.count));
    let anonymous = maps::lines(&list)
        .filter(|line| line.inode == 0 && line.end > low.0 && line.start < high.0);
    let mut end_of_last = 0;
    let mut seams = Vec::new();
    for line in anonymous {
        // Where a block that is whole and one that is split meet, there is nothing to join.
        let is_edge = line.start.is_multiple_of(HUGE_PAGE_BYTES);
        if line.start == end_of_last && line.start >= low.0 && !is_edge {
            seams.push(region.page(HostAddress(line.start)));
        }
        end_of_last = line.end;
    }
    seams
}

/// The anonymous pages from the first of `pages` on that are advised alike.
fn anonymous_run(region: &Region, pages: PageRange) -> PageRange {
    let (_, pages) = region.advised_run(pages.first, pages);
    let count = pages.pages().take_while(|&page| region.entry(page).is_anonymous()).count();
    PageRange::new(pages.first, count as u32)
}
