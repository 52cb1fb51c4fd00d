//! CPU time that all others leave.

/// Part of the CPUs that is left idle, in percent of each: who wakes up finds one.
const RESERVE_PERCENT: u64 = 10;

/// Share that is always allowed, in percent of one CPU: work that has begun ends.
const LEAST_PERCENT: u64 = 1;

/// Time between two looks at the machine, at least, in microseconds: the kernel counts its CPU time in hundredths of
/// a second.
const LOOK_EVERY_US: u64 = 200_000;

/// CPU time of a machine since it started, and of the work in question, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Time of any clock that does not go backwards.
    pub now_us: u64,
    /// Time in which CPUs had nothing to do, of all of them together.
    pub idle_us: u64,
    /// CPU time of the work.
    pub own_us: u64,
}

/// Share of a machine's CPU time for work that is to take none from others: what it has used of late and what
/// was left idle beside it, less a reserve.
#[derive(Clone, Copy, Debug)]
pub struct Spare {
    cpus: u64,
    last: Usage,
}

impl Spare {
    /// Begins to watch a machine of so many CPUs.
    #[must_use]
    pub fn new(cpus: u64, usage: Usage) -> Self {
        Self { cpus: cpus.max(1), last: usage }
    }

    /// Returns true if it is time to look again.
    #[must_use]
    pub fn is_due(&self, now_us: u64) -> bool {
        now_us.saturating_sub(self.last.now_us) >= LOOK_EVERY_US
    }

    /// Takes in what was used. Returns the share that the work may use from now on, in percent of one CPU.
    pub fn share(&mut self, usage: Usage) -> u64 {
        let time_us = usage.now_us.saturating_sub(self.last.now_us).max(1);
        let percent =
            |now_us: u64, before_us: u64| 100 * now_us.saturating_sub(before_us) / time_us;
        let used = percent(usage.own_us, self.last.own_us);
        let idle = percent(usage.idle_us, self.last.idle_us);
        self.last = usage;
        let reserve = RESERVE_PERCENT * self.cpus;
        (used + idle).saturating_sub(reserve).clamp(LEAST_PERCENT, 100 * self.cpus)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns the shares of work that uses all it may beside others who use so much, in percent of one CPU.
    fn shares(cpus: u64, others: &[u64]) -> Vec<u64> {
        let (mut spare, mut usage) = (Spare::new(cpus, Usage::default()), Usage::default());
        let mut share = LEAST_PERCENT;
        let shares = others.iter().map(|others| {
            let others = (*others).min(100 * cpus);
            // CPUs that are wanted by more than there are divide them.
            let used = share.min(100 * cpus - others.min(100 * cpus));
            usage.now_us += LOOK_EVERY_US;
            usage.own_us += used * LOOK_EVERY_US / 100;
            usage.idle_us += (100 * cpus - others - used) * LOOK_EVERY_US / 100;
            assert!(spare.is_due(usage.now_us));
            share = spare.share(usage);
            share
        });
        shares.collect()
    }

    #[test]
    fn idle_cpus_are_used_but_for_a_reserve_and_busy_ones_are_left_at_once() {
        assert_eq!(shares(4, &[0, 0, 100, 100, 400, 400, 300]), [360, 360, 260, 260, 1, 1, 60]);
        assert_eq!(shares(1, &[100, 50, 0]), [1, 40, 90]);
    }

    proptest! {
        #[test]
        fn never_more_than_is_left(cpus in 1u64..128, others in prop::collection::vec(0u64..13_000, 1..40)) {
            for (share, others) in shares(cpus, &others).iter().zip(&others) {
                let left = (100 * cpus).saturating_sub(*others);
                prop_assert!((1..=100 * cpus).contains(share) && *share <= left.max(1) + 1);
            }
        }
    }
}
