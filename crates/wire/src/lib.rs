//! What a shim and the daemon say to each other.
//!
//! A shim opens one **control** connection to the daemon's socket ([`control`]): it says who it is
//! and which regions it has, and is given the domain's secret. Everything that touches pages goes over
//! **lanes** ([`lane`]): one lane is one
//! thread in the guest's process, a socket for fixed-size headers and a shared window of memory for
//! the arrays. The daemon opens as many lanes as it has workers on that guest.
//!
//! A guest that is restored gets its memory over one more connection, from a [`source`].
//!
//! Neither side trusts the other's bytes: every length and index is checked by who reads it, and
//! arrays are copied out of the shared window before they are looked at.

#![forbid(unsafe_code)]

pub mod array;
pub mod channel;
pub mod control;
pub mod environment;
pub mod frame;
pub mod lane;
pub mod source;
