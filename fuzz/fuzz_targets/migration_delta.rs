//! Deltas: any bytes, and the words that two pages differ in: what is parsed stays within the page and has one form,
//! what is encoded makes the new page of the old one.
#![no_main]

use bindery_fuzz::memory::bounded;
use bindery_migration::format::{Delta, encode_delta};
use libfuzzer_sys::fuzz_target;

type Page = [u8; 4096];

fuzz_target!(|given: (Vec<u8>, Vec<(u16, u8)>, u16)| {
    let (bytes, writes, most) = given;
    let old: Page = std::array::from_fn(|at| (at / 8) as u8);
    if let Ok(delta) = bounded(bytes.len(), || Delta::parse(&bytes)) {
        canonical(delta, &old);
    }
    let mut new = old;
    writes.iter().for_each(|(at, byte)| new[usize::from(*at) % 4096] = *byte);
    let mut encoded = Vec::new();
    match encode_delta(&old, &new, usize::from(most), &mut encoded) {
        None => assert!(encoded.is_empty()),
        Some(0) => assert!(old == new && encoded.is_empty()),
        Some(length) => {
            assert!(length == encoded.len() && length <= usize::from(most));
            let mut made = old;
            Delta::parse(&encoded).expect("it was encoded").apply(&mut made);
            assert!(made == new);
        }
    }
});

/// Checks that a delta is what comes of a page that differs in all of its words.
fn canonical(delta: Delta<'_>, old: &Page) {
    let (mut new, mut other) = (*old, *old);
    for (at, run) in delta.runs() {
        let other = &mut other[at..at + run.len()];
        other.iter_mut().zip(run).for_each(|(byte, now)| *byte = !now);
    }
    delta.apply(&mut new);
    let mut again = Vec::new();
    encode_delta(&other, &new, usize::MAX, &mut again);
    assert!(again == delta.bytes());
}
