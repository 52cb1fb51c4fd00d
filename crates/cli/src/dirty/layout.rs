//! Where a guest's pages lie when its regions are laid side by side.

/// Regions of a guest, as (first page, pages), ascending and apart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Layout {
    regions: Vec<(u32, u32)>,
}

impl Layout {
    /// Of the regions that a daemon told.
    pub(crate) fn new(mut regions: Vec<(u32, u32)>) -> Self {
        regions.sort_unstable();
        Self { regions }
    }

    /// Pages of all regions.
    pub(crate) fn pages(&self) -> usize {
        self.regions.iter().map(|(_, pages)| *pages as usize).sum()
    }

    /// The places of `run`'s pages, as (first, count), where they are the guest's: one part for each
    /// region that it touches.
    pub(crate) fn places(&self, run: (u32, u32)) -> impl Iterator<Item = (usize, usize)> + '_ {
        let (start, end) = (u64::from(run.0), u64::from(run.0) + u64::from(run.1));
        let regions = self.regions.iter().scan(0, |before, &(first, pages)| {
            let place = *before;
            *before += pages as usize;
            Some((place, u64::from(first), u64::from(first) + u64::from(pages)))
        });
        regions.filter_map(move |(place, first, after)| {
            let (from, to) = (start.max(first), end.min(after));
            (from < to).then(|| (place + (from - first) as usize, (to - from) as usize))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_have_places_side_by_side() {
        let layout = Layout::new(vec![(1000, 10), (0, 100)]);
        let places = |run| layout.places(run).collect::<Vec<_>>();
        assert_eq!(layout.pages(), 110);
        assert_eq!(places((5, 3)), [(5, 3)]);
        assert_eq!(places((1005, 2)), [(105, 2)]);
        assert_eq!(places((90, 915)), [(90, 10), (100, 5)]);
        assert_eq!(places((u32::MAX, u32::MAX)), []);
    }
}
