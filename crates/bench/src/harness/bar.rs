//! Bars: what a contender is held to, as ratios within a run.

use serde::Serialize;

use super::{Table, significant};

/// One bar.
#[derive(Clone, Debug, Serialize)]
pub struct Bar {
    /// Names of what is compared.
    pub name: String,
    /// Ratio or figure that was found; not a number if there was nothing to compare.
    pub found: f64,
    /// Bound on it.
    pub wanted: f64,
    /// True if the bound is a lower one.
    pub at_least: bool,
}

impl Bar {
    /// Returns a bar of which `found` must be `wanted` or more.
    #[must_use]
    pub fn at_least(name: impl Into<String>, found: f64, wanted: f64) -> Self {
        Self { name: name.into(), found, wanted, at_least: true }
    }

    /// Returns a bar of which `found` must be `wanted` or less.
    #[must_use]
    pub fn at_most(name: impl Into<String>, found: f64, wanted: f64) -> Self {
        Self { name: name.into(), found, wanted, at_least: false }
    }

    /// Returns true if the contender is as good as it must be.
    #[must_use]
    pub fn is_met(&self) -> bool {
        if self.at_least { self.found >= self.wanted } else { self.found <= self.wanted }
    }

    /// Lists bars and marks those that are not met.
    #[must_use]
    pub fn table(bars: &[Self]) -> Table {
        let mut table = Table::new("bars", &["", "found", "wanted", ""]);
        for bar in bars {
            let bound = if bar.at_least { "≥ " } else { "≤ " };
            let wanted = bound.to_owned() + &significant(bar.wanted);
            let met = if bar.is_met() { "met" } else { "NOT met" }.to_owned();
            table.push(vec![bar.name.clone(), significant(bar.found), wanted, met]);
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_met_when_reached() {
        assert!(Bar::at_least("", 1.0, 1.0).is_met() && Bar::at_most("", 1.0, 1.0).is_met());
        assert!(!Bar::at_least("", 0.9, 1.0).is_met() && !Bar::at_most("", 1.1, 1.0).is_met());
        assert!(!Bar::at_least("", f64::NAN, 1.0).is_met());
        assert!(!Bar::at_most("", f64::NAN, 1.0).is_met());
        let table = Bar::table(&[Bar::at_most("a", 2.0, 1.05), Bar::at_least("b", 3.0, 2.0)]);
        assert_eq!(table.rows[0], ["a", "2.00", "≤ 1.05", "NOT met"]);
        assert_eq!(table.rows[1], ["b", "3.00", "≥ 2.00", "met"]);
    }
}
