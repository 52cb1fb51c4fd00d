//! The only crate that speaks to Linux directly.

pub mod socket;
