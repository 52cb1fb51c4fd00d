//! A stream of a checkpoint: any bytes, and any chunks with right checks: what is imported is whole, of what is
//! refused nothing is left; heads that are decoded are encoded to the same bytes.
#![no_main]

use bindery_checkpoint::{ChunkHead, Description, MemoryBlock, StreamHead, Vmm};
use bindery_fuzz::checkpoint::{Stream, import};
use bindery_fuzz::memory::bounded;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|given: (Vec<u8>, Stream, bool)| {
    let (bytes, stream, is_described) = given;
    if let Ok(head) = bounded(bytes.len(), || StreamHead::decode(&bytes)) {
        assert!(bytes.starts_with(&head.encode()));
    }
    if let Ok(head) = bounded(bytes.len(), || ChunkHead::decode(&bytes)) {
        assert!(bytes.starts_with(&head.encode()));
    }
    let description = if is_described { described() } else { bytes };
    import(&stream.encode(&description));
});

/// A guest with two memory blocks.
fn described() -> Vec<u8> {
    let name = |text: &str| text.parse().expect("it is a name");
    let block = |name: &str, pages: u64| MemoryBlock { name: name.into(), bytes: pages * 4096 };
    let description = Description {
        guest: name("one"),
        name: name("a"),
        domain: name("web"),
        time_ns: 0,
        vmm: Vmm::default(),
        blocks: vec![block("ram", 60), block("rom", 3)],
        disks: Vec::new(),
        device_state: vec![1, 2, 3],
    };
    description.encode()
}
