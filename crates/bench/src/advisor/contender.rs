//! Who paces.

use std::{
    fmt,
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use bindery_advisor::Mode;
use bindery_host::daemon_settings::Change;
use bindery_sys::ksm::DIRECTORY;
use bindery_testkit::background_process::BackgroundProcess;
use bindery_testkit::machine::{KsmSettings, SettingGuard};
use clap::ValueEnum;
use serde::Serialize;

use super::{Crowds, Options, fixed_rate::FixedRate};
use crate::{
    engine::{Engine, KSM_SLEEP, KsmPace, Merger, process_cpu_time},
    interrupt,
};

/// Who paces whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Contender {
    /// KSM at a fixed rate, which the start-up asks for.
    Fixed,
    /// KSM, paced by the kernel's advisor.
    Kernel,
    /// KSM, paced by `bindery ksm run`.
    Pilot,
    /// Bindery's own engine, paced by itself.
    Engine,
}

impl fmt::Display for Contender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Fixed => "KSM, fixed",
            Self::Kernel => "KSM, its advisor",
            Self::Pilot => "KSM, Bindery's pilot",
            Self::Engine => "Bindery",
        })
    }
}

/// The bounds on a batch: the same for all three that pace.
const MIN_PAGES_TO_SCAN: u64 = 300;
const MAX_PAGES_TO_SCAN: u64 = 30_000;

/// A contender at work.
pub(crate) struct Running {
    // Ended before KSM is put back.
    pilot: Option<Pilot>,
    _advisor: Vec<SettingGuard>,
    merger: Merger,
}

impl Running {
    /// Starts all that it takes, but scans nothing until [`begin`](Self::begin).
    pub(super) fn hold(contender: Contender, options: &Options, rate: FixedRate) -> Result<Self> {
        let merger = Merger::hold(&engine(contender, options, rate))?;
        let advisor = match contender {
            Contender::Kernel => start_kernels(options)?,
            _ => Vec::new(),
        };
        let pilot = match contender {
            Contender::Pilot => Some(Pilot::start(options)?),
            _ => None,
        };
        Ok(Self { pilot, _advisor: advisor, merger })
    }

    /// Starts to scan.
    pub(crate) fn begin(&self) -> Result<()> {
        self.merger.begin()
    }

    pub(crate) fn merger(&self) -> &Merger {
        &self.merger
    }

    /// CPU time of all that scans and paces so far.
    pub(crate) fn cpu_time(&self, crowds: &Crowds) -> Result<Duration> {
        let mut sum = self.merger.own_cpu_time()?;
        for crowd in crowds.all() {
            sum += self.merger.guests_cpu_time(crowd.pids())?;
        }
        if let Some(pilot) = &self.pilot {
            sum += process_cpu_time(pilot.process.pid())?;
        }
        Ok(sum)
    }

    pub(crate) fn pause(&self) -> Result<()> {
        self.merger.pause()
    }

    pub(crate) fn stop(self) -> Result<()> {
        let Self { pilot, _advisor: advisor, merger } = self;
        drop((pilot, advisor));
        merger.stop()
    }
}

fn engine(contender: Contender, options: &Options, rate: FixedRate) -> Engine {
    let smart_scan = options.smart_scan;
    let paced = |pages_to_scan| {
        Engine::Ksm(KsmPace::Set(KsmSettings {
            sleep_millisecs: Some(KSM_SLEEP.as_millis() as u64),
            pages_to_scan: Some(pages_to_scan),
            smart_scan: Some(smart_scan),
            use_zero_pages: Some(true),
        }))
    };
    match contender {
        Contender::Fixed => paced(rate.pages_to_scan),
        Contender::Kernel | Contender::Pilot => paced(MIN_PAGES_TO_SCAN),
        Contender::Engine => Engine::Paced {
            // The ceiling is for both together.
            workers: 2,
            period: Duration::from_secs(1),
            pace: Box::new(Change {
                advisor_mode: Some(Mode::Steady),
                advisor_target_scan_time: Some(options.target_scan_time_s),
                advisor_max_cpu: Some(options.max_cpu_percent),
                advisor_min_pages_to_scan: Some(MIN_PAGES_TO_SCAN),
                advisor_max_pages_to_scan: Some(MAX_PAGES_TO_SCAN),
                ..Change::default()
            }),
            program: options.program.clone(),
        },
    }
}

/// The kernel's advisor, on until the guards are dropped.
fn start_kernels(options: &Options) -> Result<Vec<SettingGuard>> {
    let values = [
        ("advisor_target_scan_time", options.target_scan_time_s.to_string()),
        ("advisor_max_cpu", options.max_cpu_percent.to_string()),
        ("advisor_min_pages_to_scan", MIN_PAGES_TO_SCAN.to_string()),
        ("advisor_max_pages_to_scan", MAX_PAGES_TO_SCAN.to_string()),
        // Last: it begins with the others, and is the first to be put back.
        ("advisor_mode", "scan-time".to_owned()),
    ];
    let mut guards: Vec<SettingGuard> = Vec::new();
    for (name, value) in values {
        guards.insert(0, SettingGuard::set(Path::new(DIRECTORY).join(name), value)?);
    }
    Ok(guards)
}

/// `bindery ksm run`, as a process of its own, which puts KSM's settings back when it ends.
struct Pilot {
    process: BackgroundProcess,
    _directory: tempfile::TempDir,
}

impl Pilot {
    fn start(options: &Options) -> Result<Self> {
        let directory = tempfile::tempdir()?;
        let mut command = Command::new(&options.program);
        command
            .args(["ksm", "run", "--mode", "steady"])
            .args(["--target-scan-time", &format!("{}s", options.target_scan_time_s)])
            .args(["--max-cpu", &options.max_cpu_percent.to_string()])
            .args(["--min-pages", &MIN_PAGES_TO_SCAN.to_string()])
            .args(["--max-pages", &MAX_PAGES_TO_SCAN.to_string()])
            .arg("--state")
            .arg(directory.path().join("ksm.json"))
            .env("BINDERY_LOG", "warn")
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        let process = BackgroundProcess::start(&mut command)
            .with_context(|| format!("cannot start {}", options.program.display()))?;
        let mut pilot = Self { process, _directory: directory };
        interrupt::rest(Duration::from_millis(300))?;
        ensure!(pilot.process.is_running(), "the pilot has ended by itself");
        Ok(pilot)
    }
}
