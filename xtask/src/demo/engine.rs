//! What merges: kernel KSM, or Bindery.

use std::ffi::OsString;
use std::time::Duration;

use anyhow::{Context, Result};
use bindery_testkit::bindery::{Bindery, Daemon};
use bindery_testkit::machine::{KsmGuard, KsmSettings, MemorySnapshot, ksmd_cpu_time};
use bindery_units::{ByteCount, PAGE_BYTES};
use serde_json::Value;

use super::fleet::Fleet;

/// What an engine did to one guest, by its own account.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Merged {
    /// Memory that is shared with other pages.
    pub(super) merged: ByteCount,
    /// Memory that is the kernel's zero page.
    pub(super) zero: ByteCount,
    /// Writes to merged pages; KSM does not count them.
    pub(super) breaks: Option<u64>,
}

/// Something that merges the memory of guests.
///
/// Order of calls: guests are booted with [`Self::launcher`]; [`Self::hold`], so that nothing
/// merges while they settle; [`Self::begin`]; [`Self::rest`] once nothing more is found.
pub(super) trait Engine {
    fn name(&self) -> &'static str;

    /// The machine's used memory before the engine's own processes and any guest.
    fn used_when_idle(&self) -> ByteCount;

    /// Words before a guest's QEMU command line.
    fn launcher(&self, guest: &str) -> Vec<OsString>;

    fn hold(&mut self, fleet: &Fleet) -> Result<()>;

    fn begin(&mut self, fleet: &Fleet) -> Result<()>;

    fn rest(&mut self) -> Result<()>;

    /// CPU time that merging has used so far.
    fn cpu_time(&self) -> Result<Duration>;

    /// Processes whose memory counts as the engine's.
    fn own_pids(&self) -> Option<u32>;

    fn merged(&self, guest: &str, pid: u32) -> Result<Merged>;

    /// Returns true if somebody else has switched KSM since the engine was prepared.
    fn ksm_was_switched(&self) -> Result<bool>;
}

/// Kernel samepage merging at full speed.
#[derive(Debug)]
pub(super) struct KsmEngine {
    guard: KsmGuard,
    idle: ByteCount,
}

impl KsmEngine {
    pub(super) fn prepare() -> Result<Self> {
        let settings = KsmSettings { use_zero_pages: Some(true), ..KsmSettings::full_speed() };
        let guard = KsmGuard::start(settings)?;
        guard.pause()?;
        Ok(Self { guard, idle: MemorySnapshot::take()?.used() })
    }
}

impl Engine for KsmEngine {
    fn name(&self) -> &'static str {
        "kernel KSM"
    }

    fn used_when_idle(&self) -> ByteCount {
        self.idle
    }

    fn launcher(&self, _guest: &str) -> Vec<OsString> {
        Vec::new()
    }

    fn hold(&mut self, _fleet: &Fleet) -> Result<()> {
        Ok(())
    }

    fn begin(&mut self, _fleet: &Fleet) -> Result<()> {
        Ok(self.guard.resume()?)
    }

    fn rest(&mut self) -> Result<()> {
        Ok(self.guard.pause()?)
    }

    fn cpu_time(&self) -> Result<Duration> {
        ksmd_cpu_time().context("reading the CPU time of ksmd")
    }

    fn own_pids(&self) -> Option<u32> {
        None
    }

    fn merged(&self, _guest: &str, pid: u32) -> Result<Merged> {
        let path = format!("/proc/{pid}/ksm_stat");
        let text = std::fs::read_to_string(&path).with_context(|| path.clone())?;
        let bytes = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            let pages = line.and_then(|rest| rest.trim_start_matches(':').trim().parse().ok());
            ByteCount(pages.unwrap_or(0) * PAGE_BYTES as u64)
        };
        Ok(Merged {
            merged: bytes("ksm_merging_pages"),
            zero: bytes("ksm_zero_pages"),
            breaks: None,
        })
    }

    fn ksm_was_switched(&self) -> Result<bool> {
        Ok(!self.guard.is_as_set()?)
    }
}

/// A daemon on a private socket, and guests started by `bindery run`.
#[derive(Debug)]
pub(super) struct BinderyEngine {
    daemon: Daemon,
    idle: ByteCount,
    /// Keeps KSM from merging meanwhile; none where this user may not stop it.
    stopped: Option<KsmGuard>,
}

impl BinderyEngine {
    pub(super) fn prepare(bindery: &Bindery) -> Result<Self> {
        let stopped = KsmGuard::stopped().ok();
        let idle = MemorySnapshot::take()?.used();
        Ok(Self { daemon: bindery.daemon(&[])?, idle, stopped })
    }
}

impl Engine for BinderyEngine {
    fn name(&self) -> &'static str {
        "Bindery"
    }

    fn used_when_idle(&self) -> ByteCount {
        self.idle
    }

    fn launcher(&self, guest: &str) -> Vec<OsString> {
        self.daemon.launcher(guest)
    }

    fn hold(&mut self, fleet: &Fleet) -> Result<()> {
        for guest in fleet.names() {
            self.daemon.command(&["unmerge", guest])?;
        }
        Ok(())
    }

    fn begin(&mut self, fleet: &Fleet) -> Result<()> {
        for guest in fleet.names() {
            self.daemon.command(&["merge", guest])?;
        }
        Ok(())
    }

    fn rest(&mut self) -> Result<()> {
        Ok(())
    }

    fn cpu_time(&self) -> Result<Duration> {
        let status = self.daemon.status()?;
        let domains = status["domains"].as_array().map(Vec::as_slice).unwrap_or_default();
        let in_guests = domains.iter().filter_map(|domain| domain["guest_cpu_time_us"].as_u64());
        let own = Duration::from_millis(status["cpu_ms"].as_u64().unwrap_or(0));
        Ok(own + Duration::from_micros(in_guests.sum()))
    }

    fn own_pids(&self) -> Option<u32> {
        self.daemon.pid()
    }

    fn merged(&self, guest: &str, _pid: u32) -> Result<Merged> {
        let guests = self.daemon.guests()?;
        let found =
            guests.as_array().and_then(|guests| guests.iter().find(|it| it["name"] == guest));
        let found = found.with_context(|| format!("`bindery ps` does not list {guest}"))?;
        let bytes = |value: &Value| ByteCount(value.as_u64().unwrap_or(0));
        Ok(Merged {
            merged: bytes(&found["merged_bytes"]),
            zero: bytes(&found["zero_bytes"]),
            breaks: found["breaks"].as_u64(),
        })
    }

    fn ksm_was_switched(&self) -> Result<bool> {
        let is_as_set = self.stopped.as_ref().map(KsmGuard::is_as_set).transpose()?;
        Ok(is_as_set == Some(false))
    }
}
