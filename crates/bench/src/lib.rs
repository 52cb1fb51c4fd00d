//! Benchmarks beside their rivals

pub mod harness;
