//! The control connection: who a guest is, what it has, and when it leaves.
//!
//! A stream of frames over the daemon's Unix socket. The shim's first four bytes are [`MAGIC`]
//! (an operator's connection starts with `{` instead). Then frames, each a `u32` little-endian
//! length, at most [`FRAME_BYTES_MAX`], and a message in postcard form. File descriptors travel
//! with the first byte of the frame that needs them (`SCM_RIGHTS`).
//!
//! ```text
//! shim                                  daemon
//!  | MAGIC, Hello                     ->  |
//!  |  <- Welcome | Refused                |
//!  | RegionAdded …                    ->  |
//!  |  <- OpenLane (+ socket, window)      |   as often as the daemon has work for more
//!  |  <- Bind (+ socket, window)          |   memory that is filled from the daemon: see `source`
//!  |  <- Release                          |   `bindery unmanage`: undo everything, step aside
//!  | Released                         ->  |
//! ```
//!
//! `Offered`, `Withdrawn` and `SourceLost` may come at any time after `Welcome`. `Rebind` answers `SourceLost`.

use std::path::PathBuf;

use bindery_sys::process::effective_user;
use bindery_units::{HostAddress, PAGE_BYTES, PAGE_SHIFT, PageIndex, PageRange};
use serde::{Deserialize, Serialize};

/// The first bytes of a shim's control connection.
pub const MAGIC: [u8; 4] = *b"BNDY";

/// The protocol's version. Both sides must have the same one.
pub const VERSION: u32 = 5;

/// The longest frame either side accepts, in bytes.
pub const FRAME_BYTES_MAX: u32 = 64 * 1024;

/// The most stores that a `Hello` may name: those of daemons that ended.
pub const STORES_MAX: usize = 8;

/// Page indices of a guest are below this: 4 TiB, now and earlier, as none is used again. Bounds what a
/// guest can make the daemon hold.
pub const PAGES_MAX: u32 = 1 << 30;

/// Number of regions that one guest may have. A VMM has a handful.
pub const REGIONS_MAX: usize = 16 * 1024;

/// Number of ranges offered with `MADV_MERGEABLE` that a shim reports at most: the first ones that stay mapped.
pub const OFFERED_MAX: usize = 1024;

/// Number of ranges that one `Bind` may name.
pub const BOUND_RANGES_MAX: usize = 256;

/// Length of the longest token of a `Bind`, in bytes.
pub const TOKEN_BYTES_MAX: usize = 512;

/// What the files of stores are called, or begin with: by that a child of fork knows their mappings.
pub const STORE_NAME: &str = "bindery-store";

/// Returns true for the name of a store's file as `/proc/PID/maps` has it.
#[must_use]
pub fn is_store(name: &str) -> bool {
    let file = name.strip_prefix("/memfd:").or_else(|| name.strip_prefix('/'));
    file.is_some_and(|file| file.starts_with(STORE_NAME))
}

/// Where shims and operators look for this user's own daemon: `/run/bindery/bindery.sock` for root,
/// otherwise `$XDG_RUNTIME_DIR/bindery.sock`, or `/tmp/bindery-<uid>/bindery.sock` where that is not
/// set.
#[must_use]
pub fn default_socket() -> PathBuf {
    let uid = effective_user();
    if uid == 0 {
        return "/run/bindery/bindery.sock".into();
    }
    match std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from) {
        Some(directory) if directory.is_absolute() => directory.join("bindery.sock"),
        _ => format!("/tmp/bindery-{uid}/bindery.sock").into(),
    }
}

/// Number of bits by which a page's entry in the guest's process names its slot.
pub const SLOT_BITS: u32 = 26;

/// Number of slots that a store may have at most: what a page's entry can tell apart.
pub const SLOTS_MAX: u32 = 1 << SLOT_BITS;

/// Number of bits by which a page's entry in the guest's process names its store.
pub const STORE_BITS: u32 = 3;

/// The highest store that a page's entry can name.
pub const STORE_MAX: u8 = (1 << STORE_BITS) - 1;

/// Names one store among those a shim knows. Zero is never a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct StoreId(pub u8);

/// A managed region: where it is in the guest's process and which pages of the space it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Region {
    /// Its pages in the space. Regions never overlap and start at multiples of 512 pages.
    pub pages: PageRange,
    /// Where it begins in the process, page-aligned.
    pub address: HostAddress,
}

/// A range that the VMM offered with `MADV_MERGEABLE`, managed or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offered {
    /// Position among all ranges that the process ever offered. A VMM offers its blocks of memory in the order
    /// in which it makes them.
    pub number: u32,
    /// Where it begins in the process, page-aligned.
    pub address: HostAddress,
    /// Length, in bytes: whole pages.
    pub bytes: u64,
}

/// A range of a guest's memory that is filled from a [`source`](super::source).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BoundRange {
    /// Where it begins in the process, page-aligned.
    pub address: HostAddress,
    /// Length, in bytes: whole pages.
    pub bytes: u64,
    /// Page of the source's image that its first page is filled from.
    pub first: PageIndex,
}

impl BoundRange {
    /// Returns its pages in the image. `None` for what is no range: empty, misaligned, or beyond the address
    /// space or [`PAGES_MAX`].
    #[must_use]
    pub fn pages(&self) -> Option<PageRange> {
        let count = u32::try_from(self.bytes >> PAGE_SHIFT).ok()?;
        let end = self.first.0.checked_add(count)?;
        let is_whole = self.bytes.is_multiple_of(PAGE_BYTES as u64) && count > 0;
        let is_mapped = self.address.is_page_aligned()
            && self.address.0.checked_add(usize::try_from(self.bytes).ok()?).is_some();
        (is_whole && is_mapped && end <= PAGES_MAX).then(|| PageRange::new(self.first, count))
    }
}

/// Returns true for ranges that a `Bind` may name: at least one and at most [`BOUND_RANGES_MAX`], none of which
/// overlap, neither in the process nor in the image.
#[must_use]
pub fn are_bindable(ranges: &[BoundRange]) -> bool {
    if ranges.is_empty() || ranges.len() > BOUND_RANGES_MAX {
        return false;
    }
    let pages: Option<Vec<PageRange>> = ranges.iter().map(BoundRange::pages).collect();
    let Some(pages) = pages else { return false };
    let addresses =
        ranges.iter().map(|range| (range.address.0, range.address.0 + range.bytes as usize));
    are_apart(addresses.collect())
        && are_apart(pages.iter().map(|p| (p.first.at(), p.end().at())).collect())
}

fn are_apart(mut ranges: Vec<(usize, usize)>) -> bool {
    ranges.sort_unstable();
    ranges.is_sorted_by(|before, after| before.1 <= after.0)
}

/// From the shim to the daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromShim {
    /// The first message.
    Hello {
        /// [`VERSION`] of the shim.
        version: u32,
        /// Drawn once per process: tells a guest that comes back from a new one.
        instance: u64,
        /// The guest's name, if `bindery run --name` gave one.
        name: Option<String>,
        /// The domain asked for, within those of the process's user.
        domain: Option<String>,
        /// The command of the process, for `ps`.
        command: String,
        /// Stores that pages of this guest are still mapped from.
        stores: Vec<StoreId>,
    },
    /// A region came under management.
    RegionAdded(Region),
    /// A region is no longer managed; its pages are private and stay so.
    RegionRemoved(PageRange),
    /// A range was offered with `MADV_MERGEABLE`. Numbers ascend; at most [`OFFERED_MAX`] are known at a time.
    Offered(Offered),
    /// The range of this number was unmapped, replaced or moved, in part or all.
    Withdrawn {
        /// Number of the range.
        number: u32,
    },
    /// Bound memory has lost its source with pages missing: threads that touch these wait for a `Rebind`.
    SourceLost {
        /// Token of the `Bind`, as it was given. The daemon must not trust it: the guest could name any.
        token: Vec<u8>,
        /// Number of pages that are missing.
        missing_pages: u64,
    },
    /// Everything was given back. The last message: the shim will close the connection.
    Released,
}

/// From the daemon to the shim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromDaemon {
    /// The guest is taken. The store's segments come with the requests that name slots of them.
    Welcome {
        /// What the daemon calls the guest.
        guest: u32,
        /// The domain's secret, under which pages are digested.
        digest_key: [u8; 32],
        /// How the shim is to call the store in [`lane`](super::lane) messages. Differs from all
        /// that the shim named in its `Hello`.
        store: StoreId,
        /// Number of slots that the store can ever have.
        slots: u32,
        /// Number of slots of each of its segments, the last one's perhaps beyond `slots`.
        segment_slots: u32,
    },
    /// The guest is not taken; why, for the VMM's log. A shim that no daemon took before does not try
    /// again. One that is to try again soon, because something is short, is hung up on instead.
    Refused {
        /// What happened and what to do.
        reason: String,
    },
    /// Start one more lane. Carries two descriptors: its socket and its window.
    OpenLane,
    /// Discard these ranges and fill them from a [`source`](super::source). Carries two descriptors: its socket
    /// and its window. One source at a time.
    Bind {
        /// Ranges of private anonymous memory. Not managed meanwhile.
        ranges: Vec<BoundRange>,
        /// Name of the source to a later daemon, at most [`TOKEN_BYTES_MAX`] bytes.
        token: Vec<u8>,
    },
    /// Go on filling what was bound with this token from another source. Carries two descriptors.
    Rebind {
        /// Token of the `Bind`.
        token: Vec<u8>,
    },
    /// Unmerge everything and step aside (`bindery unmanage`).
    Release,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(page: usize, pages: u64, first: u32) -> BoundRange {
        let (address, bytes) = (HostAddress(page * PAGE_BYTES), pages * PAGE_BYTES as u64);
        BoundRange { address, bytes, first: PageIndex(first) }
    }

    #[test]
    fn ranges_that_overlap_or_are_none_are_not_bindable() {
        assert!(are_bindable(&[range(50, 10, 0), range(10, 10, 10)]));
        let unaligned = BoundRange { address: HostAddress(1), ..range(1, 1, 0) };
        let broken = BoundRange { bytes: 4097, ..range(1, 1, 0) };
        for bad in [
            &[][..],
            &[range(1, 0, 0)],
            &[unaligned],
            &[broken],
            &[range(1, 1 << 31, 0)],
            &[range(1, 2, PAGES_MAX - 1)],
            &[range(usize::MAX / PAGE_BYTES, 2, 0)],
            &[range(10, 10, 0), range(19, 10, 10)],
            &[range(10, 10, 0), range(20, 10, 9)],
            &[range(1, 1, 0); BOUND_RANGES_MAX + 1],
        ] {
            assert!(!are_bindable(bad), "{bad:?}");
        }
    }
}
