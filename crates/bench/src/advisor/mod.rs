//! `bindery-bench advisor`: who paces best. A rate fixed by hand, the kernel's own advisor, Bindery's
//! pilot on the kernel's KSM, and Bindery's engine, each through the same [`Phase`]s of the same memory.
//!
//! The clock and the CPU time are the kernel's: of ksmd's thread and the pilot's process, or of the
//! daemon's process and of all guests, which do nothing else meanwhile.

mod contender;
mod fixed_rate;
mod report;
mod sizing;
mod watch;

use std::{ops::Range, path::PathBuf, time::Duration};

use anyhow::Result;
use serde::{Deserialize, Serialize};

pub use self::{
    contender::Contender,
    report::{Report, Summary},
    watch::Course,
};
use self::{
    contender::Running,
    fixed_rate::FixedRate,
    sizing::rate_by_trying,
    watch::{Scans, watch},
};
use crate::{
    crowd::Crowd,
    harness::ledger,
    interrupt,
    merge::dataset::{Content, Dataset},
};

/// What to measure.
#[derive(Clone, Debug)]
pub struct Options {
    /// Interleaved rounds.
    pub rounds: usize,
    /// Processes that are there throughout; three times as many more come and go.
    pub processes: u32,
    /// Memory of each, in MiB.
    pub process_mib: u32,
    /// How long a scan should take, in seconds.
    pub target_scan_time_s: u64,
    /// The ceiling, in percent of one CPU.
    pub max_cpu_percent: u64,
    /// How long each phase is, in target scan times.
    pub phase_scans: u32,
    /// Whether KSM passes over pages that did not merge before. Without, each of its scans looks at
    /// all pages, and what a scan takes can be told from what the one before took.
    pub smart_scan: bool,
    /// Who takes part.
    pub contenders: Vec<Contender>,
    /// The `bindery` program to run.
    pub program: PathBuf,
}

impl Options {
    /// How many times more processes there are at most.
    const GROWTH: u32 = 4;

    fn dataset(&self) -> Dataset {
        Dataset {
            content: Content::Easy,
            pages: self.process_mib << 8,
            extent_pages: 64,
            processes: self.processes * Self::GROWTH,
        }
    }

    /// Pages when all processes are there.
    fn pages_max(&self) -> u64 {
        let dataset = self.dataset();
        u64::from(dataset.pages) * u64::from(dataset.processes)
    }

    fn target(&self) -> Duration {
        Duration::from_secs(self.target_scan_time_s)
    }

    fn phase_time(&self) -> Duration {
        self.target() * self.phase_scans
    }
}

/// What happens to the memory, in order. A program's start has more candidates than the program has once
/// it is stable: for those, a rate that is fixed must be sized.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// All processes give their memory up at once.
    StartUp,
    /// Three of four have ended; the others do not change.
    Steady,
    /// As many come again: fourfold growth.
    Growth,
    /// They end.
    Shrink,
}

impl Phase {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::StartUp, Self::Steady, Self::Growth, Self::Shrink];

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::StartUp => "start-up",
            Self::Steady => "steady",
            Self::Shrink => "shrink",
            Self::Growth => "growth",
        }
    }
}

/// Measures.
///
/// # Errors
/// If a contender or a process cannot be started, or memory is not what it was afterwards.
pub fn run(options: &Options) -> Result<Report> {
    interrupt::catch()?;
    let rate = match options.contenders.contains(&Contender::Fixed) {
        true => rate_by_trying(options)?,
        false => FixedRate::reckoned(options),
    };
    let mut courses = Vec::new();
    for round in 0..options.rounds {
        let count = options.contenders.len();
        for at in 0..count {
            let contender = options.contenders[(at + round) % count];
            match go_through(contender, options, rate) {
                Ok(phases) => courses.push((contender, phases)),
                Err(error) => {
                    courses.truncate(round * count);
                    if round > 0 {
                        ledger::keep(&Report::of(options, rate, &courses));
                    }
                    return Err(interrupt::or_why(error));
                }
            }
        }
    }
    Ok(Report::of(options, rate, &courses))
}

/// The processes of a contender: those that stay, and those that come and go.
pub(crate) struct Crowds {
    staying: Crowd,
    passing: Option<Crowd>,
}

impl Crowds {
    pub(crate) fn all(&self) -> impl Iterator<Item = &Crowd> {
        std::iter::once(&self.staying).chain(&self.passing)
    }

    fn all_mut(&mut self) -> impl Iterator<Item = &mut Crowd> {
        std::iter::once(&mut self.staying).chain(&mut self.passing)
    }
}

impl Crowds {
    /// All processes, whose memory nobody may merge yet.
    fn start(running: &Running, options: &Options) -> Result<Self> {
        let staying = Self::start_some(running, options, 0..options.processes)?;
        Ok(Self { staying, passing: Some(Self::start_passing(running, options)?) })
    }

    /// Those that come and go.
    fn start_passing(running: &Running, options: &Options) -> Result<Crowd> {
        Self::start_some(running, options, options.processes..options.dataset().processes)
    }

    fn start_some(running: &Running, options: &Options, range: Range<u32>) -> Result<Crowd> {
        Crowd::start_some(running.merger(), &options.dataset(), range)
    }
}

/// How much memory there is before the start-up, in pages, and for how many targets.
const WARM_UP: (u32, u32) = (4096, 5);

/// Lets a contender pace a little memory. The kernel's advisor takes all that ksmd has ever used for the
/// CPU time of the first scan that it sees, and needs some more to get over it.
fn warm_up(running: &Running, options: &Options) -> Result<()> {
    let (pages, targets) = WARM_UP;
    let dataset = Dataset { pages, processes: 1, ..options.dataset() };
    let mut crowd = Crowd::start(running.merger(), &dataset)?;
    crowd.merge()?;
    interrupt::rest(options.target() * targets)
}

fn go_through(
    contender: Contender,
    options: &Options,
    rate: FixedRate,
) -> Result<Vec<(Phase, Course)>> {
    let running = Running::hold(contender, options, rate)?;
    let mut crowds = Crowds::start(&running, options)?;
    running.begin()?;
    warm_up(&running, options)?;
    let mut scans = Scans::begin(&running)?;
    let mut courses = Vec::new();
    for phase in Phase::ALL {
        match phase {
            Phase::StartUp => crowds.all_mut().try_for_each(Crowd::merge)?,
            Phase::Steady | Phase::Shrink => crowds.passing = None,
            Phase::Growth => {
                let mut passing = Crowds::start_passing(&running, options)?;
                passing.merge()?;
                crowds.passing = Some(passing);
            }
        }
        courses.push((phase, watch(&running, &crowds, &mut scans, options.phase_time())?));
    }
    running.pause()?;
    crowds.all_mut().try_for_each(Crowd::verify)?;
    drop(crowds);
    running.stop()?;
    Ok(courses)
}
