//! Pacing of requests to join the mappings that breaks left apart.

use crate::guest::usage::Usage;
use crate::settings::{MEND_BREAKS, MEND_BREAKS_MAX};

/// Breaks since mappings were joined last, and how many are waited for.
#[derive(Debug)]
pub(crate) struct Mending {
    breaks: u64,
    /// Breaks after which another try is worth it.
    after: u64,
}

impl Default for Mending {
    fn default() -> Self {
        Self { breaks: 0, after: MEND_BREAKS }
    }
}

impl Mending {
    /// Takes in that a merged page was written to.
    pub(crate) const fn note_break(&mut self) {
        self.breaks += 1;
    }

    /// Returns true if breaks are many and mappings get short.
    pub(crate) const fn is_due(&self, usage: &Usage) -> bool {
        self.breaks >= self.after && usage.mappings() >= usage.mappings_max() / 2
    }

    /// Takes in that joining gave back `saved` mappings: where those were few, the next try waits for
    /// four times as many breaks.
    pub(crate) fn note_mended(&mut self, saved: u64) {
        // Pages that broke alone, among merged ones, cannot be joined with anything.
        let futile = saved < self.breaks / 16;
        self.after = if futile { (self.after * 4).min(MEND_BREAKS_MAX) } else { MEND_BREAKS };
        self.breaks = 0;
    }
}

#[cfg(test)]
mod tests {
    use bindery_guest::Gauges;

    use super::*;

    fn usage(mappings: u32) -> Usage {
        let mut usage = Usage::default();
        usage.note_gauges(&Gauges { mappings, mappings_max: 1000, ..Gauges::default() });
        usage
    }

    fn after_breaks(mending: &mut Mending, breaks: u64) -> bool {
        (0..breaks).for_each(|_| mending.note_break());
        mending.is_due(&usage(500))
    }

    #[test]
    fn mending_waits_for_breaks_and_for_mappings_to_get_short() {
        let mut mending = Mending::default();
        assert!(!after_breaks(&mut mending, MEND_BREAKS - 1));
        assert!(after_breaks(&mut mending, 1));
        assert!(!mending.is_due(&usage(499)));
    }

    #[test]
    fn mending_that_saves_little_is_tried_ever_more_rarely() {
        let mut mending = Mending::default();
        let mut waited_for = Vec::new();
        for saved in [0, 0, MEND_BREAKS, 0] {
            let mut breaks = 0;
            while !after_breaks(&mut mending, MEND_BREAKS) {
                breaks += 1;
            }
            waited_for.push(breaks + 1);
            mending.note_mended(saved);
        }
        assert_eq!(waited_for, [1, 4, 16, 1]);
    }
}
