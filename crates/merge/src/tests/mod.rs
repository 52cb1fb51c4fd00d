//! The engine against model guests: what must hold after every period, whatever guests do.

mod audit;
mod compaction;
mod huge;
mod model;
mod nodes;
mod numbers;
mod process;
mod random;
mod scenes;
mod slow;
mod takeover;
mod unmerging;
mod warnings;
