//! What a guest is to the daemon: a connection, and lanes.
//!
//! A [`Guest`] is a process with a shim in it. It comes in two steps: [`Guest::accept`] reads who
//! it says it is (an [`Arrival`]), and once the daemon has chosen its name, domain and store,
//! [`Arrival::welcome`] makes it a guest. From then on its control connection tells which regions
//! come and go, and its [`Lane`]s do all work on pages, inside the guest's process.
//!
//! A guest that is restored is given its memory page by page: [`Guest::bind`].
//!
//! # Trust
//! A guest is not trusted. All that comes over a socket or out of a lane's window is copied first
//! and checked then ([`GuestError::Nonsense`] ends the connection); strings are made safe to print.
//! What a lane says about its own pages is believed only as far as it harms nobody else: the store
//! is written by the daemon alone and verified by whoever maps it.
//!
//! # Waiting
//! A guest may be stopped at any time, for ever. No call waits longer than [`ANSWER_PATIENCE`] for
//! it: the lane then owes an answer ([`GuestError::Stalled`]) and can be used again once that has
//! come.
//!
//! # Concurrency
//! A `Guest` may be used from any number of threads; a lane belongs to one at a time.
#![forbid(unsafe_code)]

mod accept;
mod check;
mod connection;
mod error;
mod fetched;
mod guest;
mod lane;
mod offered;
mod pool;
mod printable;
mod regions;
mod socket_lane;
mod source;
mod written;

pub use accept::{Arrival, NAME_BYTES_MAX, Welcome, is_name};
pub use connection::{Connection, Identity};
pub use error::GuestError;
pub use fetched::Fetched;
pub use guest::Guest;
pub use lane::{Gauges, Lane, Resume, Segment, Unmerged};
pub use pool::{LaneLease, LanePool};
pub use printable::printable;
pub use regions::{PAGES_MAX, RegionChange, RegionTable};
pub use socket_lane::{LaneEnds, SocketLane};
pub use source::{
    Image, ImageError, LostSource, ServeOptions, Served, SourceError, SourceHandle, SourceLink,
};
pub use written::{Alone, Doubt, Hush, Written};

use std::time::Duration;

/// How long a guest may take for one answer.
///
/// Requests are bounded so that a guest that runs answers in tens of milliseconds; one that does
/// not is stopped, frozen, or starved of CPU, and is left alone until it has answered.
pub const ANSWER_PATIENCE: Duration = Duration::from_secs(1);
