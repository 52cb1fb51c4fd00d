//! Waiting before a try that gave little back is repeated.

/// Periods between two tries, at most.
const PAUSE_MAX: u32 = 64;

/// Exponential pause between tries, in periods.
#[derive(Debug, Default)]
pub(crate) struct RetryPause {
    /// Periods left to wait.
    left: u32,
    /// Length of the last wait.
    pause: u32,
}

impl RetryPause {
    /// Starts a period. Returns true if there may be a try in it.
    pub(crate) fn is_due(&mut self) -> bool {
        self.left = self.left.saturating_sub(1);
        self.left == 0
    }

    /// Takes in whether a try was worth it: if not, the next one waits twice as long.
    pub(crate) fn note(&mut self, was_worth_it: bool) {
        self.pause = if was_worth_it { 0 } else { (2 * self.pause).clamp(2, PAUSE_MAX) };
        self.left = self.pause;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Periods until the next try, that one included.
    fn periods(pause: &mut RetryPause) -> usize {
        1 + std::iter::repeat_with(|| pause.is_due()).take_while(|is_due| !is_due).count()
    }

    #[test]
    fn tries_that_give_little_back_become_rare_and_a_good_one_begins_anew() {
        let mut pause = RetryPause::default();
        let mut waited = Vec::new();
        for was_worth_it in [false, false, false, false, false, false, false, true, false] {
            waited.push(periods(&mut pause));
            pause.note(was_worth_it);
        }
        assert_eq!(waited, [1, 2, 4, 8, 16, 32, 64, 64, 1]);
    }
}
