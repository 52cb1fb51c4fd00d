//! A superblock: what is decoded is encoded and decoded to the same, whatever its bytes, and nothing
//! that was not written passes for one.
#![no_main]

use bindery_fuzz::damage::make_right;
use bindery_fuzz::memory::bounded;
use bindery_pool::BLOCK_BYTES;
use bindery_pool::format::superblock::{NoSuperblock, Superblock, VERSION};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|given: (bool, bool, &[u8])| {
    let (copy, is_forged, bytes) = (u8::from(given.0), given.1, given.2);
    let mut block = [0; BLOCK_BYTES];
    let length = bytes.len().min(BLOCK_BYTES);
    block[..length].copy_from_slice(&bytes[..length]);
    if is_forged {
        block[..8].copy_from_slice(b"BndrPool");
        make_right(&mut block);
    }
    match bounded(BLOCK_BYTES, || Superblock::decode(copy, &block)) {
        Ok(superblock) => check(copy, &superblock),
        Err(NoSuperblock::Newer { version }) => assert!(version > VERSION),
        Err(NoSuperblock::Absent) => assert!(!is_forged),
        Err(error) => assert_eq!(error, NoSuperblock::Damaged),
    }
});

fn check(copy: u8, superblock: &Superblock) {
    assert_eq!(superblock.copy, copy);
    assert!(superblock.entry().is_some());
    let mut block = [0xa5; BLOCK_BYTES];
    superblock.encode(&mut block);
    assert_eq!(Superblock::decode(copy, &block).as_ref(), Ok(superblock));
    assert_eq!(Superblock::decode(1 - copy, &block), Err(NoSuperblock::Damaged));
    block[100] ^= 1;
    assert_eq!(Superblock::decode(copy, &block), Err(NoSuperblock::Damaged));
}
