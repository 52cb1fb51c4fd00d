//! A stream of a migration: any bytes, and any frames with lengths that fit: decoded, encoded again to the same bytes,
//! applied to a memory that nothing leaves.
#![no_main]

use bindery_fuzz::migration::{Frames, apply, encode_again};
use bindery_migration::format::Hello;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|given: (Vec<u8>, Frames)| {
    let (bytes, frames) = given;
    if let Some(Ok(hello)) = bytes.first_chunk().map(Hello::decode) {
        assert_eq!(Hello::decode(&hello.encode()), Ok(hello));
    }
    for stream in [&bytes, &frames.encode()] {
        encode_again(stream);
        apply(stream);
    }
});
