//! The catalogue: any records, decoded one by one, taken together, and put into the catalogue of a pool
//! by a hostile hand that knows all checksums.
#![no_main]

use bindery_fuzz::catalogue::{Line, forge, replay};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|lines: Vec<Line>| {
    replay(&lines);
    forge(&lines);
});
