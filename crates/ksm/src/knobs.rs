//! The settings that a pilot changes.

use std::io;

use bindery_sys::ksm::{ADVISOR_MODE, KsmFile, PAGES_TO_SCAN, RUN, SLEEP_MILLISECS, is_there};

use crate::{Found, PilotError};

/// How often the kernel's advisor is switched off to set `pages_to_scan`, against somebody who switches
/// it on meanwhile.
const TRIES: u32 = 5;

/// All of them, open.
#[derive(Debug)]
pub(crate) struct Knobs {
    pub(crate) pages_to_scan: KsmFile,
    pub(crate) sleep_millisecs: KsmFile,
    /// `None` before Linux 6.8: nobody but users sets `pages_to_scan`.
    pub(crate) advisor_mode: Option<KsmFile>,
    pub(crate) run: KsmFile,
}

impl Knobs {
    pub(crate) fn open() -> Result<Self, PilotError> {
        if !is_there() {
            return Err(PilotError::NoKsm);
        }
        Ok(Self {
            pages_to_scan: open(PAGES_TO_SCAN)?,
            sleep_millisecs: open(SLEEP_MILLISECS)?,
            advisor_mode: match KsmFile::open(ADVISOR_MODE) {
                Ok(_) => Some(open(ADVISOR_MODE)?),
                Err(_) => None,
            },
            run: open(RUN)?,
        })
    }

    /// What they are now; `run` only if it is to be changed.
    pub(crate) fn found(&self, with_run: bool) -> Result<Found, PilotError> {
        Ok(Found {
            pages_to_scan: read(&self.pages_to_scan)?,
            sleep_millisecs: read(&self.sleep_millisecs)?,
            advisor_mode: match &self.advisor_mode {
                Some(file) => Some(file.read().map_err(PilotError::io("read advisor_mode"))?),
                None => None,
            },
            run: if with_run { Some(read(&self.run)?) } else { None },
        })
    }

    /// Sets `pages_to_scan`, which the kernel's advisor takes from nobody (`EINVAL`): switches that off if
    /// somebody has switched it on. Returns whether it is set; if not, they do so again and again.
    pub(crate) fn set_pages_to_scan(&self, value: &str) -> Result<bool, PilotError> {
        for _ in 0..TRIES {
            match (self.pages_to_scan.write(value), &self.advisor_mode) {
                (Err(error), Some(mode)) if error.kind() == io::ErrorKind::InvalidInput => {
                    write(mode, "none")?;
                }
                (written, _) => {
                    let path = self.pages_to_scan.path();
                    return written.map(|()| true).map_err(|e| PilotError::of_write(path, e));
                }
            }
        }
        Ok(false)
    }

    /// Sets everything as it was found. Tries the rest when one thing fails, and tells of the first
    /// that did.
    pub(crate) fn put_back(&self, found: &Found) -> Result<(), PilotError> {
        let mut result = Ok(());
        let mut note = |written: Result<(), PilotError>| {
            result = std::mem::replace(&mut result, Ok(())).and(written);
        };
        // First, as the kernel's advisor sets another pages_to_scan when a scan ends. If KSM does not run
        // any more, somebody has stopped it, and meant it.
        if let Some(run) = found.run.filter(|run| *run != 1)
            && self.run.read_number().is_ok_and(|run| run == 1)
        {
            note(write(&self.run, &run.to_string()));
        }
        let advisor = self.advisor_mode.as_ref().zip(found.advisor_mode.as_deref());
        // The kernel's advisor takes no pages_to_scan from anybody, and sets its own when it is
        // switched on or off.
        if let Some((file, _)) = advisor {
            note(write(file, "none"));
        }
        note(self.put_back_pages_to_scan(found.pages_to_scan));
        note(write(&self.sleep_millisecs, &found.sleep_millisecs.to_string()));
        if let Some((file, mode)) = advisor.filter(|(_, mode)| *mode != "none") {
            note(write(file, mode));
        }
        result
    }

    fn put_back_pages_to_scan(&self, value: u64) -> Result<(), PilotError> {
        if self.set_pages_to_scan(&value.to_string())? {
            return Ok(());
        }
        let why = "somebody switches the kernel's advisor on again and again: end that first";
        let error = io::Error::new(io::ErrorKind::InvalidInput, why);
        Err(PilotError::of_write(self.pages_to_scan.path(), error))
    }
}

fn open(name: &'static str) -> Result<KsmFile, PilotError> {
    let path = std::path::Path::new(bindery_sys::ksm::DIRECTORY).join(name);
    KsmFile::open_to_write(name).map_err(|error| PilotError::of_write(&path, error))
}

pub(crate) fn read(file: &KsmFile) -> Result<u64, PilotError> {
    file.read_number().map_err(PilotError::io(format_args!("read {}", file.path().display())))
}

pub(crate) fn write(file: &KsmFile, value: &str) -> Result<(), PilotError> {
    file.write(value).map_err(|error| PilotError::of_write(file.path(), error))
}
