//! Guests that answer, but take their time.

use std::time::{Duration, Instant};

use bindery_guest::Connection;

use super::audit::assert_converged;
use super::scenes::Scene;
use crate::status::GuestState;
use crate::{MergeSettings, UnmergeError};

#[test]
fn a_guest_that_answers_one_page_at_a_time_holds_up_nobody_for_long() {
    let mut scene = Scene::new(MergeSettings::default());
    let (slow, _) = scene.guest("a", 10_000, |page| u64::from(page + 1));
    let (one, _) = scene.guest("a", 200, |page| u64::from(page + 1));
    let (two, _) = scene.guest("a", 200, |page| u64::from(page + 1));
    slow.process().crawls = Some(Duration::from_millis(50));
    for _ in 0..3 {
        let start = Instant::now();
        scene.periods(1);
        assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
        assert_eq!(scene.status_of(&slow).state, GuestState::Stalled);
    }
    assert_eq!((one.merged().len(), two.merged().len()), (200, 200));
    let start = Instant::now();
    let refused = scene.engine.unmerge(slow.identity().id).unwrap_err();
    assert!(matches!(refused, UnmergeError::Guest(_)), "{refused}");
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    // Once it answers as others do, nothing of it is missed.
    slow.process().crawls = None;
    scene.engine.merge(slow.identity().id).unwrap();
    scene.periods(4);
    assert_converged(&scene.guests);
}
