//! Objects as an object store may give them: any bytes, and any content with right checks. Whatever they say, they
//! are refused or read, and take no more memory than they have.
#![no_main]

use bindery_checkpoint::PushedObject;
use bindery_fuzz::checkpoint::{PushedPack, pushed};
use bindery_fuzz::memory::bounded;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|given: (Vec<u8>, u8, Vec<u128>, PushedPack)| {
    let (bytes, kind, list, pack) = given;
    read(&bytes);
    read(&pushed(kind % 8, &list, &bytes, &[]));
    read(&pack.encode());
});

/// Reads an object. One group is decompressed at a time.
fn read(bytes: &[u8]) {
    let given = bytes.len() + 16 * 4096;
    if let Err(error) = bounded(given, || PushedObject::decode(bytes, None)) {
        assert!(!error.to_string().is_empty());
    }
}
