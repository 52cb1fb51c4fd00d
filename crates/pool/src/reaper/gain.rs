//! Gain of choosing pages: the misses that it saves, against the CPU time that it takes.
//!
//! Where it does not pay (all pages are accessed alike, or hardly anything misses) the kernel may as well choose. Its
//! choice costs nothing that a program sees, so the reaper steps back, and tries again after a while.

use std::time::Duration;

use crate::map::{Misses, SAMPLED};

/// CPU time that a miss costs whoever reads, the device's own time left aside: a fault that reads a page.
const MISS: Duration = Duration::from_micros(8);

/// Time over which gain is measured.
const WINDOW: Duration = Duration::from_secs(2);

/// Windows in a row without a gain after which the reaper steps back.
const WINDOWS: u32 = 3;

/// Parts of a window of which the reaper may take one in any case.
const NEGLIGIBLE_PARTS: u32 = 200;

/// Shortest time for which it steps back, and the longest.
const PAUSE_MIN: Duration = Duration::from_secs(10);
const PAUSE_MAX: Duration = Duration::from_mins(5);

/// Misses and CPU time at the begin of a window.
#[derive(Clone, Copy, Debug)]
struct Begin {
    at: Duration,
    misses: Misses,
    busy: Duration,
}

/// Decision whether choosing pages pays.
#[derive(Debug)]
pub(super) struct Gain {
    window: Option<Begin>,
    windows_without: u32,
    pause: Duration,
    /// When the present pause ends.
    until: Option<Duration>,
}

impl Default for Gain {
    fn default() -> Self {
        Self { window: None, windows_without: 0, pause: PAUSE_MIN, until: None }
    }
}

impl Gain {
    /// Returns true if the reaper is to leave the choice to the kernel now. `misses` and `busy` are counts since any
    /// time; `now` never goes back.
    pub(super) fn steps_back(&mut self, now: Duration, misses: Misses, busy: Duration) -> bool {
        if self.until.is_some_and(|until| now < until) {
            return true;
        }
        if self.until.take().is_some() {
            // Memory is as the kernel left it: what is measured begins anew.
            (self.window, self.windows_without) = (None, 0);
        }
        let begin = *self.window.get_or_insert(Begin { at: now, misses, busy });
        if now.saturating_sub(begin.at) < WINDOW {
            return false;
        }
        self.window = Some(Begin { at: now, misses, busy });
        if pays(begin, misses, busy) {
            (self.windows_without, self.pause) = (0, PAUSE_MIN);
            return false;
        }
        self.windows_without += 1;
        if self.windows_without < WINDOWS {
            return false;
        }
        self.until = Some(now + self.pause);
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        true
    }
}

/// Returns true if a window saved more time than it took.
fn pays(begin: Begin, misses: Misses, busy: Duration) -> bool {
    let without = misses.without - begin.misses.without;
    let saved = without.saturating_sub(misses.with - begin.misses.with) * SAMPLED;
    let took = busy.saturating_sub(begin.busy);
    let saved = MISS.saturating_mul(u32::try_from(saved).unwrap_or(u32::MAX));
    took <= WINDOW / NEGLIGIBLE_PARTS || saved >= took
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Windows of two seconds, each with so many sampled misses and so much CPU time.
    fn steps(windows: u64, with: u64, without: u64, busy_ms: u64) -> Vec<bool> {
        let mut gain = Gain::default();
        let step = |window: u64| {
            let misses = Misses { with: window * with, without: window * without };
            let busy = Duration::from_millis(window * busy_ms);
            gain.steps_back(WINDOW * window as u32, misses, busy)
        };
        (0..windows).map(step).collect()
    }

    #[test]
    fn it_goes_on_where_misses_saved_are_worth_its_time() {
        // 16 * 100 misses of 8 µs are 12.8 ms.
        assert!(steps(50, 100, 200, 12).iter().all(|back| !back));
        assert!(steps(50, 100, 200, 14).contains(&true));
        // Next to no time is worth any gain, and none.
        assert!(steps(50, 100, 100, 10).iter().all(|back| !back));
    }

    #[test]
    fn it_steps_back_for_longer_each_time() {
        let steps = steps(400, 100, 100, 50);
        let pauses: Vec<usize> =
            steps.chunk_by(|a, b| a == b).filter(|run| run[0]).map(<[bool]>::len).collect();
        assert_eq!(pauses[..5], [5, 10, 20, 40, 80]);
        // A window to begin with, and three without a gain.
        assert_eq!(steps.iter().position(|back| *back), Some(3));
    }
}
