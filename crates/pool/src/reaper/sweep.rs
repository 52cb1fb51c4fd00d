//! One look at all maps at a time: accesses, free memory, and what must go.

use std::io;
use std::time::Duration;

use bindery_sys::thread;
use bindery_units::PAGE_BYTES;

use super::law::Pressure;
use super::objects::Objects;
use super::pages::Pages;
use super::reaper_settings::{Grain, ReaperSettings};
use super::room::{Held, Memory, Room};
use super::work::{ReaperStatistics, Work};
use crate::map::Maps;
use crate::pace::Pace;

/// The reaper without its thread: somebody calls [`tick`](Self::tick), whenever and with whatever time he
/// likes.
#[derive(Debug)]
pub struct Sweep {
    maps: Maps,
    settings: ReaperSettings,
    version: Option<u64>,
    active: bool,
    evicted: Evicted,
    work: Work,
}

/// Memory that is looked after, by the unit of eviction.
#[derive(Debug)]
enum Evicted {
    Objects(Objects),
    Pages(Box<Pages>),
}

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
        let evicted = match settings.grain {
            Grain::Object => Evicted::Objects(Objects::default()),
            Grain::Page => Evicted::Pages(Box::new(Pages::new(maps.watch()))),
        };
        let (maps, work) = (maps.clone(), Work::new()?);
        Ok(Self { maps, settings, version: None, active: false, evicted, work })
    }

    /// Returns the counts so far, and what is seen.
    #[must_use]
    pub const fn statistics(&self) -> &ReaperStatistics {
        &self.work.statistics
    }

    /// Returns the settings.
    #[must_use]
    pub const fn settings(&self) -> &ReaperSettings {
        &self.settings
    }

    /// Looks at some objects, at memory, and evicts what must go, in [small pieces](Pace). `now` never
    /// goes back.
    pub fn tick(&mut self, now: Duration, memory: &Memory) -> Ticked {
        let began = thread::cpu_time();
        self.work.pace = Pace::begin();
        self.learn_of_maps(now);
        self.look(now);
        let held = self.held();
        self.work.statistics.resident_pages = held.bytes / PAGE_BYTES as u64;
        let room = Room::of(&self.settings, memory, held);
        let pressure =
            room.and_then(|room| self.settings.law.pressure(room.free, room.marks, self.active));
        self.active = pressure.is_some();
        if let Evicted::Pages(pages) = &self.evicted {
            pages.count_misses(room.as_ref(), &mut self.work);
        }
        self.work.statistics.steps_back = false;
        let pages_evicted = match room.zip(pressure) {
            Some((room, pressure)) => self.evict(now, &room, pressure, memory),
            None => 0,
        };
        // The kernel's choice is not helped by reading less ahead.
        let imposed = pressure.filter(|_| !self.work.statistics.steps_back);
        self.impose(room, imposed);
        self.work.statistics.busy += thread::cpu_time().saturating_sub(began);
        let again_in = match &self.evicted {
            Evicted::Objects(_) => None,
            Evicted::Pages(pages) => pages.again_in(now, room.as_ref(), &self.settings),
        };
        // Who steps back is in no hurry.
        let pressed = self.active && !self.work.statistics.steps_back;
        Ticked { pressed, pages_evicted, again_in }
    }

    /// Ends what it imposed on the maps.
    pub fn relent(&mut self) {
        self.active = false;
        self.impose(None, None);
    }

    fn learn_of_maps(&mut self, now: Duration) {
        let version = self.maps.version();
        if self.version.replace(version) == Some(version) {
            return;
        }
        match &mut self.evicted {
            Evicted::Objects(objects) => objects.learn(&self.maps, now),
            Evicted::Pages(pages) => pages.learn(&self.maps),
        }
    }

    fn look(&mut self, now: Duration) {
        let (settings, work) = (&self.settings, &mut self.work);
        match &mut self.evicted {
            Evicted::Objects(objects) => objects.look(now, self.active, settings, work),
            Evicted::Pages(pages) => pages.look(now, settings, work),
        }
    }

    /// Returns the memory that the maps hold: as the kernel says now where it does, else as it was last seen.
    fn held(&self) -> Held {
        let maps = self.maps.all();
        let allocated = maps.iter().filter_map(|map| map.back_end.allocated_bytes()).sum::<u64>();
        match &self.evicted {
            Evicted::Objects(objects) => objects.held(allocated),
            Evicted::Pages(pages) => pages.held(allocated),
        }
    }

    fn evict(&mut self, now: Duration, room: &Room, pressure: Pressure, memory: &Memory) -> u64 {
        let (settings, work) = (&self.settings, &mut self.work);
        match &mut self.evicted {
            Evicted::Objects(objects) => {
                let missing_pages = room.missing_bytes().div_ceil(PAGE_BYTES as u64);
                objects.evict(now, pressure, missing_pages, settings, work)
            }
            Evicted::Pages(pages) => pages.evict(now, room, memory, settings, work),
        }
    }

    fn impose(&mut self, room: Option<Room>, pressure: Option<Pressure>) {
        let law = &self.settings.law;
        let delay = pressure.map_or(Duration::ZERO, |pressure| law.fault_delay(pressure));
        for map in self.maps.all() {
            let pages = pressure
                .map_or(u64::MAX, |pressure| law.readahead_pages(map.temperature(), pressure));
            map.back_end.duty().impose(delay, pages);
        }
        let statistics = &mut self.work.statistics;
        statistics.free = room.map(|room| room.free);
        statistics.limit = room.map(|room| room.limit);
        statistics.pressure = pressure;
        statistics.fault_delay = delay;
        statistics.time_to_live = law.shortened(pressure.unwrap_or(Pressure(0)));
    }
}
