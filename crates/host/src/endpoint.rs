//! Where the daemon listens, and how it makes sure that it is the only one there.
//!
//! Three things guard the socket. Its directory may not be one in which others can put things in
//! its place; the socket's mode keeps other users from connecting, but for the members of a group if
//! there is one; and the kernel's word on each peer is checked again when it does connect
//! ([`access`](crate::access)). One daemon at a time: the holder of the lock beside
//! the socket ([`FileLock`]), which ends with its process. So whoever holds the lock knows that a
//! socket which is there already was left behind.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use bindery_sys::lock::{Claim, FileLock};
use bindery_sys::{process, socket};

use crate::access::Group;

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 128;

/// Why the daemon cannot listen where it should.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EndpointError {
    /// Another daemon has the socket.
    #[error("a daemon{} has {} already; end it, or give this one another --socket",
        pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default(), socket.display())]
    AlreadyRunning {
        /// The socket.
        socket: PathBuf,
        /// The other daemon, if it has written its id down yet.
        pid: Option<u32>,
    },
    /// The directory could be changed by others.
    #[error("{} is not safe for a socket: {reason}; choose another --socket", directory.display())]
    UnsafeDirectory {
        /// The socket's directory.
        directory: PathBuf,
        /// Who else could change it.
        reason: String,
    },
    /// A file cannot be given to the group.
    #[error("cannot give {} to group {group}: {source}; run the daemon as root or as a member of \
        that group, or choose another --group", path.display())]
    Group {
        /// What should be the group's.
        path: PathBuf,
        /// The group.
        group: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// Something that is no socket is in its place.
    #[error("{} exists and is not a socket; move it away, or choose another --socket", .0.display())]
    NotASocket(PathBuf),
    /// The kernel refused.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// With which file.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
}

/// A listening socket that is ours alone. Removed when dropped.
#[derive(Debug)]
pub struct Endpoint {
    path: PathBuf,
    listener: OwnedFd,
    _lock: FileLock,
}

impl Endpoint {
    /// Takes the socket at `path`: makes its directory if only that is missing, takes the lock
    /// beside it, removes a socket left behind, and listens, for this user alone or for `group` too.
    ///
    /// # Errors
    /// See [`EndpointError`].
    pub fn claim(path: &Path, group: Option<&Group>) -> Result<Self, EndpointError> {
        prepare_directory(path, group)?;
        let lock_path = lock_path(path);
        let claim = FileLock::claim(&lock_path).map_err(fail("lock", &lock_path))?;
        let lock = match claim {
            Claim::Taken(lock) => lock,
            Claim::HeldBy(pid) => {
                return Err(EndpointError::AlreadyRunning { socket: path.into(), pid });
            }
        };
        match fs::symlink_metadata(path) {
            Ok(found) if found.file_type().is_socket() => {
                fs::remove_file(path).map_err(fail("remove the old socket", path))?;
            }
            Ok(_) => return Err(EndpointError::NotASocket(path.into())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(fail("look at", path)(error)),
        }
        let listener = socket::listen(path, BACKLOG).map_err(fail("listen on", path))?;
        // Between the two calls others may connect if the umask lets them; every peer's user is
        // checked again when it is accepted.
        let mode = if group.is_some() { 0o660 } else { 0o600 };
        share(path, group, mode)?;
        Ok(Self { path: path.into(), listener, _lock: lock })
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl AsFd for Endpoint {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        // The lock is still held, so this is our own socket. If it is gone, all the better.
        let _ = fs::remove_file(&self.path);
    }
}

/// Makes the directory of the socket at `path` if only that is missing, for this user alone or for
/// `group` too, and makes sure that nobody else can put things in the socket's place. A directory that
/// is there is left as it is; if the group cannot pass it, a warning says so.
///
/// # Errors
/// `UnsafeDirectory`, `Io`.
pub fn prepare_directory(path: &Path, group: Option<&Group>) -> Result<(), EndpointError> {
    let directory = match path.parent() {
        Some(directory) if !directory.as_os_str().is_empty() => directory,
        _ => Path::new("."),
    };
    if make_directory(directory).map_err(fail("make the directory", directory))? && group.is_some()
    {
        share(directory, group, 0o750)?;
    }
    let danger = danger(directory, process::effective_user());
    match danger.map_err(fail("look at", directory))? {
        Some(reason) => Err(EndpointError::UnsafeDirectory { directory: directory.into(), reason }),
        None => {
            if let Some(group) = group {
                warn_if_closed(directory, group).map_err(fail("look at", directory))?;
            }
            Ok(())
        }
    }
}

/// Sets the mode of what this user has made, and gives it to the group first, if there is one.
fn share(path: &Path, group: Option<&Group>, mode: u32) -> Result<(), EndpointError> {
    if let Some(group) = group {
        chown(path, None, Some(group.gid())).map_err(|source| EndpointError::Group {
            path: path.into(),
            group: group.name().into(),
            source,
        })?;
    }
    fs::set_permissions(path, Permissions::from_mode(mode)).map_err(fail("guard", path))
}

/// Warns if members of `group` cannot get to what is in `directory`.
fn warn_if_closed(directory: &Path, group: &Group) -> io::Result<()> {
    let found = fs::metadata(directory)?;
    // Of the two classes exactly one counts (path_resolution(7)).
    let pass = if found.gid() == group.gid() { 0o010 } else { 0o001 };
    if found.mode() & pass == 0 {
        let path = directory.display();
        tracing::warn!(
            "members of group {group} cannot get to the socket: `chgrp {group} {path}` and `chmod \
             g+x {path}` let them"
        );
    }
    Ok(())
}

fn fail(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> EndpointError {
    let path = path.to_owned();
    move |source| EndpointError::Io { action, path, source }
}

fn lock_path(socket: &Path) -> PathBuf {
    let mut name = socket.as_os_str().to_owned();
    name.push(".lock");
    name.into()
}

/// False if it is there already.
fn make_directory(directory: &Path) -> io::Result<bool> {
    match DirBuilder::new().mode(0o700).create(directory) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error),
    }
}

/// Who, besides `uid` and root, could put another socket in the place of one in this directory.
fn danger(path: &Path, uid: u32) -> io::Result<Option<String>> {
    const STICKY: u32 = 0o1000;
    const WRITABLE_BY_OTHERS: u32 = 0o022;
    let directory = fs::metadata(path)?;
    if !directory.is_dir() {
        return Ok(Some("it is not a directory".into()));
    }
    // The link too, if it is one: its owner can make it lead somewhere else at any time.
    for owner in [fs::symlink_metadata(path)?.uid(), directory.uid()] {
        if owner != uid && owner != 0 {
            return Ok(Some(format!("it belongs to user {owner}")));
        }
    }
    if directory.mode() & WRITABLE_BY_OTHERS != 0 && directory.mode() & STICKY == 0 {
        let mode = directory.mode() & 0o7777;
        return Ok(Some(format!("its mode {mode:o} lets others write there")));
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_claim_names_the_first() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.sock");
        let first = Endpoint::claim(&path, None).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        let error = Endpoint::claim(&path, None).unwrap_err();
        let EndpointError::AlreadyRunning { pid, .. } = &error else { panic!("{error}") };
        assert_eq!(*pid, Some(std::process::id()));
        assert!(error.to_string().contains(&format!("pid {}", std::process::id())));
        drop(first);
        assert!(!path.exists());
        Endpoint::claim(&path, None).unwrap();
    }

    #[test]
    fn what_is_made_for_a_group_is_the_groups() {
        let group = Group::find("root").unwrap();
        let own = fs::metadata("/proc/self").unwrap();
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("new").join("a.sock");
        match Endpoint::claim(&path, Some(&group)) {
            Ok(_endpoint) => {
                let made = [path.parent().unwrap(), &path].map(|path| fs::metadata(path).unwrap());
                assert_eq!(made.each_ref().map(|file| file.mode() & 0o7777), [0o750, 0o660]);
                assert_eq!(made.map(|file| file.gid()), [0, 0]);
            }
            // Root's group is not everybody's to give to.
            Err(error) => {
                assert_ne!(own.uid(), 0, "{error}");
                assert!(matches!(error, EndpointError::Group { .. }), "{error}");
            }
        }
    }

    #[test]
    fn a_socket_left_behind_is_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.sock");
        drop(socket::listen(&path, 1).unwrap());
        assert!(path.exists(), "closing does not remove the file: that is the case in question");
        let endpoint = Endpoint::claim(&path, None).unwrap();
        socket::connect(endpoint.path()).unwrap();
    }

    #[test]
    fn a_file_in_the_place_of_the_socket_is_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.sock");
        fs::write(&path, "precious").unwrap();
        assert!(matches!(Endpoint::claim(&path, None), Err(EndpointError::NotASocket(_))));
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
    }

    #[test]
    fn a_directory_that_others_can_change_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let refused = |mode| {
            fs::set_permissions(directory.path(), Permissions::from_mode(mode)).unwrap();
            let claim = Endpoint::claim(&directory.path().join("a.sock"), None);
            matches!(claim, Err(EndpointError::UnsafeDirectory { .. }))
        };
        assert!(refused(0o777));
        assert!(refused(0o770));
        assert!(!refused(0o1777), "the sticky bit keeps others from replacing our socket");
        assert!(!refused(0o755));
    }

    #[test]
    fn a_path_too_long_for_a_socket_says_so() {
        let directory = tempfile::tempdir().unwrap();
        let error = Endpoint::claim(&directory.path().join("x".repeat(120)), None).unwrap_err();
        assert!(error.to_string().contains("cannot listen on"), "{error}");
    }
}
