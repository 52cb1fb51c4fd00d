//! Live migration between hosts.
#![forbid(unsafe_code)]

pub mod format;
