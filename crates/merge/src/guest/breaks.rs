//! Breaks of a guest in a period, though it is not asked in each.

/// Breaks since the guest was asked last, shared out over the periods since then.
#[derive(Debug, Default)]
pub(crate) struct Breaks {
    /// Breaks that are taken in.
    seen: u64,
    /// Periods in which the guest was not asked since.
    rests: u64,
    /// Breaks of the period under way.
    lately: u64,
}

impl Breaks {
    /// Takes in that the guest is not asked in this period.
    pub(crate) const fn note_rest(&mut self) {
        self.rests += 1;
    }

    /// Takes in that the guest was asked in this period, and has `total` breaks so far.
    pub(crate) const fn note_asked(&mut self, total: u64) {
        self.lately = (total - self.seen) / (self.rests + 1);
        (self.seen, self.rests) = (total, 0);
    }

    /// Takes the breaks of the period that ends.
    pub(crate) fn take(&mut self) -> u64 {
        std::mem::take(&mut self.lately)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn breaks_of_a_rest_are_those_of_all_its_periods() {
        let mut breaks = Breaks::default();
        breaks.note_asked(100);
        assert_eq!(breaks.take(), 100);
        (0..7).for_each(|_| breaks.note_rest());
        assert_eq!(breaks.take(), 0);
        breaks.note_asked(900);
        assert_eq!((breaks.take(), breaks.take()), (100, 0));
        breaks.note_asked(910);
        assert_eq!(breaks.take(), 10);
    }
}
