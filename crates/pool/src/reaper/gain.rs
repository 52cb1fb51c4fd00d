//! Gain of choosing pages: the misses that it saves and, where processors are short, the time that it takes.
//!
//! Where it does not pay (all pages are accessed alike, or choosing takes longer than the misses saved would) the kernel
//! may as well choose. The reaper then steps back, and tries again after a while.

use std::time::Duration;

use crate::map::{Misses, SAMPLED};

/// CPU time that a miss costs, the device's own time left aside: a fault that reads a page, and a thread that sleeps
/// and is woken.
const MISS: Duration = Duration::from_micros(10);

/// Part of the last seconds in which tasks waited for processors that counts as being short of them, in hundredths of a
/// percent.
const PROCESSOR_STALL_MARK: u32 = 6_000;

/// Part of the misses that must be saved where processors are not short.
const SAVED_PARTS: u64 = 50;

/// Time over which gain is measured.
const WINDOW: Duration = Duration::from_secs(4);

/// Windows in a row without a gain after which the reaper steps back: what is accessed often has to be learnt first.
const WINDOWS: u32 = 4;

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
    /// End of the present pause.
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
    pub(super) fn steps_back(
        &mut self,
        now: Duration,
        misses: Misses,
        busy: Duration,
        processor_stall: u32,
    ) -> bool {
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
        if pays(begin, misses, busy, processor_stall) {
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

/// Returns true if a window saved something, and more time than it took where that is short.
fn pays(begin: Begin, misses: Misses, busy: Duration, processor_stall: u32) -> bool {
    let without = misses.without.saturating_sub(begin.misses.without);
    let with = misses.with.saturating_sub(begin.misses.with);
    let saved = without.saturating_sub(with);
    if processor_stall < PROCESSOR_STALL_MARK {
        return with <= without && saved * SAVED_PARTS >= without;
    }
    let saved = u32::try_from(saved * SAMPLED).unwrap_or(u32::MAX);
    MISS.saturating_mul(saved) >= busy.saturating_sub(begin.busy)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reaper::WHOLE;

    /// Windows with so many sampled misses each, so much CPU time, and processors that are short or not.
    fn steps(windows: u64, [with, without]: [u64; 2], busy_ms: u64, stall: u32) -> Vec<bool> {
        let mut gain = Gain::default();
        let step = |window: u64| {
            let misses = Misses { with: window * with, without: window * without };
            let busy = Duration::from_millis(window * busy_ms);
            gain.steps_back(WINDOW * window as u32, misses, busy, stall)
        };
        (0..windows).map(step).collect()
    }

    #[test]
    fn it_goes_on_where_misses_saved_are_worth_its_time() {
        // 16 * 100 misses of 10 µs are 16 ms.
        assert!(steps(50, [100, 200], 16, WHOLE).iter().all(|back| !back));
        assert!(steps(50, [100, 200], 17, WHOLE).contains(&true));
    }

    #[test]
    fn where_processors_are_not_short_any_gain_pays() {
        assert!(steps(50, [98, 100], 1_000, 0).iter().all(|back| !back));
        assert!(steps(50, [99, 100], 0, 0).contains(&true));
        assert!(steps(50, [120, 100], 0, 0).contains(&true));
        assert!(steps(50, [10, 0], 0, 0).contains(&true));
        // Nobody reads anything.
        assert!(steps(50, [0, 0], 1, 0).iter().all(|back| !back));
    }

    #[test]
    fn it_steps_back_for_longer_each_time() {
        let steps = steps(400, [100, 100], 50, WHOLE);
        let pauses: Vec<usize> =
            steps.chunk_by(|a, b| a == b).filter(|run| run[0]).map(<[bool]>::len).collect();
        assert_eq!(pauses[..5], [3, 5, 10, 20, 40]);
        // A window to begin with, and four without a gain.
        assert_eq!(steps.iter().position(|back| *back), Some(4));
    }
}
