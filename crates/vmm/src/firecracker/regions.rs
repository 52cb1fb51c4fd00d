//! Regions of a microVM's memory, as its message says. Pure.

use bindery_units::PAGE_BYTES;
use serde::Deserialize;

/// Longest message, in bytes: some hundred regions.
pub const MESSAGE_BYTES_MAX: usize = 64 << 10;

/// End of what a process may have mapped, with five levels of page tables.
const ADDRESS_END: u64 = 1 << 56;

/// Length of the huge pages that Firecracker can have, in bytes.
const HUGE_PAGE_BYTES: u64 = 2 << 20;

/// Memory of a microVM that lies in one piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuestRegion {
    /// Address in the process.
    pub address: u64,
    /// Length in bytes, whole pages.
    pub bytes: u64,
    /// Start in the memory file, in bytes: a whole page.
    pub offset: u64,
    /// Length of a page in bytes: 4 KiB, or 2 MiB on hugetlbfs.
    pub page_bytes: u64,
}

impl GuestRegion {
    /// Returns true if it is on hugetlbfs.
    pub(super) const fn is_huge(&self) -> bool {
        self.page_bytes == HUGE_PAGE_BYTES
    }

    fn end(&self) -> u64 {
        self.address + self.bytes
    }
}

/// Error of a message.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegionError {
    /// The message is no list of regions.
    #[error("the message is no JSON list of memory regions: {0}")]
    Json(#[from] serde_json::Error),
    /// The list is empty.
    #[error("the message names no memory")]
    Empty,
    /// Address, length or offset of a region make no sense.
    #[error(
        "region {0} is empty, is no whole number of pages, or reaches beyond what can be mapped"
    )]
    Impossible(usize),
    /// Pages of that length are not known.
    #[error(
        "region {number} has pages of {bytes} bytes: known are 4096 and 2097152, the same for all regions"
    )]
    PageSize {
        /// Number of the region, from 0.
        number: usize,
        /// Length of a page.
        bytes: u64,
    },
    /// The region reaches beyond the memory of the checkpoint.
    #[error(
        "region {number} ends at byte {end} of the memory file, which has {memory_bytes}: the microVM was loaded \
         with the state of another snapshot"
    )]
    Outside {
        /// Number of the region, from 0.
        number: usize,
        /// End of the region in the memory file.
        end: u64,
        /// Length of the memory file.
        memory_bytes: u64,
    },
    /// Two regions overlap.
    #[error("two regions overlap, in the process or in the memory file")]
    Overlap,
}

impl RegionError {
    /// Returns true if the message may go on: it is cut off.
    pub(super) fn is_cut_off(&self) -> bool {
        matches!(self, Self::Json(error) if error.is_eof())
    }
}

/// Region as it is sent. Firecracker before 1.11 has no `page_size`; `page_size_kib` is in bytes, too.
#[derive(Deserialize)]
struct Mapping {
    base_host_virt_addr: u64,
    size: u64,
    offset: u64,
    page_size: Option<u64>,
    page_size_kib: Option<u64>,
}

/// Reads a message, and sees to it that its regions lie in a memory file of `memory_bytes` bytes.
///
/// # Errors
/// [`RegionError`].
pub fn decode_regions(message: &[u8], memory_bytes: u64) -> Result<Vec<GuestRegion>, RegionError> {
    let mappings: Vec<Mapping> = serde_json::from_slice(message)?;
    let regions = mappings.iter().enumerate().map(|(number, mapping)| {
        let region = region(number, mapping)?;
        let end = region.offset + region.bytes;
        if end > memory_bytes {
            return Err(RegionError::Outside { number, end, memory_bytes });
        }
        Ok(region)
    });
    let mut regions: Vec<GuestRegion> = regions.collect::<Result<_, _>>()?;
    let page_bytes = regions.first().ok_or(RegionError::Empty)?.page_bytes;
    if let Some(number) = regions.iter().position(|region| region.page_bytes != page_bytes) {
        return Err(RegionError::PageSize { number, bytes: regions[number].page_bytes });
    }
    regions.sort_unstable_by_key(|region| region.offset);
    let overlaps_file =
        regions.windows(2).any(|pair| pair[0].offset + pair[0].bytes > pair[1].offset);
    let mut by_address = regions.clone();
    by_address.sort_unstable_by_key(|region| region.address);
    let overlaps = by_address.windows(2).any(|pair| pair[0].end() > pair[1].address);
    if overlaps || overlaps_file { Err(RegionError::Overlap) } else { Ok(regions) }
}

fn region(number: usize, mapping: &Mapping) -> Result<GuestRegion, RegionError> {
    let Mapping { base_host_virt_addr: address, size: bytes, offset, .. } = *mapping;
    let small = PAGE_BYTES as u64;
    let page_bytes = match (mapping.page_size, mapping.page_size_kib) {
        (Some(bytes), _) => bytes,
        (None, Some(4)) => small,
        (None, Some(2048)) => HUGE_PAGE_BYTES,
        (None, Some(bytes)) => bytes,
        (None, None) => small,
    };
    if ![small, HUGE_PAGE_BYTES].contains(&page_bytes) {
        return Err(RegionError::PageSize { number, bytes: page_bytes });
    }
    let is_whole = [address, bytes, offset].iter().all(|part| part.is_multiple_of(page_bytes));
    let is_mapped = address.checked_add(bytes).is_some_and(|end| end <= ADDRESS_END);
    let is_in_file = offset.checked_add(bytes).is_some();
    if bytes == 0 || !is_whole || !is_mapped || !is_in_file {
        return Err(RegionError::Impossible(number));
    }
    Ok(GuestRegion { address, bytes, offset, page_bytes })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MEMORY: u64 = 1 << 30;

    fn decode(text: &str) -> Result<Vec<GuestRegion>, RegionError> {
        decode_regions(text.as_bytes(), MEMORY)
    }

    #[test]
    fn messages_of_all_versions_are_read() {
        let old = r#"[{"base_host_virt_addr":140500000002048000,"size":1,"offset":0}]"#;
        assert!(matches!(decode(old), Err(RegionError::Impossible(0))));
        let plain = r#"{"base_host_virt_addr":139637976727552,"size":1048576,"offset":4096"#;
        let region = GuestRegion {
            address: 139_637_976_727_552,
            bytes: 1 << 20,
            offset: 4096,
            page_bytes: 4096,
        };
        for more in [
            "",
            r#","page_size_kib":4"#,
            r#","page_size_kib":4096"#,
            r#","page_size":4096,"page_size_kib":4096"#,
            r#","page_size":4096,"page_size_kib":7,"later":{"a":[1]}"#,
        ] {
            assert_eq!(decode(&format!("[{plain}{more}}}]")).unwrap(), [region], "{more}");
        }
        let huge =
            r#"[{"base_host_virt_addr":2097152,"size":2097152,"offset":0,"page_size":2097152}]"#;
        assert_eq!(decode(huge).unwrap()[0].page_bytes, 2 << 20);
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_a_reason() {
        let one = |address: u64, size: u64, offset: u64| {
            format!(r#"{{"base_host_virt_addr":{address},"size":{size},"offset":{offset}}}"#)
        };
        let refused = |regions: &[String], why: &str| {
            let error = decode(&format!("[{}]", regions.join(","))).unwrap_err().to_string();
            assert!(error.contains(why), "{regions:?}: {error}");
        };
        refused(&[], "no memory");
        refused(&["{}".into()], "missing field");
        refused(&[one(4096, 0, 0)], "empty");
        refused(&[one(4095, 4096, 0)], "whole number");
        refused(&[one(4096, 4096, 1)], "whole number");
        refused(&[one(u64::MAX - 4095, 8192, 0)], "beyond");
        refused(&[one(4096, 4096, u64::MAX - 4095)], "beyond");
        refused(&[one(4096, 8192, MEMORY - 4096)], "another snapshot");
        refused(&[one(4096, 8192, 0), one(8192, 4096, 8192)], "overlap");
        refused(&[one(4096, 8192, 0), one(1 << 20, 4096, 4096)], "overlap");
        let sized = |bytes: u64| {
            let (address, size) = (2 << 20, 2 << 20);
            format!(
                r#"{{"base_host_virt_addr":{address},"size":{size},"offset":0,"page_size":{bytes}}}"#
            )
        };
        refused(&[sized(8192)], "pages of 8192");
        refused(&[sized(0)], "pages of 0");
        refused(&[one(8 << 20, 4096, 4 << 20), sized(2 << 20)], "the same for all");
        for text in ["", "[", "7", "null", "{}", "[1]", "[[]]", "\u{0}"] {
            assert!(matches!(decode(text), Err(RegionError::Json(_))), "{text}");
        }
        assert!(decode("[{\"base").unwrap_err().is_cut_off());
        assert!(!decode("[}").unwrap_err().is_cut_off());
    }

    proptest! {
        /// Whatever the numbers, regions that are taken lie apart and within bounds.
        #[test]
        fn regions_that_are_taken_are_sound(
            numbers in prop::collection::vec((0..40u64, 0..12u64, 0..40u64, 0..20u8), 0..6)
        ) {
            let text: Vec<String> = numbers.iter().map(|(address, bytes, offset, odd)| {
                let far = if *odd == 0 { u64::MAX - (MEMORY - 1) } else { 0 };
                format!(
                    r#"{{"base_host_virt_addr":{},"size":{},"offset":{}}}"#,
                    address * 4096 + far, bytes * 4096, offset * 4096 + far,
                )
            }).collect();
            if let Ok(regions) = decode(&format!("[{}]", text.join(","))) {
                prop_assert_eq!(regions.len(), numbers.len());
                for (at, one) in regions.iter().enumerate() {
                    prop_assert!(one.bytes > 0 && one.offset + one.bytes <= MEMORY);
                    for other in &regions[at + 1..] {
                        prop_assert!(one.offset + one.bytes <= other.offset);
                        prop_assert!(one.end() <= other.address || other.end() <= one.address);
                    }
                }
            }
        }
    }
}
