//! The law `steady`: what a page costs is known from the last scans, so the batch that brings the next
//! one to its target can be reckoned.
//!
//! A page keeps a scan busy for `b` and costs `c` of CPU time, which is the same with one thread. A scan
//! of `n` pages in batches of `p`, each followed by a rest `r`, takes `n·b + r·n/p`: that is `t` for
//! `p = n·r/(t - n·b)`. Its share of a CPU is `c/(b + r/p)`: that is `m` for `p = r/(c/m - b)`. Costs and
//! the rest are measured, so that late timers and busy CPUs are reckoned with.
//!
//! What is claimed (`crates/advisor/tests` has a test for each):
//!
//! - *At its target in two scans.* The scan that begins with the number of its pages known, or the one
//!   after a scan of as many, is on its target, because nothing else is in the formula. A scan is left
//!   as it is only within [`TOLERANCE_PERCENT`] of it.
//! - *A scan whose pages prove dearer is not late for it.* Pages that merge cost several times what
//!   looking at them does, and nobody knows which will. Where the pages of a scan so far cost
//!   half as much again as they did, the others are believed to, and the batch is reckoned anew.
//! - *A scan that meets growth catches up.* Where a scan proves to have more pages than it was said to
//!   have, as many again are believed to follow, and the rest is reckoned anew, for the time that the
//!   target leaves ([`Steady::catch_up`] is told). Once the target has passed that is as fast as the
//!   ceiling allows. A scan of `g` times its pages, which are found at its end at worst, takes a target
//!   and what the others take at the ceiling: where that allows just the target, `1 + (g - 1)/g`
//!   targets. The first scan, of which nothing is known, is one of these.
//! - *Never above the ceiling.* A second can begin and end with a batch: it has at most as many batches
//!   as `1 + r` seconds have on average, and so at most `m'·(1 + r)` of CPU time, where `m'` is the share
//!   over a long time. Batches are therefore bounded by `m' = m/(1 + r)`; rests that come later only
//!   make it less. Where even the smallest batch is too much, rests get longer.
//!   Pages are taken to cost what the dearest of the last scan did ([`Steady::hold`] is told), so that
//!   a scan through cheap pages is not in a rush when it comes to dear ones, if they lie together for
//!   some batches.
//! - *What cannot be avoided.* Nobody knows a page's cost before it was scanned once. When pages get
//!   dearer than all of the last scan, the scan is above its ceiling until the next `hold` after a batch
//!   of them, and in part until the one after that: where `d` is the time between two holds and that of
//!   a batch with its rest, by at most `2·d·(h - m)` seconds of CPU time, with `h` the share that the old
//!   pace has at the new cost, and by the batches that were under way.
//! - *No oscillation.* Costs and rests are means over scans, which noise of some percent leaves where
//!   they are; a change beyond noise ([`NOISE_PERCENT`]) is believed at once.

mod estimate;

use crate::{AdvisorSettings, Pace, Progress, Scan};
use estimate::{Highest, Mean};

pub use estimate::NOISE_PERCENT;

/// How far from its target a scan may be expected to be before anything is changed.
pub const TOLERANCE_PERCENT: u64 = 5;

/// The dearest pages are believed to cost at most so many times what pages cost on average.
const DEAREST: f64 = 4.0;

/// Pages that prove to cost so many times what they did are not noise, whatever else it may be.
const DEARER: f64 = 1.5;

/// In how many batches of a scan they have to prove it.
const DEARER_BATCHES: f64 = 16.0;

/// Rests are believed to be at most so many times longer than they should be, or shorter.
const REST_FACTOR: f64 = 16.0;

/// What the law keeps between scans. Times are in seconds.
#[derive(Clone, Copy, Debug)]
pub struct Steady {
    pace: Pace,
    /// The pace that the scan began with.
    begun: Pace,
    /// Whether that pace was reckoned from whole scans, for a whole scan.
    is_aimed: bool,
    /// What rests are asked to be, but for those that are stretched, in microseconds.
    rest_us: u64,
    /// What they proved to be.
    rest: Mean,
    /// What a page proved to cost, of CPU time.
    page: Mean,
    /// For how long a page proved to keep the scan busy.
    busy: Mean,
    /// What the dearest pages of the last scan cost.
    dearest: Highest,
    /// How many pages the scan was said to have; none, as long as nobody knows.
    expected: u64,
    within: Within,
}

/// What is learned within a scan.
#[derive(Clone, Copy, Debug, Default)]
struct Within {
    /// All that was told.
    reported: Scan,
    /// What was told and not reckoned with yet, because it was less than a batch.
    part: Scan,
    /// What the dearest pages cost so far.
    dearest_s: f64,
    /// What pages cost lately: up at once, down by and by.
    lately_s: f64,
    /// Whether rests were longer than usual.
    is_stretched: bool,
    /// How many pages are accounted for in `batches`.
    pages: u64,
    /// In how many batches they were looked at.
    batches: f64,
}

impl Within {
    /// Takes in that `pages` were looked at so far, those that are new in batches of `pages_to_scan`.
    fn account(&mut self, pages: u64, pages_to_scan: u64) {
        let more = pages.saturating_sub(self.pages);
        self.pages += more;
        self.batches += more as f64 / pages_to_scan.max(1) as f64;
    }

    /// For how long a page keeps this scan busy, where enough of them were looked at.
    fn busy_s(&self) -> Option<f64> {
        let is_enough = self.batches >= DEARER_BATCHES && self.reported.pages > 0;
        is_enough.then(|| a_page_s(self.reported.busy_us, self.reported.pages))
    }
}

/// The settings as the law reckons with them.
#[derive(Clone, Copy)]
struct Bounds {
    target_s: f64,
    /// Of one CPU.
    share: f64,
    min_pages: u64,
    max_pages: u64,
}

impl Bounds {
    fn of(settings: &AdvisorSettings) -> Self {
        let share = settings.max_cpu_percent.max(1) as f64 / 100.0;
        let max_pages = settings.max_pages_to_scan.max(1);
        Self {
            target_s: settings.target_scan_time_s as f64,
            share,
            min_pages: settings.min_pages_to_scan.clamp(1, max_pages),
            max_pages,
        }
    }

    /// `pages` as a batch, within the bounds. What is no number is the smallest.
    fn batch(self, pages: f64) -> u64 {
        (pages as u64).clamp(self.min_pages, self.max_pages)
    }
}

impl Steady {
    /// Begins with the smallest batch.
    #[must_use]
    pub fn new(settings: &AdvisorSettings, rest_us: u64) -> Self {
        let rest_us = rest_us.max(1);
        let pace = Pace { pages_to_scan: Bounds::of(settings).min_pages, rest_us };
        Self {
            pace,
            begun: pace,
            is_aimed: false,
            rest_us,
            rest: Mean::default(),
            page: Mean::default(),
            busy: Mean::default(),
            dearest: Highest::default(),
            expected: 0,
            within: Within::default(),
        }
    }

    /// What it advises now.
    #[must_use]
    pub fn pace(&self) -> Pace {
        self.pace
    }

    /// Takes in what a scan took, and how many pages the next has, where that is known. From a scan of
    /// no pages nothing is learned.
    pub fn end_scan(&mut self, settings: &AdvisorSettings, scan: Scan, next_pages: Option<u64>) {
        let within = std::mem::take(&mut self.within);
        if scan.pages == 0 {
            return;
        }
        let page_s = a_page_s(scan.cpu_us, scan.pages);
        self.page.take(page_s);
        self.busy.take(a_page_s(scan.busy_us, scan.pages));
        self.dearest.take(within.dearest_s.min(page_s * DEAREST).max(page_s));
        if !within.is_stretched && self.pace.rest_us == self.rest_us {
            self.rest.take(self.rest_of(scan, within));
        }
        self.begin_scan(settings, next_pages.unwrap_or(scan.pages));
    }

    /// Takes in how many pages the next scan has.
    pub fn begin_scan(&mut self, settings: &AdvisorSettings, pages: u64) {
        self.expected = pages;
        let (Some(busy_s), Some(dearest_s)) = (self.busy.get(), self.dearest.get()) else {
            self.begun = self.pace;
            return;
        };
        let bounds = Bounds::of(settings);
        let now = self.pace.pages_to_scan;
        let most = bounds.batch(self.most(bounds, dearest_s));
        let wanted = bounds.batch(self.batch_for(bounds.target_s, pages as f64, busy_s));
        // What was raised within a scan was a guess: to stay where it led would add its error to noise.
        let is_near = self.is_aimed && self.is_near(bounds.target_s, pages as f64, busy_s);
        let is_allowed = (bounds.min_pages..=most).contains(&now);
        let pages_to_scan = if is_near && is_allowed { now } else { wanted.min(most) };
        let rest_us = self.rest_for(bounds, pages_to_scan, dearest_s);
        self.pace = Pace { pages_to_scan, rest_us };
        self.begun = self.pace;
        self.is_aimed = true;
        self.within = Within { lately_s: dearest_s, ..Within::default() };
    }

    /// Takes in what was done since it was last told, or since the scan began, and slows down where the
    /// pages cost too much for the ceiling. Never goes faster than the scan began, or than it was to
    /// catch up.
    pub fn hold(&mut self, settings: &AdvisorSettings, part: Scan) {
        let within = &mut self.within;
        within.account(within.pages.saturating_add(part.pages), self.pace.pages_to_scan);
        within.reported = within.reported.and(part);
        within.part = within.part.and(part);
        // What the CPU time of less than a batch is said to be is wrong by more than it is.
        if within.part.pages < self.pace.pages_to_scan.max(1) {
            return;
        }
        let part = std::mem::take(&mut within.part);
        let page_s = a_page_s(part.cpu_us, part.pages);
        within.dearest_s = within.dearest_s.max(page_s);
        within.lately_s = page_s.max(within.lately_s - (within.lately_s - page_s) / 8.0);
        let lately_s = within.lately_s;
        let bounds = Bounds::of(settings);
        let most = bounds.batch(self.most(bounds, lately_s));
        let pages_to_scan = self.begun.pages_to_scan.min(most).max(bounds.min_pages);
        let rest_us = self.rest_for(bounds, pages_to_scan, lately_s).max(self.begun.rest_us);
        self.pace = Pace { pages_to_scan, rest_us };
        self.within.is_stretched |= rest_us > self.rest_us;
    }

    /// Takes in how far the scan is, and goes faster where it is larger than it was said to be, or late
    /// beyond noise, or will be because its pages are dearer than they were. Never slows down.
    pub fn catch_up(&mut self, settings: &AdvisorSettings, progress: Progress) {
        let Some(page_s) = self.dearest_so_far() else { return };
        let bounds = Bounds::of(settings);
        let left_s = bounds.target_s - progress.time_us as f64 / 1e6;
        let known = self.expected.saturating_add(progress.new_pages).max(progress.pages);
        let surplus = known - self.expected;
        let is_larger = surplus as f64 > self.expected as f64 * TOLERANCE_PERCENT as f64 / 100.0;
        let is_late = -left_s > bounds.target_s * NOISE_PERCENT / 100.0;
        let now = self.pace.pages_to_scan;
        // Where so many came, as many are believed to follow.
        let left = (known - progress.pages) as f64 + surplus as f64;
        let dearer_s = self.dearer_s().filter(|busy_s| {
            let late_s = left * (busy_s + self.rests().1 / now as f64) - left_s;
            late_s > bounds.target_s * NOISE_PERCENT / 100.0
        });
        // The pace of the first scan was none: what a page costs is known only now.
        if !is_larger && !is_late && dearer_s.is_none() && self.busy.get().is_some() {
            return;
        }
        let busy_s = dearer_s.or(self.busy.get()).unwrap_or(page_s);
        let wanted = self.batch_for(left_s, left, busy_s);
        let pages_to_scan = bounds.batch(wanted.min(self.most(bounds, page_s)));
        if pages_to_scan <= now.saturating_add(now / 8) {
            return;
        }
        self.within.account(progress.pages, now);
        self.pace = Pace { pages_to_scan, rest_us: self.rest_for(bounds, pages_to_scan, page_s) };
        self.begun = self.pace;
        self.is_aimed = false;
    }

    /// For how long a page keeps this scan busy, if that is far more than it was.
    fn dearer_s(&self) -> Option<f64> {
        let (busy_s, known_s) = self.within.busy_s().zip(self.busy.get())?;
        (busy_s > known_s * DEARER).then_some(busy_s)
    }

    /// What the dearest pages of the last scan and of this one cost; `None` as long as nothing is known.
    fn dearest_so_far(&self) -> Option<f64> {
        let within_s = self.within.dearest_s.max(self.within.lately_s);
        let dearest_s = self.dearest.get().unwrap_or(0.0).max(within_s);
        (dearest_s > 0.0).then_some(dearest_s)
    }

    /// How long a rest is to be, and how long it proved to be.
    fn rests(&self) -> (f64, f64) {
        let asked_s = self.rest_us as f64 / 1e6;
        (asked_s, self.rest.get().unwrap_or(asked_s))
    }

    /// How long a rest of this scan was. One follows each batch, the last as well, which is smaller.
    fn rest_of(&self, scan: Scan, mut within: Within) -> f64 {
        let (asked_s, _) = self.rests();
        within.account(scan.pages, self.pace.pages_to_scan);
        // Less than a rounding of the sum is no batch.
        let batches = (within.batches - 1e-6).ceil().max(1.0);
        let rests_s = scan.time_us.saturating_sub(scan.busy_us) as f64 / 1e6;
        (rests_s / batches).clamp(asked_s / REST_FACTOR, asked_s * REST_FACTOR)
    }

    /// What share of its CPU time a batch takes: less than one where threads share the work. Never more:
    /// a thread that waits for a CPU is busy for longer than it should be.
    fn overlap(&self) -> f64 {
        let (page_s, busy_s) = (self.page.get(), self.busy.get());
        page_s.zip(busy_s).map_or(1.0, |(page_s, busy_s)| (busy_s / page_s).min(1.0))
    }

    /// The largest batch that stays below the ceiling over any second, at that CPU time a page.
    fn most(&self, bounds: Bounds, page_s: f64) -> f64 {
        let (asked_s, real_s) = self.rests();
        let rest_s = asked_s.min(real_s);
        let idle_s = page_s * ((1.0 + rest_s) / bounds.share - self.overlap());
        if idle_s > 0.0 { rest_s / idle_s } else { f64::INFINITY }
    }

    /// The batch with which so many pages take `target_s`; the largest, if none is large enough.
    fn batch_for(&self, target_s: f64, pages: f64, busy_s: f64) -> f64 {
        let (_, rest_s) = self.rests();
        let batches = ((target_s - pages * busy_s) / rest_s).round();
        if batches < 1.0 { f64::INFINITY } else { (pages / batches).ceil() }
    }

    /// Whether the batch of now brings so many pages near the target.
    fn is_near(&self, target_s: f64, pages: f64, busy_s: f64) -> bool {
        let (_, rest_s) = self.rests();
        let batches = (pages / self.pace.pages_to_scan.max(1) as f64).ceil();
        let time_s = pages * busy_s + batches * rest_s;
        (time_s - target_s).abs() <= target_s * TOLERANCE_PERCENT as f64 / 100.0
    }

    /// The rest after a batch, in microseconds: longer than usual where that batch is above the
    /// ceiling all the same.
    fn rest_for(&self, bounds: Bounds, batch: u64, page_s: f64) -> u64 {
        if batch as f64 <= self.most(bounds, page_s) {
            return self.rest_us;
        }
        let work_s = batch as f64 * page_s;
        // Over a long time, and over any second; a second has no two batches that are a second apart.
        let overall_s = work_s / bounds.share - work_s * self.overlap();
        let any_second_s = match work_s < bounds.share {
            true => overall_s * bounds.share / (bounds.share - work_s),
            false => f64::INFINITY,
        };
        // The kernel's own rests are in milliseconds.
        let rest_ms = (any_second_s.min(overall_s.max(1.0)) * 1000.0).ceil() as u64;
        rest_ms.saturating_mul(1000).max(self.rest_us)
    }
}

/// What each of so many pages took, in seconds; never nothing.
fn a_page_s(us: u64, pages: u64) -> f64 {
    (us as f64 / 1e6 / pages as f64).max(1e-12)
}
