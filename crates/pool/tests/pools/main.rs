//! Pools on devices that crash, fail and lie.
//!
//! `BINDERY_POOL_LIVES` sets the number of random lives.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

mod backlog;
mod committer;
mod crashes;
mod damage;
mod everyday;
mod faults;
mod identity;
mod life;
mod model;
mod rig;
#[path = "../simulated/mod.rs"]
mod simulated;
mod threads;
