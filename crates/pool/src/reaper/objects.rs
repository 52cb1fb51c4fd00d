//! Eviction of whole objects: those that nobody accessed for longer than the law lets them.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use super::cell::Cell;
use super::law::{Law, Pressure};
use super::reaper_settings::ReaperSettings;
use super::room::Held;
use super::work::Work;
use crate::map::{BackEndKind, Mapped, Maps, MemoryIdentity};

/// By how much more often objects are visited while memory is short.
const PRESSED_PARTS: u32 = 10;

/// All objects, and the next to be looked at.
#[derive(Debug, Default)]
pub(super) struct Objects {
    cells: Vec<Cell>,
    /// The next cell to visit.
    next: usize,
    /// Time at which some were visited last.
    visited: Option<Duration>,
    /// Chooses where probes are laid.
    place: u64,
}

impl Objects {
    pub(super) fn learn(&mut self, maps: &Maps, now: Duration) {
        let mut cells: HashMap<MemoryIdentity, Cell> = HashMap::new();
        for map in maps.all() {
            for object in 0..map.objects.len() {
                let identity = map.back_end.identity(object);
                let cell = cells.entry(identity).or_insert_with(|| Cell::new(identity, now));
                cell.owners.add(&map, object);
            }
        }
        for old in &self.cells {
            if let Some(cell) = cells.get_mut(&old.identity) {
                cell.inherit(old);
            }
        }
        self.cells = cells.into_values().collect();
        // In the order of their places, so that neighbours are looked at and evicted together.
        self.cells.sort_unstable_by_key(|cell| (cell.identity.holder, cell.identity.offset_bytes));
    }

    /// Looks at some. Each look costs who uses the object a fault, so there is a time between them.
    pub(super) fn look(
        &mut self,
        now: Duration,
        is_pressed: bool,
        settings: &ReaperSettings,
        work: &mut Work,
    ) {
        let interval = settings.interval / if is_pressed { PRESSED_PARTS } else { 1 };
        if self.visited.is_some_and(|visited| now.saturating_sub(visited) < interval) {
            return;
        }
        self.visited = Some(now);
        let count = settings.visits.min(self.cells.len());
        for _ in 0..count {
            self.next = (self.next + 1) % self.cells.len();
            self.visit(self.next, now, work);
        }
    }

    fn visit(&mut self, cell: usize, now: Duration, work: &mut Work) {
        work.statistics.visits += 1;
        self.place = self.place.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let visited = self.cells[cell].visit(&work.pagemap, now, self.place >> 33);
        work.note(visited);
        work.pace.step();
    }

    /// Returns the memory that the maps hold: as the kernel says now where it does, else as it was last seen.
    pub(super) fn held(&self, allocated_bytes: u64) -> Held {
        let is_cached = |cell: &&Cell| cell.owners.kind() == Some(BackEndKind::File);
        let seen = self.cells.iter().filter(|cell| cell.resident_pages() > 0).filter(is_cached);
        Held::of(seen.map(Cell::resident_pages).sum(), allocated_bytes)
    }

    /// Evicts what has outlived its time, until it makes up what is missing, and returns the number of
    /// pages that really went.
    pub(super) fn evict(
        &mut self,
        now: Duration,
        pressure: Pressure,
        missing_pages: u64,
        settings: &ReaperSettings,
        work: &mut Work,
    ) -> u64 {
        let victims = self.choose(now, pressure, missing_pages, settings, work);
        self.evict_chosen(now, &victims, work)
    }

    /// Returns the objects that outlived their time the longest, until they make up what is missing.
    fn choose(
        &mut self,
        now: Duration,
        pressure: Pressure,
        missing_pages: u64,
        settings: &ReaperSettings,
        work: &mut Work,
    ) -> Vec<usize> {
        let expired = |cell: &Cell, law: &Law| {
            let time_to_live = law.time_to_live(cell.owners.temperature(), pressure)?;
            let idle = cell.idle(now);
            let lives = idle.as_secs_f64() / time_to_live.as_secs_f64().max(1e-6);
            (cell.resident_pages() > 0 && idle > time_to_live).then_some(lives)
        };
        let law = &settings.law;
        let cells = self.cells.iter().enumerate();
        let candidates = cells.filter_map(|(at, cell)| Some((expired(cell, law)?, at)));
        let mut candidates: Vec<(f64, usize)> = candidates.collect();
        candidates.sort_unstable_by(|a, b| b.0.total_cmp(&a.0));
        let (mut chosen, mut pages) = (Vec::new(), 0);
        for (_, at) in candidates {
            if pages >= missing_pages || chosen.len() >= settings.evictions {
                break;
            }
            // A last look: the probe tells whether it was touched since it was laid.
            self.visit(at, now, work);
            if expired(&self.cells[at], law).is_some() {
                pages += self.cells[at].resident_pages();
                chosen.push(at);
            } else {
                work.statistics.objects_spared += 1;
            }
        }
        chosen
    }

    /// Evicts, and counts what really went.
    fn evict_chosen(&mut self, now: Duration, victims: &[usize], work: &mut Work) -> u64 {
        let mut by_map: BTreeMap<usize, (Arc<Mapped>, Vec<usize>)> = BTreeMap::new();
        for &at in victims {
            if let Some((map, object)) = self.cells[at].owners.any() {
                let key = Arc::as_ptr(&map).addr();
                by_map.entry(key).or_insert_with(|| (map, Vec::new())).1.push(object);
            }
        }
        for (map, objects) in by_map.into_values() {
            let evicted = map.back_end.evict(&objects);
            work.note(evicted);
            work.pace.step();
        }
        let mut evicted = 0;
        for &at in victims {
            let before = self.cells[at].resident_pages();
            let recounted = self.cells[at].recount();
            work.note(recounted);
            let left = self.cells[at].resident_pages();
            // What did not go would be the first to be tried again.
            self.cells[at].spare(now);
            evicted += before.saturating_sub(left);
            work.statistics.pages_stuck += left;
            work.statistics.objects_evicted += u64::from(left < before);
        }
        work.statistics.pages_evicted += evicted;
        evicted
    }
}
