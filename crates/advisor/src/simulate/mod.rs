//! A model of a thread that scans like ksmd, and of what an [`Advisor`] makes of it.
//!
//! The thread looks at `pages_to_scan` pages, rests, and begins anew once it has looked at all. Pages come
//! and go everywhere in memory: those that come within a scan count in it if they are ahead. A batch is looked at with the pace that held when it began, a rest is as long as it was to be when the
//! batch ended. Time is continuous: the CPU time of *any* second can be asked for.

mod load;
mod random;
mod run;
mod scenario;
mod verdict;

pub use load::{Kind, Load, Noise, Point, Shape};
pub use run::{Batch, Run, ScanRecord};
pub use scenario::Scenario;
pub use verdict::Verdict;

use crate::{Advisor, AdvisorSettings, Pace, Progress, Scan};
use random::Random;

/// How a load is scanned.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Conditions {
    /// The rest after a batch, in microseconds, unless the law asks for another.
    pub rest_us: u64,
    /// For how long, in seconds. The scan that is under way at the end is not among the scans.
    pub duration_s: f64,
    /// How often [`Advisor::hold`] and [`Advisor::catch_up`] are called, in seconds, if they are.
    pub hold_s: Option<f64>,
    /// Whether the advisor is told how many pages the next scan has.
    pub knows_pages: bool,
    /// Of the noise.
    pub seed: u64,
}

impl Conditions {
    /// As a pilot for ksmd has it: 20 ms between batches, a hold every 200 ms, and no word of how many
    /// pages are to come.
    #[must_use]
    pub const fn of_kernel(duration_s: f64, seed: u64) -> Self {
        Self { rest_us: 20_000, duration_s, hold_s: Some(0.2), knows_pages: false, seed }
    }
}

/// Scans `load` as `settings` say. Takes about 20 ns for each batch.
#[must_use]
pub fn run(settings: &AdvisorSettings, load: &Load, conditions: Conditions) -> Run {
    let advisor = Advisor::new(*settings, settings.min_pages_to_scan, conditions.rest_us);
    let mut scanner = Scanner {
        load,
        conditions,
        advisor,
        random: Random::new(conditions.seed),
        now_s: 0.0,
        reported: Reported {
            next_s: conditions.hold_s.unwrap_or(f64::INFINITY),
            ..Reported::default()
        },
        run: Run::default(),
    };
    while scanner.now_s < conditions.duration_s {
        scanner.scan();
    }
    scanner.run
}

struct Scanner<'a> {
    load: &'a Load,
    conditions: Conditions,
    advisor: Advisor,
    random: Random,
    now_s: f64,
    reported: Reported,
    run: Run,
}

/// What was done since the advisor was last told.
#[derive(Clone, Copy, Debug, Default)]
struct Reported {
    next_s: f64,
    since_s: f64,
    cpu_s: f64,
    pages: f64,
    /// When the scan began, and the pages of it that the advisor was told of.
    begun_s: f64,
    done: f64,
}

impl Scanner<'_> {
    /// One scan, or a rest where there is nothing to scan.
    fn scan(&mut self) {
        let noise = self.load.noise;
        let cost = self.random.around_one(noise.scan_percent);
        let late = self.random.unit() * noise.late_scan_percent as f64 / 100.0;
        if self.conditions.knows_pages {
            self.advisor.begin_scan(self.load.candidates(self.now_s) as u64);
        }
        let (start_s, begun) = (self.now_s, self.advisor.pace());
        let next_s = self.reported.next_s;
        self.reported =
            Reported { since_s: start_s, begun_s: start_s, next_s, ..Reported::default() };
        // How far it is through the candidates, from 0 to 1.
        let (mut progress, mut pages, mut cpu_s) = (0.0, 0.0, 0.0);
        loop {
            let all = self.load.candidates(self.now_s);
            let left = ((1.0 - progress) * all).ceil();
            let batch = (self.advisor.pace().pages_to_scan as f64).min(left);
            let to = if batch < left { progress + batch / all } else { 1.0 };
            let cost = cost * self.random.around_one(noise.batch_percent);
            let work_s = self.load.cost_s(self.now_s, progress, to) * cost;
            self.work(work_s, batch);
            (progress, pages, cpu_s) = (to, pages + batch, cpu_s + work_s);
            let late = late + self.random.unit() * noise.late_percent as f64 / 100.0;
            self.pass(self.advisor.pace().rest_us as f64 / 1e6 * (1.0 + late), 0.0, 0.0);
            if progress >= 1.0 {
                let end_s = self.now_s;
                let pages = pages as u64;
                return self.end(ScanRecord { start_s, end_s, cpu_s, pages, pace: begun });
            }
            if self.now_s > self.conditions.duration_s {
                return;
            }
        }
    }

    fn end(&mut self, record: ScanRecord) {
        let scan = Scan {
            time_us: ((record.end_s - record.start_s) * 1e6) as u64,
            busy_us: (record.cpu_s * 1e6) as u64,
            cpu_us: (record.cpu_s * 1e6) as u64,
            pages: record.pages,
        };
        let next_pages = self.load.candidates(self.now_s) as u64;
        self.advisor.end_scan(scan, self.conditions.knows_pages.then_some(next_pages));
        if record.pages > 0 {
            self.run.scans.push(record);
        }
    }

    fn work(&mut self, work_s: f64, pages: f64) {
        if pages > 0.0 {
            self.run.batches.push(Batch { start_s: self.now_s, cpu_s: work_s });
        }
        self.pass(work_s, work_s, pages);
    }

    /// Lets time pass in which CPU time was used and pages were looked at, evenly.
    fn pass(&mut self, time_s: f64, cpu_s: f64, pages: f64) {
        let end_s = self.now_s + time_s;
        let (mut cpu_left_s, mut pages_left) = (cpu_s, pages);
        while self.reported.next_s < end_s {
            let part = ((self.reported.next_s - self.now_s) / (end_s - self.now_s)).max(0.0);
            let (cpu_now_s, pages_now) = (cpu_left_s * part, pages_left * part);
            self.reported.cpu_s += cpu_now_s;
            self.reported.pages += pages_now;
            (cpu_left_s, pages_left) = (cpu_left_s - cpu_now_s, pages_left - pages_now);
            self.now_s = self.now_s.max(self.reported.next_s);
            self.hold();
        }
        self.reported.cpu_s += cpu_left_s;
        self.reported.pages += pages_left;
        self.now_s = end_s;
    }

    fn hold(&mut self) -> Pace {
        let Reported { next_s, since_s, cpu_s, pages, begun_s, done } = self.reported;
        let part = Scan {
            time_us: ((next_s - since_s) * 1e6) as u64,
            busy_us: (cpu_s * 1e6) as u64,
            cpu_us: (cpu_s * 1e6) as u64,
            pages: pages as u64,
        };
        let done = done + pages;
        let progress = Progress {
            time_us: ((next_s - begun_s) * 1e6) as u64,
            pages: done as u64,
            new_pages: 0,
        };
        let later_s = next_s + self.conditions.hold_s.unwrap_or(f64::INFINITY);
        self.reported =
            Reported { next_s: later_s, since_s: next_s, begun_s, done, cpu_s: 0.0, pages: 0.0 };
        self.advisor.hold(part);
        self.advisor.catch_up(progress)
    }
}
