//! YCSB's core workloads B and C over any store of keys and values, with every answer checked.
//!
//! Records, proportions and distribution are those of Cooper et al., "Benchmarking cloud serving
//! systems with YCSB" (SoCC 2010) and of the files `workloadb` and `workloadc` of its repository:
//! records of 1,000 bytes under hashed keys, asked for by a Zipf law with the exponent 0.99 whose
//! popular records are scattered over all keys.
//!
//! Every value says whose it is and how often it was written; a store that answers with another
//! record, or with less than it acknowledged to the thread that asks, fails the run.
#![forbid(unsafe_code)]

mod record;
mod report;
mod run;
mod store;
mod task;
mod workload;

pub use record::{KEY_BYTES, Records, VALUE_BYTES, WrongAnswer};
pub use report::{Latency, Report};
pub use run::{Run, RunError, load, run};
pub use store::{BoxError, Store};
pub use task::Task;
pub use workload::{Operation, Requests, UnknownWorkload, Workload};
