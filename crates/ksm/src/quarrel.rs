//! How long a value that others write is put back at once. Pure: no clock, no files.
//!
//! Against somebody who writes again and again that would have no end: two processes would do nothing
//! else, and whoever listens would hear of each time. So after a few times within a second values are
//! put back at the pilot's ticks alone, until a second has passed in which there was nothing to put
//! back; and what happened in a second is told of together.

/// So many times in a second, values are put back at once.
pub(crate) const AT_ONCE_MAX: u64 = 5;

/// How long it takes for one to end, and how often one is told of.
const SECOND_US: u64 = 1_000_000;

/// Whether there is one.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Quarrel {
    /// Since when values are counted.
    since_us: u64,
    count: u64,
    is_on: bool,
}

impl Quarrel {
    /// A value was put back.
    pub(crate) fn note(&mut self) {
        self.count += 1;
        self.is_on |= self.count >= AT_ONCE_MAX;
    }

    /// Whether values wait for the next tick.
    pub(crate) fn is_on(&self) -> bool {
        self.is_on
    }

    /// Takes in that it is so late. Returns whether a second is over.
    pub(crate) fn tick(&mut self, now_us: u64) -> bool {
        if now_us < self.since_us + SECOND_US {
            return false;
        }
        *self = Self { since_us: now_us, count: 0, is_on: self.is_on && self.count > 0 };
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_writes_are_no_quarrel() {
        let mut quarrel = Quarrel::default();
        for second in 1..10 {
            (1..AT_ONCE_MAX).for_each(|_| quarrel.note());
            assert!(!quarrel.is_on());
            assert!(quarrel.tick(second * SECOND_US));
        }
    }

    #[test]
    fn one_lasts_until_a_second_was_quiet() {
        let mut quarrel = Quarrel::default();
        assert!(quarrel.tick(SECOND_US));
        (0..AT_ONCE_MAX).for_each(|_| quarrel.note());
        assert!(quarrel.is_on());
        assert!(!quarrel.tick(SECOND_US + 999_999));
        assert!(quarrel.tick(2 * SECOND_US));
        assert!(quarrel.is_on(), "it began in the second that is over");
        quarrel.note();
        assert!(quarrel.tick(3 * SECOND_US));
        assert!(quarrel.is_on());
        assert!(quarrel.tick(4 * SECOND_US));
        assert!(!quarrel.is_on());
    }
}
