//! Pools in memory: what a fork's children are filled from, on tmpfs, for as long as any of them lacks pages.
//!
//! A pool is a directory of its own below that of the daemon, `/dev/shm/bindery-UID-SOCKET`, and is opened by its path
//! like any other pool. So guests name it to the next daemon, which goes on with it. It holds the pool's file and
//! one record for each guest that is filled from it: a file called after the guest's process, which holds the time at
//! which that process began, since numbers come again. The pool goes when no record is left of a process that lives,
//! once its operator has released it or has not used it for [`IDLE`]. A record outlives the daemon, so that no guest
//! loses memory that only a pool has.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bindery_pool::{CreateOptions, DevicePath, MediaClass, Pool};
use bindery_sys::process::effective_user;

use super::pauses::began;
use super::{failed, failure};
use crate::protocol::{Failure, FailureKind};

/// File system of the pools.
const FILE_SYSTEM: &str = "/dev/shm";

/// `f_type` of tmpfs (statfs(2)).
const TMPFS: i64 = 0x0102_1994;

/// Time after which a pool goes that nobody uses and nobody has released, as after the end of its operator.
const IDLE: Duration = Duration::from_secs(600);

/// Time within which a guest that comes back reports that it lacks pages.
const REPORT_PATIENCE: Duration = Duration::from_secs(5);

/// Length of each log of a pool's catalogue, in bytes: a checkpoint has some thousand objects at most.
const CATALOGUE_BYTES: u64 = 1 << 20;

/// Room for packs that are begun and for pages that a guest writes meanwhile: a share of it is used.
const SLACK_BYTES: u64 = 256 << 20;

/// Pools in memory of one daemon and those before it.
#[derive(Debug)]
pub(crate) struct MemoryPools {
    directory: PathBuf,
    /// Pools by their directories.
    table: Mutex<BTreeMap<PathBuf, MemoryPool>>,
}

/// One pool.
#[derive(Debug)]
struct MemoryPool {
    stage: Stage,
    used: Instant,
    /// Times since when guests with a record were seen connected and whole.
    whole: BTreeMap<i32, Instant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// A guest is about to be captured into it.
    Made,
    /// Guests may be started from it.
    Offered,
    /// No more guests are started from it.
    Released,
}

/// A pool that goes when this is dropped, unless it is [offered](NewPool::offer).
#[derive(Debug)]
pub(crate) struct NewPool {
    pools: Arc<MemoryPools>,
    directory: PathBuf,
}

/// Memory that a pool may take, in bytes.
#[derive(Clone, Copy, Debug)]
struct Room {
    /// Left on the file system.
    file_system: u64,
    /// Left on the machine without swapping.
    machine: u64,
    /// Left by the limits of the daemon's cgroups.
    limit: Option<u64>,
}

impl MemoryPools {
    /// Takes over the pools that earlier daemons of `socket` have left. Those that no guest needs go after some time.
    pub(crate) fn prepare(socket: &Path) -> Self {
        Self::below(Path::new(FILE_SYSTEM), socket)
    }

    fn below(file_system: &Path, socket: &Path) -> Self {
        let socket = std::path::absolute(socket).unwrap_or_else(|_| socket.into());
        let socket = socket.to_string_lossy().replace('/', "+");
        let directory = file_system.join(format!("bindery-{}{socket}", effective_user()));
        let pools = Self { directory, table: Mutex::default() };
        if pools.check().is_ok() {
            pools.adopt();
        }
        pools
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<PathBuf, MemoryPool>> {
        // Each change is one insertion, removal or assignment: a panic elsewhere leaves the table whole.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes sure that the directory is this user's own, and nobody else reaches into it.
    fn check(&self) -> io::Result<()> {
        let found = fs::symlink_metadata(&self.directory)?;
        if !found.is_dir() || found.uid() != effective_user() || found.mode() & 0o077 != 0 {
            let message = format!(
                "{} is no directory of this daemon's user alone: remove it",
                self.directory.display()
            );
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, message));
        }
        Ok(())
    }

    fn adopt(&self) {
        for entry in fs::read_dir(&self.directory).into_iter().flatten().flatten() {
            // Whoever forked has lost the daemon, and starts no more children. Those that run have records.
            let pool = MemoryPool::new(Stage::Released);
            tracing::info!("{} was left by an earlier daemon", entry.path().display());
            self.lock().insert(entry.path(), pool);
        }
    }

    /// Makes a pool for the fork of a guest that has up to `bytes` of memory that is not zero. Nothing is written into
    /// it yet.
    ///
    /// # Errors
    /// `Refused` if memory is short; `Failed`.
    pub(crate) fn make(self: &Arc<Self>, guest: &str, bytes: u64) -> Result<NewPool, Failure> {
        let file_system = self.directory.parent().unwrap_or(&self.directory);
        require_room(guest, bytes, Room::read(file_system).map_err(of_room)?)?;
        let letters = guest.chars().take(32);
        let letters: String =
            letters.map(|it| if it.is_ascii_alphanumeric() { it } else { '_' }).collect();
        let drawn = RandomState::new().hash_one(std::process::id());
        let directory = self.directory.join(format!("{letters}-{drawn:016x}"));
        // Before anything of it is there, so that all of it goes.
        self.lock().insert(directory.clone(), MemoryPool::new(Stage::Made));
        let new = NewPool { pools: Arc::clone(self), directory };
        new.create(bytes)?;
        Ok(new)
    }

    fn prepare_directory(&self) -> io::Result<()> {
        match DirBuilder::new().mode(0o700).create(&self.directory) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        self.check()
    }

    /// Returns true if these are the paths of one of the pools.
    pub(crate) fn contains(&self, paths: &[PathBuf]) -> bool {
        matches!(paths, [path] if self.lock().contains_key(path))
    }

    /// Notes that somebody uses a pool, if it is one of these.
    pub(crate) fn touch(&self, paths: &[PathBuf]) {
        if let [path] = paths
            && let Some(pool) = self.lock().get_mut(path)
        {
            pool.used = Instant::now();
        }
    }

    /// Records that a guest is about to be filled from a pool.
    ///
    /// # Errors
    /// `Failed` if no record can be written: a later daemon might remove the pool.
    pub(crate) fn note_filled(&self, paths: &[PathBuf], pid: i32) -> Result<(), Failure> {
        let [path] = paths else { return Ok(()) };
        let mut table = self.lock();
        let Some(pool) = table.get_mut(path) else { return Ok(()) };
        pool.whole.remove(&pid);
        let record = path.join(pid.to_string());
        let written = fs::write(&record, began(pid).unwrap_or_default().to_string());
        written.map_err(|error| failed(format!("cannot write {}: {error}", record.display())))
    }

    /// Removes the record of a guest that needs its pool no more.
    pub(crate) fn note_whole(&self, paths: &[PathBuf], pid: i32) {
        if let [path] = paths
            && self.lock().contains_key(path)
        {
            remove_file(&path.join(pid.to_string()));
            self.expire(|_| false);
        }
    }

    /// Notes that no more guests are started from a pool. Returns false if there is none at the path.
    pub(crate) fn release(&self, path: &Path) -> bool {
        let is_there = match self.lock().get_mut(path) {
            Some(pool) => {
                pool.stage = Stage::Released;
                true
            }
            None => false,
        };
        self.expire(|_| false);
        is_there
    }

    /// Removes pools that nobody needs. `is_whole` returns true of a process whose guest is connected and lacks no
    /// page, as far as it is known.
    pub(crate) fn expire(&self, is_whole: impl Fn(i32) -> bool) {
        let mut table = self.lock();
        let count = table.len();
        table.retain(|path, pool| {
            let is_over = match pool.stage {
                Stage::Made => false,
                Stage::Offered => pool.used.elapsed() > IDLE,
                Stage::Released => true,
            };
            let is_needed = !is_over || pool.is_filling(path, &is_whole);
            if !is_needed {
                remove(path);
            }
            is_needed
        });
        if count > 0 {
            self.remove_if_empty(&table);
        }
    }

    /// Removes the directory of all pools with the last of them. One that is about to be made is in the table.
    fn remove_if_empty(&self, table: &BTreeMap<PathBuf, MemoryPool>) {
        if table.is_empty() {
            report(&self.directory, fs::remove_dir(&self.directory));
        }
    }
}

impl MemoryPool {
    fn new(stage: Stage) -> Self {
        Self { stage, used: Instant::now(), whole: BTreeMap::new() }
    }

    /// Returns true if a guest is or may be filled from the pool at `path`. Removes records of others.
    fn is_filling(&mut self, path: &Path, is_whole: &impl Fn(i32) -> bool) -> bool {
        let mut is_filling = false;
        for entry in fs::read_dir(path).into_iter().flatten().flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            let recorded = fs::read_to_string(entry.path()).ok();
            let recorded = recorded.and_then(|text| text.parse().ok());
            let lives = recorded.is_some() && began(pid) == recorded;
            if !is_whole(pid) {
                self.whole.remove(&pid);
            } else if self.whole.entry(pid).or_insert_with(Instant::now).elapsed() > REPORT_PATIENCE
            {
                remove_file(&entry.path());
                continue;
            }
            if lives {
                is_filling = true;
            } else {
                remove_file(&entry.path());
            }
        }
        is_filling
    }
}

impl NewPool {
    fn create(&self, bytes: u64) -> Result<(), Failure> {
        let made = self.pools.prepare_directory();
        let made = made.and_then(|()| DirBuilder::new().mode(0o700).create(&self.directory));
        let failed = |error| failed(format!("cannot make {}: {error}", self.directory.display()));
        made.map_err(failed)?;
        // The file is sparse; its length is the most that can ever be in it.
        let bytes = (most(bytes) + SLACK_BYTES).next_multiple_of(1 << 20);
        let path = self.directory.clone();
        let device = DevicePath { path, class: MediaClass::Capacity, bytes: Some(bytes) };
        let options = CreateOptions { force: false, catalogue_bytes: Some(CATALOGUE_BYTES) };
        let name = "fork".parse().expect("it is a name");
        Pool::create(&name, &[device], &options).map(drop).map_err(|error| failure::of_path(&error))
    }

    /// Returns the path by which the pool is opened, in the one entry that [`Keeper::lease`](super::Keeper) takes.
    pub(crate) fn paths(&self) -> [String; 1] {
        [self.directory.display().to_string()]
    }

    /// Keeps the pool until it is released, or nobody uses it.
    pub(crate) fn offer(&self) {
        if let Some(pool) = self.pools.lock().get_mut(&self.directory) {
            (pool.stage, pool.used) = (Stage::Offered, Instant::now());
        }
    }
}

impl Drop for NewPool {
    fn drop(&mut self) {
        let mut table = self.pools.lock();
        if table.get(&self.directory).is_some_and(|pool| pool.stage == Stage::Made) {
            table.remove(&self.directory);
            remove(&self.directory);
            self.pools.remove_if_empty(&table);
        }
    }
}

impl Room {
    fn read(directory: &Path) -> io::Result<Self> {
        let found = rustix::fs::statfs(directory)?;
        if found.f_type as i64 != TMPFS {
            let message =
                format!("{} is no tmpfs: mount one at {FILE_SYSTEM}", directory.display());
            return Err(io::Error::new(io::ErrorKind::Unsupported, message));
        }
        let block_bytes = found.f_bsize as u64;
        // One that is mounted without a size has no blocks, and no limit of its own.
        let file_system = match found.f_blocks {
            0 => u64::MAX,
            _ => found.f_bavail.saturating_mul(block_bytes),
        };
        let machine = bindery_sys::memory::MachineMemory::read()?.available_bytes;
        let own = std::process::id().cast_signed();
        let limit = bindery_sys::cgroup::memory_left(own).map(|left| left.bytes);
        Ok(Self { file_system, machine, limit })
    }
}

/// Returns the most memory that a fork of a guest takes, whose memory that is not zero is so many bytes.
const fn most(bytes: u64) -> u64 {
    // Digests and tables are 2%; the guest runs on, and what it writes meanwhile is stored once more.
    bytes + bytes / 16 + (32 << 20)
}

fn require_room(guest: &str, bytes: u64, room: Room) -> Result<(), Failure> {
    let needed = most(bytes);
    let places = [
        (room.file_system, "left on /dev/shm: mount it with more (size=)"),
        (room.machine, "left on this machine: end something, or move a guest"),
        (
            room.limit.unwrap_or(u64::MAX),
            "left within the daemon's own memory limit: raise it (MemoryMax=)",
        ),
    ];
    let Some((left, what)) = places.into_iter().find(|(left, _)| *left < needed) else {
        return Ok(());
    };
    let mib = |bytes: u64| bytes.div_ceil(1 << 20);
    let message = format!(
        "a fork of {guest} takes up to {} MiB of memory until its children have theirs, and only {} MiB are {what}; \
         or clone a checkpoint, which takes none",
        mib(needed),
        left >> 20
    );
    Err(Failure::new(FailureKind::Refused, message))
}

fn of_room(error: io::Error) -> Failure {
    failed(format!("it cannot be found out how much memory is left: {error}"))
}

fn remove_file(path: &Path) {
    report(path, fs::remove_file(path));
}

/// Removes a pool. Its memory is free once nobody has it open.
fn remove(path: &Path) {
    report(path, fs::remove_dir_all(path));
}

fn report(path: &Path, removed: io::Result<()>) {
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::error!("{} stays, and takes memory: remove it: {error}", path.display());
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pools(file_system: &Path) -> Arc<MemoryPools> {
        Arc::new(MemoryPools::below(file_system, Path::new("/run/b.sock")))
    }

    /// A directory on tmpfs, or none where this machine has no tmpfs there.
    fn on_tmpfs() -> Option<tempfile::TempDir> {
        let directory = tempfile::Builder::new().prefix("bindery-test-").tempdir_in(FILE_SYSTEM);
        directory.ok().filter(|directory| Room::read(directory.path()).is_ok())
    }

    fn left(pools: &MemoryPools) -> usize {
        fs::read_dir(&pools.directory).map_or(0, Iterator::count)
    }

    #[test]
    fn a_pool_stays_while_a_process_is_filled_from_it() {
        let Some(directory) = on_tmpfs() else { return };
        let pools = pools(directory.path());
        let own = std::process::id().cast_signed();
        drop(pools.make("web", 1 << 20).unwrap());
        assert_eq!(left(&pools), 0, "one that was not offered");
        let new = pools.make("web", 1 << 20).unwrap();
        let paths = [PathBuf::from(&new.paths()[0])];
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!(mode(&paths[0]), 0o700);
        let file = fs::read_dir(&paths[0]).unwrap().flatten().next().unwrap();
        assert_eq!(mode(&file.path()), 0o600);
        new.offer();
        drop(new);
        assert!(pools.contains(&paths) && !pools.contains(&["/srv/pool".into()]));
        pools.note_filled(&paths, own).unwrap();
        assert!(pools.release(&paths[0]));
        pools.expire(|_| true);
        assert_eq!(left(&pools), 1, "its report may be on its way");
        // The next daemon finds it.
        let next = self::pools(directory.path());
        assert!(next.contains(&paths));
        next.release(&paths[0]);
        assert_eq!(left(&next), 1);
        next.note_whole(&paths, own);
        assert_eq!(left(&next), 0);
        assert!(!next.release(&paths[0]));
    }

    #[test]
    fn records_of_processes_that_are_gone_keep_nothing() {
        let Some(directory) = on_tmpfs() else { return };
        let pools = pools(directory.path());
        let new = pools.make("web", 1 << 20).unwrap();
        new.offer();
        let path = PathBuf::from(&new.paths()[0]);
        fs::write(path.join(i32::MAX.to_string()), "1").unwrap();
        let own = std::process::id().cast_signed();
        let earlier = began(own).unwrap() - 1;
        fs::write(path.join(own.to_string()), earlier.to_string()).unwrap();
        pools.expire(|_| false);
        assert_eq!(left(&pools), 1, "it is in use");
        pools.release(&path);
        assert_eq!(left(&pools), 0);
    }

    #[test]
    fn a_fork_is_refused_where_memory_is_short() {
        let gib = 1 << 30;
        let room = |file_system, machine, limit| Room { file_system, machine, limit };
        require_room("web", gib, room(2 * gib, 2 * gib, None)).unwrap();
        for (room, named) in [
            (room(gib, 2 * gib, None), "/dev/shm"),
            (room(2 * gib, gib, None), "this machine"),
            (room(2 * gib, 2 * gib, Some(gib)), "MemoryMax"),
        ] {
            let failure = require_room("web", gib, room).unwrap_err();
            assert_eq!(failure.kind, FailureKind::Refused);
            assert!(failure.message.contains(named), "{failure}");
            assert!(failure.message.contains("1120 MiB"), "{failure}");
        }
    }

    #[test]
    fn a_directory_of_others_is_not_used() {
        let Some(directory) = on_tmpfs() else { return };
        let pools = pools(directory.path());
        fs::write(&pools.directory, "").unwrap();
        let failure = pools.make("web", 0).unwrap_err();
        assert!(failure.message.contains("bindery-"), "{failure}");
    }
}
