//! The ways in turns, fault by fault.
//!
//! What a device gives wanders, from one part of a second to the next, by more than what tells the ways
//! apart; and threads that all do the same fall into step with it. Here each thread takes another way for
//! each page, in no order, so that all ways meet the same device, queue and processors.

use std::thread;

use anyhow::Result;
use bindery_sys::direct::Buffer;
use bindery_units::PAGE_BYTES;

use super::scene::{Place, Scene, Way};
use super::{Touched, percentile};
use crate::harness::{Measured, SampleSet, take_turns};

/// Has `threads` touch all places by all ways, `rounds` times.
pub(super) fn run(
    scene: &Scene,
    places: &[Place],
    threads: usize,
    rounds: usize,
) -> Result<Vec<SampleSet>> {
    let names: Vec<String> = Way::ALL.iter().map(|way| way.name().to_owned()).collect();
    let (mut turn, mut round) = (0, Vec::new());
    take_turns(&format!("{threads} threads by all ways"), rounds, &names, |who| {
        // Who comes first in a round has all measured, and the others take what is theirs.
        if turn % names.len() == 0 {
            round = self::round(scene, places, threads)?;
        }
        turn += 1;
        Ok(round[who].clone())
    })
}

/// As many passes as there are ways, so that each touches each place once.
fn round(scene: &Scene, places: &[Place], threads: usize) -> Result<Vec<Measured>> {
    let mut touched = Way::ALL.map(|_| Touched::default());
    for pass in 0..Way::ALL.len() {
        scene.evict()?;
        for seen in touch_all(scene, places, threads, pass)? {
            for (of_way, seen) in touched.iter_mut().zip(seen) {
                of_way.times_us.extend(seen.times_us);
                of_way.check += seen.check;
            }
        }
    }
    Ok(touched.map(|touched| measured(touched, threads)).into())
}

type OfWays = [Touched; Way::ALL.len()];

fn touch_all(scene: &Scene, places: &[Place], threads: usize, pass: usize) -> Result<Vec<OfWays>> {
    let each = places.len().div_ceil(threads);
    thread::scope(|scope| {
        let shares = places.chunks(each).enumerate();
        let touchers = shares.map(|(thread, share)| {
            let numbered = (thread * each..).zip(share);
            scope.spawn(move || touch_share(scene, numbered, pass))
        });
        let touchers: Vec<_> = touchers.collect();
        touchers.into_iter().map(|toucher| toucher.join().expect("no toucher panics")).collect()
    })
}

fn touch_share<'a>(
    scene: &Scene,
    places: impl Iterator<Item = (usize, &'a Place)>,
    pass: usize,
) -> Result<OfWays> {
    let mut buffer = Buffer::zeroed(PAGE_BYTES);
    let mut touched = Way::ALL.map(|_| Touched::default());
    for (number, &place) in places {
        let way = (scattered(number) + pass) % Way::ALL.len();
        touched[way].touch(scene, Way::ALL[way], place, &mut buffer)?;
    }
    Ok(touched)
}

/// A number that follows from another by no rule that threads could fall into step with: the finalizer
/// of MurmurHash3.
fn scattered(number: usize) -> usize {
    let mixed = (number as u64 ^ (number as u64 >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let mixed = (mixed ^ (mixed >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    (mixed >> 33) as usize
}

/// The rate is that of so many threads whose every fault takes the mean time (Little's law).
fn measured(touched: Touched, threads: usize) -> Measured {
    let Touched { mut times_us, check } = touched;
    times_us.sort_by(f64::total_cmp);
    let mean_us = times_us.iter().sum::<f64>() / times_us.len() as f64;
    Measured::new("faults", "k/s", threads as f64 * 1e3 / mean_us)
        .and("mean", "µs", mean_us)
        .and("p50", "µs", percentile(&times_us, 50))
        .and("p99", "µs", percentile(&times_us, 99))
        .checked(check)
}
