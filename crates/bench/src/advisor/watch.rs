//! Watching a contender through a phase.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use anyhow::Result;
use serde::Serialize;

use super::{Crowds, contender::Running};
use crate::interrupt;

/// How often KSM is looked at: often enough to see the end of a scan.
const LOOK: Duration = Duration::from_millis(10);

/// How often a daemon is asked, which costs it CPU time.
const ASK: Duration = Duration::from_millis(200);

/// The window in which the ceiling holds.
const WINDOW: Duration = Duration::from_secs(1);

/// How often CPU time is read for it.
const SAMPLE: Duration = Duration::from_millis(100);

/// What happened in a phase.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Course {
    /// How long scans took that ended in it, in seconds.
    pub scans_s: Vec<f64>,
    /// CPU time used in it, in seconds.
    pub cpu_s: f64,
    /// The largest share of a CPU in any second of it, in percent.
    pub cpu_peak_percent: f64,
    /// Memory saved at its end, in pages.
    pub pages_saved: u64,
}

/// Watches for so long. `scans` go on from one phase to the next.
pub(super) fn watch(
    running: &Running,
    crowds: &Crowds,
    scans: &mut Scans,
    time: Duration,
) -> Result<Course> {
    let start = Instant::now();
    let cpu_start = running.cpu_time(crowds)?;
    let (mut course, mut share) = (Course::default(), Share::default());
    let (mut next_sample, look) = (start, if scans.is_asked { ASK } else { LOOK });
    while start.elapsed() < time {
        interrupt::rest(look.min(time.saturating_sub(start.elapsed())))?;
        scans.look(running, &mut course)?;
        let now = Instant::now();
        if now >= next_sample {
            share.note(now, running.cpu_time(crowds)?);
            next_sample = now + SAMPLE;
        }
    }
    course.cpu_s = (running.cpu_time(crowds)? - cpu_start).as_secs_f64();
    course.cpu_peak_percent = share.peak_percent;
    course.pages_saved = running.merger().pages_saved()?;
    Ok(course)
}

/// Which scans end.
pub(super) struct Scans {
    is_asked: bool,
    count: u64,
    since: Instant,
}

impl Scans {
    /// From now on. The scan that is under way counts from now.
    pub(super) fn begin(running: &Running) -> Result<Self> {
        let reached = running.merger().reached()?;
        let count = match &reached {
            Some(reached) => reached.scans,
            None => running.merger().full_scans()?,
        };
        Ok(Self { is_asked: reached.is_some(), count, since: Instant::now() })
    }

    fn look(&mut self, running: &Running, course: &mut Course) -> Result<()> {
        if let Some(reached) = running.merger().reached()? {
            // Several may have ended since: small ones, of which the last is as good as any.
            if reached.scans > self.count {
                course.scans_s.push(reached.scan_time_us as f64 / 1e6);
                self.count = reached.scans;
            }
            return Ok(());
        }
        let count = running.merger().full_scans()?;
        if count > self.count {
            course.scans_s.push(self.since.elapsed().as_secs_f64());
            (self.count, self.since) = (count, Instant::now());
        }
        Ok(())
    }
}

/// The share of a CPU in the last second, and its peak.
#[derive(Default)]
struct Share {
    samples: VecDeque<(Instant, Duration)>,
    peak_percent: f64,
}

impl Share {
    fn note(&mut self, now: Instant, cpu: Duration) {
        self.samples.push_back((now, cpu));
        // Kept: the newest sample that is a window old, and all after it.
        while self.samples.get(1).is_some_and(|(then, _)| now.duration_since(*then) >= WINDOW) {
            self.samples.pop_front();
        }
        let (then, before) = self.samples[0];
        let elapsed = now.duration_since(then);
        if elapsed >= WINDOW {
            let used = cpu.saturating_sub(before).as_secs_f64();
            self.peak_percent = self.peak_percent.max(100.0 * used / elapsed.as_secs_f64());
        }
    }
}
