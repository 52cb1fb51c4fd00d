//! Monitors of QEMUs, where a daemon finds them by user and process id alone.
//!
//! `bindery run` gives a QEMU a QMP socket of Bindery's own: `bindery.monitors/UID/PID.sock` beside the daemon's
//! `bindery.sock`. A monitor commands all of its QEMU, so the directory `UID` is its user's alone (0700). Members of
//! the daemon's group may make theirs: the directory above is the group's then, with the sticky bit, so that none
//! removes another's.
//! A user who took another's number first is found out, since a directory counts only if its number owns it.
//!
//! A QEMU that ends leaves its socket behind. Users' own `bindery run` and the daemon remove those of processes
//! that are gone.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use bindery_sys::process::{effective_user, has_ended};
use rustix::fs::{AtFlags, Dir, Mode, OFlags, open, unlinkat};

use crate::access::Group;
use crate::endpoint::EndpointError;

/// Extension of the directory, in place of that of the daemon's socket.
const EXTENSION: &str = "monitors";

/// Longest path of a socket, in bytes: the kernel takes 108, and the last one is zero (unix(7)).
pub const PATH_BYTES_MAX: usize = 107;

/// Reason why a QEMU has no monitor of Bindery's.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MonitorError {
    /// The path does not fit a socket's address.
    #[error(
        "{} is longer than a socket's path may be ({PATH_BYTES_MAX} bytes): have the daemon listen in a \
         directory with a shorter path (--socket)", .0.display()
    )]
    TooLong(PathBuf),
    /// The daemon has made no directory for monitors.
    #[error(
        "{} is not there: the daemon is older than this command, or its directory is closed to you; restart \
         it", .0.display()
    )]
    NoDirectory(PathBuf),
    /// The directory could be another user's, or is open to others.
    #[error("{} is not safe for a monitor: {reason}; remove it", path.display())]
    Unsafe {
        /// The directory of the user.
        path: PathBuf,
        /// Users who could use it, too.
        reason: String,
    },
    /// The kernel refused.
    #[error("cannot make {}: {source}", path.display())]
    Io {
        /// The directory of the user.
        path: PathBuf,
        /// Error of the kernel.
        source: io::Error,
    },
}

/// Directory of the monitors of a daemon's guests.
#[derive(Clone, Debug)]
pub struct Monitors {
    directory: PathBuf,
}

impl Monitors {
    /// Returns those of the daemon that listens at `socket`, an absolute path.
    #[must_use]
    pub fn of_daemon(socket: &Path) -> Self {
        Self { directory: socket.with_extension(EXTENSION) }
    }

    /// Makes the directory, for this user or for `group` too, and removes sockets of processes that are gone.
    /// For daemons, once the socket is theirs.
    ///
    /// # Errors
    /// [`EndpointError::UnsafeDirectory`] if something of another user's is in its place;
    /// [`EndpointError::Group`], [`EndpointError::Io`].
    pub fn prepare(socket: &Path, group: Option<&Group>) -> Result<Self, EndpointError> {
        let monitors = Self::of_daemon(socket);
        let path = &monitors.directory;
        let failed = |action| {
            let path = path.clone();
            move |source| EndpointError::Io { action, path, source }
        };
        match DirBuilder::new().mode(0o700).create(path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(failed("make the directory")(error));
            }
            _ => {}
        }
        let found = fs::symlink_metadata(path).map_err(failed("look at"))?;
        if !found.is_dir() || found.uid() != effective_user() {
            let reason = format!("{} is no directory of this daemon's user", path.display());
            let directory = path.parent().unwrap_or(path).into();
            return Err(EndpointError::UnsafeDirectory { directory, reason });
        }
        if let Some(group) = group {
            chown(path, None, Some(group.gid())).map_err(|source| EndpointError::Group {
                path: path.clone(),
                group: group.name().into(),
                source,
            })?;
        }
        let mode = if group.is_some() { 0o1770 } else { 0o700 };
        fs::set_permissions(path, Permissions::from_mode(mode)).map_err(failed("guard"))?;
        monitors.sweep();
        Ok(monitors)
    }

    /// Returns the path that the monitor of a process has, whether it is there or not.
    #[must_use]
    pub fn path(&self, uid: u32, pid: u32) -> PathBuf {
        self.user(uid).join(format!("{pid}.sock"))
    }

    fn user(&self, uid: u32) -> PathBuf {
        self.directory.join(uid.to_string())
    }

    /// Returns the path of the monitor of a process, if it has one. Whoever connects there still compares the
    /// process at the other end: a socket may have been left by an earlier process of that number.
    #[must_use]
    pub fn of(&self, uid: u32, pid: u32) -> Option<PathBuf> {
        let path = self.path(uid, pid);
        let is_ours = check(&self.user(uid), uid).is_ok();
        (is_ours && fs::symlink_metadata(&path).is_ok()).then_some(path)
    }

    /// Makes room for the monitor of this user's process `pid`, which is to listen at the path returned.
    ///
    /// # Errors
    /// [`MonitorError`].
    pub fn make_room(&self, uid: u32, pid: u32) -> Result<PathBuf, MonitorError> {
        let path = self.path(uid, pid);
        if path.as_os_str().len() > PATH_BYTES_MAX {
            return Err(MonitorError::TooLong(path));
        }
        let user = self.user(uid);
        let failed = |source| MonitorError::Io { path: user.clone(), source };
        match DirBuilder::new().mode(0o700).create(&user) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(MonitorError::NoDirectory(self.directory.clone()));
            }
            Err(error) => return Err(failed(error)),
        }
        check(&user, uid)?;
        sweep_user(&user, uid);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(error)),
            _ => Ok(path),
        }
    }

    /// Removes sockets of processes that are gone. What cannot be removed stays: nothing depends on it.
    pub fn sweep(&self) {
        let Ok(entries) = fs::read_dir(&self.directory) else { return };
        for entry in entries.flatten() {
            let uid = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok());
            if let Some(uid) = uid {
                sweep_user(&entry.path(), uid);
            }
        }
    }
}

/// Refuses a directory that is not `uid`'s alone.
fn check(path: &Path, uid: u32) -> Result<(), MonitorError> {
    let of_io = |source| MonitorError::Io { path: path.into(), source };
    // Not what a link leads to.
    let found = fs::symlink_metadata(path).map_err(of_io)?;
    let reason = if !found.is_dir() {
        "it is no directory".to_owned()
    } else if found.uid() != uid {
        format!("it belongs to user {}", found.uid())
    } else if found.mode() & 0o077 != 0 {
        format!("its mode {:o} lets others in", found.mode() & 0o7777)
    } else {
        return Ok(());
    };
    Err(MonitorError::Unsafe { path: path.into(), reason })
}

/// Removes sockets of processes that are gone from a user's directory.
fn sweep_user(path: &Path, uid: u32) {
    // Held open, so that its owner cannot put a link in its place meanwhile.
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let Ok(directory) = open(path, flags, Mode::empty()) else { return };
    if check(path, uid).is_err() {
        return;
    }
    for name in names(&directory) {
        let pid = name.strip_suffix(".sock").and_then(|pid| pid.parse::<u32>().ok());
        let is_gone = pid.is_some_and(has_ended);
        if is_gone && let Err(error) = unlinkat(&directory, name.as_str(), AtFlags::empty()) {
            tracing::debug!("{}/{name} stays: {error}", path.display());
        }
    }
}

fn names(directory: &OwnedFd) -> Vec<String> {
    let entries = Dir::read_from(directory).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str().ok().map(str::to_owned)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use bindery_sys::socket;
    use std::os::unix::fs::symlink;

    fn monitors() -> (tempfile::TempDir, Monitors, u32) {
        let directory = tempfile::tempdir().unwrap();
        let monitors = Monitors::prepare(&directory.path().join("b.sock"), None).unwrap();
        (directory, monitors, effective_user())
    }

    #[test]
    fn a_monitor_is_found_while_its_process_lives() {
        let (_directory, monitors, uid) = monitors();
        let own = std::process::id();
        let path = monitors.make_room(uid, own).unwrap();
        assert_eq!(monitors.of(uid, own), None);
        let _monitor = socket::listen(&path, 1).unwrap();
        assert_eq!(monitors.of(uid, own), Some(path.clone()));
        assert_eq!(monitors.of(uid + 1, own), None);
        // No process has a number above the kernel's limit of 2^22.
        let gone = monitors.make_room(uid, 1 << 23).unwrap();
        drop(socket::listen(&gone, 1).unwrap());
        fs::write(gone.with_file_name("note"), "mine").unwrap();
        monitors.sweep();
        assert!(path.exists() && !gone.exists() && gone.with_file_name("note").exists());
        // The next process of that number finds room.
        assert_eq!(monitors.make_room(uid, own).unwrap(), path);
        assert!(!path.exists());
    }

    #[test]
    fn directories_that_are_not_the_users_are_refused() {
        let (directory, monitors, uid) = monitors();
        let user = monitors.user(uid);
        symlink(directory.path(), &user).unwrap();
        assert!(matches!(monitors.make_room(uid, 7), Err(MonitorError::Unsafe { .. })));
        fs::remove_file(&user).unwrap();
        fs::create_dir(&user).unwrap();
        fs::set_permissions(&user, Permissions::from_mode(0o750)).unwrap();
        fs::write(monitors.path(uid, 1 << 23), "").unwrap();
        assert!(matches!(monitors.make_room(uid, 7), Err(MonitorError::Unsafe { .. })));
        assert_eq!(monitors.of(uid, 1 << 23), None);
        monitors.sweep();
        assert!(monitors.path(uid, 1 << 23).exists());
    }

    #[test]
    fn paths_that_cannot_be_are_named() {
        let long = PathBuf::from(format!("/{}/b.sock", "x".repeat(90)));
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("b.sock");
        symlink("/tmp", socket.with_extension(EXTENSION)).unwrap();
        let prepared = Monitors::prepare(&socket, None);
        assert!(matches!(prepared, Err(EndpointError::UnsafeDirectory { .. })));
        let error = Monitors::of_daemon(&long).make_room(1000, 4711).unwrap_err();
        assert!(error.to_string().contains("--socket"), "{error}");
        let missing = Monitors::of_daemon(Path::new("/nonexistent/b.sock"));
        assert!(matches!(missing.make_room(1000, 1), Err(MonitorError::NoDirectory(_))));
    }
}
