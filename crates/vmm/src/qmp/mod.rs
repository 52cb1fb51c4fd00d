//! A client of QEMU's machine protocol (`docs/interop/qmp-spec` of QEMU) over a Unix socket.
//!
//! One JSON object a line each way. The crate `qapi` was looked at: its synchronous client reads lines of
//! any length, has no time limits and no numbers of commands, cannot pass descriptors, and its types are
//! those of one version of QEMU. This client treats all versions alike, bounds what it reads and how long
//! it waits, and drops late answers.

mod client;
mod error;
mod lines;
mod message;

pub use client::Qmp;
pub use error::QmpError;
pub use message::Event;
