//! A ceiling on CPU time, while work runs.

/// How far the work may be behind its share and still catch up, in microseconds: timers are late.
const BEHIND_US: u64 = 10_000;

/// Holds the CPU time of any number of threads below a share of every second.
///
/// Time spent above the share is a debt, and whoever asks is told how long to rest until it is paid.
/// What is not used is not saved up: a second of rest does not allow a second of rush. So within any
/// second at most the share of it is used, and of a hundredth of a second that the work may be behind,
/// and what was under way when that was used up or begun: for each thread at most twice what it does
/// before it asks again. Threads that are to keep a ceiling of some percent to the percent must
/// therefore ask every some milliseconds.
///
/// Times are those of any clock that does not go backwards, in microseconds.
#[derive(Clone, Copy, Debug)]
pub struct Ceiling {
    percent: u64,
    /// When the CPU time used so far is paid for.
    paid_us: u64,
    cpu_us: u64,
}

impl Ceiling {
    /// A ceiling of `percent` of one CPU, at `now_us`, when `cpu_us` have been used already.
    #[must_use]
    pub fn new(percent: u64, now_us: u64, cpu_us: u64) -> Self {
        Self { percent: percent.max(1), paid_us: now_us, cpu_us }
    }

    /// Changes the share. What is owed at `now_us` is owed at the new price.
    pub fn set_percent(&mut self, percent: u64, now_us: u64) {
        let percent = percent.max(1);
        let owed_us = u128::from(self.paid_us.saturating_sub(now_us));
        let owed_us = owed_us * u128::from(self.percent) / u128::from(percent);
        let owed_us = u64::try_from(owed_us).unwrap_or(u64::MAX);
        self.paid_us = self.paid_us.min(now_us).saturating_add(owed_us);
        self.percent = percent;
    }

    /// Takes in that `cpu_us` have been used by `now_us`, all told, and says for how long to rest, in
    /// microseconds; 0: go on.
    pub fn rest_us(&mut self, now_us: u64, cpu_us: u64) -> u64 {
        let used_us = cpu_us.saturating_sub(self.cpu_us);
        self.cpu_us = self.cpu_us.max(cpu_us);
        // One who works at his share is always a little ahead or behind; and the work that is told of
        // now began that long ago at least, if it was one thread's.
        let floor_us = now_us.saturating_sub(BEHIND_US).saturating_sub(used_us);
        let price_us = u128::from(used_us) * 100 / u128::from(self.percent);
        let price_us = u64::try_from(price_us).unwrap_or(u64::MAX);
        self.paid_us = self.paid_us.max(floor_us).saturating_add(price_us);
        self.paid_us.saturating_sub(now_us)
    }
}
