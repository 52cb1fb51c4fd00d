//! Guests of a daemon that ended, with the next one.

use bindery_guest::Connection;

use super::audit::assert_converged;
use super::model::ModelGuest;
use super::scenes::Scene;
use crate::Settings;
use crate::status::GuestState;

/// Guests of `pages` pages, the same in each, that are merged under a daemon that ended, with the engine
/// of another.
fn taken_over(settings: Settings, pages: u32) -> Scene {
    let mut before = Scene::new(Settings::default());
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
    let scene = taken_over(Settings::default(), 200);
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
