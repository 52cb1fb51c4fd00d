//! Guests that are to have private pages, and be left alone.

use bindery_guest::Connection;

use super::audit::assert_converged;
use super::process::Line;
use super::scenes::Scene;
use crate::{MergeSettings, UnmergeError};

#[test]
fn a_guest_that_was_unmerged_in_part_is_left_alone() {
    for failing in 0..2 {
        let mut scene = Scene::new(MergeSettings::default());
        let (one, _) = scene.guest("a", 100, |page| u64::from(page + 1));
        scene.periods(3);
        assert_eq!(scene.status_of(&one).counts.pages_unshared, 100);
        one.process().fails_in = Some((failing, Line::Stalled));
        let refused = scene.engine.unmerge(one.identity().id).unwrap_err();
        assert!(matches!(refused, UnmergeError::Guest(_)), "{refused}");
        one.set_line(Line::Open);
        // Two more that have the same: each finds the other.
        let (two, _) = scene.guest("a", 100, |page| u64::from(page + 1));
        scene.guest("a", 100, |page| u64::from(page + 1));
        scene.periods(5);
        assert!(one.merged().is_empty(), "request {failing} was not answered");
        assert_eq!(two.merged().len(), 100);
        let unmerged = scene.engine.unmerge(one.identity().id).unwrap();
        assert_eq!((unmerged.pages, unmerged.left), (0, 0));
        scene.engine.merge(one.identity().id).unwrap();
        scene.periods(5);
        assert_converged(&scene.guests);
    }
}
