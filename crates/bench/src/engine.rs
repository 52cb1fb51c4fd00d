//! Who merges: kernel KSM, a Bindery daemon of its own, or nobody.
//!
//! CPU time is read from the kernel, not asked of the contender: ksmd's thread, or the daemon's
//! process and what it costs in the guests' processes.

mod footprint;
mod metadata;

use std::{
    cell::RefCell,
    ffi::OsString,
    fmt,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use bindery_advisor::Mode as AdvisorMode;
use bindery_host::{
    PERIODS,
    client::{Client, ClientError},
    daemon_settings::Change,
    protocol::{Answer, Request},
    status::{AdvisorStatus, GuestStatus, HostStatus, PhaseStatus},
};
use bindery_sys::thread::CpuClock;
use bindery_testkit::bindery::{self, Bindery};
use bindery_testkit::machine::{
    KsmCounters, KsmGuard, KsmSettings, ksmd_cpu_time, thread_cpu_times,
};

pub(crate) use self::metadata::Metadata;
use crate::{choice, huge::Mode};

/// How fast KSM runs.
#[derive(Clone, Copy, Debug)]
pub(crate) enum KsmPace {
    /// As fast as it goes.
    FullSpeed,
    /// As it is set here.
    Set(KsmSettings),
    /// Fast enough to look at so many pages once each period: as often as Bindery looks.
    EveryPeriod { pages: u64, period: Duration },
}

/// The rest between two batches of a KSM that does not run at full speed: the kernel's default.
pub(crate) const KSM_SLEEP: Duration = Duration::from_millis(20);

impl KsmPace {
    /// Zero pages go to the kernel's zero page either way: that costs KSM less than a chain of
    /// reverse mappings, and it is what Bindery does with them.
    pub(crate) fn settings(self) -> KsmSettings {
        let full_speed = KsmSettings { use_zero_pages: Some(true), ..KsmSettings::full_speed() };
        match self {
            Self::FullSpeed => full_speed,
            Self::Set(settings) => settings,
            Self::EveryPeriod { pages, period } => {
                let batches = (period.as_millis() / KSM_SLEEP.as_millis()).max(1) as u64;
                KsmSettings {
                    sleep_millisecs: Some(KSM_SLEEP.as_millis() as u64),
                    pages_to_scan: Some(pages.div_ceil(batches)),
                    ..full_speed
                }
            }
        }
    }
}

/// Who merges.
#[derive(Clone, Debug)]
pub(crate) enum Engine {
    /// Nobody.
    Neither,
    /// The kernel.
    Ksm(KsmPace),
    /// A daemon.
    Bindery {
        /// Number of workers of the daemon.
        workers: u32,
        /// Merge period of the daemon.
        period: Duration,
        /// Program that the daemon is.
        program: PathBuf,
    },
    /// A daemon that treats huge pages in one of its ways.
    HugePages {
        /// Number of workers of the daemon.
        workers: u32,
        /// Merge period of the daemon.
        period: Duration,
        /// Treatment of huge pages.
        mode: Mode,
        /// Program that the daemon is.
        program: PathBuf,
    },
    /// A daemon that is paced.
    Paced {
        /// Number of workers of the daemon.
        workers: u32,
        /// Merge period of the daemon.
        period: Duration,
        /// Settings that pace the daemon.
        pace: Box<Change>,
        /// Program that the daemon is.
        program: PathBuf,
    },
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Neither => f.write_str("neither"),
            Self::Ksm(KsmPace::FullSpeed | KsmPace::Set(_)) => f.write_str("KSM"),
            Self::Ksm(KsmPace::EveryPeriod { period, .. }) => {
                write!(f, "KSM every {} s", period.as_secs_f64())
            }
            Self::Bindery { workers: 1, .. } => f.write_str("Bindery, 1 worker"),
            Self::Bindery { workers, .. } => write!(f, "Bindery, {workers} workers"),
            Self::HugePages { mode, .. } => write!(f, "Bindery, {}", choice::name(mode)),
            Self::Paced { workers, .. } => write!(f, "Bindery, {workers} workers, paced"),
        }
    }
}

/// Who merges, running.
pub(crate) enum Merger {
    Neither { _stopped: KsmGuard },
    Ksm(KsmGuard),
    Bindery(Box<Daemon>),
}

/// A daemon on a socket of its own.
pub(crate) struct Daemon {
    daemon: bindery::Daemon,
    period: Duration,
    pace: Change,
    /// Kept from one question to the next: asking how far it is would otherwise cost the daemon a
    /// thread each time, which is charged to it as merging.
    connection: RefCell<Option<Client>>,
    _stopped: KsmGuard,
}

/// As fast as it goes, as KSM is set.
fn full_speed() -> Change {
    Change { advisor_mode: Some(AdvisorMode::None), ..Change::default() }
}

pub(crate) fn process_cpu_time(pid: u32) -> Result<Duration> {
    Ok(CpuClock::of_process(pid.cast_signed())?.time()?)
}

impl Merger {
    /// Starts merging.
    pub(crate) fn start(engine: &Engine) -> Result<Self> {
        let merger = Self::hold(engine)?;
        merger.begin()?;
        Ok(merger)
    }

    /// Starts all that it takes, but merges nothing until [`Self::begin`].
    pub(crate) fn hold(engine: &Engine) -> Result<Self> {
        match engine {
            Engine::Neither => Ok(Self::Neither { _stopped: KsmGuard::stopped()? }),
            Engine::Ksm(pace) => {
                let guard = KsmGuard::start(pace.settings())?;
                guard.pause()?;
                Ok(Self::Ksm(guard))
            }
            Engine::Bindery { workers, period, program } => {
                Daemon::start(*workers, *period, full_speed(), &[], program).map(Self::of)
            }
            Engine::HugePages { workers, period, mode, program } => {
                let setting = format!("huge_pages={}", choice::name(mode));
                let arguments = ["--set", &setting];
                Daemon::start(*workers, *period, full_speed(), &arguments, program).map(Self::of)
            }
            Engine::Paced { workers, period, pace, program } => {
                Daemon::start(*workers, *period, **pace, &[], program).map(Self::of)
            }
        }
    }

    fn of(daemon: Daemon) -> Self {
        Self::Bindery(Box::new(daemon))
    }

    /// Starts to merge.
    pub(crate) fn begin(&self) -> Result<()> {
        match self {
            Self::Neither { .. } => Ok(()),
            Self::Ksm(guard) => Ok(guard.resume()?),
            Self::Bindery(daemon) => {
                let period_ms = Some(daemon.period.as_millis() as u64);
                daemon.ask(&Request::Set(Box::new(Change { period_ms, ..daemon.pace }))).map(drop)
            }
        }
    }

    /// Words before a command that have its memory merged.
    pub(crate) fn launcher(&self, name: &str) -> Vec<OsString> {
        let Self::Bindery(daemon) = self else { return Vec::new() };
        daemon.daemon.launcher(name)
    }

    /// Process of a daemon, if one merges.
    pub(crate) fn pid(&self) -> Result<Option<u32>> {
        let Self::Bindery(daemon) = self else { return Ok(None) };
        daemon.pid().map(Some)
    }

    /// Pages that a daemon has had read so far.
    pub(crate) fn pages_read(&self) -> Result<u64> {
        let Self::Bindery(daemon) = self else { return Ok(0) };
        Ok(daemon.status()?.domains.iter().map(|domain| domain.counts.pages_digested).sum())
    }

    /// CPU time of ksmd's thread or of the daemon's process so far.
    pub(crate) fn own_cpu_time(&self) -> Result<Duration> {
        match self {
            Self::Neither { .. } => Ok(Duration::ZERO),
            Self::Ksm(_) => Ok(ksmd_cpu_time()?),
            Self::Bindery(daemon) => process_cpu_time(daemon.pid()?),
        }
    }

    /// CPU time spent on merging so far: its own, and all that happens in the processes of `guests`,
    /// which do nothing else meanwhile.
    pub(crate) fn cpu_time(&self, guests: impl Iterator<Item = u32>) -> Result<Duration> {
        Ok(self.own_cpu_time()? + self.guests_cpu_time(guests)?)
    }

    /// CPU time of those processes alone.
    pub(crate) fn guests_cpu_time(
        &self,
        mut guests: impl Iterator<Item = u32>,
    ) -> Result<Duration> {
        match self {
            Self::Bindery(_) => {
                guests.try_fold(Duration::ZERO, |sum, pid| Ok(sum + process_cpu_time(pid)?))
            }
            Self::Neither { .. } | Self::Ksm(_) => Ok(Duration::ZERO),
        }
    }

    /// CPU time spent on merging so far: its own, and that of the shim's threads in the processes of
    /// `guests`, which are at work meanwhile. What a guest's own threads spend on faults is not in it,
    /// neither with a shim nor with KSM.
    pub(crate) fn threads_cpu_time(&self, guests: impl Iterator<Item = u32>) -> Result<Duration> {
        let mut sum = self.own_cpu_time()?;
        for pid in guests {
            let threads = thread_cpu_times(pid)?;
            let shim = threads.iter().filter(|thread| thread.name.starts_with("bindery-"));
            sum += shim.map(|thread| thread.time).sum::<Duration>();
        }
        Ok(sum)
    }

    /// Pages saved now, zero pages among them.
    pub(crate) fn pages_saved(&self) -> Result<u64> {
        match self {
            Self::Neither { .. } => Ok(0),
            Self::Ksm(_) => {
                let ksm = KsmCounters::read()?;
                Ok(ksm.pages_sharing + ksm.ksm_zero_pages)
            }
            Self::Bindery(daemon) => {
                let status = daemon.status()?;
                let saved = |domain: &bindery_host::status::DomainStatus| {
                    domain.pages_sharing + domain.counts.zero_pages
                };
                Ok(status.domains.iter().map(saved).sum())
            }
        }
    }

    /// Returns true once any memory that was offered is managed. With kernel KSM that is at once.
    pub(crate) fn has_taken(&self) -> Result<bool> {
        match self {
            Self::Neither { .. } | Self::Ksm(_) => Ok(true),
            Self::Bindery(daemon) => {
                Ok(daemon.status()?.domains.iter().any(|domain| domain.counts.pages_managed > 0))
            }
        }
    }

    /// Returns true once `pages` pages are managed. With kernel KSM that is at once.
    pub(crate) fn has_taken_all(&self, pages: u64) -> Result<bool> {
        let Self::Bindery(daemon) = self else { return Ok(true) };
        let status = daemon.status()?;
        let managed = status.domains.iter().map(|domain| domain.counts.pages_managed);
        Ok(managed.sum::<u64>() >= pages)
    }

    /// How often all memory was looked at so far.
    pub(crate) fn full_scans(&self) -> Result<u64> {
        match self {
            Self::Neither { .. } => Ok(0),
            Self::Ksm(_) => Ok(KsmCounters::read()?.full_scans),
            Self::Bindery(daemon) => {
                Ok(daemon.status()?.domains.iter().map(|domain| domain.full_scans).sum())
            }
        }
    }

    /// What pacing has reached, where that can be asked for.
    pub(crate) fn reached(&self) -> Result<Option<AdvisorStatus>> {
        match self {
            Self::Neither { .. } | Self::Ksm(_) => Ok(None),
            Self::Bindery(daemon) => Ok(Some(daemon.status()?.advisor)),
        }
    }

    /// Returns the figures of the phases of a daemon's merging so far.
    pub(crate) fn phases(&self) -> Result<Vec<PhaseStatus>> {
        let Self::Bindery(daemon) = self else { return Ok(Vec::new()) };
        Ok(daemon.status()?.phases)
    }

    /// What keeping books about pages costs now.
    pub(crate) fn metadata(&self) -> Result<Metadata> {
        match self {
            Self::Neither { .. } => Ok(Metadata::default()),
            Self::Ksm(_) => Ok(Metadata::of_ksm(&KsmCounters::read()?)),
            Self::Bindery(daemon) => Ok(Metadata::of_daemon(&*daemon.status()?)),
        }
    }

    /// The longest that a guest's thread can have waited for a page since this was last asked, of
    /// all guests. Nothing for KSM, which does not say.
    pub(crate) fn transit_max(&self) -> Result<Duration> {
        let Self::Bindery(daemon) = self else { return Ok(Duration::ZERO) };
        let longest = daemon.guests()?.iter().map(|guest| guest.transit_max_us).max();
        Ok(Duration::from_micros(longest.unwrap_or(0)))
    }

    /// Keeps merging from looking at anything more until [`Self::begin`], but for a period of a daemon that is under way.
    pub(crate) fn suspend(&self) -> Result<()> {
        let Self::Bindery(daemon) = self else { return self.pause() };
        let period_ms = Some(PERIODS.end().as_millis() as u64);
        daemon.ask(&Request::Set(Box::new(Change { period_ms, ..Change::default() }))).map(drop)
    }

    /// Stops KSM's scanning; a daemon goes on.
    pub(crate) fn pause(&self) -> Result<()> {
        match self {
            Self::Ksm(guard) => Ok(guard.pause()?),
            Self::Neither { .. } | Self::Bindery(_) => Ok(()),
        }
    }

    /// Ends the daemon, or leaves KSM as it was.
    pub(crate) fn stop(self) -> Result<()> {
        match self {
            // It has ended when it is dropped.
            Self::Bindery(daemon) => daemon.ask(&Request::Stop { unmerge: false }).map(drop),
            Self::Neither { .. } | Self::Ksm(_) => Ok(()),
        }
    }
}

impl Daemon {
    fn start(
        workers: u32,
        period: Duration,
        pace: Change,
        arguments: &[&str],
        program: &Path,
    ) -> Result<Self> {
        let stopped = KsmGuard::stopped()?;
        // No guest is merged before the first period that it is there for: the longest of all ends
        // when the real one is set.
        let (workers, longest) = (workers.to_string(), format!("{}ms", PERIODS.end().as_millis()));
        let bindery = Bindery::at(program).with_log_level("warn");
        let own = ["--workers", &workers, "--period", &longest];
        let daemon = bindery.daemon(&[&own, arguments].concat())?;
        Ok(Self { daemon, period, pace, connection: RefCell::default(), _stopped: stopped })
    }

    fn pid(&self) -> Result<u32> {
        self.daemon.pid().context("the daemon has ended")
    }

    fn ask(&self, request: &Request) -> Result<Answer> {
        let patience = Duration::from_secs(10);
        let mut connection = self.connection.borrow_mut();
        // A daemon hangs up on whoever has not asked for long.
        let kept = connection.as_mut().map(|client| client.ask(request, patience));
        match kept {
            Some(Ok(answer)) => Ok(answer),
            Some(Err(ClientError::Failed(failure))) => Err(failure.into()),
            Some(Err(_)) | None => Ok(connection
                .insert(Client::connect(&self.daemon.socket())?)
                .ask(request, patience)?),
        }
    }

    fn status(&self) -> Result<Box<HostStatus>> {
        match self.ask(&Request::Status {})? {
            Answer::Status(status) => Ok(status),
            answer => bail!("the daemon answered {answer:?}"),
        }
    }

    fn guests(&self) -> Result<Vec<GuestStatus>> {
        match self.ask(&Request::Guests {})? {
            Answer::Guests { guests } => Ok(guests),
            answer => bail!("the daemon answered {answer:?}"),
        }
    }
}
