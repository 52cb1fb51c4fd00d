//! Connections between two daemons: TLS 1.3 with certificates of both sides, or plain within one machine.
//!
//! All I/O blocks, and ends within [`TimeLimits`].

mod error;
mod greet;
mod identity;
mod link;
mod rate;
mod sessions;
mod socket;
mod tls;

pub use error::ConnectError;
pub use greet::{FirstRequest, Greeted, Peer, TimeLimits, accept, accept_local, dial, dial_local};
pub use identity::Policy;
pub use link::{StreamReader, StreamWriter};
pub use rate::{RateLimit, TokenBucket};
pub use sessions::{Door, DoorPlace, Sessions, random};
