//! Taking memory under management.

use std::{
    io,
    sync::{Arc, PoisonError},
    time::Instant,
};

use bindery_sys::{
    mapping,
    maps::{self, Advised, AdvisedMappings, Area},
    numa, table,
    userfault::mode,
};
use bindery_units::{HostAddress, PAGE_BYTES, PAGE_SHIFT};

use bindery_wire::control::{REGIONS_MAX, Region as Announced};

use crate::{Core, Space, end_of, offers::Offer, region::Region};

/// Why a range was not taken under management. It is as it was.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ManageError {
    /// Not made of whole pages.
    #[error("{address} + {bytes} bytes is not made of whole 4 KiB pages")]
    Unaligned {
        /// Where it begins.
        address: HostAddress,
        /// How long it is.
        bytes: usize,
    },
    /// Managed already, in part or all.
    #[error("{address} is managed already")]
    Managed {
        /// Where it begins.
        address: HostAddress,
    },
    /// Not private anonymous memory that may be read and written, and nothing else.
    #[error("{address} is {what}")]
    Unsuitable {
        /// Where it begins.
        address: HostAddress,
        /// What it is.
        what: String,
    },
    /// Another userfaultfd has it: the VMM's own post-copy or background snapshot.
    #[error(
        "{address} is watched by another userfaultfd (post-copy, or a background snapshot): merging starts when that ends"
    )]
    Watched {
        /// Where it begins.
        address: HostAddress,
    },
    /// The kernel refused.
    #[error("the kernel refused to watch {address}: {source}")]
    Kernel {
        /// Where it begins.
        address: HostAddress,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// There are [`REGIONS_MAX`] regions and offers already.
    #[error(
        "this process has offered {REGIONS_MAX} ranges of memory, which is the most: offer fewer and longer ones"
    )]
    TooManyRegions,
    /// [`PAGES_MAX`](bindery_wire::control::PAGES_MAX) were used up.
    #[error("this process has had 4 TiB of managed memory, now or earlier, which is the most")]
    PagesExhausted,
}

impl ManageError {
    /// Returns what happened without saying where: the same for all memory of a kind.
    pub(crate) fn kind(&self) -> String {
        match self {
            Self::Unsuitable { what, .. } => what.clone(),
            Self::Kernel { source, .. } => source.to_string(),
            Self::Unaligned { .. } => "unaligned".to_owned(),
            Self::Managed { .. } => "managed".to_owned(),
            Self::Watched { .. } => "watched".to_owned(),
            Self::TooManyRegions | Self::PagesExhausted => self.to_string(),
        }
    }
}

impl Space {
    /// Takes a range of private anonymous memory under management. It keeps its content and its address.
    ///
    /// # Errors
    /// [`ManageError`]; the range is as it was.
    pub fn manage(&self, address: HostAddress, bytes: usize) -> Result<Announced, ManageError> {
        let end = end_of(address, bytes);
        self.core.offers.withdraw(address, end);
        let advised = || advised_between(&advised_mappings(address)?, address, end);
        table::run(|| {
            let region = self.core.manage(address, bytes, advised)?;
            self.core.budget.refresh();
            Ok(region.announced)
        })
    }

    /// Offers a range: it comes under management once it has rested for half a second, by
    /// [`take_offers`](Self::take_offers), unless its owner unmaps, protects, locks or otherwise
    /// withdraws it before. Until then it is the kernel's. `is_plain` says that its owner has not
    /// advised anything for it that memory keeps for good (`MADV_DONTFORK`, `MADV_DONTDUMP`); where
    /// that is not known, finding out takes a read of `/proc/self/smaps`. Memory that is bound to a source is
    /// offered once it is filled.
    ///
    /// # Errors
    /// [`ManageError`], for a range that is not made of whole pages, or not all mapped, or one too many.
    pub fn offer(
        &self,
        address: HostAddress,
        bytes: usize,
        is_plain: bool,
    ) -> Result<(), ManageError> {
        let end = end_of_pages(address, bytes)?;
        if self.core.bound.offer_later(address, end) {
            return Ok(());
        }
        if !mapping::is_mapped(address, bytes) {
            return Err(ManageError::Unsuitable { address, what: "not mapped".to_owned() });
        }
        // One lock at a time: an offer is taken, and its region added, under that of the offers. Offers
        // first: one that is taken meanwhile counts twice, and not at all the other way round.
        let offers = self.core.offers.len();
        if offers + self.core.regions.read().len() >= REGIONS_MAX {
            return Err(ManageError::TooManyRegions);
        }
        self.core.offers.add(address, end, is_plain);
        Ok(())
    }

    /// Takes what was offered and has rested under management. Calls `refused` with what cannot be
    /// taken, and why. Returns true if anything was taken.
    pub fn take_offers(&self, mut refused: impl FnMut(HostAddress, usize, ManageError)) -> bool {
        let rested = self.core.offers.rested();
        // Before the offers are locked, for it takes long: what is advised from here on is noted with them.
        let before = match rested.iter().any(|(_, offer)| !offer.is_plain) {
            true => AdvisedMappings::of_self(),
            false => Ok(AdvisedMappings::default()),
        };
        let mut any = false;
        for (start, offer) in rested {
            let bytes = offer.end.0 - start.0;
            let taken = self.core.offers.take(start, offer, |offer| {
                self.core.manage(start, bytes, || offer.advised_since(start, &before))
            });
            match taken {
                Some(Ok(_)) => any = true,
                Some(Err(error)) => refused(start, bytes, error),
                // Withdrawn, or offered anew.
                None => {}
            }
        }
        if any {
            self.core.budget.refresh();
        }
        any
    }

    /// Returns when the next offer will have rested, if there is one.
    #[must_use]
    pub fn next_offer(&self) -> Option<Instant> {
        self.core.offers.next()
    }
}

impl Offer {
    /// Returns what was advised for the range, each part by its first byte. `before`: what was advised for
    /// each mapping when it had rested.
    fn advised_since(
        &self,
        start: HostAddress,
        before: &io::Result<AdvisedMappings>,
    ) -> Result<Vec<(HostAddress, Advised)>, ManageError> {
        if self.is_plain {
            return Ok(vec![(start, self.noted.after(Advised::default()))]);
        }
        let before = before.as_ref().map_err(|error| ManageError::Kernel {
            address: start,
            source: error.raw_os_error().map_or(error.kind().into(), io::Error::from_raw_os_error),
        })?;
        let mut advised = advised_between(before, start, self.end)?;
        advised.iter_mut().for_each(|(_, advised)| *advised = self.noted.after(*advised));
        Ok(advised)
    }
}

fn advised_mappings(address: HostAddress) -> Result<AdvisedMappings, ManageError> {
    AdvisedMappings::of_self().map_err(|source| ManageError::Kernel { address, source })
}

/// Returns what was advised for the mappings of a range, each by its first byte there, unless pages that
/// come and go could not be as they are.
fn advised_between(
    mappings: &AdvisedMappings,
    start: HostAddress,
    end: HostAddress,
) -> Result<Vec<(HostAddress, Advised)>, ManageError> {
    if mappings.are_special(start, end) {
        let what =
            "wiped on fork, sealed or under a protection key, which merged pages could not be";
        return Err(ManageError::Unsuitable { address: start, what: what.to_owned() });
    }
    Ok(mappings.between(start, end))
}

/// Returns the end of a range of whole pages.
fn end_of_pages(address: HostAddress, bytes: usize) -> Result<HostAddress, ManageError> {
    let end = address.0.checked_add(bytes).filter(|_| address.is_page_aligned());
    end.filter(|_| bytes > 0 && bytes.is_multiple_of(PAGE_BYTES))
        .map(HostAddress)
        .ok_or(ManageError::Unaligned { address, bytes })
}

impl Core {
    /// Takes a range, of which `advised` returns what its owner has advised for good, each part by its first
    /// byte.
    pub(crate) fn manage(
        &self,
        address: HostAddress,
        bytes: usize,
        advised: impl FnOnce() -> Result<Vec<(HostAddress, Advised)>, ManageError>,
    ) -> Result<Arc<Region>, ManageError> {
        let end = end_of_pages(address, bytes)?;
        let _one_at_a_time = self.managing.lock().unwrap_or_else(PoisonError::into_inner);
        // An offer was one, but may have fallen apart since.
        if self.regions.is_full() {
            return Err(ManageError::TooManyRegions);
        }
        if self.regions.overlapping(address, end).iter().any(|r| r.watched) {
            return Err(ManageError::Managed { address });
        }
        let kernel = |source| ManageError::Kernel { address, source };
        let areas = maps::between(address, end).map_err(kernel)?;
        is_suitable(&areas, address, end)?;
        let advised = with_nodes(&advised()?, &areas, address);
        let count = u32::try_from(bytes >> PAGE_SHIFT).map_err(|_| ManageError::PagesExhausted)?;
        let pages = self.regions.number(address, count).ok_or(ManageError::PagesExhausted)?;
        let region = Region::new(Announced { pages, address }, advised).map_err(kernel)?;
        // CoW copies of earlier times that are no more: their owner mapped other memory here.
        self.forget(address, end);
        self.try_watching(address, bytes)?;
        // Not while the process forks: a child reads the list as it was.
        let _hold = self.hold(address, end);
        // From here on the handlers find it.
        Ok(self.regions.add(region))
    }

    /// Finds out whether a range can be watched, as blocks that are split are. It is the kernel's own
    /// afterwards, as it was.
    fn try_watching(&self, address: HostAddress, bytes: usize) -> Result<(), ManageError> {
        // SAFETY: faults are served by the handler, which fills absent pages with zeros, as the kernel
        // does for this memory. No page of it is held elsewhere.
        let tried = unsafe {
            self.guest_faults
                .register(address, bytes, mode::MISSING)
                .and_then(|()| self.guest_faults.unregister(address, bytes))
        };
        tried.map_err(|source| refused(address, source))
    }
}

/// Adds the nodes that each of `areas` is bound to, from `start` on, to what is `advised`, each part by its first
/// byte, ascending.
fn with_nodes(
    advised: &[(HostAddress, Advised)],
    areas: &[Area],
    start: HostAddress,
) -> Vec<(HostAddress, Advised)> {
    let nodes: Vec<(HostAddress, numa::Policy)> = areas
        .iter()
        .map(|area| start.max(area.start))
        // Where the kernel may not be asked, pages come from wherever they are touched.
        .map(|at| (at, numa::Policy::of(at).unwrap_or_default()))
        .collect();
    let mut begins: Vec<HostAddress> = advised.iter().map(|(at, _)| *at).collect();
    begins.extend(nodes.iter().map(|(at, _)| *at));
    begins.sort_unstable();
    begins.dedup();
    let with_nodes = begins.into_iter().map(|at| {
        let nodes = last_before(&nodes, at).unwrap_or_default();
        (at, Advised { nodes, ..last_before(advised, at).unwrap_or_default() })
    });
    with_nodes.collect()
}

/// Returns the last of `values` that begins at `at` or before.
fn last_before<T: Copy>(values: &[(HostAddress, T)], at: HostAddress) -> Option<T> {
    let behind = values.partition_point(|(begin, _)| *begin <= at);
    values[..behind].last().map(|(_, value)| *value)
}

fn refused(address: HostAddress, source: io::Error) -> ManageError {
    match source.raw_os_error() {
        Some(libc::EBUSY) => ManageError::Watched { address },
        _ => ManageError::Kernel { address, source },
    }
}

/// Shared memory is never taken: nothing proves that nobody else looks at it, and where they do they
/// look past what is merged (docs/decisions/0018-shared-memory-is-left-alone.md).
const SHARED: &str = "which other mappings and descriptors can reach; give the guest private memory: \
                      plain -m, or memory-backend-ram with share=off";

/// Whether a range may be taken, of which `areas` are the mappings.
pub(crate) fn is_suitable(
    areas: &[Area],
    start: HostAddress,
    end: HostAddress,
) -> Result<(), ManageError> {
    let unsuitable = |what: String| Err(ManageError::Unsuitable { address: start, what });
    let mut at = start;
    for area in areas {
        if area.start > at {
            break;
        }
        at = area.end;
        let (permissions, name) = (area.permissions(), area.name.as_str());
        if area.is_shared() {
            let kind = if name.starts_with("/memfd:") { "memfd" } else { name };
            return unsuitable(format!("shared memory ({kind}), {SHARED}"));
        }
        if permissions != "rw-p" {
            return unsuitable(format!(
                "mapped {permissions}, and only memory that is to be read and written can be merged"
            ));
        }
        if area.inode != 0 {
            return unsuitable(format!(
                "a private mapping of a file ({name}), which is left alone"
            ));
        }
        // Memory that our own threads allocate from could be in transit when they touch it.
        if ["[heap]", "[stack]"].contains(&name) {
            return unsuitable(format!("the program's {name}, which is left alone"));
        }
    }
    if at < end { unsuitable(format!("not mapped from {at} on")) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
        7f0000000000-7f0000010000 rw-p 00000000 00:00 0 \n\
        7f0000010000-7f0000020000 rw-p 00000000 00:00 0          [anon: ram]\n\
        7f0000030000-7f0000040000 rw-s 00001000 00:01 4242       /memfd:ram (deleted)\n\
        7f0000040000-7f0000050000 rw-s 00001000 00:01 4243       /dev/zero (deleted)\n\
        7f0000050000-7f0000060000 r--p 00000000 08:01 99         /usr/lib/x.so\n\
        7f0000060000-7f0000070000 rw-p 00000000 08:01 99         /usr/lib/x.so\n\
        7f0000080000-7f0000090000 rw-p 00000000 00:00 0          [heap]\n\
        7f0000090000-7f00000a0000 rw-p 00000000 00:00 0 \n\
        7f00000a0000-7f00000b0000 rwxp 00000000 00:00 0 \n";

    /// What stands in the way of taking a range, if anything does.
    fn reason(start: usize, bytes: usize) -> Option<String> {
        let (start, end) = (HostAddress(start), HostAddress(start + bytes));
        let areas = maps::areas_in(MAPS, start, end);
        is_suitable(&areas, start, end).err().map(|error| error.to_string())
    }

    #[test]
    fn anonymous_memory_may_lie_in_several_mappings() {
        assert_eq!(reason(0x7f00_0000_8000, 0x10000), None);
    }

    #[test]
    fn what_is_not_private_anonymous_memory_has_its_reason() {
        for (start, bytes, expected) in [
            (0x7f00_0001_8000, 0x10000, "is not mapped from 0x7f0000020000 on"),
            (0x7f00_0007_0000, 0x1000, "is not mapped from 0x7f0000070000 on"),
            (0x7f00_0003_2000, 0x4000, "is shared memory (memfd), which other mappings"),
            (0x7f00_0004_0000, 0x4000, "is shared memory (/dev/zero), which other mappings"),
            (0x7f00_0005_0000, 0x1000, "is mapped r--p"),
            (0x7f00_0006_0000, 0x1000, "is a private mapping of a file (/usr/lib/x.so)"),
            (0x7f00_0008_0000, 0x1000, "is the program's [heap]"),
            (0x7f00_0009_0000, 0x11000, "is mapped rwxp"),
        ] {
            let found = reason(start, bytes).unwrap_or_default();
            assert!(found.contains(expected), "{start:x}: {found}");
        }
    }
}
