//! A pool that objects are written to, committed, aborted and deleted, whose catalogue and MDC are
//! compacted, that grows, crashes and is opened again: it holds what a map of objects says, each time.
#![no_main]

use bindery_fuzz::lives::{Act, live};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|acts: Vec<Act>| live(&acts));
