//! Opening and making files and block devices: for whom, with or without the page cache.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use bindery_sys::block::{self, How, Kind};
use bindery_sys::lock::{RangeLock, RangeLocks};

use super::device_options::{DeviceAccess, DeviceOptions};
use super::error::OpenError;
use super::file::{FileDevice, Parts, assert_whole_blocks};
use super::io_engine::IoEngine;

/// The byte that whoever writes has locked: behind all that a file can be long.
const WRITER: std::ops::Range<u64> = i64::MAX as u64 - 1..i64::MAX as u64;

/// Longest time that the kernel may take to let go of a device whose process is gone. It keeps it, and the lock with
/// it, until transfers that were under way have ended and a worker of io_uring's (`io_ring_exit_work`) has
/// put them: milliseconds after the process was reaped, half a second was seen on a busy machine.
const LETTING_GO_TIME_MAX: Duration = Duration::from_secs(10);

/// Interval between looks at whether the kernel has let go.
const LETTING_GO_INTERVAL: Duration = Duration::from_millis(5);

impl FileDevice {
    /// Makes a sparse file of so many bytes, and opens it for writing. It is there after a crash once
    /// this returned, and gone if this failed.
    ///
    /// # Errors
    /// As [`open`](Self::open); `AlreadyExists` and `StorageFull` among others.
    ///
    /// # Panics
    /// If `bytes` are not whole blocks.
    pub fn create(path: &Path, bytes: u64, options: &DeviceOptions) -> Result<Self, OpenError> {
        assert_whole_blocks(0, bytes);
        let because = failed("make", path);
        let new = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
        let file = new.map_err(&because)?;
        let opened = file
            .set_len(bytes)
            .and_then(|()| file.sync_all())
            .and_then(|()| File::open(directory_of(path))?.sync_all())
            .map_err(&because)
            .and_then(|()| {
                Self::open(path, &DeviceOptions { access: DeviceAccess::Write, ..*options })
            });
        if opened.is_err() {
            // Nobody else knows of it yet.
            let _ = fs::remove_file(path);
        }
        opened
    }

    /// Opens a regular file or a block device that is there. Waits up to 10 s if it is locked and no process
    /// is seen that has locked it, as after a kill.
    ///
    /// # Errors
    /// What the kernel says of `path`; [`OpenError::InUse`] if another has opened it for writing and
    /// this is to write as well.
    ///
    /// # Panics
    /// If the depth is 0 or above 4096.
    pub fn open(path: &Path, options: &DeviceOptions) -> Result<Self, OpenError> {
        assert!((1..=4096).contains(&options.depth), "a device of depth {}", options.depth);
        let cached = block::open_cached(path).map_err(failed("open", path))?;
        let kind = Kind::of(&cached).map_err(failed("look at", path))?;
        let kind = kind.ok_or_else(|| OpenError::NoDevice { path: path.into() })?;
        if options.access == DeviceAccess::Write
            && kind == Kind::BlockDevice
            && block::is_read_only(&cached).map_err(failed("look at", path))?
        {
            return Err(OpenError::ReadOnly { path: path.into() });
        }
        let Opened { file, buffered_because, locks, writer } = open_for(path, kind, options)?;
        let bytes = block::bytes(&file, kind).map_err(failed("measure", path))?;
        if let Some(why) = &buffered_because {
            tracing::info!("{} is read and written through the page cache: {why}", path.display());
        }
        let parts = Parts { file, cached, kind, locks, writer, buffered_because };
        Ok(Self::new(path.into(), parts, engine(options)?, options.depth, bytes))
    }
}

/// A device opened for what was asked, and its lock where that is writing.
struct Opened {
    file: File,
    buffered_because: Option<String>,
    locks: Arc<RangeLocks>,
    writer: Option<RangeLock>,
}

/// Opens for what is asked, as soon as the kernel has let go of it after a process that is gone.
fn open_for(path: &Path, kind: Kind, options: &DeviceOptions) -> Result<Opened, OpenError> {
    let deadline = Instant::now() + LETTING_GO_TIME_MAX;
    // A block device may be mounted, which does not end by itself: nobody has locked it then.
    let mut is_let_go = kind == Kind::File;
    loop {
        let error = match open_now(path, kind, options) {
            Err(OpenError::InUse { path, holders }) if holders.is_empty() => {
                OpenError::InUse { path, holders }
            }
            outcome => return outcome,
        };
        is_let_go |= is_locked(path);
        if !is_let_go || Instant::now() >= deadline {
            return Err(error);
        }
        thread::sleep(LETTING_GO_INTERVAL);
    }
}

fn open_now(path: &Path, kind: Kind, options: &DeviceOptions) -> Result<Opened, OpenError> {
    let (file, buffered_because) = open_direct(path, kind, options)?;
    let locks = RangeLocks::new(file.try_clone().map_err(failed("open", path))?);
    let writer = match options.access {
        DeviceAccess::Write => Some(claim(path, &locks)?),
        DeviceAccess::Read => None,
    };
    Ok(Opened { file, buffered_because, locks, writer })
}

/// Opened with O_DIRECT, or without it and why.
fn open_direct(
    path: &Path,
    kind: Kind,
    options: &DeviceOptions,
) -> Result<(File, Option<String>), OpenError> {
    let writable = options.access == DeviceAccess::Write;
    let exclusive = writable && kind == Kind::BlockDevice;
    let open = |direct| block::open(path, How { writable, direct, exclusive });
    let buffered = |why: String| match open(false) {
        Ok(file) => Ok((file, Some(why))),
        Err(error) => Err(refused(path, options.access, error)),
    };
    if options.buffered {
        return buffered("it was asked for".into());
    }
    let file = match open(true) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
            return buffered("the file system has no direct I/O".into());
        }
        Err(error) => return Err(refused(path, options.access, error)),
    };
    match block::direct_io(&file).map_err(failed("look at", path))? {
        Ok(()) => Ok((file, None)),
        Err(why) => {
            // A block device is given to one opening at a time.
            drop(file);
            buffered(why)
        }
    }
}

fn refused(path: &Path, access: DeviceAccess, error: io::Error) -> OpenError {
    match (error.kind(), access) {
        (io::ErrorKind::ResourceBusy, DeviceAccess::Write) => {
            let holders = File::open(path).map(|file| RangeLocks::new(file).holders(WRITER));
            OpenError::InUse { path: path.into(), holders: holders.unwrap_or_default() }
        }
        (_, DeviceAccess::Write) => failed("open for writing", path)(error),
        (_, DeviceAccess::Read) => failed("open", path)(error),
    }
}

/// Returns true if somebody has locked the file for writing.
fn is_locked(path: &Path) -> bool {
    let locked = File::open(path).and_then(|file| RangeLocks::new(file).is_held_elsewhere(WRITER));
    locked.unwrap_or(false)
}

fn claim(path: &Path, locks: &Arc<RangeLocks>) -> Result<RangeLock, OpenError> {
    match locks.exclude(WRITER).map_err(failed("lock", path))? {
        Some(lock) => Ok(lock),
        None => Err(OpenError::InUse { path: path.into(), holders: locks.holders(WRITER) }),
    }
}

fn engine(options: &DeviceOptions) -> Result<IoEngine, OpenError> {
    match (options.engine, IoEngine::choose()) {
        (Some(IoEngine::Threads), _) => Ok(IoEngine::Threads),
        (Some(IoEngine::Uring), (_, Some(source))) => Err(OpenError::NoUring { source }),
        (_, (engine, refusal)) => {
            if let Some(error) = refusal {
                tracing::info!("I/O is done by threads, io_uring is refused: {error}");
            }
            Ok(engine)
        }
    }
}

fn failed(doing: &'static str, path: &Path) -> impl Fn(io::Error) -> OpenError {
    let path = PathBuf::from(path);
    move |source| OpenError::Io { path: path.clone(), doing, source }
}

fn directory_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}
