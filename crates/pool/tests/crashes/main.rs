//! Lives of logs and MDCs that crashes cut short, at every operation and at random.
//!
//! After each crash: what was synced is there, in order; what is there beyond is what was appended
//! next; and nothing else. `BINDERY_POOL_LIVES` sets the number of random lives.
#![expect(clippy::unwrap_used, reason = "a test")]

mod log;
mod mdc;
#[path = "../simulated/mod.rs"]
mod simulated;

use rand::Rng;
use rand::rngs::StdRng;

/// How many random lives of each kind.
fn lives() -> u64 {
    let asked = std::env::var("BINDERY_POOL_LIVES").ok();
    asked.map_or(600, |number| number.parse().expect("BINDERY_POOL_LIVES is a number"))
}

/// The machine stopped, or a device did, in the middle of something.
#[derive(Debug)]
struct Stopped;

/// A record that is like no other, mostly short.
fn record(number: u64, random: &mut StdRng) -> Vec<u8> {
    let length = match random.random_range(0..10) {
        0 => random.random_range(3990..4030),
        1 => random.random_range(0..20_000),
        _ => random.random_range(0..300),
    };
    let mut record: Vec<u8> = (0..length).map(|_| random.random()).collect();
    record.extend_from_slice(&number.to_le_bytes());
    record
}

/// Whether `there` is what may be left of records of which so many were synced.
fn is_left_of(there: &[Vec<u8>], records: &[Vec<u8>], synced: usize) -> bool {
    there.len() >= synced && records.starts_with(there)
}
