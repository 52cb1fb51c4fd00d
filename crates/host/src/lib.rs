//! The daemon: guests, domains, control socket.
//!
//! [`Daemon`] listens on one Unix socket ([`endpoint`]). A guest's shim begins with
//! [`MAGIC`](bindery_wire::control::MAGIC) and speaks the protocol of
//! [`wire::control`](bindery_wire::control); an operator begins with `{` and speaks
//! [`protocol`], which [`client`] speaks from the other side.
//!
//! With [`HttpConfig`] it can be looked at over HTTP as well (`http`): metrics, an API, a dashboard.
//!
//! Checkpoints lie in a pool that is open while somebody needs it (`keeper`); what takes long is a job with a
//! number (`jobs`); monitors of QEMUs that `bindery run` started are found by [`monitors`].
//!
//! # Who may what
//! The kernel says who a peer is, and [`access`] what follows from it. Operators are the daemon's own
//! user, root, and, for their own guests, the members of a group. Guests are those of the daemon's own
//! user; a daemon of root's takes guests of the group's members as well, each into domains of its own
//! user: a domain is a user and a name, and pages are never shared between domains.
//!
//! # Life and death
//! Nothing that a guest depends on lives here. A daemon that ends, or is killed, leaves guests with
//! their merged pages mapped; their shims look for the next daemon, which takes them over.

#![forbid(unsafe_code)]

mod daemon;
mod engine;
mod http;
mod jobs;
mod keeper;
mod notify;
mod operator;
mod registry;
mod report;
mod stop;

pub mod access;
pub mod client;
pub mod daemon_settings;
pub mod endpoint;
pub mod monitors;
pub mod protocol;
pub mod status;

use std::ops::RangeInclusive;
use std::time::Duration;

pub use bindery_guest::{NAME_BYTES_MAX, is_name, printable};
pub use daemon::{BindError, Config, Daemon, Reload};
pub use http::{HttpConfig, HttpError};
pub use keeper::keys::CheckpointKeys;

/// Names of guests and checkpoints as stores have them, and back.
pub mod stored_names {
    pub use crate::keeper::names::{checkpoint, guest, shown_guest, split_domain};
}

/// What is served over HTTP, without a daemon: for the fuzz target.
#[cfg(feature = "fuzzing")]
pub mod http_alone {
    pub use crate::http::alone::converse;
}

pub use stop::Stopper;

/// How many workers a daemon may have.
pub const WORKERS: RangeInclusive<u32> = 1..=bindery_merge::WORKERS_MAX as u32;

/// How long a merge period may be.
pub const PERIODS: RangeInclusive<Duration> =
    Duration::from_millis(10)..=Duration::from_secs(10 * 60);
