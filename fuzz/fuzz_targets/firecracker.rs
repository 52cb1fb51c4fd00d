//! Message of a process that asks for the memory of a microVM: a list of regions, in JSON.
#![no_main]

use bindery_vmm::firecracker::{GuestRegion, decode_regions};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|sent: (u32, &[u8])| {
    let (pages, message) = sent;
    let memory_bytes = u64::from(pages) * 4096;
    let Ok(regions) = decode_regions(message, memory_bytes) else { return };
    assert!(!regions.is_empty());
    for (at, region) in regions.iter().enumerate() {
        let GuestRegion { address, bytes, offset, page_bytes } = *region;
        assert!(bytes > 0 && [4096, 2 << 20].contains(&page_bytes));
        assert!([address, bytes, offset].iter().all(|part| part % page_bytes == 0));
        assert!(offset + bytes <= memory_bytes && address.checked_add(bytes).is_some());
        for other in &regions[at + 1..] {
            assert!(offset + bytes <= other.offset, "ascending, and apart in the file");
            let is_before = address + bytes <= other.address;
            assert!(is_before || other.address + other.bytes <= address, "apart in the process");
        }
    }
});
