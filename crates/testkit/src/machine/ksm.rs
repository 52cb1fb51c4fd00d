//! Kernel samepage merging, for a test or a benchmark alone: settings put back, counters without gaps.
//!
//! Concurrency: the settings are the whole machine's. A [`KsmGuard`] holds a lock on the `run` file
//! while it lives, so that two test processes take turns instead of spoiling each other's figures.

use std::cell::Cell;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bindery_sys::ksm::{Counters, DIRECTORY, Ksmd, RUN};
use rustix::fs::{FlockOperation, flock};

use super::SettingGuard;
use super::setting::{SettingError, read, write};

/// What KSM is set to. `None` leaves a value as it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KsmSettings {
    /// The rest between two batches, in milliseconds.
    pub sleep_millisecs: Option<u64>,
    /// The size of a batch.
    pub pages_to_scan: Option<u64>,
    /// Whether pages that never merged are scanned more seldom (since Linux 6.7).
    pub smart_scan: Option<bool>,
    /// Whether zero pages become the kernel's zero page.
    pub use_zero_pages: Option<bool>,
}

impl KsmSettings {
    /// As fast as it goes: no rest, and a million pages in a batch.
    #[must_use]
    pub const fn full_speed() -> Self {
        Self {
            sleep_millisecs: Some(0),
            pages_to_scan: Some(1_000_000),
            smart_scan: None,
            use_zero_pages: None,
        }
    }

    fn values(self) -> impl Iterator<Item = (&'static str, u64)> {
        [
            ("sleep_millisecs", self.sleep_millisecs),
            ("pages_to_scan", self.pages_to_scan),
            ("smart_scan", self.smart_scan.map(u64::from)),
            ("use_zero_pages", self.use_zero_pages.map(u64::from)),
        ]
        .into_iter()
        .filter_map(|(name, value)| Some((name, value?)))
    }
}

/// KSM running with the given settings; as it was before, with nothing left merged that was not,
/// when dropped.
#[derive(Debug)]
pub struct KsmGuard {
    before: String,
    /// Value that `run` was set to last.
    run: Cell<&'static str>,
    // Dropped after `run` is put back, in this order.
    settings: Vec<SettingGuard>,
    _lock: File,
}

impl KsmGuard {
    /// Sets KSM and starts it. Waits while another process holds a guard.
    ///
    /// # Errors
    /// [`SettingError`] without root, or on a kernel without KSM or one of the settings.
    pub fn start(settings: KsmSettings) -> Result<Self, SettingError> {
        let guard = Self::prepare(settings)?;
        guard.resume()?;
        Ok(guard)
    }

    /// As [`Self::start`], but KSM is stopped: nothing else on the machine merges meanwhile.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn stopped() -> Result<Self, SettingError> {
        let guard = Self::prepare(KsmSettings::default())?;
        guard.pause()?;
        Ok(guard)
    }

    /// Stops scanning and keeps what is merged.
    ///
    /// # Errors
    /// [`SettingError`] when the kernel refuses.
    pub fn pause(&self) -> Result<(), SettingError> {
        self.set_run("0")
    }

    /// Goes on after [`Self::pause`].
    ///
    /// # Errors
    /// [`SettingError`] when the kernel refuses.
    pub fn resume(&self) -> Result<(), SettingError> {
        self.set_run("1")
    }

    /// Returns true if KSM is still set as this guard has set it: nobody else has switched it.
    ///
    /// # Errors
    /// [`SettingError`] when a setting cannot be read any more.
    pub fn is_as_set(&self) -> Result<bool, SettingError> {
        let is_as_set = |setting: &SettingGuard| setting.is_as_set();
        let settings = self.settings.iter().map(is_as_set).collect::<Result<Vec<_>, _>>()?;
        Ok(read(&path(RUN))? == self.run.get() && settings.into_iter().all(|is| is))
    }

    fn set_run(&self, value: &'static str) -> Result<(), SettingError> {
        write(&path(RUN), value)?;
        self.run.set(value);
        Ok(())
    }

    fn prepare(settings: KsmSettings) -> Result<Self, SettingError> {
        let run = path(RUN);
        let lock = File::open(&run)
            .and_then(|file| {
                flock(&file, FlockOperation::LockExclusive)?;
                Ok(file)
            })
            .map_err(SettingError::locking(&run))?;
        let before = read(&run)?;
        let settings = settings
            .values()
            .map(|(name, value)| SettingGuard::set(path(name), value))
            .collect::<Result<_, _>>()?;
        Ok(Self { before, run: Cell::new(""), settings, _lock: lock })
    }
}

impl Drop for KsmGuard {
    fn drop(&mut self) {
        // 2 unmerges everything and stops. What was merged before, if KSM ran, is merged again.
        let restored = write(&path(RUN), "2").and_then(|()| write(&path(RUN), &self.before));
        if let Err(error) = restored {
            eprintln!("KSM is left changed: {error}");
        }
    }
}

/// KSM's own counters. In pages, but for the two last.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct KsmCounters {
    /// Pages that are shared.
    pub pages_shared: u64,
    /// Pages that are saved by that.
    pub pages_sharing: u64,
    /// Pages that are the only one of their kind.
    pub pages_unshared: u64,
    /// Pages that change too fast.
    pub pages_volatile: u64,
    /// Pages looked at so far.
    pub pages_scanned: u64,
    /// Pages merged with the kernel's zero page.
    pub ksm_zero_pages: u64,
    /// Times that all memory was looked at.
    pub full_scans: u64,
    /// Bytes saved less bytes of metadata; negative when KSM costs more than it saves.
    pub general_profit: i64,
}

impl KsmCounters {
    /// Reads them all. A counter that this kernel does not have is zero.
    ///
    /// # Errors
    /// [`SettingError`] on a kernel without KSM.
    pub fn read() -> Result<Self, SettingError> {
        read(&path(RUN))?;
        let counters = Counters::read().unwrap_or_default();
        Ok(Self {
            pages_shared: counters.pages_shared,
            pages_sharing: counters.pages_sharing,
            pages_unshared: counters.pages_unshared,
            pages_volatile: counters.pages_volatile,
            pages_scanned: counters.pages_scanned.unwrap_or_default(),
            ksm_zero_pages: counters.ksm_zero_pages.unwrap_or_default(),
            full_scans: counters.full_scans,
            general_profit: counters.general_profit.unwrap_or_default(),
        })
    }
}

/// The CPU time that KSM's kernel thread has used since boot.
///
/// # Errors
/// As [`Ksmd::find`].
pub fn ksmd_cpu_time() -> std::io::Result<Duration> {
    Ksmd::find()?.cpu_time()
}

fn path(name: &str) -> PathBuf {
    Path::new(DIRECTORY).join(name)
}
