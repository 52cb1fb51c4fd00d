//! What happens between two scans: the law learns from the one, and the other one's pace is set.

use bindery_advisor::{Mode, Pace};
use bindery_sys::ksm::{PAGES_TO_SCAN, SLEEP_MILLISECS};
use bindery_sys::thread::process_cpu_time;

use super::{Pilot, sleep_ms};
use crate::pause::Pause;
use crate::{EndedScan, Event, PilotError, Sample, Timing};

impl Pilot {
    /// A scan has ended: the next one's pace.
    pub(super) fn end_scan(
        &mut self,
        ended: EndedScan,
        sample: Sample,
        report: &mut dyn FnMut(&Event),
    ) -> Result<(), PilotError> {
        self.defend(report)?;
        self.items = self.meter.items().map_err(PilotError::io("look at KSM"))?;
        let mut scan = ended.scan;
        if sample.pages_scanned.is_none() {
            scan.pages = self.items.all;
        }
        if ended.is_whole {
            self.forecast.learn(scan.pages, self.items.all);
        }
        let next_pages = self.forecast.most(self.items.all);
        let pace = if self.teaches(&ended, scan.pages, next_pages) {
            let new = self.items.all.saturating_sub(self.items_before);
            let taught = match self.advisor.settings().mode {
                Mode::Steady => self.known.without_first(scan, new),
                _ => scan,
            };
            self.advisor.end_scan(taught, Some(next_pages))
        } else if next_pages > 0 {
            self.advisor.begin_scan(next_pages)
        } else {
            self.pace
        };
        self.items_before = self.items.all;
        self.reported = sample;
        self.reckoned = 0;
        self.totals.scans += ended.count;
        self.pause = self.pause_after(&ended, scan.pages, next_pages, sample.at_us);
        let pause_us = self.pause.map_or(0, |pause| pause.left_us(sample.at_us));
        let (timing, written_within_us) = self.set_between_scans(pace, &ended, sample, report)?;
        let event = Event::KsmAdvisor {
            scan_time_us: scan.time_us,
            pages_to_scan: self.pace.pages_to_scan,
            cpu_percent: scan.cpu_percent(),
            sleep_millisecs: sleep_ms(self.pace),
            cpu_us: scan.cpu_us,
            pages: scan.pages,
            next_pages,
            full_scans: sample.full_scans,
            is_whole: ended.is_whole && ended.is_even,
            pause_us,
            timing,
            written_within_us,
            pilot_cpu_us: (process_cpu_time() - self.begun.pilot).as_micros() as u64,
        };
        report(&event);
        Ok(())
    }

    /// The pause that a scan of hardly any pages is to be followed by.
    fn pause_after(
        &self,
        ended: &EndedScan,
        pages: u64,
        next_pages: u64,
        now_us: u64,
    ) -> Option<Pause> {
        let settings = self.advisor.settings();
        let target_us = settings.target_scan_time_s * 1_000_000;
        let is_short = pages * 2 < next_pages && ended.scan.time_us * 2 < target_us;
        if settings.mode != Mode::Steady || !ended.is_whole || !is_short || !self.runs {
            return None;
        }
        let pause = self.pause.map(|pause| pause.after_scan(now_us));
        Some(pause.unwrap_or_else(|| Pause::new(now_us, target_us, target_us - ended.scan.time_us)))
    }

    /// Has ksmd go on when a pause is over, or was begun before a scan that has something to look at.
    pub(super) fn go_on(
        &mut self,
        sample: Sample,
        report: &mut dyn FnMut(&Event),
    ) -> Result<(), PilotError> {
        let Some(pause) = &mut self.pause else { return Ok(()) };
        if self.scans.pages() > 0 || !self.runs {
            self.pause = None;
        } else if pause.left_us(sample.at_us) == 0 {
            pause.probe(sample.at_us);
        }
        self.guard.set(SLEEP_MILLISECS, self.sleep_ms(), report)?;
        Ok(())
    }

    /// What `sleep_millisecs` is to be now.
    fn sleep_ms(&self) -> u64 {
        self.pause.map_or(sleep_ms(self.pace), |pause| pause.sleep_ms())
    }

    /// Whether the law is to learn from a scan.
    fn teaches(&self, ended: &EndedScan, pages: u64, next_pages: u64) -> bool {
        // A batch of somebody else's size may have got through.
        let batches = ended.scan.time_us / (sleep_ms(self.pace) * 1000).max(1) + 2;
        let is_even = ended.is_even && pages <= batches.saturating_mul(self.fastest.pages_to_scan);
        match self.advisor.settings().mode {
            Mode::None => false,
            // The kernel's law has no eye for how many pages there were.
            Mode::ScanTime => ended.is_whole,
            // A part of a scan tells what a page costs, if it is more than a few; a scan that passed
            // over most pages tells what it costs to do that.
            Mode::Steady if ended.is_whole => is_even && pages * 2 >= next_pages,
            Mode::Steady => is_even && pages >= 2 * self.pace.pages_to_scan,
        }
    }

    /// Sets the pace of the scan that is about to begin, and says whether it had not begun.
    fn set_between_scans(
        &mut self,
        pace: Pace,
        ended: &EndedScan,
        sample: Sample,
        report: &mut dyn FnMut(&Event),
    ) -> Result<(Timing, u64), PilotError> {
        // The pause that is to come is not the one that was.
        let rest_us = sleep_ms(self.pace) * 1000;
        let is_changed =
            sleep_ms(pace) != sleep_ms(self.pace) || pace.pages_to_scan != self.pace.pages_to_scan;
        let is_set = self.guard.set(PAGES_TO_SCAN, pace.pages_to_scan, report)?;
        let written = self.look()?;
        self.pace = pace;
        self.fastest = pace;
        // Last: ksmd goes on at once when its rest is changed.
        self.guard.set(SLEEP_MILLISECS, self.sleep_ms(), report)?;
        let within_us = written.at_us - ended.after_us;
        if !is_changed {
            return Ok((Timing::Unchanged, within_us));
        }
        self.totals.changes += 1;
        let is_quiet = written.full_scans == sample.full_scans
            && written.pages_scanned == sample.pages_scanned;
        if is_set && ended.count == 1 && within_us < rest_us && is_quiet {
            return Ok((Timing::BetweenScans, within_us));
        }
        // The scan that has begun goes on at the new pace, and nothing is learned from it.
        self.totals.late_changes += 1;
        self.scans.disturb();
        Ok((Timing::Late, within_us))
    }
}
