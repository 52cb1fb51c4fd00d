//! The end of the range of guests' numbers.

use std::sync::Arc;

use super::audit::assert_converged;
use super::scenes::{Scene, id};
use crate::MergeSettings;
use crate::index_entry::GUESTS_MAX;

fn number_from(scene: &Scene, next: u32) {
    scene.engine.with_domains(|domains| domains.get_mut(&id("a")).unwrap().next_guest = next);
}

fn numbers(scene: &Scene) -> Vec<u32> {
    scene.engine.with_domains(|domains| domains[&id("a")].guests.keys().copied().collect())
}

#[test]
fn numbers_come_round_past_those_in_use() {
    let mut scene = Scene::new(MergeSettings::default());
    // Numbers 0 and 1 are in use, 1 by a guest that departed and whose process maps the store.
    let content = |page: u32| u64::from(page + 1);
    scene.guest("a", 100, content);
    let (departing, _) = scene.guest("a", 100, content);
    scene.periods(4);
    assert!(!departing.merged().is_empty());
    scene.engine.remove_guest(2);
    scene.periods(1);
    assert_eq!(numbers(&scene), [0]);
    number_from(&scene, GUESTS_MAX - 1);
    scene.guest("a", 100, content);
    scene.guest("a", 100, content);
    scene.periods(4);
    assert_eq!(numbers(&scene), [0, 2, GUESTS_MAX - 1]);
    scene.guests.retain(|guest| !Arc::ptr_eq(guest, &departing));
    assert_converged(&scene.guests);
}
