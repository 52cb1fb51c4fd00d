//! What happened, and the CPU time of any second of it.

use crate::Pace;

/// A full scan.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScanRecord {
    /// In seconds since the start.
    pub start_s: f64,
    /// In seconds since the start.
    pub end_s: f64,
    /// CPU time, in seconds.
    pub cpu_s: f64,
    /// Pages looked at.
    pub pages: u64,
    /// The pace that it began with.
    pub pace: Pace,
}

impl ScanRecord {
    /// How long it took, in seconds.
    #[must_use]
    pub fn time_s(&self) -> f64 {
        self.end_s - self.start_s
    }
}

/// What was done between two rests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Batch {
    /// In seconds since the start.
    pub start_s: f64,
    /// How long it took, which is the CPU time that it used, in seconds.
    pub cpu_s: f64,
}

impl Batch {
    fn end_s(&self) -> f64 {
        self.start_s + self.cpu_s
    }
}

/// A simulation, from its start to its end.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Run {
    /// All full scans, in order.
    pub scans: Vec<ScanRecord>,
    /// All batches, in order, those of the last, unfinished scan too.
    pub batches: Vec<Batch>,
}

impl Run {
    /// CPU time of all batches, in seconds.
    #[must_use]
    pub fn cpu_s(&self) -> f64 {
        self.batches.iter().map(|batch| batch.cpu_s).sum()
    }

    /// The most CPU time that any second had which begins at `from_s` or later, in seconds.
    ///
    /// The most is in a second that begins where a batch begins, or ends where one ends: any other can
    /// be moved, one way or the other, without losing any.
    #[must_use]
    pub fn most_in_a_second(&self, from_s: f64) -> f64 {
        let first = self.batches.partition_point(|batch| batch.end_s() <= from_s);
        let cpu = Cumulative::new(&self.batches[first..]);
        let starts = cpu.batches.iter().map(|batch| batch.start_s);
        let before_ends = cpu.batches.iter().map(|batch| batch.end_s() - 1.0);
        let of_starts = cpu.most(starts.filter(|start_s| *start_s >= from_s));
        of_starts.max(cpu.most(before_ends.filter(|start_s| *start_s >= from_s)))
    }

    /// The CPU time of each whole second since the start, in seconds.
    #[must_use]
    pub fn seconds(&self) -> Vec<f64> {
        let cpu = Cumulative::new(&self.batches);
        let end_s = self.batches.last().map_or(0.0, Batch::end_s) as usize;
        let mut cursor = 0;
        let sums: Vec<f64> = (0..=end_s).map(|time| cpu.until(time as f64, &mut cursor)).collect();
        sums.windows(2).map(|pair| pair[1] - pair[0]).collect()
    }
}

/// CPU time used up to any moment.
struct Cumulative<'a> {
    batches: &'a [Batch],
    /// Before each batch.
    before_s: Vec<f64>,
}

impl<'a> Cumulative<'a> {
    fn new(batches: &'a [Batch]) -> Self {
        let sums = batches.iter().scan(0.0, |sum, batch| {
            let before = *sum;
            *sum += batch.cpu_s;
            Some(before)
        });
        Self { batches, before_s: sums.collect() }
    }

    /// Up to `time_s`, which never gets less with one `cursor`.
    fn until(&self, time_s: f64, cursor: &mut usize) -> f64 {
        while self.batches.get(*cursor + 1).is_some_and(|batch| batch.start_s <= time_s) {
            *cursor += 1;
        }
        let Some(batch) = self.batches.get(*cursor) else { return 0.0 };
        self.before_s[*cursor] + (time_s - batch.start_s).clamp(0.0, batch.cpu_s)
    }

    /// The most that one of the seconds that begin there has.
    fn most(&self, starts: impl Iterator<Item = f64>) -> f64 {
        let (mut at_start, mut at_end) = (0, 0);
        let seconds = starts.map(|start_s| {
            self.until(start_s + 1.0, &mut at_end) - self.until(start_s, &mut at_start)
        });
        seconds.fold(0.0, f64::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(batches: &[(f64, f64)]) -> Run {
        let batch = |&(start_s, cpu_s): &(f64, f64)| Batch { start_s, cpu_s };
        Run { scans: Vec::new(), batches: batches.iter().map(batch).collect() }
    }

    #[test]
    fn the_fullest_second_is_found_wherever_it_is() {
        let halves = run(&[(0.0, 0.25), (1.5, 0.5), (2.25, 0.5), (9.0, 0.125)]);
        // From 1.5 to 2.5, and from 1.75 to 2.75: each has 0.75.
        assert_eq!(halves.most_in_a_second(0.0), 0.75);
        assert_eq!(halves.most_in_a_second(3.0), 0.125);
        assert_eq!(halves.cpu_s(), 1.375);
        assert_eq!(run(&[(0.0, 3.0)]).most_in_a_second(0.0), 1.0);
        assert_eq!(run(&[]).most_in_a_second(0.0), 0.0);
        // Not on the grid: from 0.9 to 1.9.
        let late = run(&[(0.9, 0.1), (1.8, 0.1)]);
        assert!((late.most_in_a_second(0.0) - 0.2).abs() < 1e-9);
    }

    #[test]
    fn seconds_add_up() {
        let run = run(&[(0.5, 1.0), (2.0, 0.25), (2.5, 0.5)]);
        assert_eq!(run.seconds(), [0.5, 0.5, 0.75]);
    }
}
