//! Single scenes, each with the one thing that it shows.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bindery_guest::{ANSWER_PATIENCE, Connection, GuestError};
use bindery_units::PAGE_BYTES;

use super::audit::{assert_converged, audit};
use super::model::ModelGuest;
use super::process::{Line, Page};
use crate::domain::DomainId;
use crate::grant::Grant;
use crate::guest::Health;
use crate::pressure::{DomainState, FULL_PAUSE, STORM_BREAKS_MIN};
use crate::settings::{MAPPING_BYTES, MEND_BREAKS, ROUND_PAGES};
use crate::stable::BACK_OFF_MAX;
use crate::status::{DomainStatus, GuestState, GuestStatus};
use crate::store::Store;
use crate::{Engine, MergeSettings};

/// The key of a domain that merges across nodes.
pub(super) fn id(name: &str) -> DomainId {
    DomainId { name: name.to_owned(), node: None }
}

pub(super) struct Scene {
    pub(super) engine: Engine,
    pub(super) guests: Vec<Arc<ModelGuest>>,
}

impl Scene {
    pub(super) fn new(settings: MergeSettings) -> Self {
        Self { engine: Engine::new(settings), guests: Vec::new() }
    }

    /// A guest of `domain` whose page `n` holds `content(n)`.
    pub(super) fn guest(
        &mut self,
        domain: &str,
        pages: u32,
        content: impl Fn(u32) -> u64,
    ) -> (Arc<ModelGuest>, Arc<Grant>) {
        let grant = self.engine.domain(domain).unwrap();
        let id = self.guests.len() as u32 + 1;
        let guest = ModelGuest::start(id, &grant, pages, u64::from(id));
        (0..pages).for_each(|page| guest.process().write(page, content(page)));
        self.engine.add_guest(&grant, guest.clone());
        self.guests.push(Arc::clone(&guest));
        (guest, grant)
    }

    pub(super) fn periods(&self, count: u32) {
        for _ in 0..count {
            self.engine.run_period();
            audit(&self.engine, &self.guests);
        }
    }

    pub(super) fn domain(&self, name: &str) -> DomainStatus {
        let status = self.engine.status();
        status.domains.iter().find(|domain| domain.name == name).unwrap().clone()
    }

    /// Store of a domain that merges across nodes.
    pub(super) fn store(&self, name: &str) -> Arc<Store> {
        self.engine.with_domains(|domains| Arc::clone(&domains[&id(name)].store))
    }

    pub(super) fn status_of(&self, guest: &ModelGuest) -> GuestStatus {
        let id = guest.identity().id;
        let status = self.engine.status();
        let mut guests = status.domains.iter().flat_map(|domain| &domain.guests);
        guests.find(|guest| guest.id == id).unwrap().clone()
    }
}

#[test]
fn pages_are_merged_after_two_quiet_periods_and_then_left_in_peace() {
    let mut scene = Scene::new(MergeSettings::default());
    let (one, _) = scene.guest("a", 300, |page| u64::from(page % 100));
    let (two, _) = scene.guest("a", 300, |page| u64::from(page % 150));
    scene.periods(2);
    assert!(one.merged().is_empty() && two.merged().is_empty());
    scene.periods(1);
    assert_converged(&scene.guests);
    let domain = scene.domain("a");
    assert_eq!((domain.pages_shared, domain.counts.zero_pages), (149, 5));
    assert_eq!(domain.pages_sharing, 600 - 5 - 149);
    one.process().requests.clear();
    scene.periods(3);
    assert_eq!(one.process().requests, ["lost", "scan"].repeat(3));
}

#[test]
fn stretches_in_common_are_digested_at_their_ends() {
    // Every eighth page, and those after the last of them.
    const ENDS: u64 = 1024 / 8 + 7;
    let mut scene = Scene::new(MergeSettings::default());
    let (one, _) = scene.guest("a", 1024, |page| u64::from(1 + page));
    let (two, _) = scene.guest("a", 1024, |page| u64::from(1 + page));
    scene.periods(3);
    let digested = |guest| scene.status_of(guest).counts.pages_digested;
    assert_eq!((digested(&one), digested(&two)), (1024, ENDS));
    assert_eq!((one.merged().len(), two.merged().len()), (1024, 1024));
    // Found in the store now, and some pages further on.
    let (late, _) = scene.guest("a", 1024, |page| u64::from(1 + (page + 99) % 1024));
    scene.periods(3);
    assert_eq!(late.merged().len(), 1024);
    // One stretch goes over the end of the others' memory.
    assert_eq!(scene.status_of(&late).counts.pages_digested, ENDS + 7);
    assert_eq!(scene.domain("a").counts.digest_different, 0);
    assert_converged(&scene.guests);
}

#[test]
fn nothing_is_inferred_of_a_guest_that_is_watched() {
    let mut scene = Scene::new(MergeSettings::default());
    let (one, _) = scene.guest("a", 1024, |page| u64::from(1 + page));
    let (two, _) = scene.guest("a", 1024, |page| u64::from(1 + page));
    let visitor = two.written().visit().expect("a seat");
    scene.periods(3);
    let digested = |guest| scene.status_of(guest).counts.pages_digested;
    assert_eq!((digested(&one), digested(&two)), (1024, 1024));
    assert_eq!(two.merged().len(), 1024);
    drop(visitor);
    let (late, _) = scene.guest("a", 1024, |page| u64::from(1 + page));
    scene.periods(3);
    assert!(scene.status_of(&late).counts.pages_digested < 1024);
    assert_converged(&scene.guests);
}

/// Zero, unlike all others, and like one that is elsewhere.
fn odd(page: u32) -> u64 {
    match page {
        11 => 0,
        100 => 9999,
        203 => 7,
        _ => u64::from(1 + page),
    }
}

#[test]
fn what_nobody_has_in_common_within_a_stretch_never_gets_into_the_store() {
    let mut scene = Scene::new(MergeSettings::default());
    let (one, _) = scene.guest("a", 512, |page| u64::from(1 + page));
    let (two, _) = scene.guest("a", 512, odd);
    scene.periods(3);
    let digested = |guest| scene.status_of(guest).counts.pages_digested;
    assert_eq!((digested(&one), digested(&two)), (512, 512 / 8 + 7));
    assert_eq!((one.merged().len(), two.merged().len()), (509, 509));
    assert_eq!(scene.domain("a").pages_shared, 509);
    scene.periods(1);
    assert_eq!((digested(&one), digested(&two)), (512, 512 / 8 + 7 + 3));
    let counts = scene.status_of(&two).counts;
    assert_eq!((counts.pages_merged, counts.zero_pages, counts.pages_unshared), (510, 1, 1));
    assert_eq!(scene.domain("a").pages_shared, 509);
    assert_eq!(scene.domain("a").counts.digest_different, 0);
    assert_converged(&scene.guests);
}

#[test]
fn what_differs_within_a_stretch_in_common_is_found_when_it_is_compared() {
    let mut scene = Scene::new(MergeSettings::default());
    let (one, _) = scene.guest("a", 512, |page| u64::from(1 + page));
    let (two, _) = scene.guest("a", 512, odd);
    let (three, _) = scene.guest("a", 512, |page| u64::from(1 + page));
    scene.periods(3);
    let merged = || [&one, &two, &three].map(|guest| guest.merged().len());
    // The second guest was asked for the contents first, and the third had them.
    assert_eq!(merged(), [512, 509, 512]);
    assert_eq!(scene.status_of(&two).counts.digest_different, 3);
    // They were moved, which is the same as written, and wait a period longer than their neighbours would.
    scene.periods(4);
    assert_eq!(merged(), [512, 510, 512]);
    let counts = scene.status_of(&two).counts;
    assert_eq!((counts.pages_digested, counts.digest_different), (512 / 8 + 7 + 3, 3));
    assert_eq!((counts.zero_pages, counts.pages_unshared), (1, 1));
    assert_converged(&scene.guests);
}

#[test]
fn a_store_is_filled_though_some_of_what_was_inferred_is_wrong() {
    let mut scene = Scene::new(MergeSettings { store_slots: 100, ..MergeSettings::default() });
    scene.guest("a", 512, |page| u64::from(1 + page));
    scene.guest("a", 512, |page| u64::from(if page % 4 == 3 { 5000 + page } else { 1 + page }));
    scene.periods(3);
    let domain = scene.domain("a");
    assert_eq!((domain.pages_shared, domain.state), (84, DomainState::StoreFull));
}

#[test]
fn zero_pages_within_a_stretch_are_found_though_mappings_are_short() {
    let mut scene = Scene::new(MergeSettings::default());
    let (_one, _) = scene.guest("a", 512, |page| u64::from(1 + page));
    let (two, _) = scene.guest("a", 512, odd);
    // So that there is a slot for what the second is inferred to hold.
    let (_three, _) = scene.guest("a", 512, |page| u64::from(1 + page));
    let mappings = two.process().mappings;
    two.process().mappings_max = mappings;
    scene.periods(5);
    assert_eq!(two.merged().len(), 0);
    assert_eq!(scene.status_of(&two).counts.zero_pages, 1);
}

#[test]
fn what_a_period_has_no_time_for_is_looked_at_in_the_next_ones_guest_after_guest() {
    // Periods that are over at once: one round each, of one block.
    let (period, rest, pages_to_scan) = (Duration::ZERO, Duration::ZERO, Some(512));
    let mut scene =
        Scene::new(MergeSettings { period, rest, pages_to_scan, ..MergeSettings::default() });
    // The same contents in three orders: each page has to be digested.
    let guests =
        [5, 7, 11].map(|step| scene.guest("a", 1536, |page| u64::from(1 + page * step % 1536)).0);
    scene.periods(2);
    let looked_at = || guests.each_ref().map(|guest| scene.status_of(guest).counts.pages_digested);
    assert_eq!(looked_at(), [0; 3]);
    scene.periods(1);
    assert_eq!(looked_at(), [512, 0, 0]);
    assert_eq!(scene.status_of(&guests[0]).counts.pages_pending, 1024);
    // Written meanwhile, and so not stable any more.
    guests[2].process().write(0, 7);
    scene.periods(1);
    assert_eq!(scene.status_of(&guests[2]).counts.pages_pending, 1535);
    scene.periods(7);
    assert_eq!(looked_at(), [1536; 3]);
    scene.periods(3);
    assert_converged(&scene.guests);
    assert_eq!(scene.engine.status().advisor.scans, 1, "over as many periods as it took");
}

#[test]
fn at_full_speed_guests_are_asked_in_every_period_too() {
    const ROUND: u32 = ROUND_PAGES as u32;
    let mut scene =
        Scene::new(MergeSettings { period: Duration::ZERO, ..MergeSettings::default() });
    let (large, _) = scene.guest("a", 2 * ROUND, |page| u64::from(1 + page));
    scene.periods(1);
    let (late, _) = scene.guest("a", ROUND / 2, |page| u64::from(1 + page * 5 % (2 * ROUND)));
    scene.periods(2);
    let looked_at = |guest| scene.status_of(guest).counts.pages_digested;
    assert_eq!((looked_at(&large), looked_at(&late)), (u64::from(ROUND), 0));
    // One page is written before its turn. The guest that came later has half of a round for itself.
    large.process().write(2 * ROUND - 1, 7);
    scene.periods(1);
    let half = u64::from(ROUND / 2);
    assert_eq!((looked_at(&large), looked_at(&late)), (3 * half, half));
    scene.periods(3);
    assert_eq!(looked_at(&large), u64::from(2 * ROUND));
    assert_eq!(late.merged().len() as u32, ROUND / 2);
    assert_converged(&scene.guests);
}

#[test]
fn a_guest_that_changes_all_the_time_keeps_no_other_from_its_turn() {
    let (period, rest, pages_to_scan) = (Duration::ZERO, Duration::ZERO, Some(512));
    let mut scene =
        Scene::new(MergeSettings { period, rest, pages_to_scan, ..MergeSettings::default() });
    let (busy, _) = scene.guest("a", 1536, |page| u64::from(1 + page));
    let (quiet, _) = scene.guest("b", 512, |page| u64::from(1 + page % 100));
    // In each period a third of it has just become stable.
    for period in 0..12 {
        let first = period % 3 * 512;
        (first..first + 512).for_each(|page| busy.process().write(page, u64::from(1 + page)));
        scene.periods(1);
    }
    assert_eq!(quiet.merged().len(), 512);
    assert!(scene.status_of(&busy).counts.pages_digested >= 1536);
}

#[test]
fn whoever_waits_for_a_period_is_not_kept_waiting_by_a_rest() {
    // A rest of 82 s, in a period of ten minutes.
    let (period, pages_to_scan) = (Duration::from_secs(600), Some(1));
    let mut scene = Scene::new(MergeSettings { period, pages_to_scan, ..MergeSettings::default() });
    let (guest, _) = scene.guest("a", 1024, |page| u64::from(1 + page));
    scene.engine.set_period(Duration::ZERO);
    scene.periods(2);
    scene.engine.set_period(period);
    std::thread::scope(|scope| {
        scope.spawn(|| scene.engine.run());
        let start = Instant::now();
        while scene.status_of(&guest).counts.pages_digested == 0 {
            assert!(start.elapsed() < Duration::from_secs(60));
            std::thread::sleep(Duration::from_millis(5));
        }
        let start = Instant::now();
        scene.engine.unmerge(guest.identity().id).unwrap();
        assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
        scene.engine.stop();
    });
}

#[test]
fn nobody_keeps_periods_from_running() {
    let mut scene =
        Scene::new(MergeSettings { period: Duration::from_millis(10), ..MergeSettings::default() });
    // Each look at all of them takes a while.
    (0..100).for_each(|_| drop(scene.guest("a", 10, |page| u64::from(1 + page))));
    let guest = Arc::clone(&scene.guests[0]);
    scene.periods(1);
    let (engine, is_over) = (&scene.engine, AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| engine.run());
        for _ in 0..16 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    engine.merge(guest.identity().id).unwrap();
                }
            });
        }
        let start = Instant::now();
        let before = engine.status().full_scans;
        while engine.status().full_scans < before + 10 && start.elapsed() < Duration::from_secs(20)
        {
            std::thread::sleep(Duration::from_millis(5));
        }
        let periods = engine.status().full_scans - before;
        is_over.store(true, Ordering::Relaxed);
        engine.stop();
        assert!(periods >= 10, "{periods} in {:?}", start.elapsed());
    });
}

#[test]
fn a_rate_is_kept_and_stopping_ends_a_rest() {
    let (period, pages_to_scan) = (Duration::from_secs(60), Some(64));
    let mut scene = Scene::new(MergeSettings { period, pages_to_scan, ..MergeSettings::default() });
    scene.guest("a", 2048, |page| u64::from(1 + page));
    scene.periods(2);
    let start = Instant::now();
    scene.periods(1);
    // 512 pages, and a rest of 20 ms for each 64 of the others.
    let rested = Duration::from_millis(20) * (2048 / 64 - 8);
    assert!(start.elapsed() >= rested, "{:?}", start.elapsed());
    assert_eq!(scene.domain("a").counts.pages_digested, 2048);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(30));
            scene.engine.stop();
        });
        let start = Instant::now();
        scene.engine.run();
        assert!(start.elapsed() < Duration::from_secs(30));
    });
}

#[test]
fn while_idle_guests_come_and_go_and_nothing_is_merged() {
    let mut scene = Scene::new(MergeSettings::default());
    scene.engine.set_idle(true);
    let (one, _) = scene.guest("a", 300, |page| u64::from(1 + page % 100));
    scene.periods(5);
    assert!(one.merged().is_empty());
    assert!(one.process().split.is_empty(), "its memory is the kernel's");
    scene.engine.set_idle(false);
    scene.periods(3);
    assert_converged(&scene.guests);
}

#[test]
fn duplicates_within_one_guest_are_merged() {
    let mut scene = Scene::new(MergeSettings::default());
    scene.guest("a", 200, |page| u64::from(1 + page % 10));
    scene.periods(3);
    assert_eq!((scene.domain("a").pages_shared, scene.domain("a").pages_sharing), (10, 190));
}

#[test]
fn a_content_that_fills_memory_is_merged_in_long_runs() {
    let mut scene = Scene::new(MergeSettings::default());
    let (one, _) = scene.guest("a", 4096, |_| 7);
    scene.periods(3);
    let slots: Vec<_> = one.merged().into_values().collect();
    assert_eq!(slots.len(), 4096);
    let runs = slots.chunk_by(|a, b| a.plus(1) == *b).count();
    assert_eq!(runs, 64);
    // The row of copies, and what the index leads to.
    assert_eq!(scene.domain("a").pages_shared, 65);
    // Whoever has a page of it later finds its place in the same row.
    let (two, _) = scene.guest("a", 100, |_| 7);
    scene.periods(3);
    assert_eq!(scene.domain("a").pages_shared, 65);
    let first = two.merged().into_values().take(64).collect::<Vec<_>>();
    assert_eq!(first, slots[..64]);
    // All of it is free when nobody has the content any more, and not before.
    (0..4096).for_each(|page| one.process().write(page, u64::from(10_000 + page)));
    (1..100).for_each(|page| two.process().write(page, u64::from(20_000 + page)));
    scene.periods(1);
    assert_eq!(scene.domain("a").pages_shared, 65);
    two.process().write(0, 20_000);
    scene.periods(1);
    assert_eq!(scene.domain("a").pages_shared, 0);
}

#[test]
fn a_content_that_fills_more_memory_gets_more_copies() {
    let mut scene = Scene::new(MergeSettings::default());
    let (one, _) = scene.guest("a", 10_000, |page| u64::from(if page < 300 { 7 } else { page }));
    scene.periods(3);
    assert_eq!(scene.domain("a").pages_shared, 1 + 7);
    (300..10_000).for_each(|page| one.process().write(page, 7));
    scene.periods(3);
    assert_eq!(scene.domain("a").pages_shared, 1 + 7 + 35);
    (0..300).for_each(|page| one.process().write(page, u64::from(page)));
    scene.periods(1);
    assert_eq!(scene.domain("a").pages_shared, 1 + 35);
}

#[test]
fn copies_stay_few_beside_what_is_merged() {
    let mut scene = Scene::new(MergeSettings::default());
    // One content after the other fills the guest's memory, and leaves one page behind.
    let (one, _) = scene.guest("a", 4096, |_| 7);
    for content in 8..40 {
        scene.periods(3);
        (content..4096).for_each(|page| one.process().discard(page));
        (content..4096).for_each(|page| one.process().write(page, u64::from(content)));
    }
    scene.periods(3);
    let store = scene.store("a");
    let most = 4096 * MAPPING_BYTES / 2 / 4096;
    assert!(scene.domain("a").pages_shared <= most + 40, "{:?}", scene.domain("a").pages_shared);
    assert!(store.allocated_bytes() <= (most + 40) * 4096);
}

#[test]
fn a_store_without_room_for_copies_merges_without() {
    let mut scene = Scene::new(MergeSettings { store_slots: 16, ..MergeSettings::default() });
    let (one, _) = scene.guest("a", 4096, |_| 7);
    scene.periods(3);
    assert_eq!((one.merged().len(), scene.domain("a").pages_shared), (4096, 1));
}

#[test]
fn domains_share_nothing() {
    let mut scene = Scene::new(MergeSettings::default());
    let (one, a) = scene.guest("a", 100, |page| u64::from(page + 1));
    let (two, b) = scene.guest("b", 100, |page| u64::from(page + 1));
    assert_ne!(a.digest_key(), b.digest_key());
    scene.periods(6);
    assert!(one.merged().is_empty() && two.merged().is_empty());
    assert_eq!(["a", "b"].map(|name| scene.store(name).allocated_bytes()), [0, 0]);
}

#[test]
fn a_stopped_guest_disturbs_nobody_and_is_used_again() {
    let mut scene = Scene::new(MergeSettings::default());
    let (stopped, _) = scene.guest("a", 200, |page| u64::from(page + 1));
    let (one, _) = scene.guest("a", 200, |page| u64::from(page + 1));
    let (two, _) = scene.guest("a", 200, |page| u64::from(page + 1));
    scene.periods(1);
    stopped.set_line(Line::Stalled);
    stopped.process().requests.clear();
    scene.periods(5);
    assert_eq!(stopped.process().requests.len(), 1, "it is asked once, and then left alone");
    assert_eq!(scene.status_of(&stopped).state, GuestState::Stalled);
    assert_eq!((one.merged().len(), two.merged().len()), (200, 200));
    stopped.set_line(Line::Open);
    scene.periods(4);
    assert_eq!(scene.status_of(&stopped).state, GuestState::Merging);
    assert_eq!(stopped.merged(), one.merged());
}

#[test]
fn a_failure_does_not_hide_that_an_answer_is_owed() {
    let mut scene = Scene::new(MergeSettings::default());
    let (_guest, _) = scene.guest("a", 10, |page| u64::from(1 + page));
    scene.periods(1);
    let owed = GuestError::Stalled { request: "a merge", patience: ANSWER_PATIENCE };
    let failed = || GuestError::Daemon { doing: "a test", error: std::io::Error::other("a test") };
    scene.engine.with_domains(|domains| {
        let guest = domains[&id("a")].guests.values().next().expect("it is there");
        for (error, health) in [
            (failed(), Health::Failing),
            (owed, Health::Stalled),
            (failed(), Health::Stalled),
            (GuestError::Gone, Health::Lost),
            (failed(), Health::Lost),
        ] {
            guest.note(&error);
            assert_eq!(guest.health(), health);
        }
    });
}

#[test]
fn an_answer_to_a_merge_that_never_came_is_asked_for() {
    let mut merged = Vec::new();
    for others in 0..8 {
        let mut scene = Scene::new(MergeSettings::default());
        // Each run gives the guest another seed: it stops before its merge, or after it. It comes first, so
        // that contents are copied from the other.
        (0..others).for_each(|_| drop(scene.guest("b", 1, |_| 1)));
        let (two, _) = scene.guest("a", 100, |page| u64::from(page + 1));
        let (one, _) = scene.guest("a", 100, |page| u64::from(page + 1));
        scene.periods(2);
        two.process().requests.clear();
        two.process().fails_in = Some((4, Line::Stalled));
        scene.periods(1);
        assert_eq!(two.process().requests, ["lost", "scan", "digest", "digest", "merge"]);
        merged.push(two.merged().len());
        // Nobody else maps the slots any more: the stopped guest alone keeps them.
        (0..100).for_each(|page| one.process().write(page, 900 + u64::from(page)));
        scene.periods(3);
        two.set_line(Line::Open);
        scene.periods(2);
        assert_eq!(two.merged().len(), merged[merged.len() - 1]);
        (0..100).for_each(|page| one.process().write(page, u64::from(page + 1)));
        scene.periods(9);
        assert_eq!((one.merged().len(), two.merged().len()), (100, 100));
    }
    merged.sort_unstable();
    merged.dedup();
    assert_eq!(merged, [0, 100], "it stopped before and after the merge");
}

#[test]
fn what_a_lost_guest_maps_stays_until_its_process_ends() {
    let mut scene = Scene::new(MergeSettings::default());
    let (lost, _) = scene.guest("a", 100, |page| u64::from(page + 1));
    let (other, _) = scene.guest("a", 100, |page| u64::from(page + 1));
    scene.periods(3);
    let store = scene.store("a");
    lost.set_line(Line::Closed);
    (0..100).for_each(|page| other.process().write(page, 1000 + u64::from(page)));
    // `audit` reads every page of the lost guest through its store.
    scene.periods(8);
    assert_eq!(scene.status_of(&lost).state, GuestState::Disconnected);
    assert_eq!(store.allocated_bytes(), 100 * 4096);
    lost.process().end();
    scene.periods(1);
    assert_eq!(store.allocated_bytes(), 0);
}

#[test]
fn what_a_child_sees_stays_though_nobody_knows_of_it() {
    let mut scene = Scene::new(MergeSettings { backs_off: false, ..MergeSettings::default() });
    let (one, _) = scene.guest("a", 100, |page| u64::from(page + 1));
    let (other, _) = scene.guest("a", 100, |page| u64::from(page + 1));
    scene.periods(3);
    let store = scene.store("a");
    one.process().fork();
    // Its parent and everybody else get other contents, over and over, in slots of the same numbers.
    for round in 1..10 {
        for guest in [&one, &other] {
            let mut process = guest.process();
            (0..100).for_each(|page| process.write(page, 1000 * round + u64::from(page)));
        }
        scene.periods(4);
        assert_eq!((one.merged().len(), other.merged().len()), (100, 100), "round {round}");
        assert!(one.merged().values().all(|slot| slot.0 < 300), "numbers are used again");
        one.process().check();
    }
    [&one, &other].into_iter().for_each(|guest| guest.process().end());
    scene.periods(2);
    assert_eq!(store.allocated_bytes(), 0);
    one.process().check();
}

#[test]
fn without_descriptors_merging_pauses_and_goes_on_once_there_are_some() {
    let mut scene = Scene::new(MergeSettings::default());
    let (one, _) = scene.guest("a", 40, |page| u64::from(page + 1));
    scene.guest("a", 40, |page| u64::from(page + 1));
    scene.periods(3);
    let store = scene.store("a");
    assert_eq!(one.merged().len(), 40);
    let short = &store.has_no_descriptors;
    short.store(true, Ordering::Relaxed);
    // Eight slots are left of the last segment.
    scene.guest("a", 100, |page| 500 + u64::from(page));
    scene.guest("a", 100, |page| 500 + u64::from(page));
    scene.periods(4);
    assert_eq!(scene.domain("a").state, DomainState::DescriptorsShort);
    assert!((40..=48).contains(&scene.domain("a").pages_shared));
    short.store(false, Ordering::Relaxed);
    scene.periods(FULL_PAUSE + u32::from(BACK_OFF_MAX) + 4);
    assert_eq!(scene.domain("a").state, DomainState::Merging);
    assert_converged(&scene.guests);
}

#[test]
fn nobody_but_the_process_itself_can_come_back_for_it() {
    let mut scene = Scene::new(MergeSettings::default());
    let (lost, grant) = scene.guest("a", 100, |page| u64::from(page + 1));
    scene.guest("a", 100, |page| u64::from(page + 1));
    scene.periods(3);
    let store = scene.store("a");
    lost.set_line(Line::Closed);
    scene.periods(1);
    // Says the same of itself, but the kernel says that it is another process.
    let thief = ModelGuest::start(9, &grant, 10, 9);
    thief.process().instance = lost.identity().instance;
    let thief = ModelGuest::connect(10, &grant, &thief.process);
    assert_eq!(thief.identity().instance, lost.identity().instance);
    scene.engine.add_guest(&grant, thief.clone());
    scene.guests.push(thief);
    scene.guests[1].process().end();
    scene.periods(3);
    assert_eq!(store.allocated_bytes(), 100 * 4096);
    let back = ModelGuest::connect(11, &grant, &lost.process);
    scene.engine.add_guest(&grant, back.clone());
    scene.guests.push(Arc::clone(&back));
    scene.periods(10);
    assert_eq!(scene.status_of(&back).counts.pages_foreign, 0);
    assert!(scene.domain("a").guests.iter().all(|guest| guest.state != GuestState::Disconnected));
    // Its pages are merged with the slots that were kept for it, under the new connection.
    assert_eq!((back.merged().len(), store.allocated_bytes()), (100, 100 * 4096));
    back.process().end();
    scene.periods(1);
    assert_eq!(store.allocated_bytes(), 0);
}

#[test]
fn mappings_go_to_the_longest_runs() {
    let mut scene = Scene::new(MergeSettings::default());
    // Stretches of one page and of forty, with pages of its own between them.
    let content = |own: u64| {
        move |page: u32| match page % 50 {
            1 | 5..45 => u64::from(page + 1),
            _ => own << 32 | u64::from(page),
        }
    };
    let (short, _) = scene.guest("a", 1000, content(1));
    scene.guest("a", 1000, content(2));
    let mappings = short.process().mappings;
    short.process().mappings_max = mappings + 40;
    scene.periods(3);
    let merged = short.merged();
    assert!(merged.keys().all(|page| (5..45).contains(&(page % 50))), "{merged:?}");
    assert_eq!(scene.status_of(&short).state, GuestState::MappingsShort);
    assert_eq!(scene.guests[1].merged().len(), 20 * 40, "nothing is merged alone");
    assert_eq!(scene.domain("a").store_bytes, 20 * 40 * PAGE_BYTES as u64, "nor takes memory");
    short.process().mappings_max = 1_000_000;
    scene.periods(10);
    assert!(scene.guests.iter().all(|guest| guest.merged().len() == 20 * 41));
    assert_eq!(scene.status_of(&short).state, GuestState::Merging);
}

#[test]
fn mappings_that_breaks_left_apart_are_joined_when_they_get_short() {
    let pages = MEND_BREAKS as u32;
    let settings = MergeSettings { backs_off: false, ..MergeSettings::default() };
    for (mappings_max, mends) in [(1_000_000, 0), (300, 1)] {
        let mut scene = Scene::new(settings);
        let (one, _) = scene.guest("a", pages, |page| u64::from(page + 1));
        scene.guest("a", pages, |page| u64::from(page + 1));
        one.process().mappings_max = mappings_max;
        scene.periods(3);
        (0..pages).for_each(|page| one.process().write(page, u64::from(page + 2)));
        scene.periods(2);
        let asked = || {
            let process = one.process();
            process.requests.iter().filter(|request| **request == "mend").count()
        };
        assert_eq!(asked(), mends, "of {mappings_max} mappings");
        // It saved nothing: not again for as many breaks.
        scene.periods(3);
        (0..pages).for_each(|page| one.process().write(page, u64::from(page + 1)));
        scene.periods(3);
        assert_eq!(asked(), mends);
    }
}

#[test]
fn a_storm_of_breaks_slows_merging_down() {
    let pages = 4 * STORM_BREAKS_MIN as u32;
    for backs_off in [true, false] {
        let mut scene = Scene::new(MergeSettings { backs_off, ..MergeSettings::default() });
        let (one, _) = scene.guest("a", pages, |page| u64::from(page + 1));
        scene.guest("a", pages, |page| u64::from(page + 1));
        scene.periods(3);
        (0..pages).for_each(|page| one.process().write(page, u64::from(page + 2)));
        scene.periods(1);
        let expected = if backs_off { DomainState::Storm } else { DomainState::Merging };
        assert_eq!(scene.domain("a").state, expected);
        assert_eq!(scene.domain("a").counts.breaks, u64::from(pages));
        scene.periods(6);
        assert_eq!(scene.domain("a").state, DomainState::Merging);
        assert_converged(&scene.guests);
    }
}

#[test]
fn a_full_store_is_said_and_goes_on_when_there_is_room() {
    let mut scene = Scene::new(MergeSettings { store_slots: 50, ..MergeSettings::default() });
    let (one, _) = scene.guest("a", 100, |page| u64::from(page + 1));
    let (two, _) = scene.guest("a", 100, |page| u64::from(page + 1));
    scene.periods(3);
    let store = scene.store("a");
    assert_eq!(scene.domain("a").state, DomainState::StoreFull);
    assert_eq!(store.allocated_bytes(), 50 * 4096);
    // What was merged becomes unique, so that there is room for the others.
    let merged: Vec<u32> = one.merged().into_keys().collect();
    for page in merged {
        one.process().write(page, 1 << 40 | u64::from(page));
        two.process().write(page, 1 << 41 | u64::from(page));
    }
    scene.periods(20);
    assert_eq!(scene.domain("a").state, DomainState::Merging);
    assert_converged(&scene.guests);
}

#[test]
fn a_guest_that_lies_about_digests_gains_and_spoils_nothing() {
    let mut scene = Scene::new(MergeSettings::default());
    let (liar, _) = scene.guest("a", 20, |page| 500 + u64::from(page));
    liar.process().lies = Some(7);
    scene.periods(3);
    let store = scene.store("a");
    assert_eq!(store.allocated_bytes(), 0, "its pages were fetched and found out");
    scene.guest("a", 20, |_| 7);
    scene.guest("a", 20, |_| 7);
    scene.periods(12);
    assert!(liar.merged().is_empty());
    let honest = &scene.guests[1..];
    assert!(honest.iter().all(|guest| guest.merged().len() == 20));
    assert_eq!(scene.domain("a").pages_shared, 1);
}

#[test]
fn a_guest_that_reports_slots_that_nobody_has_is_dropped() {
    let mut scene = Scene::new(MergeSettings::default());
    let (liar, _) = scene.guest("a", 20, |page| u64::from(page + 1));
    let (one, _) = scene.guest("a", 20, |page| u64::from(page + 1));
    scene.periods(3);
    // It stops in the middle of something, and then reports what cannot be.
    (0..20).for_each(|page| one.process().write(page, 900 + u64::from(page)));
    liar.set_line(Line::Stalled);
    scene.engine.run_period();
    liar.set_line(Line::Open);
    let store = liar.store();
    liar.process().pages.insert(3, Page::Merged(store, bindery_units::Slot(4000), 0));
    scene.engine.run_period();
    let state = scene.status_of(&liar).state;
    assert_eq!(state, GuestState::Disconnected);
    scene.engine.run_period();
    assert_eq!(liar.line(), Line::Closed, "it is told");
    assert_eq!(scene.status_of(&one).state, GuestState::Merging);
}

#[test]
fn regions_that_go_take_their_references_with_them() {
    let mut scene = Scene::new(MergeSettings::default());
    let (one, grant) = scene.guest("a", 600, |page| u64::from(page + 1));
    let (two, _) = scene.guest("a", 600, |page| u64::from(page + 1));
    scene.periods(3);
    let store = scene.store("a");
    one.remove_region(100, 500);
    two.remove_region(200, 400);
    scene.periods(2);
    assert_eq!((one.merged().len(), two.merged().len()), (100, 200));
    let whole_segments = 200_u64.next_multiple_of(u64::from(grant.segment_slots()));
    assert_eq!(store.allocated_bytes(), whole_segments * 4096);
}

#[test]
fn metadata_is_below_32_bytes_a_page_when_all_pages_differ() {
    let pages = 1 << 17;
    // Long enough for all of it in one: what is late waits for the next.
    let period = Duration::from_secs(60);
    let mut scene =
        Scene::new(MergeSettings { index_keys: 1 << 20, period, ..MergeSettings::default() });
    scene.guest("a", pages, |page| u64::from(page + 1));
    (0..3).for_each(|_| scene.engine.run_period());
    let domain = scene.domain("a");
    assert_eq!((domain.counts.pages_unshared, domain.index_keys), (1 << 17, 1 << 17));
    let each = domain.metadata_bytes as f64 / f64::from(pages);
    assert!(each <= 32.0, "{each:.1} bytes a page");
}

#[test]
fn figures_survive_json() {
    let mut scene = Scene::new(MergeSettings::default());
    scene.guest("a", 10, u64::from);
    scene.periods(3);
    let status = scene.engine.status();
    let json = serde_json::to_string(&*status).unwrap();
    for name in ["pages_shared", "pages_sharing", "full_scans", "general_profit", "zero_pages"] {
        assert!(json.contains(name), "{name} in {json}");
    }
    assert_eq!(serde_json::from_str::<crate::status::EngineStatus>(&json).unwrap(), *status);
}

#[test]
fn a_small_guest_at_rest_is_asked_in_every_eighth_period_and_others_in_other_ones() {
    let mut scene = Scene::new(MergeSettings::default());
    let guests: Vec<_> =
        (0..8).map(|_| scene.guest("a", 1000, |page| u64::from(page + 1)).0).collect();
    scene.periods(60);
    let asked = || -> Vec<bool> {
        let was_asked =
            |guest: &Arc<ModelGuest>| !std::mem::take(&mut guest.process().requests).is_empty();
        guests.iter().map(was_asked).collect()
    };
    asked();
    for _ in 0..16 {
        scene.periods(1);
        let asked = asked().into_iter().filter(|was_asked| *was_asked).count();
        assert_eq!(asked, 1, "of eight");
    }
    // What was written is found within as many periods, and asked after in each from then on.
    guests[0].process().write(7, 1 << 40);
    let found = (0..8).find(|_| {
        scene.periods(1);
        asked()[0]
    });
    assert!(found.is_some());
    for _ in 0..3 {
        scene.periods(1);
        assert!(asked()[0]);
    }
    assert!(!guests[0].merged().contains_key(&7));
}
