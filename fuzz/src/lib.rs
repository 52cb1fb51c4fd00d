//! Parts that the targets share. Of the pool: devices in memory, what happens to a pool and what it must hold
//! afterwards (from the pool's own tests), damage, and a look at the memory that was taken.
#![forbid(unsafe_code)]

pub mod archive;
pub mod catalogue;
pub mod checkpoint;
#[path = "../../crates/pool/tests/pools/crashes.rs"]
#[allow(dead_code, unused_imports, reason = "the tests need all of it")]
mod crashes;
pub mod damage;
#[path = "../../crates/pool/tests/pools/life.rs"]
#[allow(dead_code, reason = "the tests need all of it")]
mod life;
pub mod lives;
pub mod logs;
pub mod memory;
pub mod migration;
#[path = "../../crates/pool/tests/pools/model.rs"]
#[allow(dead_code, reason = "the tests need all of it")]
mod model;
#[path = "../../crates/pool/tests/pools/rig.rs"]
#[allow(dead_code, reason = "the tests need all of it")]
mod rig;
#[path = "../../crates/pool/tests/simulated/mod.rs"]
mod simulated;
pub mod tables;
