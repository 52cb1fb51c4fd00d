//! The loads that laws are compared on, in sizes that suit the settings.

use std::fmt;

use super::random::Random;
use super::{Conditions, Load, Noise, Point, Shape};
use crate::AdvisorSettings;
use crate::recorded::StartUp;

/// What a page costs: about what it costs ksmd, in nanoseconds.
const PAGE_NS: f64 = 2_000.0;

/// A load to compare laws on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scenario {
    /// Four times the candidates at once, within a scan, and as few as before later.
    Step,
    /// The same, little by little.
    Ramp,
    /// More and more, then at once as few as before, again and again.
    Sawtooth,
    /// The same number but for some percent, at costs that vary and with rests that are late.
    Noise,
    /// As recorded while programs started, to the scale of the settings.
    StartUp,
}

impl Scenario {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Step, Self::Ramp, Self::Sawtooth, Self::Noise, Self::StartUp];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Step => "step",
            Self::Ramp => "ramp",
            Self::Sawtooth => "sawtooth",
            Self::Noise => "noise",
            Self::StartUp => "start-up",
        }
    }

    /// The load for these settings. A scan within the target needs an eighth of the CPU time that the
    /// settings allow while candidates are few, and half of it while they are many. Times are multiples
    /// of the target.
    #[must_use]
    pub fn load(self, settings: &AdvisorSettings, seed: u64) -> Load {
        let target_s = settings.target_scan_time_s as f64;
        let share = settings.max_cpu_percent.min(100) as f64 / 100.0;
        let few = (share / 8.0 * target_s / (PAGE_NS / 1e9)).round();
        let point = |targets: f64, times: f64| Point {
            time_s: targets * target_s,
            candidates: few * times,
            page_ns: PAGE_NS,
        };
        match self {
            Self::Step => {
                let points = vec![point(0.0, 1.0), point(6.4, 4.0), point(13.3, 1.0)];
                Load::new(points, Shape::Steps)
            }
            Self::Ramp => {
                let corners = [(0.0, 1.0), (5.0, 1.0), (10.0, 4.0), (13.0, 4.0), (18.0, 1.0)];
                let points = corners.map(|(targets, times)| point(targets, times));
                Load::new(points.to_vec(), Shape::Lines)
            }
            Self::Sawtooth => {
                let teeth = (0..4).flat_map(|tooth| {
                    let start = f64::from(tooth) * 5.0;
                    [point(start, 1.0), point(start + 4.99, 4.0)]
                });
                Load::new(teeth.collect(), Shape::Lines)
            }
            Self::Noise => noise(&point, seed),
            Self::StartUp => start_up(target_s, few * 4.0),
        }
    }

    /// How it is scanned: for twenty targets, as ksmd would be.
    #[must_use]
    pub fn conditions(settings: &AdvisorSettings, seed: u64) -> Conditions {
        Conditions::of_kernel(settings.target_scan_time_s as f64 * 20.0, seed)
    }
}

fn noise(point: &impl Fn(f64, f64) -> Point, seed: u64) -> Load {
    let mut random = Random::new(seed);
    let points = (0..60).map(|third| point(f64::from(third) / 3.0, 2.0 * random.around_one(2)));
    let noise =
        Noise { batch_percent: 50, scan_percent: 3, late_percent: 20, late_scan_percent: 3 };
    Load::new(points.collect(), Shape::Lines).with_noise(noise)
}

/// The recorded start-up over twenty targets, with so many candidates at most.
fn start_up(target_s: f64, most: f64) -> Load {
    let recorded: StartUp = serde_json::from_str(include_str!("../../traces/start-up.json"))
        .expect("the recording that is built in was written by the recorder");
    let highest = recorded.points.iter().map(|point| point.candidates).max().unwrap_or(1);
    let cost_ns = recorded.points.iter().map(|point| point.page_ns).sum::<u64>() as f64;
    let mean_ns = cost_ns / recorded.points.len() as f64;
    let length_ms = recorded.points.last().map_or(1, |point| point.time_ms.max(1));
    let points = recorded.points.iter().map(|point| Point {
        time_s: point.time_ms as f64 / length_ms as f64 * target_s * 20.0,
        candidates: (point.candidates as f64 / highest as f64 * most).round(),
        page_ns: point.page_ns as f64 / mean_ns * PAGE_NS,
    });
    Load::new(points.collect(), Shape::Lines)
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
