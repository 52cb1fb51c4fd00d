//! The daemon: guests, domains, control socket.
//!
//! [`Daemon`] listens on one Unix socket ([`endpoint`]). A guest's shim begins with
//! [`MAGIC`](bindery_space::wire::control::MAGIC) and speaks the protocol of
//! [`wire::control`](bindery_space::wire::control); an operator begins with `{` and speaks
//! [`protocol`], which [`client`] speaks from the other side.
//!
//! # Who may what
//! The kernel says who a peer is. Operators are the daemon's own user, or root. Guests are those of
//! the daemon's own user; a daemon of root's takes guests of all users, each into domains of its
//! own user: a domain is a user and a name, and pages are never shared between domains.
//!
//! # Life and death
//! Nothing that a guest depends on lives here. A daemon that ends, or is killed, leaves guests with
//! their merged pages mapped; their shims look for the next daemon, which takes them over.

#![forbid(unsafe_code)]

mod daemon;
mod engine;
mod operator;
mod registry;
mod report;
mod stop;

pub mod client;
pub mod endpoint;
pub mod protocol;
pub mod status;

use std::ops::RangeInclusive;
use std::time::Duration;

pub use bindery_guest::{NAME_BYTES_MAX, is_name};
pub use daemon::{BindError, Config, Daemon};
pub use stop::Stopper;

use protocol::{Failure, FailureKind};

/// How many workers a daemon may have.
pub const WORKERS: RangeInclusive<u32> = 1..=bindery_merge::WORKERS_MAX as u32;

/// How long a merge period may be.
pub const PERIODS: RangeInclusive<Duration> =
    Duration::from_millis(10)..=Duration::from_secs(10 * 60);

/// Settings come from operators: they are checked here as well as in the command.
fn check_settings(workers: Option<u32>, period_ms: Option<u64>) -> Result<(), Failure> {
    let refuse = |message: String| Err(Failure::new(FailureKind::BadRequest, message));
    if workers.is_some_and(|workers| !WORKERS.contains(&workers)) {
        return refuse(format!("workers are {} to {}", WORKERS.start(), WORKERS.end()));
    }
    if period_ms.is_some_and(|ms| !PERIODS.contains(&Duration::from_millis(ms))) {
        return refuse(format!("a period is {:?} to {:?}", PERIODS.start(), PERIODS.end()));
    }
    Ok(())
}
