//! A manifest of a checkpoint: an object of any bytes, one of any packs and body with right checksums, and a
//! record of touched pages: what is decoded is encoded to the same bytes, and takes a multiple of them.
#![no_main]

use bindery_checkpoint::{Description, Manifest, decode_touched, encode_touched};
use bindery_fuzz::checkpoint::manifest;
use bindery_fuzz::memory::bounded;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|given: (Vec<u64>, &[u8])| {
    let (packs, bytes) = given;
    decode(bytes);
    decode(&manifest(&packs, bytes));
    if let Ok(description) = bounded(bytes.len(), || Description::decode(bytes)) {
        assert_eq!(description.encode(), bytes);
    }
    if let Ok(runs) = bounded(bytes.len(), || decode_touched(bytes, None)) {
        assert_eq!(encode_touched(&runs, ids(bytes), None), bytes);
    }
});

fn decode(bytes: &[u8]) {
    let Ok(manifest) = bounded(bytes.len(), || Manifest::decode(bytes, None)) else { return };
    let (store, id) = ids(bytes);
    assert_eq!(manifest.encode(store, id, None), bytes);
    for (map, block) in manifest.pages.iter().zip(&manifest.description.blocks) {
        assert!(map.stored_pages() <= block.pages());
        for run in map.runs() {
            assert_eq!(map.find(run.pages.first), Some(*run));
            assert!((run.pack as usize) < manifest.packs.len());
        }
    }
}

/// The ids of store and object in a head.
fn ids(bytes: &[u8]) -> (u128, u128) {
    let id = |at: usize| bytes[at..].first_chunk().copied().map(u128::from_le_bytes);
    (id(16).expect("a head has it"), id(32).expect("a head has it"))
}
