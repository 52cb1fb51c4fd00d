//! Names of pools.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// The longest name, in bytes.
pub const LONGEST_NAME: usize = 63;

/// The name of a pool: 1 to [`LONGEST_NAME`] of the letters `A-Z a-z 0-9 . _ -`, the first of them no
/// dot or dash, so that it is a file's name and a word on a command line everywhere.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PoolName(String);

impl PoolName {
    /// Returns the name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for PoolName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(&self.0)
    }
}

/// Something that no pool can be called.
#[derive(Debug, Error, PartialEq, Eq)]
#[error(
    "{0:?} is no name for a pool: take 1 to {LONGEST_NAME} of A-Z a-z 0-9 . _ - and no dot or dash first"
)]
pub struct BadName(pub String);

impl FromStr for PoolName {
    type Err = BadName;

    fn from_str(name: &str) -> Result<Self, BadName> {
        let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        let is_good = (1..=LONGEST_NAME).contains(&name.len())
            && name.bytes().all(is_letter)
            && !name.starts_with(['.', '-']);
        if is_good { Ok(Self(name.into())) } else { Err(BadName(name.into())) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_words_and_files() {
        for good in ["a", "guests", "vm.pool-2_x", &"n".repeat(63)] {
            assert_eq!(good.parse::<PoolName>().unwrap().as_str(), good);
        }
        for bad in ["", ".", "..", "-f", "a/b", "a b", "é", "a\0", &"n".repeat(64)] {
            assert_eq!(bad.parse::<PoolName>().unwrap_err(), BadName(bad.into()));
        }
    }
}
