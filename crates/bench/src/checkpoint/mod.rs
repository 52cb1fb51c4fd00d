//! `bindery-bench checkpoint`: checkpoints, restores and clones of QEMU guests, beside QEMU's own.
//!
//! * [`pause`]: how long a guest stands still for a checkpoint, and when that is durable.
//! * [`restore`]: from the start of a process to the guest's first sign of life.
//! * [`clones`]: memory and time of guests that go on from one checkpoint.
//! * [`store`]: bytes that many checkpoints take, beside archivers over the same memory.
//! * [`working`]: what a guest loses that is checkpointed at an interval.
//! * [`library`]: whole cycles of a small guest with the crates alone.
//!
//! Guests run under TCG in QEMU 10 from the kit. Pauses are taken from QEMU's own STOP and RESUME events, whoever
//! pauses it. Everything is made in one directory, so that all write to the same device.

mod beats;
pub mod clones;
pub mod library;
mod monitor;
mod own_ways;
pub mod pause;
pub mod restore;
mod stage;
pub mod store;
pub mod working;

use std::path::PathBuf;

/// Options that all parts have.
#[derive(Clone, Debug)]
pub struct Common {
    /// Interleaved rounds; medians are shown.
    pub rounds: usize,
    /// Directory for pools and what QEMU saves.
    pub directory: PathBuf,
    /// The `bindery` program to run.
    pub program: PathBuf,
}

/// Bytes in MiB; not a number where they are not known.
fn written(bytes: Option<u64>) -> f64 {
    bytes.map_or(f64::NAN, |bytes| bytes as f64 / f64::from(1 << 20))
}
