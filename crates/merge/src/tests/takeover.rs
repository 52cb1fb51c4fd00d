//! Guests of a daemon that ended, with the next one.

use std::time::Duration;

use bindery_guest::Connection;

use super::audit::assert_converged;
use super::model::ModelGuest;
use super::process::Page;
use super::scenes::Scene;
use crate::MergeSettings;
use crate::status::GuestState;

/// Guests of `pages` pages, the same in each, that are merged under a daemon that ended, with the engine
/// of another.
fn taken_over(settings: MergeSettings, pages: u32) -> Scene {
    let mut before = Scene::new(MergeSettings::default());
    before.guest("a", pages, |page| u64::from(page + 1));
    before.guest("a", pages, |page| u64::from(page + 1));
    before.periods(3);
    assert!(before.guests.iter().all(|guest| guest.merged().len() == pages as usize));
    let mut scene = Scene::new(settings);
    let grant = scene.engine.domain("a").unwrap();
    for guest in &before.guests {
        let back = ModelGuest::connect(guest.identity().id, &grant, &guest.process);
        scene.engine.add_guest(&grant, back.clone());
        scene.guests.push(back);
    }
    scene
}

#[test]
fn a_guest_is_unmerged_though_it_came_only_after_the_last_period() {
    let scene = taken_over(MergeSettings::default(), 200);
    let (one, two) = (&scene.guests[0], &scene.guests[1]);
    let unmerged = scene.engine.unmerge(one.identity().id).unwrap();
    assert_eq!((unmerged.pages, unmerged.left), (200, 0));
    scene.periods(5);
    assert!(one.process().stores_in_use().is_empty());
    assert_eq!(scene.status_of(one).state, GuestState::Unmerged);
    assert_eq!(scene.status_of(one).counts.pages_foreign, 0);
    // It comes after the first period as well, and later.
    scene.engine.unmerge(two.identity().id).unwrap();
    scene.engine.merge(one.identity().id).unwrap();
    scene.engine.merge(two.identity().id).unwrap();
    scene.periods(5);
    assert_converged(&scene.guests);
}

/// Asserts that whatever was merged stays merged.
fn assert_all_merged(scene: &Scene) {
    for guest in &scene.guests {
        let process = guest.process();
        let merged = |page: &Page| matches!(page, Page::Merged(..));
        assert_eq!(process.pages.values().filter(|page| !merged(page)).count(), 0);
    }
}

#[test]
fn while_idle_nothing_is_brought_back_from_an_old_store() {
    let scene = taken_over(MergeSettings::default(), 200);
    scene.engine.set_idle(true);
    scene.periods(8);
    assert_all_merged(&scene);
    assert_eq!(scene.domain("a").counts.pages_foreign, 400);
    scene.engine.set_idle(false);
    scene.periods(1);
    assert_all_merged(&scene);
    assert_eq!(scene.domain("a").counts.pages_foreign, 0);
}

#[test]
fn what_was_not_looked_at_yet_is_not_brought_back_from_an_old_store() {
    // Periods that are over at once: one round each, of one block.
    let (period, rest, pages_to_scan) = (Duration::ZERO, Duration::ZERO, Some(512));
    let scene =
        taken_over(MergeSettings { period, rest, pages_to_scan, ..MergeSettings::default() }, 5120);
    for _ in 0..20 {
        scene.periods(1);
        assert_all_merged(&scene);
    }
    assert_eq!(scene.domain("a").counts.pages_foreign, 0);
}

#[test]
fn what_nobody_else_has_leaves_an_old_store_once_all_is_looked_at() {
    let scene = taken_over(MergeSettings::default(), 200);
    scene.guests[1].process().end();
    scene.periods(2);
    assert_eq!(scene.guests[0].process().stores_in_use().len(), 1);
    // Some in each period.
    scene.periods(10);
    assert!(scene.guests[0].process().stores_in_use().is_empty());
    assert_eq!(scene.status_of(&scene.guests[0]).counts.pages_foreign, 0);
}
