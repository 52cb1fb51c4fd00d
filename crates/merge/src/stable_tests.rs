//! The rule against one that is written page by page, from the words of the module's doc.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

const PAGES: u32 = 1100;

/// What one page has been through. Times count periods.
#[derive(Clone, Copy, Default)]
struct Page {
    written: Option<u32>,
    breaks: u32,
    /// Taken at this time, if not written before.
    due: Option<u32>,
    never: bool,
}

#[derive(Default)]
struct Naive {
    pages: BTreeMap<u32, Page>,
    now: u32,
}

impl Naive {
    fn page(&mut self, page: u32) -> &mut Page {
        self.pages.entry(page).or_default()
    }

    fn write(&mut self, page: u32) {
        let now = self.now;
        let page = self.page(page);
        page.written = Some(now);
        page.due = None;
    }

    fn end(&mut self) -> u64 {
        let now = self.now;
        for page in self.pages.values_mut() {
            if page.written == Some(now.wrapping_sub(2)) && now >= 2 {
                page.written = None;
                page.due = Some(now + page.breaks);
            }
        }
        let ready = |page: &&Page| page.due.is_some_and(|due| due <= now) && !page.never;
        self.pages.values().filter(ready).count() as u64
    }

    fn take(&mut self) -> Vec<u32> {
        let now = self.now;
        let mut taken = Vec::new();
        for (number, page) in &mut self.pages {
            if page.due.is_some_and(|due| due <= now) {
                page.due = None;
                if !page.never {
                    taken.push(*number);
                }
            }
        }
        taken
    }
}

#[derive(Clone, Debug)]
enum Step {
    Write(u32, u32),
    Break(u32),
    Again(u32, u8),
    Clear(u32),
    Never(u32),
    Forget(u32, u32),
    /// At its end, all stable pages are taken, so many at a time, or none.
    Period(Option<usize>),
}

fn step() -> impl Strategy<Value = Step> {
    // Few distinct pages, so that histories are long, and spans that cross words and blocks.
    let page = || prop_oneof![0u32..4, 62u32..66, 510u32..514, 1000u32..1004];
    prop_oneof![
        4 => (page(), 1u32..80).prop_map(|(page, count)| Step::Write(page, count)),
        2 => page().prop_map(Step::Break),
        1 => (page(), 0u8..8).prop_map(|(page, periods)| Step::Again(page, periods)),
        1 => page().prop_map(Step::Clear),
        1 => page().prop_map(Step::Never),
        1 => (page(), 1u32..600).prop_map(|(page, count)| Step::Forget(page, count)),
        8 => prop_oneof![
            2 => Just(Some(usize::MAX)),
            2 => (1usize..700).prop_map(Some),
            1 => Just(None),
        ]
        .prop_map(Step::Period),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases * 8))]

    #[test]
    fn blocks_give_out_what_single_pages_do(steps in prop::collection::vec(step(), 1..80)) {
        let (mut stable, mut naive) = (Stable::default(), Naive::default());
        for step in steps {
            match step {
                Step::Write(first, count) => {
                    let count = count.min(PAGES - first);
                    stable.note_written(PageRange::new(PageIndex(first), count));
                    (first..first + count).for_each(|page| naive.write(page));
                }
                Step::Break(page) => {
                    stable.note_break(PageIndex(page));
                    let page = naive.page(page);
                    page.breaks = (page.breaks + 1).min(u32::from(BACK_OFF_MAX));
                }
                Step::Again(page, periods) => {
                    // As it is used: only for pages that were taken, and so are not waiting to be.
                    let now = naive.now;
                    let entry = naive.page(page);
                    if entry.due.is_none() && entry.written.is_none() {
                        stable.put_back(PageIndex(page), periods);
                        entry.due = Some(now + u32::from(periods.min(BACK_OFF_MAX)));
                    }
                }
                Step::Clear(page) => {
                    let entry = naive.page(page);
                    if entry.due.is_none() {
                        stable.clear_breaks(PageIndex(page));
                        entry.breaks = 0;
                    }
                }
                Step::Never(page) => {
                    stable.exclude(PageIndex(page));
                    naive.page(page).never = true;
                }
                Step::Forget(first, count) => {
                    stable.forget(PageRange::new(PageIndex(first), count));
                    naive.pages.retain(|page, _| !(first..first + count).contains(page));
                }
                Step::Period(most) => {
                    prop_assert_eq!(stable.end_period().ready, naive.end());
                    if let Some(most) = most {
                        let mut taken = take_all(&mut stable, most);
                        taken.sort_unstable();
                        prop_assert_eq!(taken, naive.take());
                    }
                    stable.begin_period();
                    naive.now += 1;
                }
            }
        }
    }
}

/// All that can be taken, `most` pages at a time.
fn take_all(stable: &mut Stable, most: usize) -> Vec<u32> {
    let mut all = Vec::new();
    loop {
        let mut taken = Vec::new();
        let goes_on = stable.take(most, &mut taken);
        assert!(taken.is_sorted() && taken.len() < most.saturating_add(BLOCK_PAGES as usize));
        assert!(!goes_on || !taken.is_empty());
        all.extend(taken);
        if !goes_on {
            return all;
        }
    }
}

fn periods(stable: &mut Stable, count: u32) -> Vec<Vec<u32>> {
    (0..count)
        .map(|_| {
            stable.end_period();
            let taken = take_all(stable, usize::MAX);
            stable.begin_period();
            taken
        })
        .collect()
}

#[test]
fn pages_put_back_wait_for_the_next_period_and_all_have_their_turn() {
    let mut stable = Stable::default();
    stable.note_written(PageRange::new(PageIndex(0), 4 * BLOCK_PAGES));
    assert!(periods(&mut stable, 2).iter().all(Vec::is_empty));
    let mut seen = Vec::new();
    for _ in 0..4 {
        assert_eq!(stable.end_period().ready, 4 * u64::from(BLOCK_PAGES));
        let mut taken = Vec::new();
        assert!(stable.take(1, &mut taken));
        seen.push(taken[0] / BLOCK_PAGES);
        taken.iter().for_each(|page| stable.put_back(PageIndex(*page), 0));
        // The other three blocks, and none twice.
        assert_eq!(take_all(&mut stable, usize::MAX).len(), 3 * BLOCK_PAGES as usize);
        (0..4 * BLOCK_PAGES).for_each(|page| stable.put_back(PageIndex(page), 0));
        // Begun elsewhere the next time.
        stable.next = seen.len();
        stable.begin_period();
    }
    assert_eq!(seen, [0, 1, 2, 3]);
}

#[test]
fn a_page_is_taken_once_two_periods_after_its_write() {
    let mut stable = Stable::default();
    stable.note_written(PageRange::new(PageIndex(510), 4));
    let taken = periods(&mut stable, 6);
    assert_eq!(taken, [vec![], vec![], vec![510, 511, 512, 513], vec![], vec![], vec![]]);
}

#[test]
fn a_page_waits_from_its_write_until_it_is_taken_unless_it_is_written_all_the_time() {
    let mut stable = Stable::default();
    let mut waiting = Vec::new();
    for period in 0..6 {
        stable.note_written(PageRange::new(PageIndex(7), 1));
        if period == 0 {
            stable.note_written(PageRange::new(PageIndex(100), 3));
        }
        waiting.push(stable.waiting(PageIndex(0)));
        stable.end_period();
        if period == 4 {
            assert_eq!(take_all(&mut stable, usize::MAX), [100, 101, 102]);
        }
        stable.begin_period();
    }
    // Of the page that is always written that is known from the third period on.
    assert_eq!(waiting, [4, 4, 3, 3, 3, 0]);
}

#[test]
fn each_break_costs_one_period_more_up_to_a_limit() {
    for breaks in 0..10 {
        let mut stable = Stable::default();
        (0..breaks).for_each(|_| stable.note_break(PageIndex(5)));
        stable.note_written(PageRange::new(PageIndex(5), 1));
        let taken = periods(&mut stable, 20);
        let at = taken.iter().position(|pages| !pages.is_empty()).unwrap();
        assert_eq!(at, 2 + breaks.min(usize::from(BACK_OFF_MAX)));
    }
}

#[test]
fn unsettled_pages_are_counted_and_quiet_blocks_are_given_back() {
    let mut stable = Stable::default();
    stable.note_written(PageRange::new(PageIndex(0), 700));
    assert_eq!(stable.end_period(), Unsettled { ready: 0, pages: 700 });
    stable.begin_period();
    stable.note_written(PageRange::new(PageIndex(100), 1));
    assert_eq!(stable.end_period(), Unsettled { ready: 0, pages: 700 });
    stable.begin_period();
    assert_eq!(stable.end_period(), Unsettled { ready: 699, pages: 700 });
    assert_eq!(take_all(&mut stable, usize::MAX).len(), 699);
    let held = stable.memory_bytes();
    periods(&mut stable, 4);
    assert!(stable.memory_bytes() < held / 4);
}
