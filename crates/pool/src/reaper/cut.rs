//! Choice of the pages that go: pure arithmetic over the numbers of pages of each temperature and frequency.

use super::law::Law;
use crate::map::{FREQUENCIES, Temperature};

/// Pages in memory, by temperature and frequency.
pub(super) type Counts = [[u64; FREQUENCIES]; Temperature::ALL.len()];

/// No page of any temperature.
pub(super) const NO_PAGES: Counts = [[0; FREQUENCIES]; Temperature::ALL.len()];

/// Frequency up to which pages go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Cut {
    /// Frequency below which all pages go, for each temperature.
    below: [usize; Temperature::ALL.len()],
    /// The temperature of which, at that very frequency, some go; and how many.
    partial: Option<(Temperature, u64)>,
}

impl Cut {
    /// So many pages go. A warm one counts as if it were accessed ten times as often as it is, and a hot
    /// one a hundred times, by the law's factors; pinned ones stay.
    pub(super) fn of(counts: &Counts, law: &Law, missing_pages: u64) -> Self {
        let factors = [
            (Temperature::Cold, 1),
            (Temperature::Warm, law.warm_factor),
            (Temperature::Hot, law.hot_factor),
        ];
        let ranks = |(temperature, factor): (Temperature, u32)| {
            (0..FREQUENCIES)
                .map(move |level| ((level as u64 + 1) * u64::from(factor), temperature, level))
        };
        let mut ranks: Vec<_> = factors.into_iter().flat_map(ranks).collect();
        ranks.sort_unstable();
        let (mut cut, mut left) = (Self::default(), missing_pages);
        for (_, temperature, level) in ranks {
            let count = counts[temperature as usize][level];
            if count > left {
                cut.partial = Some((temperature, left));
                break;
            }
            left -= count;
            cut.below[temperature as usize] = level + 1;
        }
        cut
    }

    /// Returns the frequency below which all pages of a temperature go.
    pub(super) const fn below(&self, temperature: Temperature) -> usize {
        self.below[temperature as usize]
    }

    /// Returns the number of pages of a temperature that go at the frequency [`below`](Self::below).
    pub(super) fn at(&self, temperature: Temperature) -> u64 {
        self.partial.filter(|(of, _)| *of == temperature).map_or(0, |(_, pages)| pages)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn as_many_go_as_are_missing_and_none_is_colder_than_one_that_stays(
            pages in prop::collection::vec((0..4usize, 0..FREQUENCIES), 0..200),
            missing in 0..250u64,
        ) {
            let law = Law::default();
            let mut counts: Counts = [[0; FREQUENCIES]; 4];
            pages.iter().for_each(|(temperature, level)| counts[*temperature][*level] += 1);
            let cut = Cut::of(&counts, &law, missing);
            let mut ranks: Vec<u64> = Vec::new();
            let mut gone = Vec::new();
            for temperature in [Temperature::Cold, Temperature::Warm, Temperature::Hot] {
                let factor = [1, 10, 100][temperature as usize];
                let of = &counts[temperature as usize];
                let below = cut.below(temperature);
                for (level, count) in of.iter().enumerate() {
                    let rank = (level as u64 + 1) * factor;
                    ranks.extend((0..*count).map(|_| rank));
                    let goes = if level < below { *count } else if level == below { cut.at(temperature) } else { 0 };
                    prop_assert!(goes <= *count);
                    gone.extend((0..goes).map(|_| rank));
                }
            }
            prop_assert_eq!(cut.below(Temperature::Pinned), 0);
            ranks.sort_unstable();
            gone.sort_unstable();
            prop_assert_eq!(gone, &ranks[..ranks.len().min(missing as usize)]);
        }
    }
}
