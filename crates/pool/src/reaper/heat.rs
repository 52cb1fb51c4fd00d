//! Frequency of accesses to each page of an object, for a reaper that evicts by the page.
//!
//! A page gets warmer each time it is found accessed, and all cool together. What was evicted keeps its
//! warmth, so that what comes back is known, and what was touched once goes before what is touched often:
//! least frequently used with aging (Robinson and Devarakonda, SIGMETRICS 1990). One byte a page.

/// By how much a page gets warmer.
const TOUCH: u8 = 8;

/// All warmths that there are.
pub(super) const LEVELS: usize = 1 << 8;

/// The pages of an object.
#[derive(Debug, Default)]
pub(super) struct Heat {
    warmth: Vec<u8>,
    /// True if the page is in memory, as far as is known: the kernel reports no page that it takes.
    resident: Vec<bool>,
}

impl Heat {
    pub(super) fn new(pages: u64) -> Self {
        let pages = pages as usize;
        Self { warmth: vec![0; pages], resident: vec![false; pages] }
    }

    /// Pages are in the page tables. Those that were not in memory were read since, which is an access.
    pub(super) fn see(&mut self, first_page: u64, pages: u64) {
        for page in self.range(first_page, pages) {
            if !std::mem::replace(&mut self.resident[page], true) {
                self.touch(page);
            }
        }
    }

    /// Pages were accessed.
    pub(super) fn warm(&mut self, first_page: u64, pages: u64) {
        self.range(first_page, pages).for_each(|page| self.touch(page));
    }

    fn touch(&mut self, page: usize) {
        self.warmth[page] = self.warmth[page].saturating_add(TOUCH);
    }

    /// Returns the part of a range that the object had when its pages were counted.
    fn range(&self, first_page: u64, pages: u64) -> std::ops::Range<usize> {
        let end = first_page.saturating_add(pages).min(self.warmth.len() as u64);
        first_page.min(end) as usize..end as usize
    }

    /// Time goes by.
    pub(super) fn cool(&mut self) {
        self.warmth.iter_mut().for_each(|warmth| *warmth -= *warmth / 4);
    }

    /// Counts the pages in memory of each warmth.
    pub(super) fn count(&self, counts: &mut [u64; LEVELS]) {
        for (warmth, resident) in self.warmth.iter().zip(&self.resident) {
            counts[usize::from(*warmth)] += u64::from(*resident);
        }
    }

    /// Takes up to `limit` pages in memory of a warmth below `below`, as runs; they count as gone.
    pub(super) fn take(&mut self, below: usize, limit: u64) -> Vec<(u64, u64)> {
        let (mut runs, mut left): (Vec<(u64, u64)>, u64) = (Vec::new(), limit);
        for (page, resident) in self.resident.iter_mut().enumerate() {
            if left == 0 {
                break;
            }
            if !*resident || usize::from(self.warmth[page]) >= below {
                continue;
            }
            *resident = false;
            left -= 1;
            let page = page as u64;
            match runs.last_mut() {
                Some((first, pages)) if *first + *pages == page => *pages += 1,
                _ => runs.push((page, 1)),
            }
        }
        runs
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Event {
        See(u64, u64),
        Warm(u64, u64),
        Cool,
        Take(usize, u64),
    }

    fn event() -> impl Strategy<Value = Event> {
        prop_oneof![
            (0..50u64, 0..20u64).prop_map(|(first, pages)| Event::See(first, pages)),
            (0..50u64, 0..20u64).prop_map(|(first, pages)| Event::Warm(first, pages)),
            Just(Event::Cool),
            (0..40usize, 0..30u64).prop_map(|(below, limit)| Event::Take(below, limit)),
        ]
    }

    proptest! {
        #[test]
        fn what_is_taken_is_in_memory_cold_and_in_order(events in prop::collection::vec(event(), 0..80)) {
            const PAGES: u64 = 40;
            let mut heat = Heat::new(PAGES);
            let mut oracle = vec![(0u8, false); PAGES as usize];
            for event in events {
                let inside = |first: u64, pages: u64| (first.min(PAGES) as usize)..((first + pages).min(PAGES) as usize);
                match event {
                    Event::See(first, pages) => {
                        heat.see(first, pages);
                        for (warmth, resident) in &mut oracle[inside(first, pages)] {
                            *warmth = warmth.saturating_add(if *resident { 0 } else { TOUCH });
                            *resident = true;
                        }
                    }
                    Event::Warm(first, pages) => {
                        heat.warm(first, pages);
                        oracle[inside(first, pages)].iter_mut().for_each(|page| page.0 = page.0.saturating_add(TOUCH));
                    }
                    Event::Cool => {
                        heat.cool();
                        oracle.iter_mut().for_each(|page| page.0 -= page.0 / 4);
                    }
                    Event::Take(below, limit) => {
                        let taken: Vec<u64> = heat.take(below, limit).into_iter()
                            .flat_map(|(first, pages)| first..first + pages).collect();
                        let cold = (0..PAGES).filter(|page| {
                            let (warmth, resident) = oracle[*page as usize];
                            resident && usize::from(warmth) < below
                        });
                        let expected: Vec<u64> = cold.take(limit as usize).collect();
                        prop_assert_eq!(&taken, &expected);
                        taken.iter().for_each(|page| oracle[*page as usize].1 = false);
                    }
                }
                let mut counts = [0; LEVELS];
                heat.count(&mut counts);
                prop_assert_eq!(counts.iter().sum::<u64>(), oracle.iter().filter(|page| page.1).count() as u64);
            }
        }
    }

    #[test]
    fn what_is_touched_often_stays_warmer_than_what_is_new() {
        let mut heat = Heat::new(2);
        for _ in 0..8 {
            heat.see(0, 1);
            heat.warm(0, 1);
        }
        heat.cool();
        heat.see(0, 2);
        assert_eq!(heat.take(usize::from(TOUCH) + 1, 9), [(1, 1)]);
        // It is known when it comes back.
        heat.see(1, 1);
        assert_eq!(heat.take(usize::from(TOUCH) + 1, 9), []);
    }
}
