//! Transparent huge pages, as a test or a benchmark wants the machine to make them.
//!
//! Concurrency: the settings are the whole machine's. A [`HugePagesGuard`] holds a lock on the `enabled` file while
//! it lives, so that those who want other settings take turns.

use std::fs::File;
use std::path::{Path, PathBuf};

use bindery_sys::huge::Policy;
use rustix::fs::{FlockOperation, flock};

use super::SettingGuard;
use super::setting::SettingError;

const DIRECTORY: &str = "/sys/kernel/mm/transparent_hugepage";

/// Machine that makes huge pages as it was told, until dropped.
#[derive(Debug)]
pub struct HugePagesGuard {
    settings: Vec<SettingGuard>,
    // Dropped after the settings are put back.
    _lock: File,
}

impl HugePagesGuard {
    /// Sets who is given huge pages. Waits while another process holds a guard.
    ///
    /// # Errors
    /// [`SettingError`] without root, or on a kernel without huge pages.
    pub fn set(policy: Policy) -> Result<Self, SettingError> {
        let enabled = path("enabled");
        let lock = File::open(&enabled)
            .and_then(|file| {
                flock(&file, FlockOperation::LockExclusive)?;
                Ok(file)
            })
            .map_err(SettingError::locking(&enabled))?;
        let value = match policy {
            Policy::Always => "always",
            Policy::Madvise => "madvise",
            Policy::Never => "never",
        };
        Ok(Self { settings: vec![SettingGuard::set(enabled, value)?], _lock: lock })
    }

    /// Sets khugepaged to look for small pages without a pause, to make huge ones of.
    ///
    /// # Errors
    /// As [`Self::set`].
    pub fn with_eager_khugepaged(mut self) -> Result<Self, SettingError> {
        for (name, value) in
            [("scan_sleep_millisecs", 0), ("alloc_sleep_millisecs", 0), ("pages_to_scan", 1 << 16)]
        {
            self.settings.push(SettingGuard::set(path("khugepaged").join(name), value)?);
        }
        Ok(self)
    }
}

fn path(name: &str) -> PathBuf {
    Path::new(DIRECTORY).join(name)
}
