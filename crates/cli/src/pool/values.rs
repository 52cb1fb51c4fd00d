//! Sizes, classes and ids on the command line.

use std::time::Duration;

use bindery_pool::{BLOCK_BYTES, MediaClass, ObjectId};

/// Returns a pool's id as it is remembered and shown.
pub(super) fn id_text(id: u128) -> String {
    format!("{id:032x}")
}

/// A length in bytes, of whole blocks: `4096`, `64K`, `512MiB`, `2T`.
pub(super) fn parse_size(text: &str) -> Result<u64, String> {
    const WRONG: &str = "a size is a number of bytes, or one with K, M, G or T: 512M, 20G";
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let shift = match unit {
        "" => 0,
        "K" | "k" | "KiB" => 10,
        "M" | "MiB" => 20,
        "G" | "GiB" => 30,
        "T" | "TiB" => 40,
        _ => return Err(WRONG.into()),
    };
    let number: u64 = number.parse().map_err(|_| WRONG)?;
    // Files cannot be longer (`loff_t`).
    let bytes = number.checked_mul(1 << shift).filter(|bytes| *bytes <= i64::MAX as u64);
    let bytes = bytes.ok_or("that is more than a file can have")?;
    let block = BLOCK_BYTES as u64;
    match bytes.next_multiple_of(block) {
        0 => Err("that is nothing: take at least a few megabytes".into()),
        whole if whole == bytes => Ok(bytes),
        above => {
            let below = above - block;
            Err(format!("no multiple of the block of {block} bytes: take {below} or {above}"))
        }
    }
}

/// Parses an age: `30s`, `5m`, `12h`, `7d`.
pub(super) fn parse_age(text: &str) -> Result<Duration, String> {
    const WRONG: &str = "a time is a number with s, m, h or d: 30s, 12h, 7d";
    let (number, unit) = text.split_at_checked(text.len().saturating_sub(1)).ok_or(WRONG)?;
    let seconds = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 60 * 60,
        "d" => 24 * 60 * 60,
        _ => return Err(WRONG.into()),
    };
    let number: u32 = number.parse().map_err(|_| WRONG)?;
    Ok(Duration::from_secs(u64::from(number) * seconds))
}

/// Parses an id as `put` printed it: `0x1f`; or the same number in decimal.
pub(super) fn parse_id(text: &str) -> Result<ObjectId, String> {
    let number = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    let wrong = |_| "an object's id is a number as `bindery pool objects` shows it: 0x1f".into();
    number.map(ObjectId).map_err(wrong)
}

/// A class that objects are made in.
pub(super) fn parse_class(text: &str) -> Result<MediaClass, String> {
    match text.parse() {
        Ok(MediaClass::Archive) | Err(_) => Err("objects are made in capacity or staging".into()),
        Ok(class) => Ok(class),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_whole_blocks() {
        let sizes = [("4096", 4096), ("64K", 64 << 10), ("512MiB", 512 << 20), ("20G", 20 << 30)];
        for (text, bytes) in sizes {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for wrong in ["", "0", "G", "-1G", "1.5G", "1P", "9999999T", "1 G", "8388608T"] {
            assert!(parse_size(wrong).is_err(), "{wrong}");
        }
        let ragged = parse_size("1000001").unwrap_err();
        assert!(ragged.contains("999424") && ragged.contains("1003520"), "{ragged}");
    }

    #[test]
    fn ages_have_a_unit() {
        let ages = [("0s", 0), ("30s", 30), ("5m", 300), ("12h", 43_200), ("7d", 604_800)];
        for (text, seconds) in ages {
            assert_eq!(parse_age(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for wrong in ["", "s", "7", "-1s", "1.5h", "1w", "5 m", "5µ", "9999999999s"] {
            assert!(parse_age(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn ids_are_numbers() {
        assert_eq!(parse_id("0x1f"), Ok(ObjectId(31)));
        assert_eq!(parse_id("31"), Ok(ObjectId(31)));
        for wrong in ["", "0x", "x", "-1", "0x10000000000000000", "1f"] {
            assert!(parse_id(wrong).is_err(), "{wrong}");
        }
    }
}
