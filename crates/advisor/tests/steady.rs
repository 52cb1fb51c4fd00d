//! What `steady` claims, each claim over loads and settings drawn at random.

use bindery_advisor::simulate::{
    Conditions, Kind, Load, Noise, Point, Run, ScanRecord, Shape, run,
};
use bindery_advisor::{Advisor, AdvisorSettings, Mode, PAGES_TO_SCAN, Pace, Progress, Scan};
use proptest::prelude::*;

/// Loads that a scanner can bring to its target within its bounds, with few candidates as with four
/// times as many.
#[derive(Clone, Debug)]
struct Feasible {
    settings: AdvisorSettings,
    conditions: Conditions,
    few: f64,
    page_ns: f64,
}

impl Feasible {
    fn load(&self, steps: &[(f64, f64)]) -> Load {
        let point = |&(time_s, times): &(f64, f64)| Point {
            time_s,
            candidates: (self.few * times).round(),
            page_ns: self.page_ns,
        };
        Load::new(steps.iter().map(point).collect(), Shape::Steps)
    }

    fn target_s(&self) -> f64 {
        self.settings.target_scan_time_s as f64
    }
}

/// The batch that brings a scan to its target, where it needs `share` of a CPU for it.
fn batch(share: f64, rest_s: f64, page_s: f64) -> f64 {
    share * rest_s / (1.0 - share) / page_s
}

prop_compose! {
    fn feasible()(
        target_s in 2..100_u64,
        max_cpu in 5..100_u64,
        rest_us in 2_000..30_000_u64,
        // Of what is allowed, with many candidates.
        used in 0.1..0.85_f64,
        few_batch in 20.0..2_000.0_f64,
        min in 0.2..1.0_f64,
        max in 1.2..10.0_f64,
        knows_pages in any::<bool>(),
        is_held in any::<bool>(),
        seed in any::<u64>(),
    ) -> Feasible {
        let rest_s = rest_us as f64 / 1e6;
        let many_share = max_cpu as f64 / 100.0 * used;
        let few_share = many_share / 4.0;
        // A page costs what makes the batch of few candidates as large as it was drawn.
        let page_s = batch(few_share, rest_s, 1.0) / few_batch;
        let many_batch = batch(many_share, rest_s, page_s);
        let settings = AdvisorSettings {
            mode: Mode::Steady,
            target_scan_time_s: target_s,
            max_cpu_percent: max_cpu,
            min_pages_to_scan: ((few_batch * min) as u64).max(1),
            max_pages_to_scan: (many_batch * max) as u64 + 1,
        };
        let conditions = Conditions {
            rest_us,
            duration_s: target_s as f64 * 40.0,
            hold_s: is_held.then_some(0.2),
            knows_pages,
            seed,
        };
        let few = few_share * target_s as f64 / page_s;
        Feasible { settings, conditions, few, page_ns: page_s * 1e9 }
    }
}

/// Scans that begin and end between two moments.
fn scans_between(run: &Run, from_s: f64, to_s: f64) -> Vec<ScanRecord> {
    let within = |scan: &&ScanRecord| scan.start_s >= from_s && scan.end_s <= to_s;
    run.scans.iter().filter(within).copied().collect()
}

fn off_percent(scan: &ScanRecord, target_s: f64) -> f64 {
    (scan.time_s() / target_s - 1.0).abs() * 100.0
}

fn batches(scans: &[ScanRecord]) -> Vec<u64> {
    scans.iter().map(|scan| scan.pace.pages_to_scan).collect()
}

fn config() -> ProptestConfig {
    let default = ProptestConfig::default();
    ProptestConfig { cases: default.cases * 2, failure_persistence: None, ..default }
}

proptest! {
    #![proptest_config(config())]

    /// After the start and after each fourfold step, up or down, within a scan or between two: the
    /// second full scan and all that follow are within 10% of the target; the first too, if the number
    /// of its pages was known.
    #[test]
    fn the_target_is_reached_in_two_scans(
        feasible in feasible(), up in 0.0..1.0_f64, down in 0.0..1.0_f64,
    ) {
        let target_s = feasible.target_s();
        let (up_s, down_s) = (target_s * (12.0 + up), target_s * (25.0 + down));
        let load = feasible.load(&[(0.0, 1.0), (up_s, 4.0), (down_s, 1.0)]);
        let run = run(&feasible.settings, &load, feasible.conditions);
        for (from_s, to_s) in [(0.0, up_s), (up_s, down_s), (down_s, f64::INFINITY)] {
            let scans = scans_between(&run, from_s, to_s);
            prop_assert!(scans.len() >= 3, "{} scans from {from_s}", scans.len());
            let unknown = usize::from(from_s == 0.0 || !feasible.conditions.knows_pages);
            for (number, scan) in scans.iter().enumerate().skip(unknown) {
                let off = off_percent(scan, target_s);
                prop_assert!(off <= 10.0, "scan {number} from {from_s:.1} is {off:.1}% off: {scan:?}");
            }
        }
    }

    /// A scan that meets growth, wherever it does, knows nothing of it beforehand and goes faster for the
    /// rest of its pages: it takes 1.8 targets at most, where a target is enough for as many pages. So does
    /// the first scan, of which nothing is known at all.
    #[test]
    fn a_scan_that_meets_growth_catches_up(
        feasible in feasible(), times in 1.0..4.0_f64, at in 0.0..1.0_f64, first in 1.0..4.0_f64,
    ) {
        let target_s = feasible.target_s();
        let at_s = target_s * (8.0 + at);
        let load = feasible.load(&[(0.0, first), (target_s * 4.0, 1.0), (at_s, times)]);
        let conditions =
            Conditions { hold_s: Some(0.2), knows_pages: false, ..feasible.conditions };
        let run = run(&feasible.settings, &load, conditions);
        for (number, scan) in run.scans.iter().enumerate() {
            let targets = scan.time_s() / target_s;
            prop_assert!(targets <= 1.8, "scan {number} takes {targets:.2} targets: {scan:?}");
        }
    }

    /// The same number of pages, at costs and with rests that vary by some percent from batch to batch
    /// and from scan to scan: in sixty scans the batch changes twice at most, towards what it is to be,
    /// and never back; scans stay near the target.
    #[test]
    fn noise_is_not_followed(feasible in feasible(), scan_percent in 0..5_u64) {
        let noise = Noise {
            batch_percent: 30,
            scan_percent,
            late_percent: 10,
            late_scan_percent: 2 * scan_percent,
        };
        let load = feasible.load(&[(0.0, 2.0)]).with_noise(noise);
        let conditions = Conditions { duration_s: feasible.target_s() * 60.0, ..feasible.conditions };
        let run = run(&feasible.settings, &load, conditions);
        let batches = batches(&run.scans);
        let changes: Vec<_> = batches[2..].windows(2).filter(|pair| pair[0] != pair[1]).collect();
        prop_assert!(changes.len() <= 2, "{batches:?}");
        let is_one_way = changes.is_sorted_by_key(|pair| pair[1] > pair[0]);
        prop_assert!(is_one_way || changes.len() < 2, "{batches:?}");
        for scan in &run.scans[1..] {
            prop_assert!(off_percent(scan, feasible.target_s()) <= 12.0, "{scan:?}");
        }
    }
}

/// Settings and loads of any kind, most of which no batch within the bounds brings to the target.
#[derive(Clone, Debug)]
struct AnyLoad {
    settings: AdvisorSettings,
    conditions: Conditions,
    candidates: f64,
    page_ns: f64,
}

prop_compose! {
    fn any_load()(
        target_s in 1..50_u64,
        max_cpu in 1..100_u64,
        bounds in (1..20_000_u64, 1..20_000_u64),
        rest_us in 1_000..100_000_u64,
        candidates in 100.0..1e6_f64,
        page_ns in 100.0..50_000.0_f64,
        knows_pages in any::<bool>(),
        seed in any::<u64>(),
    ) -> AnyLoad {
        let settings = AdvisorSettings {
            mode: Mode::Steady,
            target_scan_time_s: target_s,
            max_cpu_percent: max_cpu,
            min_pages_to_scan: bounds.0.min(bounds.1),
            max_pages_to_scan: bounds.0.max(bounds.1),
        };
        let conditions =
            Conditions { rest_us, duration_s: 300.0, hold_s: Some(0.2), knows_pages, seed };
        AnyLoad { settings, conditions, candidates, page_ns }
    }
}

impl AnyLoad {
    fn share(&self) -> f64 {
        self.settings.max_cpu_percent as f64 / 100.0
    }

    /// What the smallest batch costs, in seconds, at so many times the usual cost.
    fn least_s(&self, times: f64) -> f64 {
        self.settings.min_pages_to_scan.min(self.candidates as u64 * 4) as f64 * self.page_ns / 1e9
            * times
    }

    /// When the cost of a page is known.
    fn first_end_s(&self, run: &Run) -> f64 {
        run.scans.first().map_or(f64::INFINITY, |scan| scan.end_s)
    }

    /// When the first hold has told of a batch at least, within the first scan.
    fn first_hold_s(&self) -> f64 {
        let batch_s = self.least_s(1.0) + self.conditions.rest_us as f64 / 1e6;
        2.0 * (0.2 + batch_s)
    }
}

proptest! {
    #![proptest_config(config())]

    /// Pages that cost what they did: no second is above the ceiling, whatever comes and goes, unless a
    /// single batch of the smallest size is; the first scan is no exception once a hold has told of it.
    #[test]
    fn no_second_is_above_the_ceiling(
        load in any_load(), steps in prop::collection::vec((1.0..60.0_f64, 0.25..4.0_f64), 0..6),
    ) {
        let mut time_s = 0.0;
        let later = steps.iter().map(|(after_s, times)| {
            time_s += after_s;
            Point { time_s, candidates: (load.candidates * times).round(), page_ns: load.page_ns }
        });
        let first = Point { time_s: 0.0, candidates: load.candidates, page_ns: load.page_ns };
        let points = std::iter::once(first).chain(later).collect();
        let run = run(&load.settings, &Load::new(points, Shape::Steps), load.conditions);
        let most_s = run.most_in_a_second(load.first_end_s(&run).min(load.first_hold_s()));
        let allowed_s = load.share().max(load.least_s(1.0)) + 1e-3;
        prop_assert!(most_s <= allowed_s, "{most_s} of {allowed_s}");
    }

    /// Pages of several kinds in one scan: the same, once a scan has shown the dearest. What is told in
    /// a fifth of a second, or in a batch if that takes longer, has to be of one kind for that.
    #[test]
    fn dear_pages_are_expected_where_they_were(
        load in any_load(), cheap in 0.05..0.95_f64, factor in 1.0..6.0_f64,
    ) {
        let kinds = vec![Kind { until: cheap, factor: 1.0 }, Kind { until: 1.0, factor }];
        let scanned = Load::constant(load.candidates.round(), load.page_ns).with_kinds(kinds);
        let run = run(&load.settings, &scanned, load.conditions);
        let Some(third) = run.scans.get(2) else { return Ok(()) };
        let dear_batches = load.candidates * (1.0 - cheap) / third.pace.pages_to_scan as f64;
        if dear_batches < 3.0 || load.least_s(factor) > 0.1 {
            return Ok(());
        }
        let most_s = run.most_in_a_second(third.start_s);
        let allowed_s = load.share().max(load.least_s(factor)) * 1.02 + 1e-3;
        prop_assert!(most_s <= allowed_s, "{most_s} of {allowed_s}");
    }

    /// Pages that get dearer all at once: above the ceiling only until the next hold, in part until the
    /// one after it.
    #[test]
    fn what_nobody_could_know_costs_two_holds_at_most(
        load in any_load(), times in 1.0..16.0_f64, at_s in 100.0..200.0_f64,
    ) {
        let point = |time_s, times: f64| Point {
            time_s,
            candidates: load.candidates.round(),
            page_ns: load.page_ns * times,
        };
        let dearer = Load::new(vec![point(0.0, 1.0), point(at_s, times)], Shape::Steps);
        let run = run(&load.settings, &dearer, load.conditions);
        let first_s = load.first_end_s(&run);
        prop_assume!(first_s < at_s);
        let share = load.share();
        // The pace of then with the cost of now. The last batch of a scan is what is left.
        let before = run.batches.iter().filter(|batch| (at_s - 60.0..at_s).contains(&batch.start_s));
        let work_s = before.map(|batch| batch.cpu_s).fold(0.0, f64::max) * times;
        let rest_s = load.conditions.rest_us as f64 / 1e6;
        let hot = work_s / (work_s + rest_s);
        let hold_s = 0.2 + work_s + rest_s;
        let allowed_s = share.max(load.least_s(times))
            + 2.0 * hold_s * (hot - share).max(0.0)
            + 2.0 * work_s
            + 1e-3;
        let most_s = run.most_in_a_second(first_s);
        prop_assert!(most_s <= allowed_s, "{most_s} of {allowed_s}, hot {hot}");
    }

    #[test]
    fn bounds_are_honoured_and_no_input_has_it_panic(
        target in any::<u64>(), max_cpu in any::<u64>(), bounds in any::<(u64, u64)>(),
        rest_us in any::<u64>(),
        reported in prop::collection::vec((0..4_u8, any::<(u64, u64, u64, u64)>(), any::<Option<u64>>()), 1..40),
    ) {
        let settings = AdvisorSettings {
            mode: Mode::Steady,
            target_scan_time_s: target,
            max_cpu_percent: max_cpu,
            min_pages_to_scan: bounds.0,
            max_pages_to_scan: bounds.1,
        };
        check_bounds(settings, rest_us, &reported)?;
        let valid = AdvisorSettings {
            target_scan_time_s: 1 + target % 86_400,
            max_cpu_percent: 1 + max_cpu % 25_600,
            min_pages_to_scan: 1 + bounds.0.min(bounds.1) % PAGES_TO_SCAN.end(),
            max_pages_to_scan: *PAGES_TO_SCAN.end(),
            ..settings
        };
        prop_assert!(valid.check().is_ok());
        check_bounds(valid, 20_000, &reported)?;
    }
}

type Reported = (u8, (u64, u64, u64, u64), Option<u64>);

fn check_bounds(
    settings: AdvisorSettings,
    rest_us: u64,
    reported: &[Reported],
) -> Result<(), TestCaseError> {
    let mut advisor = Advisor::new(settings, 1, rest_us);
    let mut begun = advisor.pace();
    let mut before = begun;
    for (what, (time_us, busy_us, cpu_us, pages), next_pages) in reported {
        let scan = Scan { time_us: *time_us, busy_us: *busy_us, cpu_us: *cpu_us, pages: *pages };
        let pace = match what {
            0 => advisor.end_scan(scan, *next_pages),
            1 => advisor.begin_scan(*pages),
            2 => advisor.hold(scan),
            _ => {
                let new_pages = next_pages.unwrap_or(0);
                advisor.catch_up(Progress { time_us: *time_us, pages: *pages, new_pages })
            }
        };
        let Pace { pages_to_scan, rest_us: rest } = pace;
        let max = settings.max_pages_to_scan.max(1);
        let min = settings.min_pages_to_scan.clamp(1, max);
        prop_assert!((min..=max).contains(&pages_to_scan), "{pages_to_scan} of {min}..={max}");
        prop_assert!(rest >= rest_us);
        // Within a scan it never goes faster than it began, but to catch up; that never slows down.
        match what {
            2 => prop_assert!(pages_to_scan <= begun.pages_to_scan && rest >= begun.rest_us),
            3 => {
                prop_assert!(pages_to_scan >= before.pages_to_scan && rest <= before.rest_us);
                if pace != before {
                    begun = pace;
                }
            }
            _ => begun = pace,
        }
        before = pace;
    }
    Ok(())
}

/// A scan of as many pages as it was said to have, or in time, is left as it is.
#[test]
fn who_is_not_late_does_not_hurry() {
    let mut advisor = Advisor::new(two_rates(), 1, 20_000);
    advisor.end_scan(Scan { time_us: 100_000_000, busy_us: 1, cpu_us: 1, pages: 100_000 }, None);
    let begun = advisor.pace();
    let progress = |time_us, pages, new_pages| Progress { time_us, pages, new_pages };
    for calm in [progress(5_000_000, 20_000, 0), progress(11_000_000, 104_000, 4_000)] {
        assert_eq!(advisor.catch_up(calm), begun, "{calm:?}");
    }
    let late = advisor.clone().catch_up(progress(11_300_000, 50_000, 0));
    assert!(late.pages_to_scan > begun.pages_to_scan, "the target has passed");
    // 300,000 more are known of, and as many are believed to follow: in the half of the time that is
    // left.
    let larger = advisor.catch_up(progress(5_000_000, 50_000, 300_000));
    assert_eq!(larger.pages_to_scan, 650_000 / 250);
}

/// Pages that merge cost eight times what looking at them does: known after some batches, not when the
/// target has passed.
#[test]
fn a_scan_of_dear_pages_is_on_time() {
    let conditions = Conditions { knows_pages: true, ..Conditions::of_kernel(80.0, 1) };
    let point = |time_s, page_ns| Point { time_s, candidates: 200_000.0, page_ns };
    // Looking takes 0.2 s of 10, merging 3.2.
    let load = Load::new(vec![point(0.0, 1_000.0), point(40.0, 16_000.0)], Shape::Steps);
    let run = run(&two_rates(), &load, conditions);
    for scan in &run.scans[1..] {
        assert!(off_percent(scan, 10.0) <= 10.0, "{:?}", run.scans);
    }
}

/// A scan of two rates teaches how long rests really are: 30 ms in place of 20.
#[test]
fn a_scan_of_two_rates_is_reckoned_with() {
    let mut advisor = Advisor::new(two_rates(), 1, 20_000);
    let part = |pages: u64, batch: u64| {
        let cpu_us = pages * 2;
        Scan { time_us: cpu_us + pages.div_ceil(batch) * 30_000, busy_us: cpu_us, cpu_us, pages }
    };
    let slow = advisor.pace().pages_to_scan;
    let first = part(10_000, slow);
    advisor.hold(first);
    let progress = Progress { time_us: first.time_us, pages: first.pages, new_pages: 0 };
    let fast = advisor.catch_up(progress).pages_to_scan;
    assert!(fast > 2 * slow, "{fast}: the target has passed");
    let second = part(90_000, fast);
    advisor.hold(second);
    let pace = advisor.end_scan(first.and(second), None);
    let time_us = part(100_000, pace.pages_to_scan).time_us;
    assert!(time_us.abs_diff(10_000_000) < 100_000, "{time_us} {pace:?}");
}

/// Ten seconds, half a CPU.
fn two_rates() -> AdvisorSettings {
    AdvisorSettings {
        mode: Mode::Steady,
        target_scan_time_s: 10,
        max_cpu_percent: 50,
        min_pages_to_scan: 20,
        max_pages_to_scan: 1_000_000,
    }
}

/// Four threads that look at pages together: busy for a quarter of the CPU time that they use.
#[test]
fn several_threads_are_reckoned_with() {
    let settings = AdvisorSettings {
        mode: Mode::Steady,
        target_scan_time_s: 10,
        max_cpu_percent: 150,
        min_pages_to_scan: 1,
        max_pages_to_scan: 1_000_000,
    };
    let mut advisor = Advisor::new(settings, 1, 20_000);
    let scan = |pages: u64, batch: u64| {
        let (busy_us, cpu_us) = (pages / 4, pages);
        Scan { time_us: busy_us + pages.div_ceil(batch) * 20_000, busy_us, cpu_us, pages }
    };
    // A million pages at 1 us of CPU time each: busy for 0.25 s, and 9.75 s are 487 or 488 rests.
    let pace = advisor.end_scan(scan(1_000_000, 1), None);
    assert!((2049..=2054).contains(&pace.pages_to_scan), "{pace:?}");
    // Twenty million need 200% for that; 150% are allowed over any second: (w + w/50) / (w/4 + r).
    let pace = advisor.end_scan(scan(20_000_000, pace.pages_to_scan), None);
    let (work_s, rest_s) = (pace.pages_to_scan as f64 / 1e6, 0.02);
    let share = work_s * (1.0 + rest_s) / (work_s / 4.0 + rest_s);
    assert!((1.49..=1.5).contains(&share), "{share} {pace:?}");
    assert_eq!(pace.rest_us, 20_000);
}
