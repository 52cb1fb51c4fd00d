//! YCSB's core workloads B and C over any store of keys and values, with every answer checked.
//!
//! Records, proportions and distribution are those of Cooper et al., "Benchmarking cloud serving
//! systems with YCSB" (SoCC 2010) and of the files `workloadb` and `workloadc` of its repository:
//! records of ten fields of 100 bytes under hashed keys, asked for by a Zipf law with the exponent 0.99
//! whose popular records are scattered over all keys.
//!
//! An update writes one field, which is YCSB's default (`writeallfields=false`). A store of keys and values
//! knows of no fields: it is read, changed and put, all in the update's time.
//!
//! Every value says whose it is, and every field who wrote it when; a store that answers with another
//! record, or with less than it acknowledged to the thread that asks, fails the run.
#![forbid(unsafe_code)]

mod acknowledged;
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
