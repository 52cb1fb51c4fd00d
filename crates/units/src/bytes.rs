//! Amounts of memory, as a person reads them.

use std::fmt;

use serde::{Deserialize, Serialize};

/// An amount of memory, in bytes. Displays in binary units with at most four significant digits.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[repr(transparent)]
pub struct ByteCount(pub u64);

impl ByteCount {
    /// So many MiB.
    #[must_use]
    pub const fn from_mib(mib: u64) -> Self {
        Self(mib << 20)
    }

    /// The amount in MiB, for ratios and tables.
    #[must_use]
    pub fn mib(self) -> f64 {
        self.0 as f64 / f64::from(1 << 20)
    }
}

impl fmt::Display for ByteCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
        let mut amount = self.0 as f64;
        let mut unit = 0;
        while amount >= 1024.0 && unit + 1 < UNITS.len() {
            amount /= 1024.0;
            unit += 1;
        }
        let decimals = if unit == 0 || amount >= 100.0 { 0 } else { 1 };
        f.pad(&format!("{amount:.decimals$} {}", UNITS[unit]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_read_as_a_person_writes_them() {
        let shown = [0, 1023, 1024, 1536, 128 << 20, 5 << 30, 3 << 50];
        let expected = ["0 B", "1023 B", "1.0 KiB", "1.5 KiB", "128 MiB", "5.0 GiB", "3072 TiB"];
        assert_eq!(shown.map(|bytes| ByteCount(bytes).to_string()), expected);
    }
}
