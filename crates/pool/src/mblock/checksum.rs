//! Checksums of an object's units, bound to the object and to the unit's place in it.

use crate::crc::crc32c;
use crate::{BLOCK_BYTES, ObjectId, UNIT_BYTES};

/// The checksum of one unit: CRC-32C over the object's id, the unit's number, and its bytes, so that
/// a unit of another object, or of another place, does not pass for it.
#[must_use]
pub fn unit_checksum(object: ObjectId, unit: u64, bytes: &[u8]) -> u32 {
    crc32c([&object.0.to_le_bytes(), &unit.to_le_bytes(), bytes])
}

/// The checksum of a table of checksums: over the object's id and the table.
#[must_use]
pub(crate) fn table_checksum(object: ObjectId, table: &[u8]) -> u32 {
    crc32c([&object.0.to_le_bytes(), table])
}

/// Returns the number of units that so many bytes have, the last of them perhaps in part.
#[must_use]
pub(crate) const fn units_in(bytes: u64) -> u64 {
    bytes.div_ceil(UNIT_BYTES as u64)
}

/// Returns the bytes that the checksums of so many bytes take on a device.
pub(crate) const fn table_bytes(length_bytes: u64) -> u64 {
    (units_in(length_bytes) * size_of::<u32>() as u64).next_multiple_of(BLOCK_BYTES as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_of_another_place_does_not_pass() {
        let unit = [7; UNIT_BYTES];
        let here = unit_checksum(ObjectId(20), 3, &unit);
        assert_ne!(here, unit_checksum(ObjectId(20), 4, &unit));
        assert_ne!(here, unit_checksum(ObjectId(21), 3, &unit));
        assert_eq!(here, crc32c([&20_u64.to_le_bytes(), &3_u64.to_le_bytes(), &unit]));
    }
}
