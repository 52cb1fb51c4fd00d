//! What is written is read back, and nothing else is taken for it.

use proptest::prelude::*;

use super::*;

fn header(part: u32, length_bytes: u64, part_bytes: u64) -> Header {
    Header {
        pool: Uuid::from_u128(0x1234),
        object: ObjectId(0xabcd),
        part,
        layout: Layout { length_bytes, part_bytes },
        digest: Digest([7; 32]),
        writer: "host".into(),
        table_checksum: 3,
    }
}

/// The bytes themselves, so that nobody changes the format by accident.
#[test]
fn the_format_is_what_the_documentation_says() {
    let bytes = header(1, 0x9001, 0x8000).encode();
    let mut expected = Vec::new();
    expected.extend_from_slice(b"BINDARC\0\x01\0\0\0\x01\0\0\0");
    expected.extend_from_slice(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x12, 0x34]);
    expected.extend_from_slice(&[0xcd, 0xab, 0, 0, 0, 0, 0, 0, 0x01, 0x90, 0, 0, 0, 0, 0, 0]);
    expected.extend_from_slice(&[0, 0x80, 0, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 3, 0, 0, 0]);
    expected.extend_from_slice(&[7; 32]);
    expected.extend_from_slice(b"host");
    expected.resize(252, 0);
    assert_eq!(bytes[..252], expected);
    assert_eq!(bytes[252..], crc32c([&expected]).to_le_bytes());
    // Castagnoli's CRC of 32 zeros, RFC 3720 B.4; a unit's goes over its place first.
    assert_eq!(crc32c([&[0; 32]]), 0x8a91_36aa);
    assert_eq!(unit_checksum(Uuid::nil(), ObjectId(0), 0, &[]), 0x8a91_36aa);
}

#[test]
fn impossible_layouts_are_refused() {
    for (part, length_bytes, part_bytes) in [
        (0, 10, 0),
        (0, 10, 100),
        (0, 10, MAX_PART_BYTES + UNIT_BYTES as u64),
        (0, MAX_LENGTH_BYTES + 1, 4096),
        (1, 0, 4096),
        (1, 4096, 4096),
        (2, 4097, 4096),
        (u32::MAX, u64::MAX, 4096),
    ] {
        let bytes = header(part, length_bytes, part_bytes).encode();
        let error = Header::decode(&bytes).unwrap_err();
        assert!(matches!(error, FormatError::Impossible { .. }), "{error}");
    }
}

#[test]
fn later_formats_are_told_from_damage() {
    let mut bytes = header(0, 10, 4096).encode();
    bytes[8] = 2;
    assert!(matches!(Header::decode(&bytes), Err(FormatError::Checksum { .. })));
    let checksum = crc32c([&bytes[..CHECKSUM_AT]]);
    bytes[CHECKSUM_AT..].copy_from_slice(&checksum.to_le_bytes());
    assert_eq!(Header::decode(&bytes), Err(FormatError::Newer(2)));
}

#[test]
fn long_names_of_writers_are_cut_between_letters() {
    for (writer, kept) in
        [("x".repeat(100), 64), ("é".repeat(40), 64), (format!("x{}", "é".repeat(40)), 63)]
    {
        let header = Header { writer: writer.clone(), ..header(0, 10, 4096) };
        let read = Header::decode(&header.encode()).unwrap().writer;
        assert_eq!((read.len(), writer.starts_with(&read)), (kept, true));
    }
}

proptest! {
    /// Parts cover every unit of an object once, in order, and each is as long as it says.
    #[test]
    fn parts_cover_the_object(length_bytes in 0_u64..1 << 20, units_each in 1_u64..50) {
        let layout = Layout { length_bytes, part_bytes: units_each * 4096 };
        let units: Vec<u64> = (0..layout.parts()).flat_map(|part| layout.units_of(part)).collect();
        prop_assert_eq!(units, (0..length_bytes.div_ceil(4096)).collect::<Vec<_>>());
        let stored: u64 = (0..layout.parts()).map(|part| layout.stored_bytes(part)).sum();
        let units = layout.units();
        prop_assert_eq!(stored, units * 4100 + u64::from(layout.parts()) * 256);
    }

    #[test]
    fn headers_are_read_back(
        pool: u128, object: u64, digest: [u8; 32], table_checksum: u32, writer in "[a-z]{0,64}",
        length_bytes in 0..=MAX_LENGTH_BYTES, units_each in 1..=MAX_PART_BYTES / 4096, part: u32,
    ) {
        let layout = Layout { length_bytes, part_bytes: units_each * 4096 };
        let header = Header {
            pool: Uuid::from_u128(pool), object: ObjectId(object), part: part % layout.parts(),
            layout, digest: Digest(digest), writer, table_checksum,
        };
        prop_assert_eq!(Header::decode(&header.encode()), Ok(header));
    }

    /// No bit of a header may turn unnoticed, and no bytes make it panic.
    #[test]
    fn damage_is_found(bit in 0_usize..HEADER_BYTES * 8, noise: Vec<u8>) {
        let mut bytes = header(0, 9000, 4096).encode();
        bytes[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(Header::decode(&bytes).is_err());
        prop_assert!(Header::decode(&noise).is_err());
    }

    #[test]
    fn tables_are_read_back(checksums: Vec<u32>, cut: prop::sample::Index) {
        let table = encode_table(&checksums);
        let header = Header {
            table_checksum: crc32c([&table]),
            ..header(0, checksums.len() as u64 * 4096, 4096)
        };
        let bytes = [&header.encode()[..], &table, b"content"].concat();
        prop_assert_eq!(decode_table(&header, &bytes), Ok(checksums));
        let cut = cut.index(HEADER_BYTES + table.len());
        if !table.is_empty() {
            prop_assert!(decode_table(&header, &bytes[..cut]).is_err());
        }
    }
}
