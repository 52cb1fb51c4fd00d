//! Where scans begin and end, told from looks at ksmd's counters. Pure: no clock, no files.

use bindery_advisor::Scan;

use crate::Sample;

/// ksmd rests between batches; so many microseconds without a page are more than a rest, on top of
/// [`IDLE_RESTS`].
const IDLE_US: u64 = 500_000;

/// So many rests without a page are more than late timers.
const IDLE_RESTS: u64 = 4;

/// A scan that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndedScan {
    /// What it took. Without pages, where the kernel does not count those it looks at.
    pub scan: Scan,
    /// Whether it was seen from its beginning.
    pub is_whole: bool,
    /// Whether nothing came between: nobody changed its pace, and KSM ran.
    pub is_even: bool,
    /// When the last look before its end was begun, in the samples' microseconds: it ended after
    /// that.
    pub after_us: u64,
    /// How many scans have ended since that look; what they took is of one of them in the mean.
    pub count: u64,
}

/// Follows ksmd from scan to scan.
#[derive(Clone, Copy, Debug)]
pub struct Scans {
    start: Sample,
    last: Sample,
    /// When the last look was begun.
    looked_us: u64,
    /// The last look that found something new.
    progress: Sample,
    idle_us: u64,
    is_whole: bool,
    is_even: bool,
}

impl Scans {
    /// Begins, most likely in the middle of a scan.
    #[must_use]
    pub fn new(sample: Sample) -> Self {
        Self {
            start: sample,
            last: sample,
            looked_us: sample.from_us,
            progress: sample,
            idle_us: 0,
            is_whole: false,
            is_even: true,
        }
    }

    /// The scan that is under way is not like others: its pace was changed, or KSM stopped.
    pub fn disturb(&mut self) {
        self.is_even = false;
    }

    /// Takes in that no scan had ended when a look at `full_scans` alone was begun, and returns whether
    /// that is so.
    pub fn glance(&mut self, from_us: u64, full_scans: u64) -> bool {
        let is_same = full_scans == self.last.full_scans;
        if is_same {
            self.looked_us = from_us;
        }
        is_same
    }

    /// Whether the scan under way has been seen from its beginning.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.is_whole
    }

    /// When the scan under way began, as far as that was seen.
    #[must_use]
    pub fn begun_us(&self) -> u64 {
        self.start.at_us
    }

    /// When ksmd was last looked at.
    #[must_use]
    pub fn last_us(&self) -> u64 {
        self.last.at_us
    }

    /// Pages that the scan under way has looked at, as far as the kernel tells.
    #[must_use]
    pub fn pages(&self) -> u64 {
        pages_between(&self.start, &self.last)
    }

    /// How long the scan under way has taken, in microseconds, up to where it last got on, and without
    /// the time in which ksmd had nothing to do.
    #[must_use]
    pub fn time_us(&self) -> u64 {
        self.progress.at_us.saturating_sub(self.start.at_us).saturating_sub(self.idle_us)
    }

    /// Takes in a look; `rest_us` is how long ksmd rests between batches. Tells of a scan that has
    /// ended since the last one.
    pub fn observe(&mut self, sample: Sample, rest_us: u64) -> Option<EndedScan> {
        self.last = sample;
        let after_us = std::mem::replace(&mut self.looked_us, sample.from_us);
        self.note_progress(&sample, rest_us);
        let count = sample.full_scans.saturating_sub(self.start.full_scans);
        if count == 0 {
            return None;
        }
        let cpu_us = sample.cpu_us.saturating_sub(self.start.cpu_us);
        let time_us = (sample.at_us - self.start.at_us).saturating_sub(self.idle_us).max(cpu_us);
        let pages = pages_between(&self.start, &sample);
        let each = |value: u64| value / count;
        let (time_us, cpu_us) = (each(time_us), each(cpu_us));
        // One thread scans: it is busy while it is on a CPU.
        let scan = Scan { time_us, cpu_us, busy_us: cpu_us, pages: each(pages) };
        let Self { is_whole, is_even, .. } = *self;
        let ended = EndedScan { scan, is_whole, is_even, after_us, count };
        *self = Self { is_whole: true, ..Self::new(sample) };
        Some(ended)
    }

    /// ksmd sleeps while nothing is offered to it, and while it is stopped. That is no scan time.
    fn note_progress(&mut self, sample: &Sample, rest_us: u64) {
        let what = |sample: &Sample| {
            let Sample { full_scans, pages_scanned, cpu_us, .. } = *sample;
            (full_scans, pages_scanned.unwrap_or(cpu_us))
        };
        if what(sample) == what(&self.progress) {
            return;
        }
        let gap_us = sample.at_us - self.progress.at_us;
        if gap_us > IDLE_US + IDLE_RESTS * rest_us {
            self.idle_us += gap_us;
        }
        self.progress = *sample;
    }
}

fn pages_between(from: &Sample, to: &Sample) -> u64 {
    let pages = to.pages_scanned.zip(from.pages_scanned);
    pages.map_or(0, |(to, from)| to.saturating_sub(from))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64, full_scans: u64, pages: u64, cpu_us: u64) -> Sample {
        let (at_us, from_us) = (ms * 1000, (ms * 1000).saturating_sub(10));
        Sample { at_us, from_us, full_scans, pages_scanned: Some(pages), cpu_us }
    }

    fn scan(time_us: u64, cpu_us: u64, pages: u64) -> Scan {
        Scan { time_us, cpu_us, busy_us: cpu_us, pages }
    }

    #[test]
    fn scans_are_told_from_end_to_end() {
        let mut scans = Scans::new(at(0, 7, 100, 0));
        assert_eq!(scans.observe(at(15, 7, 200, 50), 20_000), None);
        let first = scans.observe(at(20, 8, 300, 100), 20_000).unwrap();
        assert!(!first.is_whole, "it began before we looked");
        assert_eq!(first.after_us, 14_990);
        for look in 1..=10 {
            let sample = at(20 + look * 20, 8, 300 + look * 100, 100 + look * 30);
            assert_eq!(scans.observe(sample, 20_000), None);
        }
        assert_eq!((scans.pages(), scans.time_us()), (1000, 200_000));
        let second = scans.observe(at(225, 9, 1350, 420), 20_000).unwrap();
        assert_eq!(second.scan, scan(205_000, 320, 1050));
        assert!(second.is_whole);
        assert_eq!(scans.pages(), 0);
    }

    #[test]
    fn a_glance_moves_the_earliest_end() {
        let mut scans = Scans::new(at(0, 7, 100, 0));
        assert!(scans.glance(5000, 7));
        assert!(!scans.glance(10_000, 8));
        let ended = scans.observe(at(11, 8, 300, 100), 20_000).unwrap();
        assert_eq!(ended.after_us, 5000);
        assert!(scans.glance(12_000, 8));
    }

    #[test]
    fn a_disturbed_scan_is_not_even_and_the_next_one_is() {
        let mut scans = Scans::new(at(0, 0, 0, 0));
        assert!(scans.observe(at(10, 1, 10, 10), 20_000).is_some());
        scans.disturb();
        assert!(!scans.observe(at(20, 2, 20, 20), 20_000).unwrap().is_even);
        assert!(scans.observe(at(30, 3, 30, 30), 20_000).unwrap().is_even);
    }

    #[test]
    fn time_without_anything_to_do_is_no_scan_time() {
        let mut scans = Scans::new(at(0, 0, 0, 0));
        assert!(scans.observe(at(100, 1, 10, 10), 20_000).is_some());
        assert_eq!(scans.observe(at(10_100, 1, 10, 10), 20_000), None);
        assert_eq!(scans.time_us(), 0);
        assert_eq!(scans.observe(at(10_200, 1, 20, 15), 20_000), None);
        assert_eq!(scans.time_us(), 0);
        assert_eq!(scans.observe(at(10_300, 1, 25, 18), 20_000), None);
        assert_eq!(scans.time_us(), 100_000);
        let ended = scans.observe(at(10_400, 2, 30, 20), 20_000).unwrap();
        assert_eq!(ended.scan, scan(200_000, 10, 20));
    }

    #[test]
    fn several_scans_between_two_looks_are_taken_in_the_mean() {
        let mut scans = Scans::new(at(0, 0, 0, 0));
        let ended = scans.observe(at(100, 4, 400, 80), 20_000).unwrap();
        assert_eq!(ended.scan, scan(25_000, 20, 100));
        assert_eq!(ended.count, 4);
    }

    #[test]
    fn kernels_that_count_no_pages_are_followed_too() {
        let blind = |ms, full_scans, cpu_us| Sample {
            pages_scanned: None,
            ..at(ms, full_scans, 0, cpu_us)
        };
        let mut scans = Scans::new(blind(0, 0, 0));
        assert!(scans.observe(blind(100, 1, 10), 20_000).is_some());
        assert_eq!(scans.observe(blind(150, 1, 20), 20_000), None);
        let ended = scans.observe(blind(200, 2, 30), 20_000).unwrap();
        assert_eq!(ended.scan, scan(100_000, 20, 0));
    }
}
