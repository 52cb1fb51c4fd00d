//! Giving pages back that were moved out of a guest: whatever the kernel says, each has its bytes in its
//! place again.
//!
//! A page in transit has its content nowhere else, and threads of the guest may wait for it. So it is
//! tried in ways that need ever less of the kernel, each for as long as its failure may pass:
//!
//! | way | needs | fails |
//! |---|---|---|
//! | `UFFDIO_MOVE` | nothing | if the page was pinned meanwhile, mappings change, … |
//! | `UFFDIO_COPY` | memory for the page, and that it can be read | without memory; with a memory error |
//! | `mremap` of the page over its place | a mapping | without a mapping to be had |
//!
//! After the last the page is in a mapping of its own. If it cannot be watched there it is a CoW copy from
//! then on. If that fails too, for want of a mapping, the page stays held until one is to be had: what
//! its guest reads is never wrong, only late. The log says so.

use std::{io, thread, time::Duration};

use bindery_sys::{
    mapping, maps,
    userfault::{Stopped, mode},
};
use bindery_units::{HostAddress, PAGE_BYTES};

use crate::{
    Core,
    agent::log,
    region::Region,
    space_entry::{Kind, SpaceEntry},
    transfer::{HERE, PageSet, errno_of, find_pages, may_pass, move_span},
};

/// Tries to move or copy pages back whose failure may pass: with the pauses between them, half a second.
const TRIES_MAX: u32 = 1000;

/// Between two tries to move a mapping, when nothing else is left.
const REMAP_PAUSE: Duration = Duration::from_millis(1);

/// Moves the `wanted` pages from `area` back to `guest`, page 0 of each. Does not return before every one
/// of them is where it was, or the guest's owner has put something else there. Returns true if copies of
/// some may stay behind.
///
/// # Safety
/// The caller holds the guest's pages, which are the region's, and owns the area, which is private
/// anonymous memory. Each page is in the area, its place in the guest absent; or it is in its place, and
/// in the area absent or zero.
pub(crate) unsafe fn give_back(
    core: &Core,
    region: &Region,
    area: HostAddress,
    guest: HostAddress,
    wanted: PageSet,
) -> bool {
    let (mut left, mut remapped, mut last_errno) = (wanted, 0, 0);
    for tries in 0u32.. {
        // SAFETY: the caller's contract.
        if unsafe { move_back(core, area, guest, left) } {
            return tries > 0;
        }
        if let Some(here) = find_pages(&core.pagemap, area, wanted.end(), HERE) {
            left = left.and(here);
        }
        for page in left.pages() {
            let (source, target) = (area.plus_pages(page), guest.plus_pages(page));
            // SAFETY: as above; what is copied is the page itself.
            let returned = match unsafe { copy_back(core, source, target) } {
                Ok(()) => true,
                Err(errno) if may_pass(errno) && tries < TRIES_MAX => false,
                // SAFETY: as above.
                Err(errno) => unsafe {
                    last_errno = errno;
                    let returned = remap_back(core, region, (source, target));
                    remapped += u32::from(returned);
                    returned
                },
            };
            if returned {
                left.remove(page);
            }
        }
        if left.is_empty() {
            break;
        }
        thread::sleep(Duration::from_micros(u64::from(tries.min(1000))));
    }
    if remapped > 0 {
        let error = io::Error::from_raw_os_error(last_errno);
        log::say(format_args!(
            "{remapped} pages at {guest} could not be put back as usual ({error}): each has a mapping of \
             its own now"
        ));
    }
    true
}

/// Moves pages back. Returns true if the kernel reported every one moved.
///
/// # Safety
/// As for [`give_back`].
unsafe fn move_back(core: &Core, area: HostAddress, guest: HostAddress, pages: PageSet) -> bool {
    pages.spans().fold(true, |smooth, (first, count)| {
        let (source, target) = (area.plus_pages(first), guest.plus_pages(first));
        // SAFETY: the caller's contract.
        unsafe { move_span(&core.guest_faults, target, source, count) && smooth }
    })
}

/// Puts a page back by copying it, where it cannot be moved.
///
/// # Errors
/// The error number, if the page is not back and its place is still its own.
///
/// # Safety
/// As for [`give_back`].
unsafe fn copy_back(core: &Core, source: HostAddress, target: HostAddress) -> Result<(), i32> {
    let copy = || {
        // SAFETY: the caller's contract.
        let copied = unsafe { core.guest_faults.copy(target, source, PAGE_BYTES) };
        copied.map_err(|Stopped { errno, .. }| errno)
    };
    match copy() {
        // It is there, or the guest's owner put something else there by a call of its own while the page
        // was held: then the page was given up by its owner.
        Err(libc::EEXIST) => Ok(()),
        Err(libc::ENOENT | libc::EINVAL) if !mapping::is_mapped(target, PAGE_BYTES) => Ok(()),
        Err(libc::ENOENT) => {
            // Mapped, and not registered: whatever did that, the page belongs there.
            watch(core, target)?;
            copy()
        }
        result => result,
    }
}

/// Has faults of a page's place served by the handler.
fn watch(core: &Core, place: HostAddress) -> Result<(), i32> {
    // SAFETY: absent pages there are served by the handler.
    let watched =
        unsafe { core.guest_faults.register(place, PAGE_BYTES, mode::MISSING | mode::WP) };
    watched.map_err(|error| errno_of(&error))
}

/// Puts a page back with a mapping of its own, where it could be neither moved nor copied. Returns false
/// if that cannot be done now; then nothing has changed.
///
/// # Safety
/// As for [`give_back`].
unsafe fn remap_back(
    core: &Core,
    region: &Region,
    (source, target): (HostAddress, HostAddress),
) -> bool {
    match is_own(target) {
        Some(true) => {}
        // The owner mapped something else there by a call that nobody saw: it has given the page up.
        Some(false) => return true,
        None => return false,
    }
    // SAFETY: the source is ours, the place the held page's own.
    if let Err(error) = unsafe { mapping::move_over(source, target, PAGE_BYTES) } {
        if mapping::is_mapped(target, PAGE_BYTES) {
            log::say(format_args!(
                "the page at {target} is held until there is a mapping for it ({error}): threads that \
                 touch it wait; raise vm.max_map_count"
            ));
            // The log is not to be flooded, and what is short will be for a while.
            thread::sleep(Duration::from_secs(1));
            return false;
        }
        // The kernel has unmapped the place, and then had no memory. The page's content is in the area,
        // so there is nothing to do but to try again. Not by `remap_over`, which needs less: a hole in
        // the area would be taken for ours.
        // SAFETY: as above.
        while unsafe { mapping::move_over(source, target, PAGE_BYTES) }.is_err() {
            thread::sleep(REMAP_PAUSE);
        }
    }
    core.budget.made(2);
    settle(core, region, target);
    true
}

/// Returns true if private anonymous memory is mapped there, as the page's own is, false if something
/// else is or nothing; `None` if the kernel does not say.
fn is_own(place: HostAddress) -> Option<bool> {
    let areas = maps::between(place, place.plus(PAGE_BYTES)).ok()?;
    Some(areas.first().is_some_and(|area| !area.is_shared() && area.inode == 0))
}

/// Makes of a page that was moved with a mapping of ours what it was, or else a CoW copy.
fn settle(core: &Core, region: &Region, place: HostAddress) {
    // Children and core dumps have none of our areas.
    let ours = [libc::MADV_DOFORK, libc::MADV_DODUMP];
    // SAFETY: such advice keeps the content, and the page is held.
    let advise = |advice| unsafe { mapping::advise(place, PAGE_BYTES, advice) };
    let advised = ours.into_iter().try_for_each(advise);
    // SAFETY: the page is held.
    let advised = advised.and_then(|()| unsafe { region.advise_anonymous(place, PAGE_BYTES) });
    if advised.is_err() || watch(core, place).is_err() {
        region.change_entry(region.page(place), cow_copy);
    }
}

/// Returns the entry of an anonymous page that cannot be watched any more.
pub(crate) fn cow_copy(entry: SpaceEntry) -> SpaceEntry {
    if entry.kind() == Kind::Private {
        SpaceEntry::COW_COPY
    } else {
        entry.with_kind(Kind::CowCopyLost)
    }
}
