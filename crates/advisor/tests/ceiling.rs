//! The ceiling holds over any second, whatever threads do, and leaves none of it unused.

use bindery_advisor::Ceiling;
use proptest::prelude::*;

/// What a thread does: so much work at a time, and every so often nothing for a while.
#[derive(Clone, Debug)]
struct Habits {
    grains_us: Vec<u64>,
    idles_us: Vec<u64>,
}

/// A stretch of work: from, to.
type Stretch = (u64, u64);

/// Threads that work in grains under one ceiling. Each asks after each grain, rests as it is told, and
/// may be idle on top of it.
fn simulate(percent: u64, threads: &[Habits], duration_us: u64) -> Vec<Stretch> {
    let mut ceiling = Ceiling::new(percent, 0, 0);
    let mut cpu_us = 0;
    let mut stretches = Vec::new();
    // When each is done with what it does, how much that is, and what comes next.
    let mut next: Vec<(u64, u64, usize)> = threads.iter().map(|_| (0, 0, 0)).collect();
    loop {
        let first = (0..next.len()).min_by_key(|thread| next[*thread].0).expect("threads");
        let (now_us, done_us, turn) = next[first];
        if now_us > duration_us {
            return stretches;
        }
        cpu_us += done_us;
        let rest_us = ceiling.rest_us(now_us, cpu_us);
        let habits = &threads[first];
        let idle_us = habits.idles_us[turn % habits.idles_us.len()];
        let grain_us = habits.grains_us[turn % habits.grains_us.len()];
        let start_us = now_us + rest_us + idle_us;
        stretches.push((start_us, start_us + grain_us));
        next[first] = (start_us + grain_us, grain_us, turn + 1);
    }
}

/// The most CPU time of any second, and of all time until `end_us`.
fn most_in_a_second(stretches: &[Stretch]) -> u64 {
    let within = |from: u64| {
        let to = from + 1_000_000;
        stretches.iter().map(|(a, b)| (*b).min(to).saturating_sub((*a).max(from))).sum::<u64>()
    };
    let starts = stretches.iter().map(|stretch| stretch.0);
    let ends = stretches.iter().map(|stretch| stretch.1.saturating_sub(1_000_000));
    starts.chain(ends).map(within).max().unwrap_or(0)
}

fn habits(grains_us: std::ops::Range<u64>) -> impl Strategy<Value = Habits> {
    let idle = prop_oneof![8 => Just(0), 2 => 0..50_000_u64, 1 => 0..3_000_000_u64];
    (prop::collection::vec(grains_us, 1..20), prop::collection::vec(idle, 1..40))
        .prop_map(|(grains_us, idles_us)| Habits { grains_us, idles_us })
}

fn config() -> ProptestConfig {
    let default = ProptestConfig::default();
    ProptestConfig { cases: default.cases * 2, failure_persistence: None, ..default }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn no_second_has_more_than_the_share_and_what_was_under_way(
        percent in 1..300_u64,
        threads in prop::collection::vec(habits(100..30_000), 1..9),
    ) {
        let stretches = simulate(percent, &threads, 8_000_000);
        let largest_us = |habits: &Habits| habits.grains_us.iter().max().copied().unwrap_or(0);
        let under_way_us: u64 = threads.iter().map(largest_us).sum();
        let share_us = percent * 10_100; // Of a second and the hundredth that it may be behind.
        let most_us = most_in_a_second(&stretches);
        prop_assert!(most_us <= share_us + 2 * under_way_us, "{most_us} of {share_us}");
    }

    /// Whoever always has work gets the whole share, if that is no more than there are threads.
    #[test]
    fn the_share_is_used_where_there_is_work(
        percent in 1..100_u64,
        count in 1..9_usize,
        grain_us in 100..30_000_u64,
        late_us in 0..5_000_u64,
    ) {
        let late_us = late_us.min(grain_us * (100 - percent) / percent / 2);
        let habits = Habits { grains_us: vec![grain_us], idles_us: vec![late_us] };
        let stretches = simulate(percent, &vec![habits; count], 60_000_000);
        let used_us: u64 = stretches.iter().map(|(from, to)| to - from).sum();
        let share_us = percent * 600_000;
        prop_assert!(used_us * 100 >= share_us * 97, "{used_us} of {share_us}");
    }

    #[test]
    fn no_input_has_it_panic(
        percent in any::<u64>(), start in any::<(u64, u64)>(),
        asks in prop::collection::vec(any::<(u64, u64, u64)>(), 1..20),
    ) {
        let mut ceiling = Ceiling::new(percent, start.0, start.1);
        for (now_us, cpu_us, percent) in asks {
            ceiling.rest_us(now_us, cpu_us);
            ceiling.set_percent(percent, now_us);
        }
    }
}

#[test]
fn what_is_owed_gets_cheaper_when_the_ceiling_is_raised() {
    let mut ceiling = Ceiling::new(1, 0, 0);
    assert_eq!(ceiling.rest_us(1_000_000, 1_000_000), 99_000_000);
    ceiling.set_percent(100, 1_000_000);
    assert!(ceiling.rest_us(1_000_000, 1_000_000) < 1_000_000);
    ceiling.set_percent(1, 1_000_000);
    assert!(ceiling.rest_us(1_000_000, 1_000_000) > 98_000_000);
}

#[test]
fn idle_time_is_not_saved_up() {
    let mut ceiling = Ceiling::new(50, 0, 0);
    // After a minute without work, 100 ms of work need 100 ms of rest, but for the 10 ms that it may
    // always be behind.
    assert_eq!(ceiling.rest_us(60_000_000, 0), 0);
    assert_eq!(ceiling.rest_us(60_100_000, 100_000), 90_000);
}
