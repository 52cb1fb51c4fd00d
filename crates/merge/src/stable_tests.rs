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
    /// Told at this time, if not written before.
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

    fn take(&mut self, telling: Telling) -> Vec<u32> {
        let now = self.now;
        let mut told = Vec::new();
        for (number, page) in &mut self.pages {
            if page.written == Some(now.wrapping_sub(2)) && now >= 2 {
                page.written = None;
                page.due = Some(now + page.breaks);
            }
            if telling == Telling::Now && page.due.is_some_and(|due| due <= now) {
                page.due = None;
                if !page.never {
                    told.push(*number);
                }
            }
        }
        told
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
    Period(Telling),
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
        8 => prop_oneof![4 => Just(Telling::Now), 1 => Just(Telling::Later)].prop_map(Step::Period),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn blocks_tell_what_single_pages_tell(steps in prop::collection::vec(step(), 1..80)) {
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
                    // As it is used: only for pages that were told, and so are not waiting to be.
                    let now = naive.now;
                    let entry = naive.page(page);
                    if entry.due.is_none() && entry.written.is_none() {
                        stable.tell_again(PageIndex(page), periods);
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
                    stable.never_tell(PageIndex(page));
                    naive.page(page).never = true;
                }
                Step::Forget(first, count) => {
                    stable.forget(PageRange::new(PageIndex(first), count));
                    naive.pages.retain(|page, _| !(first..first + count).contains(page));
                }
                Step::Period(telling) => {
                    let mut told = Vec::new();
                    stable.take_stable(telling, &mut told);
                    prop_assert_eq!(told, naive.take(telling));
                    stable.begin_period();
                    naive.now += 1;
                }
            }
        }
    }
}

fn periods(stable: &mut Stable, count: u32) -> Vec<Vec<u32>> {
    (0..count)
        .map(|_| {
            let mut told = Vec::new();
            stable.take_stable(Telling::Now, &mut told);
            stable.begin_period();
            told
        })
        .collect()
}

#[test]
fn a_page_is_told_two_periods_after_it_was_written_and_once() {
    let mut stable = Stable::default();
    stable.note_written(PageRange::new(PageIndex(510), 4));
    let told = periods(&mut stable, 6);
    assert_eq!(told, [vec![], vec![], vec![510, 511, 512, 513], vec![], vec![], vec![]]);
}

#[test]
fn each_break_costs_one_period_more_up_to_a_limit() {
    for breaks in 0..10 {
        let mut stable = Stable::default();
        (0..breaks).for_each(|_| stable.note_break(PageIndex(5)));
        stable.note_written(PageRange::new(PageIndex(5), 1));
        let told = periods(&mut stable, 20);
        let at = told.iter().position(|pages| !pages.is_empty()).unwrap();
        assert_eq!(at, 2 + breaks.min(usize::from(BACK_OFF_MAX)));
    }
}

#[test]
fn unsettled_pages_are_counted_and_quiet_blocks_are_given_back() {
    let mut stable = Stable::default();
    stable.note_written(PageRange::new(PageIndex(0), 700));
    let mut told = Vec::new();
    assert_eq!(stable.take_stable(Telling::Now, &mut told), 700);
    stable.begin_period();
    stable.note_written(PageRange::new(PageIndex(100), 1));
    assert_eq!(stable.take_stable(Telling::Now, &mut told), 700);
    stable.begin_period();
    assert_eq!(stable.take_stable(Telling::Now, &mut told), 1);
    assert_eq!(told.len(), 699);
    let held = stable.memory_bytes();
    periods(&mut stable, 3);
    assert!(stable.memory_bytes() < held / 4);
}
