//! The archive against real S3 servers, over a network that misbehaves, and in a directory.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod background;
mod damage;
mod errors;
mod hosts;
mod liars;
#[allow(dead_code, reason = "other test programs need the rest")]
#[path = "../pools/model.rs"]
mod model;
mod moves;
mod network;
mod objects;
mod orphans;
mod proxy;
#[allow(dead_code, reason = "other test programs need the rest")]
#[path = "../pools/rig.rs"]
mod rig;
mod server;
#[path = "../simulated/mod.rs"]
mod simulated;
mod trips;

use bindery_testkit::skipped;
use server::Bench;

/// Everything once more, with a server that has nothing in common with the first.
#[test]
fn moto_agrees() {
    let Some(bench) = Bench::moto() else {
        return skipped!("moto is not there: run `cargo xtask setup`");
    };
    trips::round_trips(&bench.archive("one"), 20);
    hosts::one_of_two_wins(&bench, 5);
    errors::missing_buckets_are_named(&bench);
    network::answers_are_lost(&bench);
    orphans::stale_listings_lose_nothing(&bench);
}
