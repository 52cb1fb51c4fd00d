//! Guests of huge pages: which are split, which are kept, and which are made again.

use std::sync::Arc;

use bindery_wire::lane::BLOCK_PAGES;

use super::model::ModelGuest;
use super::process::Page;
use super::scenes::Scene;
use crate::{HugeMode, HugeSettings, MemoryLevel, MergeSettings};

fn scene(mode: HugeMode) -> Scene {
    let huge_pages = HugeSettings { mode, ..HugeSettings::default() };
    Scene::new(MergeSettings { huge_pages, ..MergeSettings::default() })
}

/// A guest of two huge pages.
fn huge(scene: &mut Scene, content: impl Fn(u32) -> u64) -> Arc<ModelGuest> {
    let (guest, _) = scene.guest("a", 2 * BLOCK_PAGES, content);
    guest.process().has_huge_pages = true;
    guest
}

/// Contents that no other guest has, but for `common` pages of each block.
fn contents(guest: u64, common: u32) -> impl Fn(u32) -> u64 {
    move |page| {
        let is_common = page % BLOCK_PAGES < common;
        u64::from(page) + 1 + if is_common { 0 } else { guest << 32 }
    }
}

fn split(guest: &ModelGuest) -> usize {
    guest.process().split.len()
}

#[test]
fn huge_pages_in_which_nothing_is_gained_are_read_twice_and_then_left_alone() {
    let mut scene = scene(HugeMode::Auto);
    let guests: Vec<_> = (1..3).map(|guest| huge(&mut scene, contents(guest, 0))).collect();
    scene.periods(40);
    for guest in &guests {
        assert_eq!(split(guest), 0);
        let counts = scene.status_of(guest).counts;
        assert_eq!(counts.pages_digested, u64::from(4 * BLOCK_PAGES));
        assert_eq!((counts.huge_pages, counts.huge_pages_split), (2, 0));
        guest.process().requests.clear();
    }
    scene.periods(64);
    let sampled = |request: &&&str| **request == "sample";
    let requests = std::mem::take(&mut guests[0].process().requests);
    let samples = requests.iter().filter(sampled).count();
    assert!((1..=3).contains(&samples), "{samples}");
    assert!(requests.len() <= 2 * samples, "nothing is asked in other periods: {requests:?}");
}

#[test]
fn huge_pages_of_what_others_have_are_split_and_merged_after_two_quiet_periods() {
    let mut scene = scene(HugeMode::Auto);
    let guests: Vec<_> = (1..3).map(|guest| huge(&mut scene, contents(guest, 64))).collect();
    scene.periods(2);
    assert!(guests.iter().all(|guest| split(guest) == 0));
    scene.periods(1);
    for guest in &guests {
        assert_eq!((split(guest), guest.merged().len()), (2, 128));
        let counts = scene.status_of(guest).counts;
        assert_eq!((counts.huge_pages, counts.huge_pages_split, counts.huge_splits), (0, 2, 2));
    }
    scene.periods(30);
    assert!(guests.iter().all(|guest| split(guest) == 2), "they stay split");
}

#[test]
fn too_few_pages_are_no_reason_until_memory_gets_short() {
    let mut scene = scene(HugeMode::Auto);
    let guests: Vec<_> = (1..3).map(|guest| huge(&mut scene, contents(guest, 47))).collect();
    scene.periods(12);
    assert!(guests.iter().all(|guest| split(guest) == 0));
    scene.engine.set_memory(MemoryLevel::Low);
    scene.periods(3);
    assert!(guests.iter().all(|guest| split(guest) == 2 && guest.merged().len() == 94));
}

#[test]
fn modes_keep_all_and_break_for_one_page() {
    for (mode, merged) in [(HugeMode::Keep, 0), (HugeMode::Break, 2)] {
        let mut scene = scene(mode);
        let guests: Vec<_> = (1..3).map(|guest| huge(&mut scene, contents(guest, 1))).collect();
        scene.periods(6);
        for guest in &guests {
            assert_eq!((split(guest), guest.merged().len()), (merged, merged), "{mode:?}");
            let kept = 2 - merged as u64;
            assert_eq!(scene.status_of(guest).counts.huge_pages, kept, "{mode:?}");
        }
    }
}

#[test]
fn zero_pages_are_gained_too() {
    let mut scene = scene(HugeMode::Auto);
    let guest = huge(&mut scene, |page| if page % 4 == 0 { 0 } else { u64::from(page) });
    scene.periods(4);
    assert_eq!(split(&guest), 2);
    assert_eq!(scene.status_of(&guest).counts.zero_pages, u64::from(BLOCK_PAGES / 2));
}

#[test]
fn a_huge_page_that_is_all_zero_becomes_a_hole_and_is_huge_when_it_is_written() {
    let mut scene = scene(HugeMode::Auto);
    let guest = huge(&mut scene, |page| if page < BLOCK_PAGES { 0 } else { page.into() });
    scene.periods(10);
    assert!((0..BLOCK_PAGES).all(|page| guest.process().pages[&page] == Page::Absent));
    let counts = scene.status_of(&guest).counts;
    assert_eq!((split(&guest), counts.collapses_empty, counts.huge_pages), (0, 1, 1));
    (0..BLOCK_PAGES).for_each(|page| guest.process().write(page, 1 << 20 | u64::from(page)));
    scene.periods(8);
    assert_eq!((split(&guest), scene.status_of(&guest).counts.huge_pages), (0, 2));
}

#[test]
fn a_huge_page_that_is_written_all_the_time_is_kept() {
    let mut scene = scene(HugeMode::Auto);
    let quiet = huge(&mut scene, contents(1, 512));
    let busy = huge(&mut scene, contents(2, 512));
    for period in 0..30 {
        // The second block's only, and pages that are no sample.
        let pages = (BLOCK_PAGES..2 * BLOCK_PAGES).filter(|page| page % 8 == 1 && page % 37 != 0);
        pages.for_each(|page| busy.process().write(page, 1 << 40 | period << 12 | u64::from(page)));
        scene.periods(1);
    }
    assert_eq!(split(&busy), 1);
    assert!(busy.process().split.contains(&0));
    let counts = scene.status_of(&busy).counts;
    assert!((1..10).contains(&counts.huge_kept_hot), "{}", counts.huge_kept_hot);
    assert!(split(&quiet) >= 1);
}

#[test]
fn a_huge_page_of_which_little_is_left_merged_is_made_again_and_rests() {
    let mut scene = scene(HugeMode::Auto);
    let guests: Vec<_> = (1..3).map(|guest| huge(&mut scene, contents(guest, 100))).collect();
    scene.periods(4);
    assert_eq!(guests[0].merged().len(), 200);
    // Less than so many stay merged, of the first block.
    (0..90).for_each(|page| guests[0].process().write(page, 1 << 50 | u64::from(page)));
    scene.periods(20);
    assert_eq!(split(&guests[0]), 1);
    let counts = scene.status_of(&guests[0]).counts;
    assert_eq!((counts.collapses_thin, counts.huge_pages), (1, 1));
    assert!((0..10).all(|page| !guests[0].merged().contains_key(&(90 + page))));
    assert_eq!(split(&guests[1]), 2, "what others have merged stays");
    // What it has in common again is found after its rest.
    (0..90).for_each(|page| guests[0].process().write(page, u64::from(page) + 1));
    scene.periods(20);
    assert_eq!(split(&guests[0]), 1);
    scene.periods(70);
    assert_eq!((split(&guests[0]), guests[0].merged().len()), (2, 200));
}

#[test]
fn pages_that_are_written_once_are_no_reason_to_make_their_huge_page_again() {
    for mode in [HugeMode::Auto, HugeMode::Break] {
        let huge_pages =
            HugeSettings { mode, patience: 1, hot_pages: BLOCK_PAGES, ..HugeSettings::default() };
        let mut scene = Scene::new(MergeSettings { huge_pages, ..MergeSettings::default() });
        let guests: Vec<_> = (1..3).map(|guest| huge(&mut scene, contents(guest, 60))).collect();
        scene.periods(20);
        for round in 1..4 {
            for guest in &guests {
                // All that they share, anew.
                let shared = (0..2 * BLOCK_PAGES).filter(|page| page % BLOCK_PAGES < 60);
                shared.for_each(|page| guest.process().write(page, round << 40 | u64::from(page)));
            }
            scene.periods(6);
            assert!(guests.iter().all(|guest| split(guest) == 2), "{mode:?}");
        }
    }
}

#[test]
fn a_split_page_that_turns_hot_is_made_again() {
    let mut scene = scene(HugeMode::Auto);
    let guests: Vec<_> = (1..3).map(|guest| huge(&mut scene, contents(guest, 100))).collect();
    scene.periods(4);
    assert_eq!(split(&guests[0]), 2);
    for period in 0..20 {
        (200..300).for_each(|page| guests[0].process().write(page, period << 32 | page as u64));
        scene.periods(1);
    }
    assert_eq!(split(&guests[0]), 1);
    assert_eq!(scene.status_of(&guests[0]).counts.collapses_hot, 1);
    assert_eq!(guests[0].merged().len(), 100);
}

#[test]
fn a_page_that_is_hot_in_most_periods_is_made_again_and_one_that_is_in_few_is_not() {
    let mut scene = scene(HugeMode::Auto);
    let guests: Vec<_> = (1..3).map(|guest| huge(&mut scene, contents(guest, 100))).collect();
    scene.periods(4);
    let write = |guest: &ModelGuest, period: u64| {
        (200..300).for_each(|page| guest.process().write(page, period << 32 | u64::from(page)));
    };
    for period in 0..60 {
        if period % 4 != 0 {
            write(&guests[0], period);
        } else {
            write(&guests[1], period);
        }
        scene.periods(1);
    }
    assert_eq!((split(&guests[0]), split(&guests[1])), (1, 2));
}

#[test]
fn huge_pages_are_made_again_once_nobody_else_has_what_was_merged_in_them() {
    let mut scene = scene(HugeMode::Auto);
    let guests: Vec<_> = (1..4).map(|guest| huge(&mut scene, contents(guest, 100))).collect();
    scene.periods(4);
    let remove = |guest: &ModelGuest| {
        scene.engine.remove_guest(bindery_guest::Connection::identity(guest).id);
        guest.process().ended = true;
    };
    remove(&guests[2]);
    scene.periods(300);
    assert!(guests[..2].iter().all(|guest| (split(guest), guest.merged().len()) == (2, 200)));
    remove(&guests[1]);
    scene.periods(60);
    assert_eq!(split(&guests[0]), 2, "another may come soon");
    scene.periods(240);
    assert_eq!((split(&guests[0]), guests[0].merged().len()), (0, 0));
    assert_eq!(scene.domain("a").pages_shared, 0);
}

#[test]
fn a_page_of_a_split_block_finds_another_of_a_whole_one_and_waits_for_it() {
    let mut scene = scene(HugeMode::Auto);
    let whole = huge(&mut scene, contents(1, 10));
    scene.periods(6);
    assert_eq!(split(&whole), 0);
    // Of small pages, with all that the other has.
    let (small, _) = scene.guest("a", 2 * BLOCK_PAGES, contents(1, 0));
    scene.periods(6);
    assert_eq!(split(&small), 2);
    assert_eq!((split(&whole), whole.merged().len()), (2, 2 * BLOCK_PAGES as usize - 20));
    assert_eq!(small.merged().len(), whole.merged().len());
}

#[test]
fn a_guest_of_huge_pages_that_is_unmerged_and_merged_again_is_read_anew() {
    let mut scene = scene(HugeMode::Auto);
    let guests: Vec<_> = (1..3).map(|guest| huge(&mut scene, contents(guest, 100))).collect();
    scene.periods(4);
    let id = bindery_guest::Connection::identity(&*guests[0]).id;
    scene.engine.unmerge(id).unwrap();
    scene.periods(2);
    assert!(guests[0].merged().is_empty());
    scene.engine.merge(id).unwrap();
    scene.periods(6);
    assert_eq!(guests[0].merged().len(), 200);
    let is_zero = |page: &Page| matches!(page, Page::Zero);
    assert!(!guests[0].process().pages.values().any(is_zero));
}

#[test]
fn workers_that_find_the_same_contents_at_once_agree_on_who_stands_for_them() {
    for round in 0..20 {
        let mut scene = scene(HugeMode::Auto);
        scene.engine.set_workers(4);
        // Whole and split ones with the same pages, all new in the same period.
        let guests: Vec<_> = (0..4).map(|_| huge(&mut scene, contents(0, 0))).collect();
        let small = (round % 3) + 1;
        for _ in 0..small {
            scene.guest("a", 2 * BLOCK_PAGES, contents(0, 0));
        }
        scene.periods(8);
        for guest in &guests {
            assert_eq!(guest.merged().len(), 2 * BLOCK_PAGES as usize, "round {round}");
        }
    }
}
