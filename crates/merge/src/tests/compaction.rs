//! A store whose segments have few slots in use left.

use std::sync::Arc;

use super::audit::assert_converged;
use super::model::ModelGuest;
use super::process::Line;
use super::scenes::{Scene, id};
use crate::MergeSettings;
use crate::pressure::DomainState;

const PAGES: u32 = 600;

/// Two guests with the same contents, of which they go on to share every fourth only.
fn sparse() -> (Scene, [Arc<ModelGuest>; 2]) {
    let mut scene = Scene::new(MergeSettings { backs_off: false, ..MergeSettings::default() });
    let guests = [(); 2].map(|()| scene.guest("a", PAGES, |page| u64::from(1 + page)).0);
    scene.periods(3);
    assert_eq!(slots(&scene), (PAGES, 0));
    for (number, guest) in guests.iter().enumerate() {
        let own = |page: u32| u64::from(10_000 * (number as u32 + 1) + page);
        (0..PAGES)
            .filter(|page| page % 4 > 0)
            .for_each(|page| guest.process().write(page, own(page)));
    }
    (scene, guests)
}

/// Slots in use, and vacant ones.
fn slots(scene: &Scene) -> (u32, u32) {
    let count = |domain: &crate::domain::Domain| (domain.slots.used(), domain.slots.vacant());
    scene.engine.with_domains(|domains| count(&domains[&id("a")]))
}

#[test]
fn what_is_left_moves_together_and_its_segments_go() {
    let (mut scene, guests) = sparse();
    scene.periods(1);
    let (used, vacant) = slots(&scene);
    assert_eq!(used, PAGES / 4);
    assert!(vacant <= PAGES / 32, "{vacant} slots are vacant");
    assert_eq!(guests[0].merged().len() as u32, PAGES / 4);
    // Who comes later finds what has moved.
    let (late, _) = scene.guest("a", PAGES / 4, |page| u64::from(1 + 4 * page));
    scene.periods(3);
    assert_eq!(late.merged().len() as u32, PAGES / 4);
    assert_eq!(slots(&scene).0, PAGES / 4);
    assert_converged(&scene.guests);
}

#[test]
fn a_page_that_finds_no_mapping_keeps_its_slot() {
    let (mut scene, guests) = sparse();
    guests[1].process().mappings_max = 0;
    scene.periods(1);
    assert_eq!((guests[0].merged().len(), guests[1].merged().len()), (150, 150));
    assert!(slots(&scene).0 > PAGES / 4, "content that both map is there twice");
    // Nobody has it copied once more for that.
    scene.periods(10);
    assert!(slots(&scene).0 <= PAGES / 2);
    let (late, _) = scene.guest("a", PAGES / 4, |page| u64::from(1 + 4 * page));
    scene.periods(3);
    assert_eq!(late.merged().len() as u32, PAGES / 4);
    // What it keeps goes when its process does.
    guests[1].process().end();
    scene.periods(2);
    assert_eq!(slots(&scene).0, PAGES / 4);
    assert_converged(&scene.guests);
}

#[test]
fn a_content_is_found_where_it_stayed_once_all_that_moved_is_gone() {
    let (mut scene, guests) = sparse();
    guests[1].process().mappings_max = 0;
    scene.periods(1);
    guests[1].process().mappings_max = 1_000_000;
    (0..PAGES).for_each(|page| guests[0].process().discard(page));
    let stays = guests[1].merged();
    assert_eq!(stays.len() as u32, PAGES / 4);
    scene.periods(1);
    assert_eq!(slots(&scene).0, PAGES / 4, "slots that nobody maps are free");
    let (late, _) = scene.guest("a", PAGES / 4, |page| u64::from(1 + 4 * page));
    scene.periods(4);
    assert_eq!(late.merged().len() as u32, PAGES / 4);
    assert_eq!(slots(&scene).0, PAGES / 4, "each content is there once");
    assert_converged(&scene.guests);
}

#[test]
fn what_stayed_moves_to_where_the_others_are() {
    let (scene, guests) = sparse();
    guests[1].process().mappings_max = 0;
    scene.periods(1);
    assert!(slots(&scene).0 > PAGES / 4, "content that both map is there twice");
    guests[1].process().mappings_max = 1_000_000;
    scene.periods(70);
    // But for what stayed in segments that are well filled.
    let (used, vacant) = slots(&scene);
    assert!(used <= PAGES / 4 + PAGES / 32, "{used} slots are in use");
    assert!(vacant <= PAGES / 32, "{vacant} slots are vacant");
}

#[test]
fn a_guest_that_is_short_of_mappings_is_not_asked() {
    let (scene, guests) = sparse();
    let mut process = guests[1].process();
    process.mappings_max = process.mappings * 5 / 4;
    drop(process);
    let before = guests[0].merged();
    scene.periods(5);
    assert!(guests[0].merged().iter().all(|(page, slot)| before.get(page) == Some(slot)));
    assert_eq!(slots(&scene).0, PAGES / 4, "nothing is there twice");
    guests[1].process().mappings_max = 1_000_000;
    scene.periods(70);
    assert!(slots(&scene).1 <= PAGES / 32);
}

#[test]
fn what_a_guest_maps_that_cannot_be_asked_stays_where_it_is() {
    let (scene, guests) = sparse();
    guests[1].set_line(Line::Stalled);
    let before = guests[0].merged();
    scene.periods(5);
    assert!(guests[0].merged().iter().all(|(page, slot)| before.get(page) == Some(slot)));
    guests[1].set_line(Line::Open);
    scene.periods(70);
    let (used, vacant) = slots(&scene);
    assert_eq!(used, PAGES / 4);
    assert!(vacant <= PAGES / 32, "{vacant} slots are vacant");
    assert_converged(&scene.guests);
}

#[test]
fn an_answer_that_never_came_is_asked_for() {
    for requests in 0..8 {
        let (scene, guests) = sparse();
        guests[1].process().fails_in = Some((requests, Line::Stalled));
        scene.periods(3);
        guests[1].set_line(Line::Open);
        scene.periods(70);
        assert_eq!(guests.each_ref().map(|guest| guest.merged().len()), [150; 2]);
        assert!(slots(&scene).0 <= PAGES / 2);
        assert_converged(&scene.guests);
    }
}

#[test]
fn a_store_that_is_full_of_vacant_slots_goes_on() {
    const SLOTS: u32 = 1024;
    let settings =
        MergeSettings { backs_off: false, store_slots: SLOTS, ..MergeSettings::default() };
    let mut scene = Scene::new(settings);
    let guests = [(); 2].map(|()| scene.guest("a", SLOTS, |page| u64::from(1 + page)).0);
    scene.periods(3);
    assert_eq!(scene.domain("a").state, DomainState::StoreFull);
    let (used, vacant) = slots(&scene);
    assert_eq!((used, vacant), (SLOTS - 16, 0), "one segment is kept for what is to move");
    // One slot in eight goes: nothing is empty, and what is left fills its segments well.
    for guest in &guests {
        (0..SLOTS).filter(|page| page % 8 == 0).for_each(|page| guest.process().discard(page));
    }
    scene.periods(60);
    assert_converged(&scene.guests);
    assert_eq!(slots(&scene).0, SLOTS - SLOTS / 8);
    // What all of it was shared by is replaced, a part at a time.
    for part in 1..8 {
        for guest in &guests {
            let pages = (0..SLOTS).filter(|page| page % 8 == part);
            pages.for_each(|page| guest.process().write(page, u64::from(5000 * part + page)));
        }
        scene.periods(60);
        assert_converged(&scene.guests);
    }
}

#[test]
fn a_guest_that_cannot_be_asked_does_not_keep_others_from_moving() {
    let (mut scene, guests) = sparse();
    // As much again that is sparse for good: the contents of two guests one of which is stopped.
    let stopped = scene.guest("a", PAGES, |page| u64::from(100_000 + page)).0;
    let other = scene.guest("a", PAGES, |page| u64::from(100_000 + page)).0;
    guests.iter().for_each(|guest| guest.set_line(Line::Stalled));
    scene.periods(4);
    for guest in [&stopped, &other] {
        let own = (0..PAGES).filter(|page| page % 2 > 0);
        own.for_each(|page| guest.process().discard(page));
    }
    scene.periods(1);
    stopped.set_line(Line::Stalled);
    guests.iter().for_each(|guest| guest.set_line(Line::Open));
    scene.periods(70);
    assert_eq!(slots(&scene).0, PAGES / 4 + PAGES / 2);
    assert_eq!(guests.each_ref().map(|guest| guest.merged().len()), [150; 2]);
    assert!(slots(&scene).1 <= PAGES / 2 + PAGES / 32, "{:?}", slots(&scene));
}
