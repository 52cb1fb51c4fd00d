//! Eviction of single pages: those that are accessed least, whoever's they are.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bindery_units::PAGE_BYTES;

use super::gain::Gain;
use super::hand::{Hand, Victims, Watched};
use super::law::WHOLE;
use super::owners::Owners;
use super::paged_object::{self, PagedObject, Run};
use super::reaper_settings::ReaperSettings;
use super::room::{Held, Limit, Memory, Room};
use super::suspects::Suspects;
use super::work::Work;
use crate::map::{Accesses, BackEndKind, Maps, MemoryIdentity, SAMPLED, Watch};

/// Factor by which objects wait longer to be looked at where maps report each access: only pages that the kernel took by
/// itself are found then.
const REPORTED_PARTS: u32 = 16;

/// Ranges that leave memory at once: many, since processors are interrupted once for all; few enough to take no longer
/// than a piece of work may.
const RANGES_AT_ONCE: usize = 64;

/// Pages that the hand goes over at once.
const PAGES_AT_ONCE: u64 = 1 << 17;

/// Turns of the hand after which nothing more can go. The first may only count.
const TURNS_MAX: u64 = 3;

/// Pages of objects of which it is found out at once what is in memory, and eight times those that go at once.
const PAGES_PER_LOOK: usize = 1 << 16;

/// Parts of memory of which one at most is kept free where the kernel may choose instead.
const KEPT_PARTS_MIN: u32 = 10;

/// Shortest time between two looks.
const LOOK_MIN: Duration = Duration::from_millis(2);

/// Part of the usual interval after which memory that was short is looked at again at the latest.
const PRESSED_PARTS: u32 = 10;

/// Time after a shortage of memory in which it is looked at as often as during it.
const ALERT: Duration = Duration::from_secs(10);

/// All pages of all maps.
#[derive(Debug)]
pub(super) struct Pages {
    watch: Arc<Watch>,
    objects: Vec<Arc<PagedObject>>,
    /// Objects of which it is not known what is in memory.
    unknown: Vec<Arc<PagedObject>>,
    total_pages: u64,
    are_reported: bool,
    are_cached: bool,
    hand: Hand,
    suspects: Suspects,
    gain: Gain,
    /// The next object to be looked at, and what part of one is due besides.
    next: usize,
    due: f64,
    looked: Option<Duration>,
    /// Misses when it last looked, and since then a second.
    misses: u64,
    misses_per_s: f64,
    /// Time of the last shortage of memory.
    pressed: Option<Duration>,
    /// Pages that went since it was asked to evict.
    evicted: u64,
    /// True if nothing went when something had to.
    is_stuck: bool,
}

impl Pages {
    pub(super) fn new(watch: &Arc<Watch>) -> Self {
        Self {
            watch: Arc::clone(watch),
            objects: Vec::new(),
            unknown: Vec::new(),
            total_pages: 0,
            are_reported: true,
            are_cached: true,
            hand: Hand::default(),
            suspects: Suspects::default(),
            gain: Gain::default(),
            next: 0,
            due: 0.0,
            looked: None,
            misses: watch.misses(),
            misses_per_s: 0.0,
            pressed: None,
            evicted: 0,
            is_stuck: false,
        }
    }

    pub(super) fn learn(&mut self, maps: &Maps) {
        let mut owners: HashMap<MemoryIdentity, Owners> = HashMap::new();
        for map in maps.all() {
            for object in 0..map.objects.len() {
                owners.entry(map.back_end.identity(object)).or_default().add(&map, object);
            }
        }
        self.are_cached = owners.values().all(|owners| owners.kind() != Some(BackEndKind::Memfd));
        let known =
            owners.into_iter().filter_map(|(identity, owners)| self.watched(identity, owners));
        let mut objects: Vec<Arc<PagedObject>> = known.collect();
        // In the order of their places, so that neighbours are evicted together.
        objects
            .sort_unstable_by_key(|object| (object.identity.holder, object.identity.offset_bytes));
        self.total_pages = objects.iter().map(|object| object.accesses.len() as u64).sum();
        self.are_reported = objects.iter().all(|object| object.is_reported);
        self.unknown.retain(|object| object.is_shown());
        self.unknown.extend(objects.iter().filter(|object| object.is_new).cloned());
        self.objects = objects;
    }

    /// Makes all maps that show an object note accesses to its pages in the same place.
    fn watched(&self, identity: MemoryIdentity, owners: Owners) -> Option<Arc<PagedObject>> {
        let (map, object) = owners.any()?;
        let noted = owners.all().find_map(|(map, object)| map.accesses(object).cloned());
        let is_new = noted.is_none();
        let accesses = noted.unwrap_or_else(|| {
            let number = (identity.holder as u64) ^ (identity.offset_bytes / PAGE_BYTES as u64);
            Arc::new(Accesses::new(map.pages_of(object), number, &self.watch))
        });
        owners.all().for_each(|(map, object)| _ = map.note_accesses(object, &accesses));
        let is_reported = owners.are_reported();
        if is_new && !is_reported {
            owners.all().for_each(|(map, _)| map.back_end.fault_singly());
        }
        Some(Arc::new(PagedObject { identity, owners, accesses, is_reported, is_new }))
    }

    /// Counts misses, and those that were saved in memory of which so much is free or held.
    pub(super) fn count_misses(&self, room: Option<&Room>, work: &mut Work) {
        if let Some(room) = room {
            let usable_bytes = room.whole_bytes - room.kept_bytes();
            self.watch.set_cache_pages(usable_bytes / PAGE_BYTES as u64);
        }
        let sampled = self.watch.sampled_misses();
        let saved = sampled.without.cast_signed() - sampled.with.cast_signed();
        work.statistics.misses = self.watch.misses();
        work.statistics.misses_saved = saved * SAMPLED.cast_signed();
    }

    /// Learns of some objects what is in memory, and how fast it fills. Evicts suspects whose time is over.
    pub(super) fn look(&mut self, now: Duration, settings: &ReaperSettings, work: &mut Work) {
        let elapsed = self.looked.map_or(Duration::ZERO, |looked| now.saturating_sub(looked));
        self.looked = Some(now);
        let misses = self.watch.misses();
        if !elapsed.is_zero() {
            let per_s = (misses - self.misses) as f64 / elapsed.as_secs_f64();
            self.misses_per_s = per_s.max((self.misses_per_s + per_s) / 2.0);
        }
        self.misses = misses;
        let interval = settings.page_interval * if self.are_reported { REPORTED_PARTS } else { 1 };
        let all = self.objects.len();
        self.due += all as f64 * elapsed.as_secs_f64() / interval.as_secs_f64().max(1e-9);
        self.due = self.due.min(all as f64);
        let mut pages_left = PAGES_PER_LOOK;
        for _ in 0..settings.visits {
            if pages_left == 0 {
                break;
            }
            let Some(object) = self.next_due() else { break };
            pages_left = pages_left.saturating_sub(object.accesses.len());
            self.correct(&object, work);
        }
        self.evicted = self.evict_suspects(now, settings, work);
    }

    /// Returns an object of which it is not known what is in memory, or one that was not looked at for long.
    fn next_due(&mut self) -> Option<Arc<PagedObject>> {
        if let Some(object) = self.unknown.pop() {
            return Some(object);
        }
        if self.due < 1.0 {
            return None;
        }
        self.due -= 1.0;
        self.next = (self.next + 1) % self.objects.len();
        Some(Arc::clone(&self.objects[self.next]))
    }

    fn correct(&mut self, object: &Arc<PagedObject>, work: &mut Work) {
        work.statistics.visits += 1;
        let corrected = object.correct();
        self.suspects.count_as_gone(object);
        if object.is_reported
            && !object.is_new
            && let Ok(found) = corrected
        {
            work.statistics.pages_stuck += found;
        }
        work.note(corrected.map(|_| ()));
        work.pace.step();
    }

    /// Returns the memory that the maps hold.
    pub(super) fn held(&self, allocated_bytes: u64) -> Held {
        let pages = self.watch.resident_pages() + self.suspects.pages();
        Held::of(pages.saturating_sub(allocated_bytes / PAGE_BYTES as u64), allocated_bytes)
    }

    /// Evicts the pages that are accessed least, as many as are missing, and returns how many went.
    pub(super) fn evict(
        &mut self,
        now: Duration,
        room: &Room,
        memory: &Memory,
        settings: &ReaperSettings,
        work: &mut Work,
    ) -> u64 {
        if self.steps_back(now, room, memory, work) {
            self.pressed = None;
            return 0;
        }
        self.pressed = Some(now);
        let missing_pages = room.missing_bytes().div_ceil(PAGE_BYTES as u64);
        let mut evicted = std::mem::take(&mut self.evicted);
        let wanted = missing_pages.saturating_sub(evicted + self.suspects.pages());
        let wanted = wanted.min(PAGES_PER_LOOK as u64 / 8);
        let (mut taken, mut seen) = (0, 0);
        while taken < wanted && seen < TURNS_MAX * (self.total_pages + self.objects.len() as u64) {
            let objects = &self.objects;
            let watched = |at: usize| Watched {
                accesses: &objects[at].accesses,
                temperature: objects[at].owners.temperature(),
            };
            let wanted = (wanted - taken).min(RANGES_AT_ONCE as u64);
            let pass = self.hand.pass(objects.len(), watched, &settings.law, wanted, PAGES_AT_ONCE);
            taken += pass.taken;
            seen += pass.seen;
            evicted += self.evict_victims(now, &pass.victims, work);
            work.pace.step();
        }
        self.is_stuck = evicted == 0;
        evicted
    }

    /// Returns true if the kernel is to evict for a while, and can.
    fn steps_back(&mut self, now: Duration, room: &Room, memory: &Memory, work: &mut Work) -> bool {
        let sampled = self.watch.sampled_misses();
        let statistics = &mut work.statistics;
        // Memory that somebody else is to have is not left to the kernel, which would fill it.
        let is_whole = room.marks.low <= WHOLE / KEPT_PARTS_MIN && room.limit != Limit::Budget;
        let kernel_can = self.are_cached && self.are_reported && is_whole;
        let (busy, stall) = (statistics.busy, memory.processor_stall);
        statistics.steps_back = kernel_can && self.gain.steps_back(now, sampled, busy, stall);
        statistics.steps_back
    }

    fn evict_victims(&mut self, now: Duration, victims: &[Victims], work: &mut Work) -> u64 {
        let run = |victims: &Victims| Run {
            object: Arc::clone(&self.objects[victims.object]),
            first_page: victims.first_page,
            pages: victims.pages,
        };
        let (reported, unreported): (Vec<Run>, Vec<Run>) =
            victims.iter().map(run).partition(|run| run.object.is_reported);
        for of_holder in unreported.chunk_by(is_of_one_holder) {
            work.note(paged_object::forget(of_holder));
        }
        unreported.into_iter().for_each(|run| self.suspects.add(run, now));
        evict(&reported, work)
    }

    /// Evicts suspects that nobody has accessed for long enough.
    fn evict_suspects(&mut self, now: Duration, settings: &ReaperSettings, work: &mut Work) -> u64 {
        let Some(before) = now.checked_sub(settings.page_interval) else { return 0 };
        let unaccessed = self.suspects.judge(before, work);
        evict(&unaccessed, work)
    }

    /// Returns the time after which it wants to look again, if memory is or was short: before half of what
    /// is kept free has been filled.
    pub(super) fn again_in(
        &self,
        now: Duration,
        room: Option<&Room>,
        settings: &ReaperSettings,
    ) -> Option<Duration> {
        let pressed = self.pressed.filter(|_| !self.is_stuck)?;
        if now.saturating_sub(pressed) >= ALERT {
            return None;
        }
        let longest = settings.interval / PRESSED_PARTS;
        let kept_pages = room.map_or(0, Room::kept_bytes) / PAGE_BYTES as u64;
        let seconds = kept_pages as f64 / 2.0 / self.misses_per_s.max(1.0);
        let fills = Duration::try_from_secs_f64(seconds).unwrap_or(longest);
        Some(fills.clamp(LOOK_MIN.min(longest), longest))
    }
}

fn is_of_one_holder(a: &Run, b: &Run) -> bool {
    a.object.identity.holder == b.object.identity.holder
}

/// Evicts pages, and returns how many went.
fn evict(runs: &[Run], work: &mut Work) -> u64 {
    let mut evicted = 0;
    for of_holder in runs.chunk_by(is_of_one_holder) {
        for runs in of_holder.chunks(RANGES_AT_ONCE) {
            match paged_object::evict(runs) {
                Ok(went) => {
                    work.statistics.pages_stuck += went.stuck;
                    work.statistics.pages_evicted += went.pages;
                    evicted += went.pages;
                }
                Err(error) => work.note(Err(error)),
            }
            work.pace.step();
        }
    }
    evicted
}
