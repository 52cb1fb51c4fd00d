//! One look at all maps at a time: accesses, free memory, and what must go.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bindery_sys::pagemap::Pagemap;
use bindery_units::PAGE_BYTES;

use super::cell::Cell;
use super::cut::Cut;
use super::heat::LEVELS;
use super::law::{Law, Pressure};
use super::reaper_settings::{Grain, ReaperSettings};
use super::room::{Held, Limit, Memory, Room};
use crate::map::{BackEndKind, EvictError, Mapped, Maps, MemoryIdentity, Temperature};
use crate::pace::Pace;

/// Counts of the reaper, and what it sees.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReaperStatistics {
    /// Pages that the maps hold, as last seen.
    pub resident_pages: u64,
    /// The part of memory that is free, in hundredths of a percent, by the limit that binds first.
    pub free: Option<u32>,
    /// Limit that binds first.
    pub limit: Option<Limit>,
    /// Shortage of memory now; none while there is none.
    pub pressure: Option<Pressure>,
    /// Time that a cold object stays unaccessed now.
    pub time_to_live: Duration,
    /// Least time that each fault of the memfd back end waits now.
    pub fault_delay: Duration,
    /// Number of looks at objects.
    pub visits: u64,
    /// Objects that had been idle for too long, and were touched at the last moment.
    pub objects_spared: u64,
    /// Objects evicted.
    pub objects_evicted: u64,
    /// Pages that went.
    pub pages_evicted: u64,
    /// Pages that were evicted and did not go when they should have: others map them, they share a huge
    /// page, or the kernel is about to migrate them.
    pub pages_stuck: u64,
    /// Objects of which the kernel would not say or do what was asked.
    pub errors: u64,
}

/// The reaper without its thread: somebody calls [`tick`](Self::tick), whenever and with whatever time he
/// likes.
#[derive(Debug)]
pub struct Sweep {
    maps: Maps,
    settings: ReaperSettings,
    pagemap: Pagemap,
    cells: Vec<Cell>,
    version: Option<u64>,
    /// The next cell to visit.
    next: usize,
    /// When some were visited last.
    visited: Option<Duration>,
    /// Chooses where probes are laid.
    place: u64,
    active: bool,
    /// When memory was short last.
    pressed: Option<Duration>,
    pace: Pace,
    statistics: ReaperStatistics,
}

/// By how much more often objects are visited while memory is short.
const PRESSED_PARTS: u32 = 10;

/// Time after a shortage of memory in which pages are looked after as often as during it. They go in small
/// numbers, and they come as fast as the device reads.
const ALERT: Duration = Duration::from_secs(10);

/// Result of a [`Sweep::tick`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ticked {
    /// True if memory is short.
    pub pressed: bool,
    /// Number of pages that went.
    pub pages_evicted: u64,
    /// When it wants to look again at the latest, if it says.
    pub again_in: Option<Duration>,
}

impl Sweep {
    /// Looks after all of `maps`, those that come later too.
    ///
    /// # Errors
    /// If `/proc/self/pagemap` cannot be opened.
    pub fn new(maps: &Maps, settings: ReaperSettings) -> io::Result<Self> {
        let (maps, pagemap) = (maps.clone(), Pagemap::of_self()?);
        let (cells, statistics) = (Vec::new(), ReaperStatistics::default());
        Ok(Self {
            maps,
            settings,
            pagemap,
            cells,
            version: None,
            next: 0,
            visited: None,
            place: 0,
            active: false,
            pressed: None,
            pace: Pace::begin(),
            statistics,
        })
    }

    /// Returns the counts so far, and what is seen.
    #[must_use]
    pub const fn statistics(&self) -> &ReaperStatistics {
        &self.statistics
    }

    /// Returns the settings.
    #[must_use]
    pub const fn settings(&self) -> &ReaperSettings {
        &self.settings
    }

    /// Looks at some objects, at memory, and evicts what must go, in [small pieces](Pace). `now` never
    /// goes back.
    pub fn tick(&mut self, now: Duration, memory: &Memory) -> Ticked {
        self.pace = Pace::begin();
        self.learn_of_maps(now);
        self.visit_some(now);
        let held = self.held();
        self.statistics.resident_pages = held.bytes / PAGE_BYTES as u64;
        let room = Room::of(&self.settings, memory, held);
        let pressure =
            room.and_then(|room| self.settings.law.pressure(room.free, room.marks, self.active));
        self.active = pressure.is_some();
        self.impose(room, pressure);
        let again_in = self.is_alert(now).then(|| self.visit_interval(now));
        let (Some(room), Some(pressure)) = (room, pressure) else {
            return Ticked { again_in, ..Ticked::default() };
        };
        self.pressed = Some(now);
        let missing_pages = room.missing_bytes().div_ceil(PAGE_BYTES as u64);
        let pages = match self.settings.grain {
            Grain::Object => 0,
            Grain::Page => self.evict_pages(missing_pages),
        };
        let victims = self.choose(now, pressure, missing_pages.saturating_sub(pages));
        let pages_evicted = pages + self.evict(now, &victims);
        let again_in = self.is_alert(now).then(|| self.visit_interval(now));
        Ticked { pressed: true, pages_evicted, again_in }
    }

    /// Returns true if pages come and go.
    fn is_alert(&self, now: Duration) -> bool {
        let recently = |pressed| now.saturating_sub(pressed) < ALERT;
        self.settings.grain == Grain::Page && self.pressed.is_some_and(recently)
    }

    fn visit_interval(&self, now: Duration) -> Duration {
        let is_hurried = self.active || self.is_alert(now);
        self.settings.interval / if is_hurried { PRESSED_PARTS } else { 1 }
    }

    /// Ends what it imposed on the maps.
    pub fn relent(&mut self) {
        self.active = false;
        self.impose(None, None);
    }

    fn learn_of_maps(&mut self, now: Duration) {
        let version = self.maps.version();
        if self.version == Some(version) {
            return;
        }
        let mut cells: HashMap<MemoryIdentity, Cell> = HashMap::new();
        for map in self.maps.all() {
            if self.settings.grain == Grain::Page {
                map.back_end.fault_singly();
            }
            for object in 0..map.objects.len() {
                let identity = map.back_end.identity(object);
                let cell = cells.entry(identity).or_insert_with(|| Cell::new(identity, now));
                cell.add(&map, object);
            }
        }
        for old in &mut self.cells {
            if let Some(cell) = cells.get_mut(&old.identity) {
                cell.inherit(old);
            }
        }
        self.cells = cells.into_values().collect();
        // In the order of their places, so that neighbours are looked at and evicted together.
        self.cells.sort_unstable_by_key(|cell| (cell.identity.holder, cell.identity.offset_bytes));
        self.version = Some(version);
    }

    /// Each visit costs who uses the object a fault, so there is a time between them, pressed or not.
    fn visit_some(&mut self, now: Duration) {
        let interval = self.visit_interval(now);
        if self.visited.is_some_and(|visited| now.saturating_sub(visited) < interval) {
            return;
        }
        self.visited = Some(now);
        let count = self.settings.visits.min(self.cells.len());
        for _ in 0..count {
            self.next = (self.next + 1) % self.cells.len();
            self.visit(self.next, now);
        }
    }

    fn visit(&mut self, cell: usize, now: Duration) {
        self.statistics.visits += 1;
        self.place = self.place.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let (cell, pagemap) = (&mut self.cells[cell], &self.pagemap);
        let visited = match self.settings.grain {
            Grain::Object => cell.visit(pagemap, now, self.place >> 33),
            Grain::Page => cell.visit_pages(pagemap, now, &self.settings),
        };
        self.note(visited);
        self.pace.step();
    }

    fn note(&mut self, result: Result<(), EvictError>) {
        if let Err(error) = result {
            self.statistics.errors += 1;
            tracing::debug!(%error, "an object could not be looked after");
        }
    }

    /// Returns the memory that the maps hold: as the kernel says now where it does, else as it was last seen.
    fn held(&self) -> Held {
        let maps = self.maps.all();
        let allocated = maps.iter().filter_map(|map| map.back_end.allocated_bytes()).sum::<u64>();
        let is_cached = |cell: &&Cell| cell.kind() == Some(BackEndKind::File);
        let seen = self.cells.iter().filter(|cell| cell.resident_pages() > 0).filter(is_cached);
        let pages = seen.map(Cell::resident_pages).sum::<u64>();
        let cached_bytes = pages * PAGE_BYTES as u64;
        Held { bytes: allocated + cached_bytes, cached_bytes }
    }

    fn impose(&mut self, room: Option<Room>, pressure: Option<Pressure>) {
        let law = &self.settings.law;
        let delay = pressure.map_or(Duration::ZERO, |pressure| law.fault_delay(pressure));
        for map in self.maps.all() {
            let pages = pressure
                .map_or(u64::MAX, |pressure| law.readahead_pages(map.temperature(), pressure));
            map.back_end.duty().impose(delay, pages);
        }
        let statistics = &mut self.statistics;
        statistics.free = room.map(|room| room.free);
        statistics.limit = room.map(|room| room.limit);
        statistics.pressure = pressure;
        statistics.fault_delay = delay;
        statistics.time_to_live = law.shortened(pressure.unwrap_or(Pressure(0)));
    }

    /// Returns the objects that outlived their time the longest, until they make up what is missing.
    fn choose(&mut self, now: Duration, pressure: Pressure, missing_pages: u64) -> Vec<usize> {
        let expired = |cell: &Cell, law: &Law| {
            let time_to_live = law.time_to_live(cell.temperature(), pressure)?;
            let idle = cell.idle(now);
            let lives = idle.as_secs_f64() / time_to_live.as_secs_f64().max(1e-6);
            (cell.resident_pages() > 0 && idle > time_to_live).then_some(lives)
        };
        let law = self.settings.law.clone();
        let cells = self.cells.iter().enumerate();
        let candidates = cells.filter_map(|(at, cell)| Some((expired(cell, &law)?, at)));
        let mut candidates: Vec<(f64, usize)> = candidates.collect();
        candidates.sort_unstable_by(|a, b| b.0.total_cmp(&a.0));
        let (mut chosen, mut pages) = (Vec::new(), 0);
        for (_, at) in candidates {
            if pages >= missing_pages || chosen.len() >= self.settings.evictions {
                break;
            }
            // A last look: the probe tells whether it was touched since it was laid.
            self.visit(at, now);
            if expired(&self.cells[at], &law).is_some() {
                pages += self.cells[at].resident_pages();
                chosen.push(at);
            } else {
                self.statistics.objects_spared += 1;
            }
        }
        chosen
    }

    /// Evicts the pages that are accessed least, as many as are missing, and counts what really went.
    fn evict_pages(&mut self, missing_pages: u64) -> u64 {
        let mut counts = [[0; LEVELS]; Temperature::ALL.len()];
        for cell in &self.cells {
            cell.count_pages(&mut counts[cell.temperature() as usize]);
            self.pace.step();
        }
        let cut = Cut::of(&counts, &self.settings.law, missing_pages);
        let (mut taken, mut evicted) = (0, 0);
        for step in 0..self.cells.len() {
            // It begins elsewhere each time, so that of pages alike not always the same go.
            let at = (self.next + step) % self.cells.len();
            let cell = &mut self.cells[at];
            let (temperature, before) = (cell.temperature(), cell.resident_pages());
            let more = cut.at(temperature).saturating_sub(taken);
            let asked = cell.evict_pages(cut.below(temperature), more, &mut self.pace);
            let gone = before.saturating_sub(cell.resident_pages());
            evicted += gone;
            if let Ok(asked) = &asked {
                taken += asked.equal_pages;
                self.statistics.pages_stuck += asked.pages.saturating_sub(gone);
            }
            self.note(asked.map(|_| ()));
            self.pace.step();
        }
        self.statistics.pages_evicted += evicted;
        evicted
    }

    /// Evicts, and counts what really went.
    fn evict(&mut self, now: Duration, victims: &[usize]) -> u64 {
        let mut by_map: BTreeMap<usize, (Arc<Mapped>, Vec<usize>)> = BTreeMap::new();
        for &at in victims {
            if let Some((map, object)) = self.cells[at].owner() {
                let key = Arc::as_ptr(&map).addr();
                by_map.entry(key).or_insert_with(|| (map, Vec::new())).1.push(object);
            }
        }
        for (map, objects) in by_map.into_values() {
            let evicted = map.back_end.evict(&objects);
            self.note(evicted);
            self.pace.step();
        }
        let mut evicted = 0;
        for &at in victims {
            let before = self.cells[at].resident_pages();
            let recounted = self.cells[at].recount();
            self.note(recounted);
            let left = self.cells[at].resident_pages();
            // What did not go would be the first to be tried again.
            self.cells[at].spare(now);
            evicted += before.saturating_sub(left);
            self.statistics.pages_stuck += left;
            self.statistics.objects_evicted += u64::from(left < before);
        }
        self.statistics.pages_evicted += evicted;
        evicted
    }
}
