//! Limit of the CPU time that merging uses: a ceiling, or what all CPUs have left.

use std::io;
use std::num::NonZero;
use std::thread::available_parallelism;
use std::time::Instant;

use bindery_advisor::{Ceiling, Spare, Usage};
use bindery_sys::idle_time::IdleClock;

/// Share that work may use until it is known how much is left, in percent of one CPU.
const FIRST_PERCENT: u64 = 1;

/// Limit for all workers together.
#[derive(Debug)]
pub(crate) struct Limit {
    ceiling: Option<Ceiling>,
    spare: Option<(IdleClock, Spare)>,
    /// The clock of both begins here.
    epoch: Instant,
}

impl Default for Limit {
    fn default() -> Self {
        Self { ceiling: None, spare: None, epoch: Instant::now() }
    }
}

/// Returns the number of CPUs that the daemon may use.
pub(crate) fn cpus() -> usize {
    available_parallelism().map_or(1, NonZero::get)
}

impl Limit {
    /// Sets a ceiling in percent of one CPU, or none; with `spare` it follows what CPUs have left, whatever
    /// `percent` says. Work has used `own_us` so far.
    ///
    /// # Errors
    /// When that cannot be told: next to nothing is allowed then.
    pub(crate) fn set(&mut self, percent: Option<u64>, spare: bool, own_us: u64) -> io::Result<()> {
        if spare == self.spare.is_some() && spare {
            return Ok(());
        }
        self.spare = None;
        let percent = if spare { Some(FIRST_PERCENT) } else { percent };
        self.set_percent(percent, own_us);
        if spare {
            let clock = IdleClock::open()?;
            let watch = Spare::new(cpus() as u64, self.usage(&clock, own_us)?);
            self.spare = Some((clock, watch));
        }
        Ok(())
    }

    fn set_percent(&mut self, percent: Option<u64>, own_us: u64) {
        let now_us = self.now_us();
        match (&mut self.ceiling, percent) {
            // Keeps the accumulated CPU debt; only the limit changes.
            (Some(ceiling), Some(percent)) => ceiling.set_percent(percent, now_us),
            (ceiling, _) => *ceiling = percent.map(|percent| Ceiling::new(percent, now_us, own_us)),
        }
    }

    /// Returns how long all are to rest, in microseconds, when work has used `own_us` so far; 0: go on.
    pub(crate) fn rest_us(&mut self, own_us: u64) -> u64 {
        self.follow(own_us);
        let now_us = self.now_us();
        self.ceiling.as_mut().map_or(0, |ceiling| ceiling.rest_us(now_us, own_us))
    }

    /// Makes the ceiling follow what CPUs have left, now and then. While that cannot be read it stays.
    fn follow(&mut self, own_us: u64) {
        let now_us = self.now_us();
        let Some((clock, spare)) = self.spare.as_ref().filter(|(_, spare)| spare.is_due(now_us))
        else {
            return;
        };
        let (mut spare, Ok(usage)) = (*spare, self.usage(clock, own_us)) else { return };
        let percent = spare.share(usage);
        self.set_percent(Some(percent), own_us);
        self.spare = self.spare.take().map(|(clock, _)| (clock, spare));
    }

    fn usage(&self, clock: &IdleClock, own_us: u64) -> io::Result<Usage> {
        Ok(Usage { now_us: self.now_us(), idle_us: clock.time()?.as_micros() as u64, own_us })
    }

    fn now_us(&self) -> u64 {
        self.epoch.elapsed().as_micros() as u64
    }
}
