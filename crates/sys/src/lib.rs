//! The only crate that speaks to Linux directly
