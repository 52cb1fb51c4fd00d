//! Places of memory blocks in the VMM's process. Pure.

use std::collections::{BTreeMap, VecDeque};

use bindery_units::{HostAddress, PAGE_BYTES};
use bindery_vmm::MemoryBlock;

/// A block of guest memory and its place in the VMM's process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacedBlock {
    /// The VMM's name of the block.
    pub name: String,
    /// Address of its first byte, a page's.
    pub address: HostAddress,
    /// Number of pages in use, from its start.
    pub pages: u32,
}

/// Reason for which a block's place is not known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlaceError {
    /// The VMM advised other ranges than it has blocks.
    #[error(
        "the VMM has {blocks} blocks of {bytes} bytes (such as {name:?}) and offered {offered} ranges of \
         that length to be merged, so that it is not known which block is where: start it with memory \
         merging (`-machine mem-merge=on`, QEMU's default), or use QEMU 10, which gives addresses"
    )]
    Ranges {
        /// Name of the first of the blocks.
        name: String,
        /// Length of each, in bytes.
        bytes: u64,
        /// Number of blocks.
        blocks: usize,
        /// Number of ranges.
        offered: usize,
    },
    /// The VMM gave a block a place where no memory can be.
    #[error(
        "the VMM says that block {name:?} has {bytes} bytes at {address}, which no memory block has: is \
         this version of the VMM supported?"
    )]
    Misplaced {
        /// Name of the block.
        name: String,
        /// Bytes in use.
        bytes: u64,
        /// Place that the VMM gave.
        address: HostAddress,
    },
    /// Two blocks are in the same place.
    #[error(
        "the VMM's blocks {one:?} and {other:?} overlap: one of them is not where it is said to be"
    )]
    Overlap {
        /// Name of the lower one.
        one: String,
        /// Name of the other.
        other: String,
    },
}

/// Finds the blocks of a guest in its VMM's process, in the order of `memory`: by the address that the VMM
/// gives, else by the ranges that it `offered` with `MADV_MERGEABLE`, in the order in which it did so.
///
/// QEMU offers each block once it is allocated, with its whole length, which is a multiple of the page size
/// (`ram_block_add`), and lists blocks by length, those of one length in order of creation. So the blocks of
/// one length are, in order, the ranges of that length. A range that is offered again counts once.
///
/// # Errors
/// [`PlaceError`]. Nothing is guessed.
pub fn place_blocks(
    memory: &[MemoryBlock],
    offered: &[(HostAddress, u64)],
) -> Result<Vec<PlacedBlock>, PlaceError> {
    let mut ranges = Ranges::new(memory, offered)?;
    let placed: Vec<PlacedBlock> =
        memory.iter().map(|block| place(block, &mut ranges)).collect::<Result<_, _>>()?;
    check_apart(&placed)?;
    Ok(placed)
}

/// Ranges for blocks without an address, by length.
struct Ranges(BTreeMap<u64, VecDeque<HostAddress>>);

impl Ranges {
    fn new(memory: &[MemoryBlock], offered: &[(HostAddress, u64)]) -> Result<Self, PlaceError> {
        let mut of_length: BTreeMap<u64, Vec<&MemoryBlock>> = BTreeMap::new();
        for block in memory.iter().filter(|block| block.host_address.is_none()) {
            of_length.entry(length(block)).or_default().push(block);
        }
        let mut ranges: BTreeMap<u64, VecDeque<HostAddress>> = BTreeMap::new();
        for (address, bytes) in offered {
            let of_this = ranges.entry(bytes.next_multiple_of(PAGE_BYTES as u64)).or_default();
            if !of_this.contains(address) {
                of_this.push_back(*address);
            }
        }
        for (bytes, blocks) in of_length {
            let found = ranges.get(&bytes).map_or(0, VecDeque::len);
            if found != blocks.len() {
                let (name, blocks) = (blocks[0].name.clone(), blocks.len());
                return Err(PlaceError::Ranges { name, bytes, blocks, offered: found });
            }
        }
        Ok(Self(ranges))
    }

    fn take(&mut self, bytes: u64) -> Option<HostAddress> {
        self.0.get_mut(&bytes)?.pop_front()
    }
}

/// Returns the bytes that the VMM has mapped for a block.
const fn length(block: &MemoryBlock) -> u64 {
    block.total_bytes.next_multiple_of(PAGE_BYTES as u64)
}

fn place(block: &MemoryBlock, ranges: &mut Ranges) -> Result<PlacedBlock, PlaceError> {
    let address = match block.host_address {
        Some(address) => address,
        None => ranges.take(length(block)).expect("there are as many as blocks of that length"),
    };
    let pages = u32::try_from(block.bytes.div_ceil(PAGE_BYTES as u64)).ok();
    let end = pages.and_then(|pages| address.0.checked_add(pages as usize * PAGE_BYTES));
    match (pages, end) {
        (Some(pages), Some(_)) if address.is_page_aligned() && address.0 > 0 => {
            Ok(PlacedBlock { name: block.name.clone(), address, pages })
        }
        _ => {
            let (name, bytes) = (block.name.clone(), block.bytes);
            Err(PlaceError::Misplaced { name, bytes, address })
        }
    }
}

fn check_apart(placed: &[PlacedBlock]) -> Result<(), PlaceError> {
    let mut sorted: Vec<&PlacedBlock> = placed.iter().filter(|block| block.pages > 0).collect();
    sorted.sort_by_key(|block| block.address);
    let overlapping =
        |pair: &&[&PlacedBlock]| pair[0].address.plus_pages(pair[0].pages) > pair[1].address;
    match sorted.windows(2).find(overlapping) {
        None => Ok(()),
        Some(pair) => {
            let [one, other] = [pair[0], pair[1]].map(|block| block.name.clone());
            Err(PlaceError::Overlap { one, other })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn block(name: &str, total_bytes: u64, host_address: Option<HostAddress>) -> MemoryBlock {
        MemoryBlock { name: name.to_owned(), bytes: total_bytes, total_bytes, host_address }
    }

    /// Inserts a block as QEMU does: before the first one that is smaller.
    fn list_by_length(blocks: &[MemoryBlock]) -> Vec<MemoryBlock> {
        let mut listed: Vec<MemoryBlock> = Vec::new();
        for block in blocks {
            let is_smaller = |other: &MemoryBlock| other.total_bytes < block.total_bytes;
            let at = listed.iter().position(is_smaller).unwrap_or(listed.len());
            listed.insert(at, block.clone());
        }
        listed
    }

    proptest! {
        #[test]
        fn blocks_are_found_in_order_of_creation(
            lengths in prop::collection::vec(1_u64..6, 0..20),
            gives_addresses in any::<bool>(),
            again in any::<bool>(),
        ) {
            let mut at = HostAddress(1 << 40);
            let mut offered = Vec::new();
            let blocks: Vec<MemoryBlock> = lengths.iter().enumerate().map(|(number, pages)| {
                let address = at;
                at = at.plus_pages(*pages as u32 + 1);
                offered.push((address, pages * PAGE_BYTES as u64));
                let given = gives_addresses.then_some(address);
                block(&number.to_string(), pages * PAGE_BYTES as u64, given)
            }).collect();
            let expected: Vec<HostAddress> = offered.iter().map(|(address, _)| *address).collect();
            if again {
                // A memory backend advises the kernel once more.
                offered.extend(offered.first().copied());
            }
            let placed = place_blocks(&list_by_length(&blocks), &offered).unwrap();
            prop_assert_eq!(placed.len(), blocks.len());
            for found in placed {
                let number: usize = found.name.parse().unwrap();
                prop_assert_eq!(found.address, expected[number]);
                prop_assert_eq!(u64::from(found.pages), lengths[number]);
            }
        }

        #[test]
        fn a_range_too_many_or_too_few_is_refused(
            lengths in prop::collection::vec(1_u64..4, 1..10),
            (at, adds) in (any::<prop::sample::Index>(), any::<bool>()),
        ) {
            let range = |number: usize| {
                (HostAddress(1 << 40).plus_pages(8 * number as u32), lengths[number] * 4096)
            };
            let mut offered: Vec<_> = (0..lengths.len()).map(range).collect();
            let blocks: Vec<_> = lengths.iter().map(|pages| block("b", pages * 4096, None)).collect();
            let (at, bytes) = (at.index(lengths.len()), offered[at.index(lengths.len())].1);
            if adds {
                offered.push((HostAddress(1 << 30), bytes));
            } else {
                offered.remove(at);
            }
            let error = place_blocks(&list_by_length(&blocks), &offered).unwrap_err();
            let is_ranges = matches!(error, PlaceError::Ranges { bytes: found, .. } if found == bytes);
            prop_assert!(is_ranges, "{}", error);
        }
    }

    #[test]
    fn ranges_of_no_block_do_not_matter() {
        let blocks = [block("ram", 3 * 4096, None)];
        let offered = [(HostAddress(1 << 20), 4096), (HostAddress(1 << 21), 3 * 4096 - 1)];
        assert_eq!(place_blocks(&blocks, &offered).unwrap()[0].address, HostAddress(1 << 21));
    }

    #[test]
    fn the_part_in_use_is_what_is_placed() {
        let used = MemoryBlock { bytes: 4097, ..block("tables", 2 << 20, None) };
        let placed = place_blocks(&[used], &[(HostAddress(1 << 21), 2 << 20)]).unwrap();
        assert_eq!(placed[0].pages, 2);
    }

    #[test]
    fn places_that_cannot_be_are_refused() {
        for address in [0, 4095, usize::MAX - 4095] {
            let error = place_blocks(&[block("ram", 8192, Some(HostAddress(address)))], &[]);
            assert!(matches!(error.unwrap_err(), PlaceError::Misplaced { .. }), "{address:#x}");
        }
        let one = block("one", 8192, Some(HostAddress(1 << 20)));
        let other = block("other", 8192, Some(HostAddress((1 << 20) + 4096)));
        let error = place_blocks(&[other, one], &[]).unwrap_err();
        assert_eq!(error, PlaceError::Overlap { one: "one".into(), other: "other".into() });
    }
}
