//! One pilot at a time, on the whole machine.
//!
//! The lock is flock(2)'s on a file at one place, so that pilots which keep their state in different
//! places are told apart from each other too, and the kernel knows who has it (`/proc/locks`). It ends
//! with its holder, however that ends; the file stays, empty.
//!
//! flock(2) asks for no more than an open file. KSM's own files can be opened by every user, who could
//! then shut the pilot out; this one is its owner's alone.

use std::fmt;
use std::fs::{self, DirBuilder, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use bindery_sys::process::effective_user;
use rustix::fs::{FlockOperation, OFlags, flock, major, minor};
use rustix::io::Errno;
use serde::Serialize;

use crate::PilotError;

/// The file that is locked.
const LOCK: &str = "/run/bindery/ksm.lock";

/// [`Claim::holder`] has a lock of its own for an instant, which `/proc/locks` does not show as one of
/// a pilot.
const LOOK: Duration = Duration::from_millis(500);

/// The right to pace KSM, while it lives.
#[derive(Debug)]
pub struct Claim {
    _file: File,
}

/// Who has the right.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Holder {
    /// Its process id, where this process can see it.
    pub pid: Option<u32>,
    /// Its name, where it can be read.
    pub command: Option<String>,
}

impl Claim {
    /// Takes it. Waits for at most half a second, for somebody who only looks.
    ///
    /// # Errors
    /// [`PilotError::AlreadyRunning`], naming who has it; [`PilotError::Lock`] if the file is not this
    /// user's alone, or cannot be made.
    pub fn take() -> Result<Self, PilotError> {
        Self::take_at(Path::new(LOCK))
    }

    fn take_at(path: &Path) -> Result<Self, PilotError> {
        let file = make(path).map_err(fail(path))?;
        let deadline = Instant::now() + LOOK;
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Self { _file: file }),
                Err(Errno::WOULDBLOCK) => {}
                Err(error) => return Err(fail(path)(error.into())),
            }
            let holder = Holder::of(&file.metadata().map_err(fail(path))?);
            if holder.pid.is_some() || Instant::now() > deadline {
                return Err(PilotError::AlreadyRunning(holder));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Who has it, if anybody. Those who may not open the file are told what `/proc/locks` says of it.
    ///
    /// # Errors
    /// [`PilotError::Lock`] if that cannot be told: the file, or its directory, is another user's.
    pub fn holder() -> Result<Option<Holder>, PilotError> {
        Self::holder_at(Path::new(LOCK))
    }

    fn holder_at(path: &Path) -> Result<Option<Holder>, PilotError> {
        match open(path, OpenOptions::new().read(true)) {
            // To look at the table alone would do, but not in a PID namespace that the holder is not in.
            Ok(file) => match flock(&file, FlockOperation::NonBlockingLockShared) {
                Ok(()) => Ok(None),
                Err(_) => Ok(Some(Holder::of(&file.metadata().map_err(fail(path))?))),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                let holder = Holder::of(&fs::metadata(path).map_err(fail(path))?);
                Ok(holder.pid.is_some().then_some(holder))
            }
            Err(error) => Err(fail(path)(error)),
        }
    }
}

fn make(path: &Path) -> io::Result<File> {
    let directory = path.parent().unwrap_or(Path::new("/"));
    match DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    open(path, OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600))
}

/// Opens the file, if it is one that only its owner can lock.
fn open(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let file = options.custom_flags(OFlags::NOFOLLOW.bits().cast_signed()).open(path)?;
    let metadata = file.metadata()?;
    let is_own = [0, effective_user()].contains(&metadata.uid());
    if !is_own || metadata.mode() & 0o077 != 0 || !metadata.is_file() {
        let why = "others than root can open it, so that they could shut out whoever is to have it: \
                   remove it";
        return Err(io::Error::new(io::ErrorKind::InvalidData, why));
    }
    Ok(file)
}

fn fail(path: &Path) -> impl FnOnce(io::Error) -> PilotError {
    let path = path.to_owned();
    move |source| PilotError::Lock { path, source }
}

impl Holder {
    fn of(file: &Metadata) -> Self {
        let locks = fs::read_to_string("/proc/locks").unwrap_or_default();
        let pid = holder_in(&locks, (major(file.dev()), minor(file.dev()), file.ino()));
        Self { pid, command: pid.and_then(command_of) }
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.pid, &self.command) {
            (Some(pid), Some(command)) => write!(f, "process {pid} ({})", command.escape_debug()),
            (Some(pid), None) => write!(f, "process {pid}"),
            (None, _) => f.write_str("a process that cannot be seen from here"),
        }
    }
}

/// The name of a process, while there is one.
pub(crate) fn command_of(pid: u32) -> Option<String> {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    Some(name.trim_end().to_owned())
}

/// Who has an exclusive flock on the file with this device and inode (proc_locks(5)); lines with an
/// arrow wait.
fn holder_in(locks: &str, (major, minor, inode): (u32, u32, u64)) -> Option<u32> {
    let wanted = format!("{major:02x}:{minor:02x}:{inode}");
    locks.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let [_, "FLOCK", _, "WRITE", pid, file, ..] = fields[..] else { return None };
        pid.parse().ok().filter(|pid| file == wanted && *pid > 0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn the_holder_is_found_among_other_locks() {
        let locks = "1: POSIX  ADVISORY  WRITE 11 00:15:900 0 EOF\n\
                     2: FLOCK  ADVISORY  WRITE 12 fd:01:900 0 EOF\n\
                     2: -> FLOCK  ADVISORY  WRITE 14 00:15:900 0 EOF\n\
                     3: FLOCK  ADVISORY  WRITE 13 00:15:900 0 EOF\n";
        assert_eq!(holder_in(locks, (0, 0x15, 900)), Some(13));
        assert_eq!(holder_in(locks, (0xfd, 1, 900)), Some(12));
        assert_eq!(holder_in(locks, (0, 0x15, 90)), None);
        assert_eq!(holder_in("nonsense\n", (0, 0x15, 900)), None);
    }

    #[test]
    fn one_has_it_and_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("new/ksm.lock");
        assert_eq!(Claim::holder_at(&path).unwrap(), None);
        let claim = Claim::take_at(&path).unwrap();
        let pid = Some(std::process::id());
        assert_eq!(Claim::holder_at(&path).unwrap().unwrap().pid, pid);
        match Claim::take_at(&path) {
            Err(PilotError::AlreadyRunning(holder)) => assert_eq!(holder.pid, pid),
            other => panic!("{other:?}"),
        }
        drop(claim);
        assert_eq!(Claim::holder_at(&path).unwrap(), None);
        Claim::take_at(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
    }

    #[test]
    fn what_others_can_lock_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ksm.lock");
        let is_refused = || matches!(Claim::take_at(&path), Err(PilotError::Lock { .. }));
        drop(Claim::take_at(&path).unwrap());
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(is_refused());
        fs::remove_file(&path).unwrap();
        symlink(directory.path().join("elsewhere"), &path).unwrap();
        assert!(is_refused());
    }
}
