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
//!  |  <- Release                          |   `bindery unmanage`: undo everything, step aside
//!  | Released                         ->  |
//! ```

use std::path::PathBuf;

use bindery_sys::process::effective_user;
use bindery_units::{HostAddress, PageRange};
use serde::{Deserialize, Serialize};

/// The first bytes of a shim's control connection.
pub const MAGIC: [u8; 4] = *b"BNDY";

/// The protocol's version. Both sides must have the same one.
pub const VERSION: u32 = 4;

/// The longest frame either side accepts, in bytes.
pub const FRAME_BYTES_MAX: u32 = 64 * 1024;

/// The most stores that a `Hello` may name: those of daemons that ended.
pub const STORES_MAX: usize = 8;

/// Page indices of a guest are below this: 4 TiB, now and earlier, as none is used again. Bounds what a
/// guest can make the daemon hold.
pub const PAGES_MAX: u32 = 1 << 30;

/// Number of regions that one guest may have. A VMM has a handful.
pub const REGIONS_MAX: usize = 16 * 1024;

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
    /// Unmerge everything and step aside (`bindery unmanage`).
    Release,
}
