//! Names of guests, checkpoints and domains.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// Longest name, in bytes.
pub const LONGEST_NAME: usize = 127;

/// Name of a guest, a checkpoint or a domain: 1 to [`LONGEST_NAME`] bytes of UTF-8 without control
/// characters, white space, `@` and `/`, so that `guest@name` is one word and a part of a path.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(String);

impl Name {
    /// Returns the name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(&self.0)
    }
}

/// Text that is no name.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error(
    "{0:?} is no name: take 1 to {LONGEST_NAME} bytes without white space, control characters, @ and /, \
     and no dot or dash first"
)]
pub struct BadName(pub String);

impl FromStr for Name {
    type Err = BadName;

    fn from_str(name: &str) -> Result<Self, BadName> {
        let is_bad = |letter: char| {
            letter.is_control() || letter.is_whitespace() || matches!(letter, '@' | '/')
        };
        let is_good = (1..=LONGEST_NAME).contains(&name.len())
            && !name.contains(is_bad)
            && !name.starts_with(['.', '-']);
        if is_good { Ok(Self(name.into())) } else { Err(BadName(name.into())) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_words_and_parts_of_paths() {
        for good in ["a", "web-1", "2026-11-29T08:42:28Z", "gäste", &"n".repeat(127)] {
            assert_eq!(good.parse::<Name>().unwrap().as_str(), good);
        }
        for bad in ["", ".", "..", "-f", "a/b", "a b", "a@b", "a\0", "a\u{a0}", &"n".repeat(128)] {
            assert_eq!(bad.parse::<Name>().unwrap_err(), BadName(bad.into()));
        }
    }
}
