//! How fast stable pages are looked at: the advisor's word, put into rounds and rests.
//!
//! A *scan* looks at as many pages as were stable when it began, in the rounds of one period or of
//! several; guests are asked what they wrote in every period all the same. After each round there is a
//! rest, as long as KSM would rest in so many pages ([`MergeSettings::rest`] a batch), and after each scan the
//! [`Advisor`] says how large batches are in the next one. Whatever it says, workers rest while they are
//! above the ceiling (`workers`).

use std::time::{Duration, Instant};

use bindery_advisor::{Advisor, Mode, Scan};

use crate::settings::{MergeSettings, ROUND_PAGES};
use crate::status::AdvisorStatus;

/// The smallest round: what every round costs, whatever its size, is little beside it.
const ROUND_PAGES_MIN: u64 = if cfg!(test) { 64 } else { 4096 };

/// Scans of fewer pages say nothing about what a page costs.
const TELLING_PAGES: u64 = 4096;

/// As long as nothing is known about what a page costs, scans end after so many.
const FIRST_SCAN_PAGES: u64 = 1 << 14;

/// What pages cost in a scan of fewer than that says nothing of one with so many times the pages: what a
/// scan costs whatever its size was shared among few.
const TELLING_TIMES: u64 = 16;

/// A moment, by the clock and by the CPU time of all that merging is charged with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    pub(crate) at: Instant,
    pub(crate) cpu_us: u64,
}

/// A scan under way.
#[derive(Clone, Copy, Debug)]
struct Current {
    start: Moment,
    /// How many pages it has.
    pages: u64,
    /// How many of them were looked at, and how long that took.
    done: u64,
    busy_us: u64,
}

/// Paces scans.
#[derive(Debug)]
pub(crate) struct Pacer {
    /// `None`: as fast as it goes.
    advisor: Option<Advisor>,
    /// For scans of how many pages it is known what a page costs.
    known_pages: u64,
    current: Option<Current>,
    /// The rest after the last round ends then.
    rest_until: Option<Instant>,
    last: Scan,
    scans: u64,
}

impl Pacer {
    /// Paces as `settings` say.
    pub(crate) fn new(settings: &MergeSettings) -> Self {
        let advisor = match (settings.advisor.mode, settings.pages_to_scan) {
            (Mode::None, None) => None,
            (_, pages) => {
                let rest_us = settings.rest.as_micros() as u64;
                Some(Advisor::new(settings.advisor, pages.unwrap_or_default(), rest_us))
            }
        };
        Self {
            advisor,
            known_pages: 0,
            current: None,
            rest_until: None,
            last: Scan::default(),
            scans: 0,
        }
    }

    /// Takes up other settings. A scan under way goes on at the new pace; what was to be rested at the
    /// old one is let go.
    pub(crate) fn set(&mut self, settings: &MergeSettings) {
        let before = self.advisor.take();
        self.advisor = Self::new(settings).advisor;
        match (before, &mut self.advisor) {
            (Some(mut before), Some(after)) if before.settings().mode == settings.advisor.mode => {
                if settings.advisor.mode != Mode::None {
                    before.set(settings.advisor);
                    *after = before;
                }
            }
            _ => self.known_pages = 0,
        }
        self.rest_until = None;
        if let (Some(scan), Some(advisor)) = (&self.current, &mut self.advisor) {
            advisor.begin_scan(scan.pages.saturating_sub(scan.done));
        }
    }

    /// Takes in how many pages are stable, at the start of a period's rounds.
    pub(crate) fn begin_period(&mut self, ready: u64, now: Moment) {
        if self.current.is_none() && ready > 0 {
            // The last scan's rest is part of that one.
            let at = self.rest_until.map_or(now.at, |until| until.max(now.at));
            self.begin_scan(ready, Moment { at, ..now });
        }
    }

    fn begin_scan(&mut self, ready: u64, start: Moment) {
        let is_known = ready <= self.known_pages || self.advisor.is_none();
        let pages = if is_known { ready } else { ready.min(FIRST_SCAN_PAGES) };
        if let Some(advisor) = &mut self.advisor {
            advisor.begin_scan(ready);
        }
        self.current = Some(Current { start, pages, done: 0, busy_us: 0 });
    }

    /// How many pages the next round is to have.
    pub(crate) fn round_pages(&self) -> usize {
        let Some(advisor) = &self.advisor else { return ROUND_PAGES };
        let pages = advisor.pace().pages_to_scan.max(ROUND_PAGES_MIN);
        pages.min(ROUND_PAGES as u64) as usize
    }

    /// How long to rest before the next round.
    pub(crate) fn rest_left(&self, now: Instant) -> Option<Duration> {
        let left = self.rest_until?.saturating_duration_since(now);
        (!left.is_zero()).then_some(left)
    }

    /// Takes in that a round of `pages` was busy for so long, which leaves `left` stable pages.
    pub(crate) fn end_round(&mut self, pages: u64, busy: Duration, left: u64, now: Moment) {
        let rest = self.rest_after(pages);
        let until = Moment { at: now.at + rest, ..now };
        self.rest_until = Some(until.at);
        let scan = self.current.as_mut().expect("a round belongs to a scan");
        scan.done += pages;
        scan.busy_us += busy.as_micros() as u64;
        if scan.done < scan.pages && left > 0 {
            return;
        }
        // A scan's last rest belongs to it.
        self.end_scan(until);
        if left > 0 {
            self.begin_scan(left, until);
        }
    }

    fn rest_after(&self, pages: u64) -> Duration {
        let Some(advisor) = &self.advisor else { return Duration::ZERO };
        let pace = advisor.pace();
        Duration::from_micros(pace.rest_us.saturating_mul(pages) / pace.pages_to_scan.max(1))
    }

    fn end_scan(&mut self, now: Moment) {
        let Some(scan) = self.current.take() else { return };
        let time_us = now.at.saturating_duration_since(scan.start.at).as_micros() as u64;
        let cpu_us = now.cpu_us.saturating_sub(scan.start.cpu_us);
        self.last = Scan { time_us, busy_us: scan.busy_us, cpu_us, pages: scan.done };
        self.scans += 1;
        if scan.done < TELLING_PAGES {
            return;
        }
        if let Some(advisor) = &mut self.advisor {
            let pace = advisor.end_scan(self.last, None);
            self.known_pages = match scan.done {
                done @ ..FIRST_SCAN_PAGES => done * TELLING_TIMES,
                _ => u64::MAX,
            };
            tracing::debug!(
                name: "ksm_advisor",
                scan_time_us = time_us,
                pages_to_scan = pace.pages_to_scan,
                cpu_percent = self.last.cpu_percent(),
                "ksm_advisor"
            );
        }
    }

    /// There was nothing left to look at: what a scan was to have beyond that is gone.
    pub(crate) fn note_drained(&mut self, now: Moment) {
        self.end_scan(now);
    }

    pub(crate) fn status(&self) -> AdvisorStatus {
        let pace = self.advisor.as_ref().map(Advisor::pace);
        AdvisorStatus {
            pages_to_scan: pace.map(|pace| pace.pages_to_scan),
            rest_us: pace.map_or(0, |pace| pace.rest_us),
            scans: self.scans,
            scan_time_us: self.last.time_us,
            scan_pages: self.last.pages,
            scan_cpu_percent: self.last.cpu_percent(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bindery_advisor::AdvisorSettings;

    fn settings(mode: Mode, pages_to_scan: Option<u64>) -> MergeSettings {
        let advisor = AdvisorSettings {
            mode,
            target_scan_time_s: 10,
            max_cpu_percent: 50,
            min_pages_to_scan: 500,
            max_pages_to_scan: 100_000,
        };
        MergeSettings { advisor, pages_to_scan, ..MergeSettings::default() }
    }

    /// Scans `pages` pages that cost 2 µs each; returns how long that took.
    fn scan(pacer: &mut Pacer, now: &mut Moment, pages: u64) -> Duration {
        pacer.begin_period(pages, *now);
        go_on(pacer, now, pages)
    }

    /// Goes on until all is looked at.
    fn go_on(pacer: &mut Pacer, now: &mut Moment, mut left: u64) -> Duration {
        let start = now.at;
        while left > 0 {
            let round = (pacer.round_pages() as u64).min(left);
            left -= round;
            let busy = Duration::from_micros(2 * round);
            (now.at, now.cpu_us) = (now.at + busy, now.cpu_us + 2 * round);
            pacer.end_round(round, busy, left, *now);
            now.at += pacer.rest_left(now.at).unwrap_or_default();
        }
        now.at - start
    }

    fn begin() -> Moment {
        Moment { at: Instant::now(), cpu_us: 0 }
    }

    #[test]
    fn without_a_mode_or_a_rate_nothing_rests() {
        let mut pacer = Pacer::new(&settings(Mode::None, None));
        assert_eq!(pacer.round_pages(), ROUND_PAGES);
        let mut now = begin();
        assert_eq!(scan(&mut pacer, &mut now, 1000), Duration::from_millis(2));
        assert_eq!(pacer.status().scans, 1);
    }

    #[test]
    fn a_rate_set_by_hand_is_kept() {
        let mut pacer = Pacer::new(&settings(Mode::None, Some(1000)));
        let mut now = begin();
        let took = scan(&mut pacer, &mut now, 100_000);
        let expected = Duration::from_millis(100 * 20 + 200);
        assert_eq!(took, expected, "100 batches of 1000, each 2 ms of work and 20 of rest");
    }

    #[test]
    fn scans_reach_their_target_and_a_fourfold_step_is_known_beforehand() {
        let mut pacer = Pacer::new(&settings(Mode::Steady, None));
        let mut now = begin();
        scan(&mut pacer, &mut now, 500_000);
        for pages in [500_000, 2_000_000, 500_000] {
            let took = scan(&mut pacer, &mut now, pages);
            let off = took.abs_diff(Duration::from_secs(10));
            assert!(off < Duration::from_millis(600), "{pages} pages took {took:?}");
        }
    }

    #[test]
    fn few_pages_do_not_mislead_it() {
        let mut pacer = Pacer::new(&settings(Mode::Steady, None));
        let mut now = begin();
        scan(&mut pacer, &mut now, 500_000);
        // Ten pages that cost a millisecond each.
        pacer.begin_period(10, now);
        pacer.end_round(10, Duration::from_millis(10), 0, now);
        let took = scan(&mut pacer, &mut now, 500_000);
        assert!(took.abs_diff(Duration::from_secs(10)) < Duration::from_millis(600), "{took:?}");
    }

    /// A scan of 5,000 pages in which one cost 20 us: no more than what comes with any scan.
    #[test]
    fn a_small_scan_does_not_say_what_a_large_one_costs() {
        let mut pacer = Pacer::new(&settings(Mode::Steady, None));
        let mut now = begin();
        pacer.begin_period(5_000, now);
        let busy = Duration::from_millis(100);
        (now.at, now.cpu_us) = (now.at + busy, now.cpu_us + 100_000);
        pacer.end_round(5_000, busy, 0, now);
        now.at += pacer.rest_left(now.at).unwrap_or_default();
        let took = scan(&mut pacer, &mut now, 500_000);
        assert!(took < Duration::from_millis(11_500), "{took:?}");
    }

    #[test]
    fn a_scan_under_way_goes_on_at_the_new_pace() {
        let mut pacer = Pacer::new(&settings(Mode::Steady, None));
        let mut now = begin();
        scan(&mut pacer, &mut now, 500_000);
        pacer.begin_period(500_000, now);
        let mut faster = settings(Mode::Steady, None);
        faster.advisor.target_scan_time_s = 2;
        pacer.set(&faster);
        let took = go_on(&mut pacer, &mut now, 500_000);
        assert!(took.abs_diff(Duration::from_secs(2)) < Duration::from_millis(250), "{took:?}");
    }

    #[test]
    fn a_long_rest_does_not_outlive_the_pace_that_ordered_it() {
        let mut pacer = Pacer::new(&settings(Mode::None, Some(1)));
        let now = begin();
        pacer.begin_period(1000, now);
        pacer.end_round(64, Duration::ZERO, 936, now);
        assert_eq!(pacer.rest_left(now.at), Some(Duration::from_millis(64 * 20)));
        pacer.set(&settings(Mode::None, None));
        assert_eq!(pacer.rest_left(now.at), None);
    }

    #[test]
    fn a_scans_last_rest_counts_once() {
        let mut pacer = Pacer::new(&settings(Mode::None, Some(1000)));
        let mut now = begin();
        scan(&mut pacer, &mut now, 10_000);
        assert_eq!(pacer.status().scan_time_us, 10 * 20_000 + 20_000);
        let rest = Duration::from_millis(7);
        pacer.rest_until = Some(now.at + rest);
        pacer.begin_period(1000, now);
        assert_eq!(pacer.current.unwrap().start.at, now.at + rest);
    }
}
