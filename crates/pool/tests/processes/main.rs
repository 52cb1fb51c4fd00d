//! Pools on real files and block devices, and several processes at them, some of which are killed.
//!
//! `BINDERY_POOL_KILLS` sets how many are killed while they write.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

mod child;
mod forks;
mod kills;
#[path = "../device/machine.rs"]
#[expect(dead_code, reason = "mounts are not needed here")]
mod machine;
#[path = "../pools/model.rs"]
#[expect(dead_code, reason = "ids are looked at where there is one process")]
mod model;
mod paths;
mod readers;
