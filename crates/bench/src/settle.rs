//! Merging, watched until it gains no more.

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::{engine::Merger, interrupt};

/// Merging has converged when for so long, and for so many scans of all memory, the saving changed
/// by less than [`CHANGE`].
const QUIET: Duration = Duration::from_secs(8);
const SCANS: u64 = 4;
const CHANGE: f64 = 0.01;

/// The share of the final saving at which an engine counts as done: what is left is the noise of
/// the guests' own work.
const DONE: f64 = 0.98;

const INTERVAL: Duration = Duration::from_millis(100);

/// How long merging is watched.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// An engine that has saved nothing by then has come to rest, too.
    pub(crate) idle: Duration,
    /// An engine that still changes by then never comes to rest.
    pub(crate) limit: Duration,
}

/// One look at merging.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    /// Time since merging began.
    pub(crate) time: Duration,
    /// CPU time used by merging since then.
    pub(crate) cpu: Duration,
    /// Pages saved, by the engine's own account.
    pub(crate) saved_pages: u64,
}

/// Looks at merging, from its beginning on.
#[derive(Debug)]
pub(crate) struct Course {
    samples: Vec<Sample>,
    /// Scans of all memory that were completed.
    pub(crate) scans: u64,
    /// True if merging came to rest before the limit.
    pub(crate) is_settled: bool,
}

/// Begins to merge, and watches until nothing more is found or patience ends. `cpu_time` returns all
/// that merging has used so far.
pub(crate) fn watch(
    merger: &Merger,
    patience: Patience,
    cpu_time: impl Fn() -> Result<Duration>,
) -> Result<Course> {
    let (cpu_before, scans_before) = (cpu_time()?, merger.full_scans()?);
    merger.begin()?;
    let start = Instant::now();
    let mut course = Course { samples: Vec::new(), scans: 0, is_settled: false };
    loop {
        let saved_pages = merger.pages_saved()?;
        let (time, cpu) = (start.elapsed(), cpu_time()?.saturating_sub(cpu_before));
        course.samples.push(Sample { time, cpu, saved_pages });
        // A question costs the daemon CPU time, and ksmd none.
        if course.is_quiet() && (saved_pages > 0 || time >= patience.idle) {
            course.scans = merger.full_scans()? - scans_before;
            course.is_settled = course.scans >= SCANS;
        }
        if course.is_settled {
            return Ok(course);
        }
        if time >= patience.limit {
            course.scans = merger.full_scans()? - scans_before;
            return Ok(course);
        }
        interrupt::rest(INTERVAL)?;
    }
}

impl Course {
    /// Returns the last sample.
    pub(crate) fn last(&self) -> Sample {
        *self.samples.last().expect("watching takes a sample first")
    }

    /// Returns the first sample that has nearly all of the final saving.
    pub(crate) fn converged(&self) -> Sample {
        let last = self.last();
        let enough = DONE * last.saved_pages as f64;
        let mut samples = self.samples.iter();
        *samples.find(|sample| sample.saved_pages as f64 >= enough).unwrap_or(&last)
    }

    /// Returns the share of a CPU that merging took in the last [`QUIET`].
    pub(crate) fn busy_afterwards(&self) -> f64 {
        let (last, Some(earlier)) = (self.last(), self.before_quiet()) else { return f64::NAN };
        (last.cpu - earlier.cpu).as_secs_f64() / (last.time - earlier.time).as_secs_f64()
    }

    fn is_quiet(&self) -> bool {
        let (last, Some(earlier)) = (self.last(), self.before_quiet()) else { return false };
        let change = last.saved_pages.abs_diff(earlier.saved_pages);
        last.saved_pages == earlier.saved_pages
            || (change as f64) < CHANGE * last.saved_pages as f64
    }

    /// Returns the last sample that was taken [`QUIET`] or more before the end.
    fn before_quiet(&self) -> Option<&Sample> {
        let end = self.last().time;
        self.samples.iter().rev().find(|sample| end - sample.time >= QUIET)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn course(saved_pages: &[u64]) -> Course {
        let sample = |(&saved_pages, second)| Sample {
            time: Duration::from_secs(second),
            cpu: Duration::from_millis(100 * second),
            saved_pages,
        };
        let samples = saved_pages.iter().zip(0..).map(sample).collect();
        Course { samples, scans: 0, is_settled: false }
    }

    #[test]
    fn convergence_is_where_nearly_all_is_saved() {
        let done = course(&[0, 500, 979, 981, 1000, 1000]).converged();
        assert_eq!((done.time, done.cpu), (Duration::from_secs(3), Duration::from_millis(300)));
    }

    #[test]
    fn quiet_is_a_long_stretch_without_change() {
        let growing: Vec<u64> = (0..20).map(|second| second * 100).collect();
        assert!(!course(&growing).is_quiet());
        let mut level = growing;
        level.extend([1900; 7]);
        assert!(!course(&level).is_quiet());
        level.extend([1900; 2]);
        assert!(course(&level).is_quiet());
        assert!((course(&level).busy_afterwards() - 0.1).abs() < 1e-9);
        level.push(1500);
        assert!(!course(&level).is_quiet(), "less is a change, too");
        assert!(course(&[0; 9]).is_quiet());
    }
}
