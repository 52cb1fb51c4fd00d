//! An object in the archive: its header and table from any bytes, and its parts as they become: what is
//! read is what was stored, or an error names the key.
#![no_main]

use bindery_fuzz::archive::{Script, forge, store};
use bindery_fuzz::memory::bounded;
use bindery_pool::archive::{HEADER_BYTES, Header, decode_table, encode_table};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|given: (Vec<u8>, Script)| {
    let (mut bytes, script) = given;
    decode(&bytes);
    // As a hostile hand writes it.
    let magic = *b"BINDARC\0";
    forge(&mut bytes, 0, &magic);
    decode(&bytes);
    store(&script);
});

/// What is decoded is encoded to the same.
fn decode(bytes: &[u8]) {
    let Ok(header) = bounded(bytes.len(), || Header::decode(bytes)) else { return };
    let again = header.encode();
    assert_eq!(Header::decode(&again).as_ref(), Ok(&header));
    if let Ok(table) = bounded(bytes.len(), || decode_table(&header, bytes)) {
        let stored = &bytes[HEADER_BYTES..];
        assert!(stored.starts_with(&encode_table(&table)));
    }
}
