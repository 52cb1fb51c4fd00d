//! Which record is asked for next, and for what.

use std::str::FromStr;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rand_distr::{Distribution, Zipf};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::record::{FIELDS, Records, scatter};

/// YCSB's `zipfianconstant`.
const EXPONENT: f64 = 0.99;

/// One of YCSB's core workloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Workload {
    /// Reads and updates, 95 to 5.
    B,
    /// Reads alone.
    C,
}

/// A workload that is not there.
#[derive(Debug, Error)]
#[error("{0:?} is no workload: they are b and c")]
pub struct UnknownWorkload(String);

impl FromStr for Workload {
    type Err = UnknownWorkload;

    fn from_str(name: &str) -> Result<Self, UnknownWorkload> {
        match name {
            "b" | "B" => Ok(Self::B),
            "c" | "C" => Ok(Self::C),
            _ => Err(UnknownWorkload(name.into())),
        }
    }
}

impl Workload {
    /// Of a hundred requests, how many write.
    const fn update_percent(self) -> u32 {
        match self {
            Self::B => 5,
            Self::C => 0,
        }
    }
}

/// A request, by the record's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Reads it.
    Read(u64),
    /// Writes a field of it, or all of them.
    Update {
        /// The record.
        record: u64,
        /// The field, if it is one.
        field: usize,
    },
}

/// An endless row of requests; the same for the same seed.
#[derive(Debug)]
pub struct Requests {
    records: Records,
    update_percent: u32,
    popularity: Zipf<f64>,
    random: SmallRng,
}

impl Requests {
    /// The requests of one thread.
    ///
    /// # Panics
    /// If there are no records.
    #[must_use]
    pub fn new(records: Records, workload: Workload, seed: u64) -> Self {
        let popularity =
            Zipf::new(records.count as f64, EXPONENT).expect("there are records, and it is 0.99");
        let random = SmallRng::seed_from_u64(seed);
        Self { records, update_percent: workload.update_percent(), popularity, random }
    }
}

impl Iterator for Requests {
    type Item = Operation;

    fn next(&mut self) -> Option<Operation> {
        // Ranks begin with one. YCSB hashes them too (`ScrambledZipfianGenerator`), so that what is
        // popular lies all over; some records get two ranks and some none, there as here.
        let rank = self.popularity.sample(&mut self.random) as u64;
        let record = scatter(rank ^ 0x5eed) % self.records.count;
        match self.random.random_range(0..100) < self.update_percent {
            // Each field as often as any other (YCSB: `fieldchooser`).
            true => {
                let field = self.random.random_range(0..FIELDS);
                Some(Operation::Update { record, field })
            }
            false => Some(Operation::Read(record)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn a_few_records_are_asked_for_most() {
        let records = Records { count: 100_000 };
        let mut asked: HashMap<u64, u32> = HashMap::new();
        let mut updates = 0;
        for request in Requests::new(records, Workload::B, 1).take(100_000) {
            let (Operation::Read(record) | Operation::Update { record, .. }) = request;
            updates += u32::from(matches!(request, Operation::Update { .. }));
            assert!(record < records.count);
            *asked.entry(record).or_default() += 1;
        }
        assert!((4_500..5_500).contains(&updates), "{updates} updates of 100000");
        let mut counts: Vec<u32> = asked.into_values().collect();
        counts.sort_unstable_by(|one, other| other.cmp(one));
        let share = counts.iter().take(1_000).sum::<u32>();
        // The harmonic numbers of the law: the first hundredth of the records has 60 percent.
        assert!((55_000..68_000).contains(&share), "the first hundredth has {share} of 100000");
    }

    #[test]
    fn equal_seeds_ask_for_the_same() {
        let requests = |seed| {
            Requests::new(Records { count: 50 }, Workload::C, seed).take(100).collect::<Vec<_>>()
        };
        assert_eq!(requests(3), requests(3));
        assert_ne!(requests(3), requests(4));
        assert!(requests(3).iter().all(|request| matches!(request, Operation::Read(_))));
    }
}
