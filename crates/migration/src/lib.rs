//! Live migration between hosts: the stream, the hand-over, the connection.
//!
//! Nothing here knows a daemon, a VMM or a guest's memory. `bindery-transfer` drives rounds and puts pages into an
//! [`Encoder`](encode::Encoder), which is a sink; at the other end an [`Applier`](receive::Applier) puts them into a
//! [`Target`](receive::Target). `docs/formats/migration.md` has the stream byte by byte.
//!
//! ```text
//! source                                                destination
//!  connect::dial ── TLS 1.3, hello ────────────────────► connect::accept
//!  offer         ── who, how large, arguments ─────────► fit::misfits, arguments::ArgumentPolicy
//!  encode        ── rounds over several streams ───────► receive
//!  hand_over     ── Prepare … Take … Settled ──────────► hand_over
//! ```
//!
//! # What is never sent
//! Absent pages, zero pages that were never anything else, and pages that are known not to have changed. A page that
//! became zero is a mark; a page that the destination has is a digest; a page that changed a little is a delta.
//!
//! # What holds
//! - All versions of a page go through one stream, in order; rounds are barriers across streams.
//! - Lengths are bounded before memory is taken, and every operation of a connection ends in time.
//! - Exactly one side owns the guest at any instant ([`hand_over`]).
//! - Arguments from another host name only programs and files that this host allows; no shell sees them.
#![forbid(unsafe_code)]

pub mod arguments;
pub mod connect;
pub mod encode;
pub mod fit;
pub mod format;
pub mod hand_over;
pub mod receive;
