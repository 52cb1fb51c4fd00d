//! Objects that are moved to the archive and back, on devices whose power fails.
//!
//! `BINDERY_POOL_LIVES` sets the number of random lives.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

mod crashes;
mod everyday;
mod life;
#[allow(dead_code, reason = "other test programs need the rest")]
#[path = "../pools/model.rs"]
mod model;
mod policy;
#[allow(dead_code, reason = "other test programs need the rest")]
#[path = "../pools/rig.rs"]
mod rig;
#[path = "../simulated/mod.rs"]
mod simulated;
mod threads;
