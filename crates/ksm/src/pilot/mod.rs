//! Paces ksmd: looks at it, asks the advisor at the end of each scan, and sets the pace between scans.
//!
//! One thread does everything. It looks at ksmd's counters twice or more in each of its rests when a
//! scan may end in the next one, and seldom while the end is far: from the pages that the scan must
//! still look at, it follows how long that takes at least.
//!
//! Within a scan the pace is left alone, with two exceptions: pages that cost more than the ceiling
//! allows slow it down, and a scan that meets more pages than anybody knew of goes faster. KSM counts
//! a page when it has first met it, so that grown memory shows as soon as ksmd is there.

mod between;
mod looks;

use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::time::Duration;

use bindery_advisor::{Advisor, AdvisorSettings, Mode, Pace, Progress};
use bindery_sys::ksm::{PAGES_TO_SCAN, SLEEP_MILLISECS};
use bindery_sys::socket::wait_any_readable;
use bindery_sys::thread::process_cpu_time;

use crate::forecast::{Forecast, KnownCost};
use crate::guard::Guard;
use crate::knobs::{Knobs, read, write};
use crate::pause::Pause;
use crate::{Claim, Event, Found, Items, Meter, PilotError, Sample, Scans, State, Totals};

/// How often settings and the ceiling are looked at.
const TICK_US: u64 = 200_000;

/// ksmd's rest where none was set: the kernel's default. A law that chooses the size of a batch needs
/// a rest to choose it by.
const REST_MS: u64 = 20;

/// Shorter rests than this are replaced by [`REST_MS`].
const REST_MIN_MS: u64 = 10;

/// What a pilot is to do.
#[derive(Clone, Debug)]
pub struct Options {
    /// Its law and the law's bounds.
    pub settings: AdvisorSettings,
    /// Where it keeps what it found; see [`State`].
    pub state: PathBuf,
    /// Whether it starts KSM (`run`), and stops it again at the end.
    pub start: bool,
}

/// Paces ksmd. Everything is put back when it is dropped.
#[derive(Debug)]
pub struct Pilot {
    meter: Meter,
    guard: Guard,
    advisor: Advisor,
    pace: Pace,
    /// The largest batch and the shortest rest of the scan under way.
    fastest: Pace,
    scans: Scans,
    forecast: Forecast,
    known: KnownCost,
    items_before: u64,
    /// Up to where the law has been told of the scan under way.
    reported: Sample,
    /// Pages of the scan under way up to there, reckoned for kernels that do not count them.
    reckoned: u64,
    items: Items,
    runs: bool,
    ticked_us: u64,
    fine_from_us: u64,
    pause: Option<Pause>,
    begun: Begun,
    totals: Totals,
    state: State,
    found: Found,
    is_taken_over: bool,
    is_over: bool,
    // Dropped last: until then nobody else may begin.
    _claim: Claim,
}

/// When it began, by the clocks that it reports.
#[derive(Clone, Copy, Debug)]
struct Begun {
    ksmd_us: u64,
    pilot: Duration,
}

/// Puts back what a pilot that was killed had found. `None`: there was nothing to put back.
///
/// # Errors
/// [`PilotError::AlreadyRunning`] while a pilot runs, and what [`Pilot::start`] may answer.
pub fn restore(state: &State) -> Result<Option<Found>, PilotError> {
    let knobs = Knobs::open()?;
    let _claim = Claim::take()?;
    let found = state.load()?;
    if let Some(found) = &found {
        knobs.put_back(found)?;
    }
    state.remove()?;
    Ok(found)
}

impl Pilot {
    /// Takes over: saves what KSM is set to, switches the kernel's own advisor off, and sets the
    /// first pace. What a pilot that was killed has saved counts as found.
    ///
    /// # Errors
    /// [`PilotError`]; nothing is changed then.
    pub fn start(options: &Options) -> Result<Self, PilotError> {
        options.settings.check()?;
        let knobs = Knobs::open()?;
        let claim = Claim::take()?;
        let meter = Meter::new()?;
        let state = State::at(&options.state);
        let saved = state.load()?;
        let is_taken_over = saved.is_some();
        let mut found = match saved {
            Some(found) => found,
            None => knobs.found(options.start)?,
        };
        if options.start && found.run.is_none() {
            found.run = Some(read(&knobs.run)?);
        }
        state.save(&found)?;
        // From here on dropping the pilot puts everything back.
        let sample = meter.sample().map_err(PilotError::io("look at ksmd"))?;
        let advisor = advisor(options.settings, &found);
        let begun = Begun { ksmd_us: sample.cpu_us, pilot: process_cpu_time() };
        let mut pilot = Self {
            guard: Guard::new(knobs)?,
            pace: advisor.pace(),
            fastest: advisor.pace(),
            advisor,
            scans: Scans::new(sample),
            forecast: Forecast::default(),
            known: KnownCost::default(),
            items_before: 0,
            reported: sample,
            reckoned: 0,
            items: Items::default(),
            runs: false,
            ticked_us: 0,
            fine_from_us: 0,
            pause: None,
            begun,
            totals: Totals::default(),
            state,
            found,
            is_taken_over,
            is_over: false,
            meter,
            _claim: claim,
        };
        pilot.begin(options.start)?;
        Ok(pilot)
    }

    fn begin(&mut self, start: bool) -> Result<(), PilotError> {
        self.guard.take_over(self.pace.pages_to_scan)?;
        self.guard.set(SLEEP_MILLISECS, sleep_ms(self.pace), &mut |_| ())?;
        if start {
            write(&self.guard.knobs().run, "1")?;
        }
        self.runs = read(&self.guard.knobs().run)? == 1;
        self.scans = Scans::new(self.look()?);
        self.items = self.meter.items().map_err(PilotError::io("look at KSM"))?;
        self.items_before = self.items.all;
        self.advisor.begin_scan(self.items.all);
        self.reported = self.look()?;
        Ok(())
    }

    /// Paces ksmd until `stop` is readable, or for `time`, and puts everything back. Tells what
    /// happens. Blocks.
    ///
    /// # Errors
    /// [`PilotError`] when the kernel refuses what it took before; everything that can be is put back.
    pub fn run(
        mut self,
        stop: BorrowedFd<'_>,
        time: Option<Duration>,
        report: &mut dyn FnMut(&Event),
    ) -> Result<Totals, PilotError> {
        let report = &mut |event: &Event| {
            event.trace();
            report(event);
        };
        report(&Event::Started {
            advisor_mode: self.advisor.settings().mode,
            found: self.found.clone(),
            is_taken_over: self.is_taken_over,
            names_writers: self.guard.watch_fd().is_some(),
        });
        if !self.runs {
            let run = read(&self.guard.knobs().run)?;
            report(&Event::KsmStopped { run, suspect: None });
        }
        let end_us = time.map(|time| self.meter.now_us().saturating_add(time.as_micros() as u64));
        loop {
            let now_us = self.meter.now_us();
            let left_us = end_us.map_or(u64::MAX, |end| end.saturating_sub(now_us));
            if left_us == 0 {
                break;
            }
            let patience = Duration::from_micros(self.patience_us().min(left_us));
            let (is_stopped, is_touched) = self.wait(stop, patience)?;
            if is_stopped {
                break;
            }
            self.turn(is_touched, report)?;
        }
        self.guard.report_rest(report);
        self.end()?;
        report(&Event::Ended(self.totals));
        Ok(self.totals)
    }

    /// Waits for the order to stop, for somebody who touches a setting, or for the next look.
    fn wait(&self, stop: BorrowedFd<'_>, patience: Duration) -> Result<(bool, bool), PilotError> {
        let mut ready = [false; 2];
        let mut fds = vec![stop];
        fds.extend(self.guard.watch_fd());
        let ready_of = &mut ready[..fds.len()];
        wait_any_readable(&fds, ready_of, Some(patience)).map_err(PilotError::io("wait"))?;
        Ok((ready[0], ready[1]))
    }

    /// One look, and what follows from it.
    fn turn(&mut self, is_touched: bool, report: &mut dyn FnMut(&Event)) -> Result<(), PilotError> {
        let is_written =
            is_touched && self.guard.listen().map_err(PilotError::io("hear of writers"))?;
        if is_written {
            self.defend(report)?;
        }
        let now_us = self.meter.now_us();
        let full_scans = self.meter.full_scans().map_err(PilotError::io("look at ksmd"))?;
        let is_time = is_written || now_us >= self.ticked_us + TICK_US || self.pause.is_some();
        if self.scans.glance(now_us, full_scans) && !is_time {
            return Ok(());
        }
        let sample = self.look()?;
        if let Some(ended) = self.scans.observe(sample, self.pace.rest_us) {
            self.end_scan(ended, sample, report)?;
        } else {
            self.go_on(sample, report)?;
        }
        if is_time {
            self.tick(sample, report)?;
        }
        self.fine_from_us = self.fine_from_us();
        Ok(())
    }

    /// Puts back what others have set.
    fn defend(&mut self, report: &mut dyn FnMut(&Event)) -> Result<(), PilotError> {
        self.guard.restore(report)?;
        self.note_foreign();
        Ok(())
    }

    /// Takes in whether somebody else's value was found.
    fn note_foreign(&mut self) {
        let count = self.guard.foreign_writes();
        let is_foreign = std::mem::replace(&mut self.totals.foreign_writes, count) != count;
        // Where the kernel tells of writers, nothing was wrong for longer than a batch takes.
        if is_foreign && self.guard.watch_fd().is_none() {
            self.scans.disturb();
        }
    }

    /// What is to be done now and then: the settings, the ceiling, whether the scan has grown, whether KSM
    /// runs.
    fn tick(&mut self, sample: Sample, report: &mut dyn FnMut(&Event)) -> Result<(), PilotError> {
        self.ticked_us = sample.at_us;
        self.guard.restore_at_tick(report)?;
        self.note_foreign();
        self.note_run(report)?;
        let items = self.meter.items().map_err(PilotError::io("look at KSM"))?;
        let new_pages = items.all.saturating_sub(self.items_before);
        self.items.all = self.items.all.min(items.all);
        self.items.never_skipped = self.items.never_skipped.min(items.never_skipped);
        let part = self.part(self.reported, sample);
        self.reported = sample;
        self.reckoned += part.pages;
        if self.pause.is_some() || !self.runs {
            return Ok(());
        }
        self.advisor.hold(part);
        let (time_us, pages) = (self.scans.time_us(), self.pages_so_far(items.all));
        let before = self.advisor.pace();
        let pace = self.advisor.catch_up(Progress { time_us, pages, new_pages });
        let is_faster = pace != before;
        if !self.set_within_scan(pace, report)? {
            return Ok(());
        }
        let Pace { pages_to_scan, .. } = pace;
        let sleep_millisecs = sleep_ms(pace);
        report(&if is_faster {
            Event::Raised { pages, new_pages, pages_to_scan, sleep_millisecs }
        } else {
            Event::Held { cpu_percent: part.cpu_percent(), pages_to_scan, sleep_millisecs }
        });
        Ok(())
    }

    /// Changes the pace within a scan: at once where it gets slower, and if it is worth it where it gets
    /// faster. Returns whether it did.
    fn set_within_scan(
        &mut self,
        pace: Pace,
        report: &mut dyn FnMut(&Event),
    ) -> Result<bool, PilotError> {
        let Pace { pages_to_scan: now, rest_us } = self.pace;
        let is_slower = pace.pages_to_scan < now || pace.rest_us > rest_us;
        let is_worth_it =
            pace.pages_to_scan > now + now / 8 || pace.rest_us < rest_us - rest_us / 8;
        if !is_slower && !is_worth_it {
            return Ok(false);
        }
        self.guard.set(PAGES_TO_SCAN, pace.pages_to_scan, report)?;
        self.guard.set(SLEEP_MILLISECS, sleep_ms(pace), report)?;
        self.pace = pace;
        self.fastest.pages_to_scan = self.fastest.pages_to_scan.max(pace.pages_to_scan);
        self.fastest.rest_us = self.fastest.rest_us.min(pace.rest_us);
        self.totals.holds += 1;
        Ok(true)
    }

    /// Who stops KSM has the right to; scans are not what they were then.
    fn note_run(&mut self, report: &mut dyn FnMut(&Event)) -> Result<(), PilotError> {
        let run = read(&self.guard.knobs().run)?;
        let suspect = self.guard.take_writer_of_run();
        let runs = run == 1;
        if !runs {
            self.scans.disturb();
        }
        match (std::mem::replace(&mut self.runs, runs), runs) {
            (true, false) => report(&Event::KsmStopped { run, suspect }),
            (false, true) => report(&Event::KsmRunning),
            _ => {}
        }
        Ok(())
    }

    fn look(&self) -> Result<Sample, PilotError> {
        self.meter.sample().map_err(PilotError::io("look at ksmd"))
    }

    /// Puts everything back, once.
    fn end(&mut self) -> Result<(), PilotError> {
        self.is_over = true;
        if let Ok(sample) = self.meter.sample() {
            self.totals.ksmd_cpu_us = sample.cpu_us - self.begun.ksmd_us;
            self.totals.time_us = sample.at_us;
        }
        self.totals.foreign_writes = self.guard.foreign_writes();
        self.totals.pilot_cpu_us = (process_cpu_time() - self.begun.pilot).as_micros() as u64;
        self.guard.knobs().put_back(&self.found)?;
        self.state.remove()
    }
}

impl Drop for Pilot {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        if let Err(error) = self.end() {
            tracing::error!("KSM is left changed ({error}); `bindery ksm restore` puts it back");
        }
    }
}

/// The advisor for what was found.
fn advisor(settings: AdvisorSettings, found: &Found) -> Advisor {
    // The law that knows no rest (the kernel's) leaves it as it is, and so does none.
    let rest_ms = match settings.mode {
        Mode::Steady if found.sleep_millisecs < REST_MIN_MS => REST_MS,
        _ => found.sleep_millisecs,
    };
    Advisor::new(settings, found.pages_to_scan, rest_ms * 1000)
}

/// ksmd rests for whole milliseconds.
const fn sleep_ms(pace: Pace) -> u64 {
    pace.rest_us.div_ceil(1000)
}
