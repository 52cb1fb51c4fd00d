//! Work in the background in small pieces, so that whoever serves requests on the same processor need not
//! wait for the end of a time slice.
//!
//! A thread that is woken waits until the one that runs sleeps, or until the scheduler's next tick, as long
//! as that one has not had its share (EEVDF's `RUN_TO_PARITY`): 4 ms at 250 ticks a second, for a request
//! that takes microseconds. A lower priority does not change that, and starves who works for all others.
//! One that sleeps a little every now and then never makes anybody wait for longer than a piece.

use std::thread;
use std::time::{Duration, Instant};

/// Longest time that a piece of work takes: some tens of system calls.
const PIECE: Duration = Duration::from_micros(100);

/// Sleep between two pieces; the kernel adds up to 50 µs (`PR_SET_TIMERSLACK`).
const NAP: Duration = Duration::from_micros(50);

/// When the piece began that a thread works on.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    began: Instant,
}

impl Pace {
    /// Begins a piece.
    #[must_use]
    pub fn begin() -> Self {
        Self { began: Instant::now() }
    }

    /// Between two steps: if the piece was long enough, sleeps a little and begins the next. Costs the look
    /// at a clock.
    pub fn step(&mut self) {
        if self.began.elapsed() >= PIECE {
            thread::sleep(NAP);
            *self = Self::begin();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_works_for_long_sleeps_between_the_pieces() {
        let (mut pace, began) = (Pace::begin(), Instant::now());
        let mut naps = 0;
        while naps < 3 {
            assert!(began.elapsed() < Duration::from_secs(20), "{naps}");
            let before = pace.began;
            pace.step();
            // A piece is cut when it is long enough, and not before.
            assert!(pace.began == before || pace.began - before >= PIECE + NAP);
            naps += u32::from(pace.began != before);
        }
    }
}
