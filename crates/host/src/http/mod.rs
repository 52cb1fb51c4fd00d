//! Looking at the daemon over HTTP: metrics, health, a JSON API and a dashboard. Nothing can be
//! changed this way.
//!
//! [`Server`] has one thread, in which one runtime serves a bounded number of connections ([`serve`]).
//! A request is answered at once from what the daemon knows anyway ([`Source`]): nothing here waits for
//! a merge period or for a guest, so that nothing a client does holds merging up. What clients see
//! beyond the daemon's status is kept in bounds here: ten minutes of samples ([`history`]), and which
//! pages were written lately of guests whose map somebody looks at ([`heat`]).
//!
//! Who may ask is decided in [`access`].

mod access;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod alone;
mod answer;
mod dashboard;
mod health;
mod heat;
mod history;
mod jobs;
mod map;
mod metrics;
mod peer;
mod routes;
mod serve;
mod site;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use bindery_merge::{Connected, PageMap};
use bindery_wire::control::Region;

pub(crate) use serve::Server;

use crate::keeper::board::{KeptFigures, KeptGuest};
use crate::protocol::checkpoint::CheckpointInfo;
use crate::protocol::job::JobStatus;
use crate::status::{GuestStatus, HostStatus};

/// How the daemon is to be looked at over HTTP.
#[derive(Clone, Debug)]
pub struct HttpConfig {
    /// Where to listen. Port 0: any that is free.
    pub address: SocketAddr,
    /// A file with what clients have to show; needed where `address` is not a loopback address.
    pub token_file: Option<PathBuf>,
}

/// Why there is no HTTP server.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HttpError {
    /// Everybody on the network could look.
    #[error(
        "{0} can be reached from other machines: name a file with a secret as --http-token-file, or \
         listen on 127.0.0.1"
    )]
    NeedsToken(SocketAddr),
    /// The token file cannot be read.
    #[error("cannot read the token file {}: {source}", path.display())]
    TokenFile {
        /// The file.
        path: PathBuf,
        /// The kernel's answer.
        source: std::io::Error,
    },
    /// The token file holds no token.
    #[error("the token file {}: {problem}", path.display())]
    Token {
        /// The file.
        path: PathBuf,
        /// What is wrong with it, and what to do.
        problem: String,
    },
    /// The address cannot be had.
    #[error("cannot listen on {address} for HTTP: {source}; choose another --http address")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The kernel's answer.
        source: std::io::Error,
    },
}

/// Whoever knows what is shown. No method waits for a merge period or for a guest.
pub(crate) trait Source: Send + Sync {
    /// The daemon and its domains.
    fn status(&self) -> HostStatus;

    /// All guests, by name.
    fn guests(&self) -> Vec<GuestStatus>;

    /// The memory of the connected guest with this name or process id.
    fn memory(&self, guest: &str) -> Option<Memory>;

    /// Returns the last `latest` checkpoints of each guest that a viewer may see, by time, as far as they are known.
    fn checkpoints(&self, viewer: Viewer, latest: usize) -> Vec<CheckpointInfo>;

    /// Returns the jobs that a viewer may see.
    fn jobs(&self, viewer: Viewer) -> Vec<JobStatus>;

    /// Returns figures of checkpoints, by guest.
    fn kept(&self) -> BTreeMap<KeptGuest, KeptFigures>;

    /// How far merging is.
    fn pulse(&self) -> Pulse;
}

/// Client, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Viewer {
    /// Client that has shown the daemon's token.
    Admitted,
    /// Process of this user, on this machine.
    User(u32),
    Unknown,
}

/// What there is to know of a guest's memory, page by page.
pub(crate) struct Memory {
    /// The guest's number.
    pub(crate) id: u32,
    /// Its name.
    pub(crate) name: String,
    /// Who tells what was written.
    pub(crate) guest: Connected,
    /// Where its pages are, ascending.
    pub(crate) regions: Vec<Region>,
    /// What they are; `None` before its first period.
    pub(crate) map: Option<Arc<PageMap>>,
}

/// How far merging is: it goes on if this changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pulse {
    /// Periods completed.
    pub(crate) full_scans: u64,
    /// How long the last period took, or the one at work so far, in microseconds.
    pub(crate) period_time_us: u64,
}
