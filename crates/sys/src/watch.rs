//! Who writes to a file: fanotify(7), which tells the writer's process id. It works on sysfs as
//! well, where nothing else tells who changed a setting.

use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The size of `struct fanotify_event_metadata`, the only version there is.
const EVENT_BYTES: usize = size_of::<libc::fanotify_event_metadata>();

/// Events taken in one read.
const EVENTS_MAX: usize = 64;

/// What somebody did to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Which of the files that are watched, by its place; `None`: some were not told, because there
    /// were too many at once.
    pub file: Option<usize>,
    /// Who; `None` if it is in a PID namespace that this process does not see.
    pub pid: Option<u32>,
    /// Whether the file was written to, as opposed to opened.
    pub is_written: bool,
}

/// Watches a few files. Readable when there is something to take.
#[derive(Debug)]
pub struct WriteWatch {
    group: OwnedFd,
    /// Device and inode of each file.
    files: Vec<(u64, u64)>,
}

impl WriteWatch {
    /// Watches `files` for being opened and for being written to.
    ///
    /// # Errors
    /// `PermissionDenied` without `CAP_SYS_ADMIN`; `ENOSYS` on a kernel without fanotify; as
    /// fanotify_mark(2) if one of the files cannot be watched.
    pub fn new(files: &[&Path]) -> io::Result<Self> {
        let flags = libc::FAN_CLASS_NOTIF | libc::FAN_CLOEXEC | libc::FAN_NONBLOCK;
        let open_flags = libc::O_RDONLY | libc::O_CLOEXEC;
        // SAFETY: the call takes numbers alone.
        let group = unsafe { libc::fanotify_init(flags, open_flags as libc::c_uint) };
        if group < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just made this descriptor for us, nobody else knows it.
        let group = unsafe { OwnedFd::from_raw_fd(group) };
        let mut watch = Self { group, files: Vec::new() };
        for file in files {
            watch.add(file)?;
        }
        Ok(watch)
    }

    fn add(&mut self, file: &Path) -> io::Result<()> {
        let metadata = fs::metadata(file)?;
        let path = std::ffi::CString::new(file.as_os_str().as_bytes())?;
        let mask = libc::FAN_OPEN | libc::FAN_MODIFY;
        // SAFETY: the path is a string that ends with a zero byte and lives until the call returns.
        let result = unsafe {
            libc::fanotify_mark(
                self.group.as_raw_fd(),
                libc::FAN_MARK_ADD,
                mask,
                libc::AT_FDCWD,
                path.as_ptr(),
            )
        };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        self.files.push((metadata.dev(), metadata.ino()));
        Ok(())
    }

    /// Takes what happened since the last call, in order; nothing if nothing did. Never blocks. One
    /// process that does the same several times in a row may be told of once.
    ///
    /// # Errors
    /// As read(2) of a fanotify group: `EMFILE` and the like if an event's file cannot be opened.
    pub fn take(&self) -> io::Result<Vec<Access>> {
        let mut buffer = [MaybeUninit::<libc::fanotify_event_metadata>::uninit(); EVENTS_MAX];
        // SAFETY: the buffer may be written for as many bytes as it has.
        let read = unsafe {
            libc::read(self.group.as_raw_fd(), buffer.as_mut_ptr().cast(), EVENTS_MAX * EVENT_BYTES)
        };
        if read < 0 {
            let error = io::Error::last_os_error();
            let is_empty = error.kind() == io::ErrorKind::WouldBlock;
            return if is_empty { Ok(Vec::new()) } else { Err(error) };
        }
        // Without FAN_REPORT_* every event is its metadata and nothing else: `event_len` is its size.
        let events = buffer.iter().take(read as usize / EVENT_BYTES);
        // SAFETY: the kernel wrote so many events, whole ones only, from the start on.
        Ok(events.map(|event| self.access(unsafe { event.assume_init_ref() })).collect())
    }

    fn access(&self, event: &libc::fanotify_event_metadata) -> Access {
        let file = (event.fd >= 0).then(|| {
            // SAFETY: the kernel has opened this descriptor for us with the event.
            let file = fs::File::from(unsafe { OwnedFd::from_raw_fd(event.fd) });
            let metadata = file.metadata().ok()?;
            let found = (metadata.dev(), metadata.ino());
            self.files.iter().position(|file| *file == found)
        });
        Access {
            file: file.flatten(),
            pid: u32::try_from(event.pid).ok().filter(|pid| *pid > 0),
            // What was lost may have been a write.
            is_written: event.fd < 0 || event.mask & libc::FAN_MODIFY != 0,
        }
    }
}

impl AsFd for WriteWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.group.as_fd()
    }
}
