//! What ksmd has done so far: one look at its counters and its clock.

use std::io;
use std::time::{Duration, Instant};

use bindery_sys::ksm::{KsmFile, Ksmd};

use crate::PilotError;

/// ksmd moves each page from one count to another and back while it looks at it, and a reader of four
/// files sees neither or both: counts that were read while it ran are read again, after it was given so
/// long to end its batch. All together are more than most batches take, each less than a rest.
const ITEM_WAITS_US: [u64; 10] = [100, 200, 400, 800, 800, 800, 800, 800, 800, 800];

/// What ksmd had done at some instant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// Microseconds since the meter was made, when the look was over.
    pub at_us: u64,
    /// The same, when the look began.
    pub from_us: u64,
    /// Full scans.
    pub full_scans: u64,
    /// Pages looked at; `None` before Linux 6.6.
    pub pages_scanned: Option<u64>,
    /// CPU time, in microseconds.
    pub cpu_us: u64,
}

/// The pages that KSM knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Items {
    /// All of them.
    pub all: u64,
    /// Of them, those that `smart_scan` never passes over: all where it is off, else those that are
    /// merged (mm/ksm.c, `should_skip_rmap_item`).
    pub never_skipped: u64,
}

/// Looks at what ksmd does. Changes nothing.
#[derive(Debug)]
pub struct Meter {
    since: Instant,
    ksmd: Ksmd,
    full_scans: KsmFile,
    pages_scanned: Option<KsmFile>,
    items: [KsmFile; 4],
    smart_scan: Option<KsmFile>,
}

impl Meter {
    /// Opens all that it looks at. Needs no rights.
    ///
    /// # Errors
    /// [`PilotError::NoKsm`], [`PilotError::NoKsmd`].
    pub fn new() -> Result<Self, PilotError> {
        let open = |name| KsmFile::open(name).map_err(|_| PilotError::NoKsm);
        Ok(Self {
            full_scans: open("full_scans")?,
            pages_scanned: KsmFile::open("pages_scanned").ok(),
            items: [
                open("pages_shared")?,
                open("pages_sharing")?,
                open("pages_unshared")?,
                open("pages_volatile")?,
            ],
            smart_scan: KsmFile::open("smart_scan").ok(),
            ksmd: Ksmd::find().map_err(PilotError::NoKsmd)?,
            since: Instant::now(),
        })
    }

    /// One look. 5 to 10 µs.
    ///
    /// # Errors
    /// The kernel's.
    pub fn sample(&self) -> io::Result<Sample> {
        let from_us = self.now_us();
        let full_scans = self.full_scans.read_number()?;
        let pages_scanned = self.pages_scanned.as_ref().map(KsmFile::read_number).transpose()?;
        let cpu_us = self.ksmd.cpu_time()?.as_micros() as u64;
        Ok(Sample { at_us: self.now_us(), from_us, full_scans, pages_scanned, cpu_us })
    }

    /// How many full scans there have been. About 2 µs.
    ///
    /// # Errors
    /// The kernel's.
    pub fn full_scans(&self) -> io::Result<u64> {
        self.full_scans.read_number()
    }

    /// Pages that KSM knows, and how many of them every scan looks at: exact if ksmd ends its batch within
    /// 6 ms, else some pages off. About 20 µs, and as long as that batch takes.
    ///
    /// # Errors
    /// The kernel's.
    pub fn items(&self) -> io::Result<Items> {
        for wait_us in ITEM_WAITS_US {
            let rest = self.ksmd.rest()?;
            let items = self.look_at_items()?;
            if rest.is_some() && self.ksmd.rest()? == rest {
                return Ok(items);
            }
            std::thread::sleep(Duration::from_micros(wait_us));
        }
        self.look_at_items()
    }

    fn look_at_items(&self) -> io::Result<Items> {
        let [shared, sharing, unshared, volatile] = &self.items;
        let merged = shared.read_number()? + sharing.read_number()?;
        let all = merged + unshared.read_number()? + volatile.read_number()?;
        let skips = match &self.smart_scan {
            Some(file) => file.read_number()? != 0,
            None => false,
        };
        Ok(Items { all, never_skipped: if skips { merged } else { all } })
    }

    /// Microseconds since it was made.
    #[must_use]
    pub fn now_us(&self) -> u64 {
        self.since.elapsed().as_micros() as u64
    }

    /// The process id of ksmd.
    #[must_use]
    pub fn ksmd_pid(&self) -> u32 {
        self.ksmd.pid()
    }
}
