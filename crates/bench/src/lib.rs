//! Benchmarks beside their rivals

pub mod harness;
pub mod page;
