//! Which pages were written in which epochs, as far back as is remembered.

use serde::Serialize;

/// Epochs remembered.
pub(crate) const EPOCHS_MAX: u32 = 32;

/// How often a page was written, of the epochs remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Temperature {
    /// In none.
    Cold,
    /// In less than half of them.
    Warm,
    /// In half of them or more.
    Hot,
}

/// How many pages are how warm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Census {
    /// Pages that are [`Temperature::Hot`].
    pub(crate) hot_pages: u64,
    /// Pages that are [`Temperature::Warm`].
    pub(crate) warm_pages: u64,
    /// Pages that are [`Temperature::Cold`].
    pub(crate) cold_pages: u64,
}

/// The last epochs of a guest: four bytes a page.
#[derive(Debug, Default)]
pub(crate) struct History {
    /// For each page, by its place among those that are managed, the epochs in which it was written:
    /// the newest is bit 0.
    written: Vec<u32>,
    epochs: u32,
}

impl History {
    /// Takes in the next epoch of a guest of `pages` pages: `runs` of pages that were written, as
    /// (first, count). What lies outside the guest is left out: it grew or shrank meanwhile.
    pub(crate) fn push(&mut self, pages: usize, runs: impl IntoIterator<Item = (usize, usize)>) {
        self.written.resize(pages, 0);
        self.epochs = (self.epochs + 1).min(EPOCHS_MAX);
        self.written.iter_mut().for_each(|epochs| *epochs <<= 1);
        for (first, count) in runs {
            let end = first.saturating_add(count).min(pages);
            let run = self.written.get_mut(first..end);
            run.into_iter().flatten().for_each(|epochs| *epochs |= 1);
        }
    }

    /// How many epochs it remembers.
    pub(crate) const fn epochs(&self) -> u32 {
        self.epochs
    }

    /// How many different pages are written within `epochs` epochs, in the mean over all that are
    /// remembered; nothing if fewer are.
    pub(crate) fn distinct(&self, epochs: u32) -> Option<f64> {
        if epochs == 0 || epochs > self.epochs {
            return None;
        }
        let windows = self.epochs / epochs;
        let window = u32::MAX >> (EPOCHS_MAX - epochs);
        let of_page = |written: &u32| {
            (0..windows).filter(|at| written >> (at * epochs) & window != 0).count() as u64
        };
        let sum: u64 = self.written.iter().map(of_page).sum();
        Some(sum as f64 / f64::from(windows))
    }

    /// How warm each page is.
    pub(crate) fn temperatures(&self) -> impl Iterator<Item = Temperature> + '_ {
        self.written.iter().map(|written| match written.count_ones() {
            0 => Temperature::Cold,
            times if 2 * times < self.epochs => Temperature::Warm,
            _ => Temperature::Hot,
        })
    }

    /// How many pages are how warm.
    pub(crate) fn census(&self) -> Census {
        let mut census = Census::default();
        for temperature in self.temperatures() {
            match temperature {
                Temperature::Cold => census.cold_pages += 1,
                Temperature::Warm => census.warm_pages += 1,
                Temperature::Hot => census.hot_pages += 1,
            }
        }
        census
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_written_over_and_over_count_once_in_a_window() {
        let mut history = History::default();
        for epoch in 0..8 {
            history.push(100, [(0, 10), (10 + epoch * 5, 5)]);
        }
        assert_eq!(history.distinct(1), Some(15.0));
        assert_eq!(history.distinct(2), Some(20.0));
        assert_eq!(history.distinct(8), Some(50.0));
        assert_eq!((history.distinct(9), history.distinct(0)), (None, None));
        let census = Census { hot_pages: 10, warm_pages: 40, cold_pages: 50 };
        assert_eq!(history.census(), census);
    }

    #[test]
    fn old_epochs_are_forgotten() {
        let mut history = History::default();
        history.push(4, [(0, 4)]);
        for _ in 0..EPOCHS_MAX {
            history.push(4, [(1, 1)]);
        }
        assert_eq!(history.epochs(), EPOCHS_MAX);
        assert_eq!(history.distinct(EPOCHS_MAX), Some(1.0));
    }

    #[test]
    fn what_lies_outside_is_left_out() {
        let mut history = History::default();
        history.push(4, [(2, 9), (7, 1), (usize::MAX, 2)]);
        assert_eq!(history.distinct(1), Some(2.0));
        history.push(2, []);
        assert_eq!(history.distinct(1), Some(0.0));
    }
}
