//! What the records are.

use thiserror::Error;

/// A key's length.
pub const KEY_BYTES: usize = 8;

/// A value's length: YCSB's ten fields of a hundred bytes.
pub const VALUE_BYTES: usize = 1000;

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

    /// Fills `value` with what a record holds after it was written `version` times. Bytes behind the
    /// first sixteen are not compressible.
    pub fn fill(self, record: u64, version: u64, value: &mut [u8; VALUE_BYTES]) {
        let mut state = scatter(record).wrapping_add(scatter(version ^ 0xda7a));
        for chunk in value.chunks_mut(8) {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            chunk.copy_from_slice(&scatter(state).to_le_bytes()[..chunk.len()]);
        }
        value[..8].copy_from_slice(&record.to_le_bytes());
        value[8..16].copy_from_slice(&version.to_le_bytes());
    }

    /// Checks an answer whole, and says which version of the record it is.
    ///
    /// # Errors
    /// [`WrongAnswer`] if it is no version of this record.
    pub fn check(self, record: u64, answer: &[u8]) -> Result<u64, WrongAnswer> {
        let wrong = |what: String| WrongAnswer { record, what };
        let answer: &[u8; VALUE_BYTES] = answer
            .try_into()
            .map_err(|_| wrong(format!("{} bytes, not {VALUE_BYTES}", answer.len())))?;
        let number = |at: usize| {
            u64::from_le_bytes(answer[at..at + 8].try_into().expect("eight bytes are eight"))
        };
        if number(0) != record {
            return Err(wrong(format!("the answer is record {}", number(0))));
        }
        let mut expected = [0; VALUE_BYTES];
        self.fill(record, number(8), &mut expected);
        match expected == *answer {
            true => Ok(number(8)),
            false => Err(wrong(format!("version {} is damaged", number(8)))),
        }
    }
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
        for at in 8..VALUE_BYTES {
            value[at] ^= 1;
            assert!(records.check(7, &value).is_err(), "byte {at}");
            value[at] ^= 1;
        }
    }
}
