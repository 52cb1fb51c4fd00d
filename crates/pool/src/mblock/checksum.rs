//! Checksums of an object's units, bound to the object and to the unit's place in it.

use crc_fast::{CrcAlgorithm, Digest};

use crate::{ObjectId, UNIT_BYTES};

/// CRC-32C of what had the checksum `before`, and of these bytes behind it.
///
/// By carry-less multiplication where the processor has that: of 4 KiB, a multiple of the speed of the
/// instruction that computes CRC-32C alone, with which objects were written at a third of what the
/// device took. Takes no lock and allocates nothing once it was called.
fn append(before: u32, bytes: &[u8]) -> u32 {
    // The register of CRC-32C begins, and comes out, inverted.
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(!before));
    digest.update(bytes);
    u32::try_from(digest.finalize()).expect("CRC-32C has 32 bits")
}

/// The checksum of one unit: CRC-32C over the object's id, the unit's number, and its bytes, so that
/// a unit of another object, or of another place, does not pass for it.
#[must_use]
pub fn unit_checksum(object: ObjectId, unit: u64, bytes: &[u8]) -> u32 {
    let mut place = [0; 16];
    place[..8].copy_from_slice(&object.0.to_le_bytes());
    place[8..].copy_from_slice(&unit.to_le_bytes());
    append(crc32c::crc32c(&place), bytes)
}

/// The checksum of a table of checksums: over the object's id and the table.
#[must_use]
pub(crate) fn table_checksum(object: ObjectId, table: &[u8]) -> u32 {
    append(crc32c::crc32c(&object.0.to_le_bytes()), table)
}

/// How many units so many bytes have, the last of them perhaps in part.
#[must_use]
pub(crate) const fn units_in(bytes: u64) -> u64 {
    bytes.div_ceil(UNIT_BYTES as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn checksums_go_on_as_crc32c_does(
            before in any::<u32>(),
            bytes in proptest::collection::vec(any::<u8>(), 0..2 * UNIT_BYTES),
        ) {
            prop_assert_eq!(append(before, &bytes), crc32c::crc32c_append(before, &bytes));
        }
    }

    #[test]
    fn a_unit_of_another_place_does_not_pass() {
        let unit = [7; UNIT_BYTES];
        let here = unit_checksum(ObjectId(20), 3, &unit);
        assert_ne!(here, unit_checksum(ObjectId(20), 4, &unit));
        assert_ne!(here, unit_checksum(ObjectId(21), 3, &unit));
        assert_eq!(
            here,
            crc32c::crc32c(&[&20_u64.to_le_bytes()[..], &3_u64.to_le_bytes(), &unit].concat())
        );
    }
}
