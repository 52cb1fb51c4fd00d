//! What is said again and again: the first of each kind, then ever more rarely.
//!
//! Programs offer all sorts of memory that cannot be taken, and do all sorts of things for which memory has
//! to be given back, some of them a thousand times a second.

use std::collections::BTreeMap;
use std::fmt::Display;

use super::log;

/// Number of kinds that are told apart. Beyond, all are one more kind.
const KINDS_MAX: usize = 64;

/// How often what was said, by kind.
#[derive(Debug, Default)]
pub(super) struct Repeats {
    counts: BTreeMap<String, u64>,
}

impl Repeats {
    /// Counts a message, and logs it if it is the first of its kind, the tenth, the hundredth, ….
    pub(super) fn note(&mut self, kind: String, message: impl Display) {
        match self.count(kind) {
            1 => log::say(format_args!("{message}")),
            count if is_power_of_ten(count) => {
                log::say(format_args!("{message}, as {} before it", count - 1));
            }
            _ => {}
        }
    }

    /// Counts one more of a kind, and returns how many there were.
    fn count(&mut self, kind: String) -> u64 {
        let known = self.counts.len() < KINDS_MAX || self.counts.contains_key(&kind);
        let count = self.counts.entry(if known { kind } else { String::new() }).or_default();
        *count += 1;
        *count
    }
}

const fn is_power_of_ten(mut count: u64) -> bool {
    while count.is_multiple_of(10) && count > 0 {
        count /= 10;
    }
    count == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_of_ten_are_said() {
        let said: Vec<u64> = (0..=1000).filter(|count| is_power_of_ten(*count)).collect();
        assert_eq!(said, [1, 10, 100, 1000]);
    }

    #[test]
    fn kinds_are_bounded() {
        let mut repeats = Repeats::default();
        for kind in 0..1000 {
            repeats.count(kind.to_string());
        }
        assert_eq!(repeats.counts.len(), KINDS_MAX + 1);
        assert_eq!(repeats.count("5".into()), 2);
    }
}
