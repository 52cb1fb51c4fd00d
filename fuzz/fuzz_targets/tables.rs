//! The example's store: tables, indexes, the list of tables and the journal, as anybody can write them
//! into a pool: opened, read and merged, or an error.
#![no_main]

use bindery_fuzz::tables::{Script, open};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|script: Script| open(&script));
