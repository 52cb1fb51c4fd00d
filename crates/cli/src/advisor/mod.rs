//! `bindery advisor simulate`: both laws on loads that come and go, as a table and as a picture.

mod axis;
mod canvas;
mod plot;

use std::path::PathBuf;

use bindery_advisor::simulate::{Conditions, Load, Run, Scenario, Verdict, run as simulate};
use bindery_advisor::{AdvisorSettings, Mode};
use clap::{Args, Subcommand, ValueEnum};
use serde::Serialize;

use crate::exit::{Failure, Reason};
use crate::output::{Table, print, print_json};
use crate::setting_names::number_of;
use crate::target_scan_time::TargetScanTime;
use plot::Column;

/// Loads scale with the target: what longer ones show is the same, and takes memory.
const TARGET_S_MAX: u64 = 3600;

/// What is set if nothing else is said.
const DEFAULTS: AdvisorSettings = AdvisorSettings::of_kernel(Mode::Steady);

/// What to try out.
#[derive(Debug, Subcommand)]
pub(crate) enum AdvisorCommand {
    /// Run the laws that say how fast to scan, on simulated memory
    #[command(after_help = "\
Examples:
  bindery advisor simulate                                both laws on all loads, as a table
  bindery advisor simulate --scenario step --png step.png
  bindery advisor simulate --target-scan-time 60s --max-cpu 20 --mode steady
  bindery advisor simulate --json | jq '.runs[] | {scenario, mode, scans_to_target}'

What is scanned is a model of ksmd: batches of pages_to_scan pages at 2 µs each, 20 ms apart. A scan
within the target needs an eighth of --max-cpu while candidates are few and half of it while they are
many; each load lasts twenty targets. TO TARGET: scans until one is within 10% of the target, after the
start or a step. TOO FAST: the fastest scan. ABOVE: CPU time above --max-cpu, second by second. TURNS:
how often the batch went up after it had gone down, or down after up.")]
    Simulate(SimulateArgs),
}

/// What `bindery advisor simulate` takes. The defaults are the kernel's.
#[derive(Debug, Args)]
pub(crate) struct SimulateArgs {
    /// How candidates come and go
    #[arg(long, value_enum, default_value = "all")]
    scenario: Scenarios,
    /// Which law
    #[arg(long, value_enum, default_value = "both")]
    mode: Modes,
    /// How long a scan should take
    #[arg(long, value_name = "TIME", default_value_t = TargetScanTime(DEFAULTS.target_scan_time_s))]
    target_scan_time: TargetScanTime,
    /// The most CPU time that scanning may take, in percent of one CPU
    #[arg(long, value_name = "PERCENT", default_value_t = DEFAULTS.max_cpu_percent)]
    #[arg(allow_negative_numbers = true, value_parser = number_of("advisor_max_cpu"))]
    max_cpu: u64,
    /// The smallest batch
    #[arg(long, value_name = "PAGES", default_value_t = DEFAULTS.min_pages_to_scan)]
    #[arg(allow_negative_numbers = true, value_parser = number_of("advisor_min_pages_to_scan"))]
    min_pages: u64,
    /// The largest batch
    #[arg(long, value_name = "PAGES", default_value_t = DEFAULTS.max_pages_to_scan)]
    #[arg(allow_negative_numbers = true, value_parser = number_of("advisor_max_pages_to_scan"))]
    max_pages: u64,
    /// Tell the law how many pages the next scan has, as Bindery's own engine does; the kernel's law has
    /// no use for it
    #[arg(long)]
    known_pages: bool,
    /// Draw what happens into this file
    #[arg(long, value_name = "FILE")]
    png: Option<PathBuf>,
    /// Of the noise
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Scenarios {
    Step,
    Ramp,
    Sawtooth,
    Noise,
    StartUp,
    All,
}

impl Scenarios {
    fn list(self) -> Vec<Scenario> {
        match self {
            Self::Step => vec![Scenario::Step],
            Self::Ramp => vec![Scenario::Ramp],
            Self::Sawtooth => vec![Scenario::Sawtooth],
            Self::Noise => vec![Scenario::Noise],
            Self::StartUp => vec![Scenario::StartUp],
            Self::All => Scenario::ALL.to_vec(),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Modes {
    /// The kernel's law
    ScanTime,
    /// Bindery's own
    Steady,
    Both,
}

impl Modes {
    fn list(self) -> Vec<Mode> {
        match self {
            Self::ScanTime => vec![Mode::ScanTime],
            Self::Steady => vec![Mode::Steady],
            Self::Both => vec![Mode::ScanTime, Mode::Steady],
        }
    }
}

/// One law on one load.
struct Trial {
    scenario: Scenario,
    mode: Mode,
    load: Load,
    run: Run,
    verdict: Verdict,
}

pub(crate) fn run(command: &AdvisorCommand, json: bool) -> Result<(), Failure> {
    let AdvisorCommand::Simulate(arguments) = command;
    let settings = settings(arguments)?;
    let trials = trials(arguments, &settings);
    if let Some(path) = &arguments.png {
        let columns: Vec<Column<'_>> = trials.chunk_by(is_same_load).map(column).collect();
        plot::draw(&columns, &settings).write(path).map_err(|error| {
            Failure::of_io(format_args!("cannot write {}", path.display()), &error)
        })?;
    }
    match json {
        true => print_json(&report(arguments, &settings, &trials)),
        false => print_table(&trials),
    }
}

fn settings(arguments: &SimulateArgs) -> Result<AdvisorSettings, Failure> {
    let settings = AdvisorSettings {
        target_scan_time_s: arguments.target_scan_time.0,
        max_cpu_percent: arguments.max_cpu,
        min_pages_to_scan: arguments.min_pages,
        max_pages_to_scan: arguments.max_pages,
        ..DEFAULTS
    };
    settings.check().map_err(|error| Failure::new(Reason::Usage, error.to_string()))?;
    if settings.target_scan_time_s > TARGET_S_MAX {
        let message = format!(
            "simulated targets are at most {TARGET_S_MAX}s: loads scale with the target, so a \
             shorter one shows the same"
        );
        return Err(Failure::new(Reason::Usage, message));
    }
    Ok(settings)
}

fn trials(arguments: &SimulateArgs, settings: &AdvisorSettings) -> Vec<Trial> {
    let modes = arguments.mode.list();
    let pairs =
        arguments.scenario.list().into_iter().flat_map(|scenario| {
            modes.iter().map(move |mode| (scenario, *mode)).collect::<Vec<_>>()
        });
    let trial = |(scenario, mode): (Scenario, Mode)| {
        let settings = AdvisorSettings { mode, ..*settings };
        let load = scenario.load(&settings, arguments.seed);
        let conditions = Conditions {
            knows_pages: arguments.known_pages,
            ..Scenario::conditions(&settings, arguments.seed)
        };
        let run = simulate(&settings, &load, conditions);
        let verdict = Verdict::of(&settings, &load, &run);
        Trial { scenario, mode, load, run, verdict }
    };
    pairs.map(trial).collect()
}

fn is_same_load(one: &Trial, other: &Trial) -> bool {
    one.scenario == other.scenario
}

fn column(trials: &[Trial]) -> Column<'_> {
    Column {
        title: trials[0].scenario.name(),
        load: &trials[0].load,
        runs: trials.iter().map(|trial| (trial.mode, &trial.run)).collect(),
    }
}

fn print_table(trials: &[Trial]) -> Result<(), Failure> {
    let mut table = Table::new([
        "LOAD",
        "LAW",
        " SCANS",
        " TO TARGET",
        " WITHIN 10%",
        " TOO FAST",
        " LONGEST",
        " CPU",
        " A SECOND'S MOST",
        " ABOVE",
        " TURNS",
    ]);
    for Trial { scenario, mode, verdict, .. } in trials {
        table.row([
            scenario.to_string(),
            mode.to_string(),
            verdict.scans.to_string(),
            verdict.scans_to_target.map_or("never".to_owned(), |scans| scans.to_string()),
            format!("{:.0}%", verdict.near_percent),
            format!("{:.0}%", verdict.overshoot_percent),
            format!("{:.2} targets", verdict.longest_targets),
            format!("{:.1} s", verdict.cpu_s),
            format!("{:.1}%", verdict.most_cpu_percent),
            format!("{:.2} s", verdict.cpu_over_ceiling_s),
            verdict.turns.to_string(),
        ]);
    }
    print(|out| table.lines().try_for_each(|line| writeln!(out, "{line}")))
}

#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    settings: serde_json::Value,
    seed: u64,
    runs: Vec<RunReport>,
}

#[derive(Serialize)]
struct RunReport {
    scenario: &'static str,
    mode: &'static str,
    #[serde(flatten)]
    verdict: Verdict,
    all_scans: Vec<ScanReport>,
}

#[derive(Serialize)]
struct ScanReport {
    start_s: f64,
    scan_time_s: f64,
    pages: u64,
    pages_to_scan: u64,
    cpu_s: f64,
}

fn report(arguments: &SimulateArgs, settings: &AdvisorSettings, trials: &[Trial]) -> Report {
    let scans = |run: &Run| {
        let scans = run.scans.iter().map(|scan| ScanReport {
            start_s: scan.start_s,
            scan_time_s: scan.time_s(),
            pages: scan.pages,
            pages_to_scan: scan.pace.pages_to_scan,
            cpu_s: scan.cpu_s,
        });
        scans.collect()
    };
    let runs = trials.iter().map(|trial| RunReport {
        scenario: trial.scenario.name(),
        mode: trial.mode.name(),
        verdict: trial.verdict.clone(),
        all_scans: scans(&trial.run),
    });
    Report {
        settings: serde_json::json!({
            "advisor_target_scan_time": settings.target_scan_time_s,
            "advisor_max_cpu": settings.max_cpu_percent,
            "advisor_min_pages_to_scan": settings.min_pages_to_scan,
            "advisor_max_pages_to_scan": settings.max_pages_to_scan,
        }),
        seed: arguments.seed,
        runs: runs.collect(),
    }
}
