//! Benchmarks beside their rivals.

pub mod advisor;
pub mod checkpoint;
mod choice;
mod crowd;
pub mod dirty;
mod engine;
pub mod guests;
pub mod harness;
pub mod huge;
pub mod idle;
pub mod index;
mod interrupt;
pub mod machine;
pub mod merge;
pub mod overhead;
pub mod page;
pub mod pool;
mod settle;
pub mod steady;

pub use interrupt::check as stop_if_interrupted;
