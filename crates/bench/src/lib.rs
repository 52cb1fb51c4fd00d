//! Benchmarks beside their rivals

pub mod harness;
pub mod merge;
pub mod page;
