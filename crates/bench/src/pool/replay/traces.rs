//! Traces of accesses to pages.

use std::collections::HashMap;

use bindery_ycsb::{Operation, Records, Requests, Workload};
use clap::ValueEnum;
use serde::Serialize;

/// Records in a page of a table.
const RECORDS_PER_PAGE: usize = 4;

/// Updates that a store holds in memory before they are in a table.
const UPDATES_IN_MEMORY: u64 = 1 << 16;

/// Accesses after which other records are the popular ones.
const MOVES_AFTER: usize = 1 << 20;

/// Traces of accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Trace {
    /// YCSB's workload B; records that were just updated are read from memory
    B,
    /// YCSB's workload C
    C,
    /// Workload C, and after each of its accesses one of a scan over all pages
    Scan,
    /// Workload C, whose popular records are others after each million accesses
    Moving,
}

impl Trace {
    /// Returns the pages that are accessed, one after the other.
    pub(super) fn pages(self, records: Records, count: usize) -> Vec<u32> {
        let page_of = pages_of(records);
        let pages = pages(records) as u32;
        let asked = |workload| Requests::new(records, workload, 1);
        let record = |operation| match operation {
            Operation::Read(record) | Operation::Update { record, .. } => record,
        };
        let page = |operation| page_of[record(operation) as usize];
        match self {
            Self::B => {
                let mut memory = UpdatesInMemory::default();
                let on_device = |operation: &Operation| memory.misses(*operation);
                asked(Workload::B).filter(on_device).map(page).take(count).collect()
            }
            Self::C => asked(Workload::C).map(page).take(count).collect(),
            Self::Scan => {
                let scanned = (0..pages).cycle();
                let both = asked(Workload::C).map(page).zip(scanned);
                both.flat_map(|(asked, scanned)| [asked, scanned]).take(count).collect()
            }
            Self::Moving => {
                let moved = |(at, operation): (usize, _)| {
                    let by = (at / MOVES_AFTER) as u64 * (records.count / 5);
                    page_of[((record(operation) + by) % records.count) as usize]
                };
                asked(Workload::C).enumerate().map(moved).take(count).collect()
            }
        }
    }
}

/// Returns the number of pages of all records.
pub(super) const fn pages(records: Records) -> u64 {
    records.count.div_ceil(RECORDS_PER_PAGE as u64)
}

/// Returns the page of each record, where they lie in the order of their keys.
fn pages_of(records: Records) -> Vec<u32> {
    let mut page_of = vec![0; records.count as usize];
    for (place, (_, record)) in records.sorted().into_iter().enumerate() {
        page_of[record as usize] = (place / RECORDS_PER_PAGE) as u32;
    }
    page_of
}

/// Records that were updated a short time ago.
#[derive(Default)]
struct UpdatesInMemory {
    last: HashMap<u64, u64>,
    updates: u64,
}

impl UpdatesInMemory {
    /// Returns true if an operation reads a table.
    fn misses(&mut self, operation: Operation) -> bool {
        let (Operation::Read(record) | Operation::Update { record, .. }) = operation;
        let age = self.last.get(&record).map(|last| self.updates - last);
        if let Operation::Update { .. } = operation {
            self.updates += 1;
            self.last.insert(record, self.updates);
        }
        age.is_none_or(|age| age >= UPDATES_IN_MEMORY)
    }
}
