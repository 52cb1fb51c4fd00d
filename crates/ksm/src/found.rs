//! What KSM was set to before a pilot changed it, kept in a file until it is put back.
//!
//! The file is complete before the first change and gone after the last, so that whoever finds one
//! knows that a pilot runs, or was killed. It belongs to one boot: settings do not outlive it.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use bindery_sys::process::effective_user;
use serde::{Deserialize, Serialize};

use crate::PilotError;

/// Where the file is if nothing else is said.
pub const DEFAULT_STATE: &str = "/run/bindery/ksm.json";

const VERSION: u32 = 1;

/// More than any file that a pilot writes.
const BYTES_MAX: u64 = 4096;

/// What KSM was set to, under the kernel's names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    /// Pages of a batch.
    pub pages_to_scan: u64,
    /// The rest after a batch.
    pub sleep_millisecs: u64,
    /// `None`: this kernel has no advisor of its own.
    pub advisor_mode: Option<String>,
    /// `None`: the pilot was not to start KSM, so it did not touch this.
    pub run: Option<u64>,
}

#[derive(Serialize, Deserialize)]
struct Saved {
    version: u32,
    boot_id: String,
    pid: u32,
    found: Found,
}

/// The file.
#[derive(Clone, Debug)]
pub struct State {
    path: PathBuf,
}

impl State {
    /// The file at `path`, there or not.
    #[must_use]
    pub fn at(path: &Path) -> Self {
        Self { path: path.into() }
    }

    /// What a pilot saved in this boot and did not put back; `None` if there is nothing to put back.
    ///
    /// # Errors
    /// [`PilotError::ForeignState`] if somebody else could have written it, or it cannot be
    /// understood; [`PilotError::State`] if it cannot be read.
    pub fn load(&self) -> Result<Option<Found>, PilotError> {
        let text = match self.read() {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                return Err(self.foreign(error));
            }
            Err(error) => return Err(self.fail("read")(error)),
        };
        let saved: Saved = serde_json::from_str(&text).map_err(|error| self.foreign(error))?;
        if saved.version != VERSION {
            return Err(self.foreign(format_args!("version {}", saved.version)));
        }
        check(&saved.found).map_err(|why| self.foreign(why))?;
        Ok((saved.boot_id == boot_id()).then_some(saved.found))
    }

    fn read(&self) -> io::Result<String> {
        // A link may have been laid there by somebody who cannot write what it leads to.
        let flags = rustix::fs::OFlags::NOFOLLOW.bits().cast_signed();
        let file = OpenOptions::new().read(true).custom_flags(flags).open(&self.path)?;
        let metadata = file.metadata()?;
        let is_own = [0, effective_user()].contains(&metadata.uid());
        if !is_own || metadata.mode() & 0o022 != 0 || !metadata.is_file() {
            let why = "others than its owner and root can write it";
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        let mut text = String::new();
        file.take(BYTES_MAX).read_to_string(&mut text)?;
        Ok(text)
    }

    /// Writes the file, whole or not at all, through to the disk if it is on one.
    ///
    /// # Errors
    /// [`PilotError::State`].
    pub fn save(&self, found: &Found) -> Result<(), PilotError> {
        self.write(found).map_err(self.fail("write"))
    }

    fn write(&self, found: &Found) -> io::Result<()> {
        let directory = self.directory();
        match DirBuilder::new().mode(0o700).create(directory) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let pid = std::process::id();
        let saved = Saved { version: VERSION, boot_id: boot_id(), pid, found: found.clone() };
        let mut name = self.path.as_os_str().to_owned();
        name.push(format!(".{pid}"));
        let new = PathBuf::from(name);
        // What an earlier process with our id may have left.
        let _ = fs::remove_file(&new);
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o644).open(&new)?;
        let written = serde_json::to_writer_pretty(&mut file, &saved)
            .map_err(io::Error::from)
            .and_then(|()| file.write_all(b"\n"))
            .and_then(|()| file.sync_all())
            .and_then(|()| fs::rename(&new, &self.path));
        if written.is_err() {
            let _ = fs::remove_file(&new);
        }
        written.and_then(|()| File::open(directory)?.sync_all())
    }

    /// Removes the file, if it is there.
    ///
    /// # Errors
    /// [`PilotError::State`].
    pub fn remove(&self) -> Result<(), PilotError> {
        match fs::remove_file(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(self.fail("remove")(error))
            }
            _ => Ok(()),
        }
    }

    fn directory(&self) -> &Path {
        match self.path.parent() {
            Some(directory) if !directory.as_os_str().is_empty() => directory,
            _ => Path::new("."),
        }
    }

    fn fail(&self, action: &'static str) -> impl FnOnce(io::Error) -> PilotError {
        let path = self.path.clone();
        move |source| PilotError::State { action, path, source }
    }

    fn foreign(&self, why: impl ToString) -> PilotError {
        PilotError::ForeignState { path: self.path.clone(), why: why.to_string() }
    }
}

/// Nothing is written to the kernel that it could not have said.
fn check(found: &Found) -> Result<(), &'static str> {
    let is_u32 = |value: u64| u32::try_from(value).is_ok();
    let is_mode = |mode: &String| ["none", "scan-time"].contains(&mode.as_str());
    if !is_u32(found.pages_to_scan) || !is_u32(found.sleep_millisecs) {
        return Err("a number is too large");
    }
    if !found.advisor_mode.as_ref().is_none_or(is_mode) {
        return Err("there is no such advisor_mode");
    }
    if found.run.is_some_and(|run| run > 2) {
        return Err("run is 0, 1 or 2");
    }
    Ok(())
}

fn boot_id() -> String {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    text.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn found() -> Found {
        let advisor_mode = Some("scan-time".into());
        Found { pages_to_scan: 100, sleep_millisecs: 20, advisor_mode, run: Some(0) }
    }

    #[test]
    fn what_is_saved_is_loaded_until_it_is_removed() {
        let directory = tempfile::tempdir().unwrap();
        let state = State::at(&directory.path().join("new/ksm.json"));
        assert_eq!(state.load().unwrap(), None);
        state.save(&found()).unwrap();
        let older = Found { advisor_mode: None, run: None, ..found() };
        assert_eq!(state.load().unwrap(), Some(found()));
        state.save(&older).unwrap();
        assert_eq!(state.load().unwrap(), Some(older));
        assert_eq!(fs::read_dir(directory.path().join("new")).unwrap().count(), 1);
        state.remove().unwrap();
        state.remove().unwrap();
        assert_eq!(state.load().unwrap(), None);
    }

    #[test]
    fn settings_do_not_outlive_a_boot() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ksm.json");
        let state = State::at(&path);
        state.save(&found()).unwrap();
        let text = fs::read_to_string(&path).unwrap().replace(&boot_id(), "another");
        fs::write(&path, text).unwrap();
        assert_eq!(state.load().unwrap(), None);
    }

    #[test]
    fn what_others_could_have_written_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ksm.json");
        let state = State::at(&path);
        let is_refused = || matches!(state.load(), Err(PilotError::ForeignState { .. }));
        let saved = {
            state.save(&found()).unwrap();
            fs::read_to_string(&path).unwrap()
        };
        for wrong in [
            String::new(),
            "{}".into(),
            saved.replace("\"version\": 1", "\"version\": 2"),
            saved.replace("scan-time", "fast"),
            saved.replace("\"run\": 0", "\"run\": 3"),
            saved.replace("100", "4294967296"),
            saved.replace("100", "-1"),
        ] {
            fs::write(&path, &wrong).unwrap();
            assert!(is_refused(), "{wrong}");
        }
        fs::write(&path, &saved).unwrap();
        assert!(!is_refused());
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
        assert!(is_refused());
        fs::remove_file(&path).unwrap();
        symlink(directory.path().join("elsewhere"), &path).unwrap();
        assert!(state.load().is_err());
    }
}
