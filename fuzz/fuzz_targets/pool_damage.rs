//! A pool whose devices are damaged after such a life: an error that names what is damaged, or what was
//! written; what has one good copy is missed by nobody.
#![no_main]

use bindery_fuzz::lives::{Script, damage};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|script: Script| damage(&script));
