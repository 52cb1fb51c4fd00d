//! Benchmarks beside their rivals

mod crowd;
mod engine;
pub mod harness;
pub mod merge;
pub mod page;
pub mod steady;
