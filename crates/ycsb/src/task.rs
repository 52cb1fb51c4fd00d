//! What a process of its own is to do with a store; how engines that must not share a process, a
//! memory limit or a language are run alike.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::record::Records;
use crate::report::Report;
use crate::run::{Run, RunError, load, run};
use crate::store::Store;
use crate::workload::Workload;

/// A task, as one process tells it another as JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Task {
    /// The engine's name.
    pub engine: String,
    /// Where it keeps its files; empty at first.
    pub directory: PathBuf,
    /// How much it may cache by itself, if it caches by itself.
    pub cache_bytes: u64,
    /// How many records there are.
    pub records: u64,
    /// What is asked for; nothing: the store is loaded.
    pub workload: Option<Workload>,
    /// By how many threads.
    pub threads: u64,
    /// How long it is asked before anything is measured, in seconds.
    pub warm_up_s: f64,
    /// How long it is measured, in seconds.
    pub duration_s: f64,
    /// How many requests a second it is asked; as many as it answers, without.
    #[serde(default)]
    pub target_per_s: Option<f64>,
    /// Whether updates write all fields of a record, without a look at it.
    #[serde(default)]
    pub write_all_fields: bool,
    /// One more thread reads all records in the order of their keys, again and again, untimed.
    #[serde(default)]
    pub scan: bool,
    /// Equal seeds ask for the same.
    pub seed: u64,
}

impl Task {
    /// Does it with a store; figures if anything was measured.
    ///
    /// # Errors
    /// As [`load`] and [`run`].
    pub fn perform(&self, store: &dyn Store) -> Result<Option<Report>, RunError> {
        let records = Records { count: self.records };
        let Some(workload) = self.workload else {
            return load(store, records).map(|()| None);
        };
        let Self { threads, target_per_s, write_all_fields, scan, seed, .. } = *self;
        let warm_up = Duration::from_secs_f64(self.warm_up_s);
        let duration = Duration::from_secs_f64(self.duration_s);
        let run_of = Run {
            records,
            workload,
            threads,
            warm_up,
            duration,
            target_per_s,
            write_all_fields,
            scan,
            seed,
        };
        run(store, run_of).map(Some)
    }
}
