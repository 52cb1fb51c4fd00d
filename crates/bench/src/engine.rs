//! Who merges: kernel KSM at full speed, or a Bindery daemon of its own.
//!
//! CPU time is read from the kernel, not asked of the contender: ksmd's thread, or the daemon's
//! process and everything that happens in the guests' processes, which do nothing else meanwhile.

use std::{
    fmt,
    path::PathBuf,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use bindery_host::{
    client::Client,
    protocol::{Answer, Request},
    status::HostStatus,
};
use bindery_testkit::machine::{
    KsmCounters, KsmGuard, KsmSettings, ksmd_cpu_time, process_cpu_time,
};

use crate::crowd::Crowd;

/// Who merges.
#[derive(Clone, Debug)]
pub(crate) enum Engine {
    /// The kernel, at full speed.
    Ksm,
    /// A daemon.
    Bindery {
        /// How many workers it has.
        workers: u32,
        /// Its merge period.
        period: Duration,
        /// The program.
        program: PathBuf,
    },
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ksm => f.write_str("KSM"),
            Self::Bindery { workers: 1, .. } => f.write_str("Bindery, 1 worker"),
            Self::Bindery { workers, .. } => write!(f, "Bindery, {workers} workers"),
        }
    }
}

/// Who merges, running.
pub(crate) enum Merger {
    Ksm(KsmGuard),
    Bindery { daemon: Child, socket: PathBuf, _stopped: KsmGuard, _directory: tempfile::TempDir },
}

impl Merger {
    pub(crate) fn start(engine: &Engine) -> Result<Self> {
        let Engine::Bindery { workers, period, program } = engine else {
            return Ok(Self::Ksm(KsmGuard::start(KsmSettings::full_speed())?));
        };
        let stopped = KsmGuard::stopped()?;
        let directory = tempfile::tempdir()?;
        let socket = directory.path().join("bindery.sock");
        let daemon = Command::new(program)
            .args(["daemon", "--workers", &workers.to_string(), "--period"])
            .arg(format!("{}ms", period.as_millis()))
            .arg("--socket")
            .arg(&socket)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .with_context(|| format!("cannot start {}", program.display()))?;
        let started = Instant::now();
        while Client::connect(&socket).is_err() {
            ensure!(started.elapsed() < Duration::from_secs(10), "the daemon does not listen");
            thread::sleep(Duration::from_millis(5));
        }
        Ok(Self::Bindery { daemon, socket, _stopped: stopped, _directory: directory })
    }

    /// CPU time spent on merging so far.
    pub(crate) fn cpu_time(&self, crowd: &Crowd) -> Result<Duration> {
        match self {
            Self::Ksm(_) => Ok(ksmd_cpu_time()?),
            Self::Bindery { daemon, .. } => {
                let mut sum = process_cpu_time(daemon.id())?;
                for pid in crowd.pids() {
                    sum += process_cpu_time(pid)?;
                }
                Ok(sum)
            }
        }
    }

    /// Pages saved now.
    pub(crate) fn pages_saved(&self) -> Result<u64> {
        match self.status()? {
            None => Ok(KsmCounters::read()?.pages_sharing),
            Some(status) => Ok(status.domains.iter().map(|domain| domain.pages_sharing).sum()),
        }
    }

    /// How often all memory was looked at so far.
    pub(crate) fn full_scans(&self) -> Result<u64> {
        match self.status()? {
            None => Ok(KsmCounters::read()?.full_scans),
            Some(status) => Ok(status.domains.iter().map(|domain| domain.full_scans).sum()),
        }
    }

    /// Memory that merging costs, in bytes: tables, and what mappings or reverse mappings cost the
    /// kernel.
    pub(crate) fn metadata_bytes(&self) -> Result<u64> {
        match self.status()? {
            // What KSM's own profit subtracts, and its 64 bytes a stable node
            // (Documentation/admin-guide/mm/ksm.rst).
            None => {
                let ksm = KsmCounters::read()?;
                let scanned = ksm.pages_sharing + ksm.pages_unshared + ksm.pages_volatile;
                Ok(64 * (scanned + 2 * ksm.pages_shared))
            }
            Some(status) => Ok(status
                .domains
                .iter()
                .map(|domain| domain.metadata_bytes + domain.mappings_bytes)
                .sum()),
        }
    }

    /// What the daemon says of itself; nothing for KSM.
    fn status(&self) -> Result<Option<Box<HostStatus>>> {
        let Self::Bindery { socket, .. } = self else { return Ok(None) };
        let answer = Client::connect(socket)?.ask(&Request::Status {}, Duration::from_secs(5))?;
        let Answer::Status(status) = answer else { bail!("the daemon answered {answer:?}") };
        Ok(Some(status))
    }

    /// Stops KSM's scanning; a daemon goes on.
    pub(crate) fn pause(&self) -> Result<()> {
        match self {
            Self::Ksm(guard) => Ok(guard.pause()?),
            Self::Bindery { .. } => Ok(()),
        }
    }

    /// Ends the daemon, or leaves KSM as it was.
    pub(crate) fn stop(self) -> Result<()> {
        if let Self::Bindery { mut daemon, socket, .. } = self {
            let stop = Request::Stop { unmerge: false };
            Client::connect(&socket)?.ask(&stop, Duration::from_secs(10))?;
            daemon.wait()?;
        }
        Ok(())
    }
}
