//! A log, in one or two copies, that is written, damaged and read: what is read was written; what one
//! good copy has is read; an error names the log.
#![no_main]

use bindery_fuzz::logs::{Script, live};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|script: Script| live(&script));
