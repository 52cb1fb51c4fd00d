//! Random histories.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;

use super::audit::{assert_converged, audit};
use super::model::ModelGuest;
use super::process::Line;
use crate::domain::Domain;
use crate::grant::Grant;
use crate::stable::BACK_OFF_MAX;
use crate::{Engine, HugeMode, HugeSettings, MemoryLevel, MergeSettings, PERIOD};

const GUESTS: usize = 4;
const PAGES: u32 = 700;

#[derive(Clone, Debug)]
enum Step {
    Period,
    Write {
        guest: usize,
        first: u32,
        count: u32,
        content: u64,
    },
    Fill {
        guest: usize,
        first: u32,
        count: u32,
        content: u64,
    },
    Discard {
        guest: usize,
        first: u32,
        count: u32,
    },
    Unrest {
        guest: usize,
        writes: u32,
    },
    Busy {
        guest: usize,
        busy: bool,
    },
    Stall {
        guest: usize,
        requests: u32,
    },
    Resume {
        guest: usize,
    },
    Disconnect {
        guest: usize,
        requests: u32,
    },
    Reconnect {
        guest: usize,
    },
    Announce {
        guest: usize,
    },
    End {
        guest: usize,
    },
    Shrink {
        guest: usize,
        first: u32,
        count: u32,
    },
    Grow {
        guest: usize,
    },
    Unmerge {
        guest: usize,
    },
    Merge {
        guest: usize,
    },
    Workers {
        workers: usize,
    },
    Fork {
        guest: usize,
    },
    /// The guest's blocks are huge pages, where they can be, or not any more.
    Huge {
        guest: usize,
        is_huge: bool,
    },
    Mode {
        mode: HugeMode,
        memory: MemoryLevel,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let guest = || 0..GUESTS;
    let count = || prop_oneof![1u32..10, 50u32..300];
    prop_oneof![
        12 => Just(Step::Period),
        6 => (guest(), 0..PAGES, count(), 0u64..200)
            .prop_map(|(guest, first, count, content)| Step::Write { guest, first, count, content }),
        2 => (guest(), 0..PAGES, 200u32..PAGES, 1u64..5)
            .prop_map(|(guest, first, count, content)| Step::Fill { guest, first, count, content }),
        2 => (guest(), 0..PAGES, count())
            .prop_map(|(guest, first, count)| Step::Discard { guest, first, count }),
        2 => (guest(), 0u32..12).prop_map(|(guest, writes)| Step::Unrest { guest, writes }),
        1 => (guest(), any::<bool>()).prop_map(|(guest, busy)| Step::Busy { guest, busy }),
        2 => (guest(), 0u32..8).prop_map(|(guest, requests)| Step::Stall { guest, requests }),
        2 => guest().prop_map(|guest| Step::Resume { guest }),
        1 => (guest(), 0u32..8)
            .prop_map(|(guest, requests)| Step::Disconnect { guest, requests }),
        2 => guest().prop_map(|guest| Step::Reconnect { guest }),
        1 => guest().prop_map(|guest| Step::Announce { guest }),
        1 => guest().prop_map(|guest| Step::End { guest }),
        1 => (guest(), 0..PAGES, count())
            .prop_map(|(guest, first, count)| Step::Shrink { guest, first, count }),
        1 => guest().prop_map(|guest| Step::Grow { guest }),
        1 => guest().prop_map(|guest| Step::Unmerge { guest }),
        1 => guest().prop_map(|guest| Step::Merge { guest }),
        1 => (1usize..4).prop_map(|workers| Step::Workers { workers }),
        2 => guest().prop_map(|guest| Step::Fork { guest }),
        1 => (guest(), 0u64..200).prop_map(|(guest, content)| {
            Step::Write { guest, first: 0, count: PAGES, content }
        }),
        2 => (guest(), prop::bool::weighted(0.8))
            .prop_map(|(guest, is_huge)| Step::Huge { guest, is_huge }),
        1 => (0..3usize, 0..3usize).prop_map(|(mode, memory)| Step::Mode {
            mode: HugeMode::ALL[mode],
            memory: [MemoryLevel::Plenty, MemoryLevel::Low, MemoryLevel::Short][memory],
        }),
    ]
}

struct World {
    engine: Engine,
    /// Two guests in each of two domains.
    grants: Vec<Arc<Grant>>,
    guests: Vec<Arc<ModelGuest>>,
    next_id: u32,
    /// Connections that were replaced.
    old: Vec<Arc<ModelGuest>>,
}

impl World {
    fn new(settings: MergeSettings) -> Self {
        let engine = Engine::new(settings);
        let grants: Vec<_> = ["a", "b"].map(|name| engine.domain(name).unwrap()).into();
        let mut world = Self { engine, grants, guests: Vec::new(), next_id: 0, old: Vec::new() };
        for guest in 0..GUESTS {
            let started = world.start(guest);
            world.guests.push(started);
        }
        world
    }

    fn grant(&self, guest: usize) -> &Arc<Grant> {
        &self.grants[guest / 2]
    }

    fn start(&mut self, guest: usize) -> Arc<ModelGuest> {
        self.next_id += 1;
        let started = ModelGuest::start(self.next_id, self.grant(guest), PAGES, guest as u64);
        self.engine.add_guest(self.grant(guest), started.clone());
        started
    }

    fn reconnect(&mut self, guest: usize) {
        self.next_id += 1;
        let process = Arc::clone(&self.guests[guest].process);
        process.lock().unwrap().fails_in = None;
        let connected = ModelGuest::connect_silently(self.next_id, self.grant(guest), &process);
        self.engine.add_guest(self.grant(guest), connected.clone());
        self.old.push(std::mem::replace(&mut self.guests[guest], connected));
    }

    fn apply(&mut self, step: &Step) {
        match *step {
            Step::Period => {
                self.engine.run_period();
                self.audit();
            }
            Step::Write { guest, first, count, content } => {
                let mut process = self.guests[guest].process();
                // Neighbours differ, and two guests written alike are alike.
                (0..count).for_each(|at| process.write(first + at, (content + u64::from(at)) % 90));
            }
            Step::Fill { guest, first, count, content } => {
                let mut process = self.guests[guest].process();
                (0..count).for_each(|at| process.write(first + at, content));
            }
            Step::Discard { guest, first, count } => {
                let mut process = self.guests[guest].process();
                (first..first + count).for_each(|page| process.discard(page));
            }
            Step::Unrest { guest, writes } => self.guests[guest].process().unrest = writes,
            Step::Busy { guest, busy } => self.guests[guest].process().busy = busy,
            Step::Stall { guest, requests } if self.guests[guest].line() == Line::Open => {
                self.guests[guest].process().fails_in = Some((requests, Line::Stalled));
            }
            Step::Resume { guest } if self.guests[guest].line() == Line::Stalled => {
                self.guests[guest].set_line(Line::Open);
            }
            Step::Disconnect { guest, requests } => {
                self.guests[guest].process().fails_in = Some((requests, Line::Closed));
            }
            Step::Announce { guest } => self.guests[guest].announce(),
            Step::Reconnect { guest } => {
                let ended = self.guests[guest].process().ended;
                if self.guests[guest].line() == Line::Closed && !ended {
                    self.reconnect(guest);
                }
            }
            Step::End { guest } => {
                self.guests[guest].process().end();
                let started = self.start(guest);
                self.old.push(std::mem::replace(&mut self.guests[guest], started));
            }
            Step::Shrink { guest, first, count } => self.guests[guest].remove_region(first, count),
            Step::Grow { guest } => self.guests[guest].add_region(1024, 100),
            Step::Unmerge { guest } | Step::Merge { guest } => {
                let id = bindery_guest::Connection::identity(&*self.guests[guest]).id;
                let merge = matches!(step, Step::Merge { .. });
                // Stopped guests and those that left refuse, which is as good an outcome.
                let _ =
                    if merge { self.engine.merge(id) } else { self.engine.unmerge(id).map(drop) };
            }
            Step::Workers { workers } => self.engine.set_workers(workers),
            Step::Fork { guest } => self.guests[guest].process().fork(),
            Step::Huge { guest, is_huge } => {
                self.guests[guest].process().has_huge_pages = is_huge;
            }
            Step::Mode { mode, memory } => {
                let settings = HugeSettings { mode, patience: 2, ..HugeSettings::default() };
                self.engine.set_huge_pages(settings);
                self.engine.set_memory(memory);
            }
            Step::Stall { .. } | Step::Resume { .. } => {}
        }
    }

    fn audit(&self) {
        let all: Vec<_> = self.guests.iter().chain(&self.old).cloned().collect();
        audit(&self.engine, &all);
    }

    /// Everybody is well, and quiet for long enough.
    fn calm_down(&mut self) {
        for guest in 0..GUESTS {
            let mut process = self.guests[guest].process();
            (process.unrest, process.busy, process.fails_in) = (0, false, None);
            // What is kept whole is not shared.
            process.has_huge_pages = false;
            drop(process);
            match self.guests[guest].line() {
                Line::Closed => self.reconnect(guest),
                Line::Stalled => self.guests[guest].set_line(Line::Open),
                Line::Open => {}
            }
            self.guests[guest].announce();
            self.apply(&Step::Merge { guest });
        }
        // What rests is looked at, for it is to be treated otherwise.
        for mode in [HugeMode::Keep, HugeMode::Break] {
            self.apply(&Step::Mode { mode, memory: MemoryLevel::Plenty });
            self.apply(&Step::Period);
        }
        // A period that is over at once has one round, of one block of one guest.
        let rounds =
            if self.engine.settings().pages_to_scan.is_some() { 2 * GUESTS as u32 } else { 1 };
        for _ in 0..rounds * 3 * (u32::from(BACK_OFF_MAX) + 4) {
            self.apply(&Step::Period);
            (0..GUESTS).for_each(|guest| self.apply(&Step::Merge { guest }));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases / 6))]

    #[test]
    fn nothing_is_lost_and_everything_is_shared_in_the_end(
        steps in prop::collection::vec(step(), 1..80), backs_off: bool, is_paced: bool,
    ) {
        let (pages_to_scan, period) = if is_paced { (Some(512), Duration::ZERO) }
            else { (None, PERIOD) };
        let mut world =
            World::new(MergeSettings { backs_off, pages_to_scan, period, rest: Duration::ZERO, ..MergeSettings::default() });
        steps.iter().for_each(|step| world.apply(step));
        world.calm_down();
        assert_converged(&world.guests);
        // When all have ended, nothing is held any more.
        world.guests.iter().for_each(|guest| guest.process().end());
        let store = |domain: &Domain| Arc::clone(&domain.store);
        let stores: Vec<_> =
            world.engine.with_domains(|domains| domains.values().map(store).collect());
        world.engine.run_period();
        world.engine.run_period();
        world.engine.with_domains(|domains| assert!(domains.is_empty()));
        for store in stores {
            prop_assert_eq!(store.allocated_bytes(), 0);
        }
        // Nobody but the children, of which nobody knew.
        world.guests.iter().chain(&world.old).for_each(|guest| guest.process().check());
    }

    /// The same with stores and indices that are too small for what there is to share.
    #[test]
    fn full_stores_and_indices_hurt_nobody(
        steps in prop::collection::vec(step(), 1..60),
        store_slots in 1u32..40, index_keys in prop_oneof![Just(1000u32), 5u32..60],
    ) {
        let settings = MergeSettings { store_slots, index_keys, ..MergeSettings::default() };
        let mut world = World::new(settings);
        steps.iter().for_each(|step| world.apply(step));
        world.calm_down();
    }
}
