//! Memory whose content is fetched when it is touched, by the thread that touches it.
//!
//! [`demand`] is such memory. Beneath it stand [`sigbus`], the process's handler of `SIGBUS`, which serves
//! other memory too, and [`published`], values that a signal handler can read.

pub mod demand;
pub mod published;
pub mod sigbus;

/// The examples of the README are tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
