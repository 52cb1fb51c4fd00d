//! What the records are.

use std::ops::Range;

use thiserror::Error;

/// A key's length.
pub const KEY_BYTES: usize = 8;

/// Fields of a record (YCSB: `fieldcount`).
pub(crate) const FIELDS: usize = 10;

/// A field's length (YCSB: `fieldlength`).
const FIELD_BYTES: usize = 100;

/// A value's length.
pub const VALUE_BYTES: usize = FIELDS * FIELD_BYTES;

/// What the first field gives up to say whose record it is, and the version that was written last.
const HEADER_BYTES: usize = 16;

/// The records of a data set, numbered from zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Records {
    /// How many there are.
    pub count: u64,
}

/// A store answered with what was never written, or forgot.
#[derive(Debug, Error)]
#[error("record {record}: {what}")]
pub struct WrongAnswer {
    /// Which record was asked for.
    pub record: u64,
    /// What was wrong with the answer.
    pub what: String,
}

/// The finalizer of SplitMix64: one to one, so that no two records share a key.
pub(crate) const fn scatter(mut number: u64) -> u64 {
    number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

impl Records {
    /// The key of a record. Keys are in no order of their records (YCSB: `insertorder=hashed`).
    #[must_use]
    pub const fn key(self, record: u64) -> [u8; KEY_BYTES] {
        scatter(record + 1).to_be_bytes()
    }

    /// All keys with their records, in the order of the keys. Takes 16 bytes a record.
    #[must_use]
    pub fn sorted(self) -> Vec<([u8; KEY_BYTES], u64)> {
        let mut keys: Vec<_> = (0..self.count).map(|record| (self.key(record), record)).collect();
        keys.sort_unstable();
        keys
    }

    /// Fills `value` with what a record holds after all its fields were written as a version. Bytes behind
    /// the versions are not compressible.
    pub fn fill(self, record: u64, version: u64, value: &mut [u8; VALUE_BYTES]) {
        value[..8].copy_from_slice(&record.to_le_bytes());
        (0..FIELDS).for_each(|field| self.change(record, field, version, value));
    }

    /// Writes one field of a record's value.
    ///
    /// # Panics
    /// If there is no such field.
    pub fn change(self, record: u64, field: usize, version: u64, value: &mut [u8; VALUE_BYTES]) {
        value[8..HEADER_BYTES].copy_from_slice(&version.to_le_bytes());
        fill_field(record, field, version, &mut value[place(field)]);
    }

    /// Checks an answer whole, and says which version of the record was written last.
    ///
    /// # Errors
    /// [`WrongAnswer`] if nobody can have written this.
    pub fn check(self, record: u64, answer: &[u8]) -> Result<u64, WrongAnswer> {
        let wrong = |what: String| WrongAnswer { record, what };
        let answer: &[u8; VALUE_BYTES] = answer
            .try_into()
            .map_err(|_| wrong(format!("{} bytes, not {VALUE_BYTES}", answer.len())))?;
        if number(answer, 0) != record {
            return Err(wrong(format!("the answer is record {}", number(answer, 0))));
        }
        let newest = number(answer, 8);
        let mut is_newest_there = false;
        for field in 0..FIELDS {
            let found = &answer[place(field)];
            let version = number(found, 0);
            is_newest_there |= version == newest;
            let mut expected = [0; FIELD_BYTES];
            let expected = &mut expected[..found.len()];
            fill_field(record, field, version, expected);
            if *expected != *found {
                return Err(wrong(format!("version {version} of field {field} is damaged")));
            }
        }
        match is_newest_there {
            true => Ok(newest),
            false => Err(wrong(format!("no field is of the last version, {newest}"))),
        }
    }
}

/// Where a field lies in a value.
fn place(field: usize) -> Range<usize> {
    let start = field * FIELD_BYTES;
    start.max(HEADER_BYTES)..start + FIELD_BYTES
}

/// Fills a field with its version, and noise that no other field, record or version has.
fn fill_field(record: u64, field: usize, version: u64, bytes: &mut [u8]) {
    let (head, noise) = bytes.split_at_mut(8);
    head.copy_from_slice(&version.to_le_bytes());
    let mut state = scatter(record * FIELDS as u64 + field as u64);
    state = state.wrapping_add(scatter(version ^ 0xda7a));
    for chunk in noise.chunks_mut(8) {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        chunk.copy_from_slice(&scatter(state).to_le_bytes()[..chunk.len()]);
    }
}

/// The number at a place.
fn number(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes are eight"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_differ_and_answers_are_told_apart() {
        let records = Records { count: 1_000 };
        let sorted = records.sorted();
        assert!(sorted.windows(2).all(|pair| pair[0].0 < pair[1].0));
        let mut value = [0; VALUE_BYTES];
        records.fill(7, 3, &mut value);
        assert_eq!(records.check(7, &value).unwrap(), 3);
        assert!(records.check(8, &value).unwrap_err().to_string().contains("record 7"));
        assert!(records.check(7, &value[1..]).is_err());
        for at in 0..VALUE_BYTES {
            value[at] ^= 1;
            assert!(records.check(7, &value).is_err(), "byte {at}");
            value[at] ^= 1;
        }
    }

    #[test]
    fn a_field_is_written_by_itself() {
        let records = Records { count: 1_000 };
        let mut value = [0; VALUE_BYTES];
        records.fill(7, 0, &mut value);
        for (field, version) in (0..FIELDS).zip(3..) {
            let before = value;
            records.change(7, field, version, &mut value);
            assert_eq!(records.check(7, &value).unwrap(), version);
            let is_other = |at: &usize| !place(field).contains(at) && *at >= HEADER_BYTES;
            assert!((0..VALUE_BYTES).filter(is_other).all(|at| value[at] == before[at]));
            assert_ne!(value[place(field)], before[place(field)]);
            // A field in the place of another.
            let mut strayed = value;
            strayed.copy_within(300..400, 200);
            assert!(records.check(7, &strayed).is_err());
        }
    }
}
