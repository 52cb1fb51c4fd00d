//! The keeper of checkpoints: pools that the daemon opens while somebody needs them.
//!
//! One process at a time has a pool open for writing. So a pool is opened with its first [`Lease`], and closed
//! some seconds after its last one has ended: then `bindery pool` and other processes can have it. Nothing that
//! reads or writes checkpoints outlives the lease that it was begun with.

pub(crate) mod board;
pub(crate) mod catalogue;
mod content;
pub(crate) mod create;
pub(crate) mod disks;
pub(crate) mod failure;
pub(crate) mod fork;
mod image;
pub(crate) mod keys;
mod layers;
pub(crate) mod memory_pools;
pub(crate) mod names;
mod overlay_file;
mod overlays;
pub(crate) mod pauses;
pub(crate) mod restore;
pub(crate) mod serve;
pub(crate) mod sources;
pub(crate) mod stream;
mod token;
pub(crate) mod trackers;
pub(crate) mod turns;
pub(crate) mod work;

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Deref;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bindery_checkpoint::{Name, Store, StoreOptions};
use bindery_pool::{Pool, scan_pools};
use bindery_sys::thread::spawn_without_signals;

use self::board::Board;
use self::catalogue::Visible;
use self::keys::Keyring;
use self::memory_pools::MemoryPools;
use crate::access::Rights;
use crate::protocol::{Failure, FailureKind};

/// Time after which a pool is closed that nobody uses.
const IDLE: Duration = Duration::from_secs(3);

/// Time between two looks at a pool that is in use; its last user is heard of at once.
const LONG: Duration = Duration::from_secs(3600);

/// Most pools that are open at once.
const POOLS_MAX: usize = 16;

/// Most paths of one pool.
const PATHS_MAX: usize = 256;

/// Paths of a pool: of its devices, or of directories with its files.
type Paths = Vec<PathBuf>;

/// Pools for checkpoints, by their ids: a pool is one, whatever paths lead to it.
pub(crate) struct Keeper {
    /// The pool that the configuration names.
    default: Option<Paths>,
    keys: Arc<Keyring>,
    /// Pools that forks have made, which everybody may name whose checkpoints are in them.
    memory: Option<Arc<MemoryPools>>,
    idle: Duration,
    board: Arc<Board>,
    pools: Mutex<BTreeMap<u128, Arc<KeptPool>>>,
}

/// A pool that is or was open.
struct KeptPool {
    state: Mutex<PoolState>,
    /// Notified when the last lease has ended.
    left: Condvar,
}

#[derive(Default)]
struct PoolState {
    store: Option<Store>,
    leases: usize,
    /// Time at which the last lease ended.
    left_at: Option<Instant>,
}

/// Use of an open pool, which stays open until this is dropped.
pub(crate) struct Lease {
    /// None while it is dropped.
    store: Option<Store>,
    pool: Arc<KeptPool>,
    id: u128,
    paths: Paths,
    keys: Arc<Keyring>,
    /// Board for what the pool has; none of a pool in memory, which lasts no longer than a fork.
    board: Option<Arc<Board>>,
}

impl Keeper {
    /// Keeps checkpoints in the pool at `default`, where no other is named.
    pub(crate) fn new(default: Option<PathBuf>, keys: Keyring) -> Self {
        Self::closing_after(default, keys, IDLE)
    }

    fn closing_after(default: Option<PathBuf>, keys: Keyring, idle: Duration) -> Self {
        let default = default.map(|path| vec![path]);
        let (keys, board) = (Arc::new(keys), Arc::default());
        Self { default, keys, memory: None, idle, board, pools: Mutex::default() }
    }

    /// Keeps checkpoints in pools in memory, too.
    pub(crate) fn with_memory(self, memory: Arc<MemoryPools>) -> Self {
        Self { memory: Some(memory), ..self }
    }

    fn is_in_memory(&self, paths: &Paths) -> bool {
        self.memory.as_ref().is_some_and(|memory| memory.contains(paths))
    }

    /// Opens the pool at `asked`, or the daemon's own, unless it is open. Blocks while its catalogue is read.
    ///
    /// # Errors
    /// `NoPool` if none is named or there is none; `Taken` if another process has it open; `Refused` if the
    /// operator may not name it.
    pub(crate) fn lease(&self, asked: Option<&[String]>, rights: Rights) -> Result<Lease, Failure> {
        let paths = self.choose(asked, rights)?;
        if let Some(memory) = &self.memory {
            memory.touch(&paths);
        }
        let id = identify(&paths)?;
        let pool = self.kept(id)?;
        let mut state = pool.lock();
        if state.store.is_none() {
            let store = open(&paths)?;
            self.keys.open_all(&store);
            state.store = Some(store);
            if let Err(error) = pool.close_when_idle(self.idle) {
                state.store = None;
                let message = format!("cannot start the thread that closes the pool: {error}");
                return Err(Failure::new(FailureKind::Failed, message));
            }
        }
        state.leases += 1;
        let store = state.store.clone();
        drop(state);
        let keys = Arc::clone(&self.keys);
        let board = (!self.is_in_memory(&paths)).then(|| Arc::clone(&self.board));
        Ok(Lease { store, pool, id, paths, keys, board })
    }

    /// Returns the board of the checkpoints that there are.
    pub(crate) const fn board(&self) -> &Arc<Board> {
        &self.board
    }

    /// Reads the catalogue of the daemon's own pool for the board, on a thread of its own. If the pool cannot be opened
    /// now, the board is written when it is used first.
    pub(crate) fn read_ahead(self: &Arc<Self>) {
        if self.default.is_none() {
            return;
        }
        let keeper = Arc::clone(self);
        let started = spawn_without_signals("keeper", move || {
            if let Err(failure) = keeper.lease(None, Rights::Owner) {
                tracing::info!("checkpoints are shown once their pool was used: {failure}");
            }
        });
        if let Err(error) = started {
            tracing::info!("checkpoints are shown once their pool was used: {error}");
        }
    }

    /// Returns the paths of the pool that is meant. The daemon opens what its own user may: so members name no
    /// other pool than the daemon's.
    fn choose(&self, asked: Option<&[String]>, rights: Rights) -> Result<Paths, Failure> {
        let Some(asked) = asked else {
            return self.default.clone().ok_or_else(no_pool);
        };
        let paths: Paths = asked.iter().map(PathBuf::from).collect();
        let is_possible =
            (1..=PATHS_MAX).contains(&paths.len()) && paths.iter().all(|path| path.is_absolute());
        if !is_possible {
            let message = format!("a pool is 1 to {PATHS_MAX} absolute paths of its devices");
            return Err(Failure::new(FailureKind::BadRequest, message));
        }
        // Their paths are not looked at, so that nothing shows whether there is such a file.
        let is_theirs = self.default.as_ref() == Some(&paths) || self.is_in_memory(&paths);
        if rights != Rights::Owner && !is_theirs {
            let message = "members of the group use the daemon's own pool: leave --pool out, or have \
                           root set checkpoint_pool";
            return Err(Failure::new(FailureKind::Refused, message));
        }
        Ok(paths)
    }

    /// Makes sure that a guest of a user with `rights` can be filled from a pool by a later daemon, too.
    ///
    /// # Errors
    /// `Refused`.
    pub(crate) fn check_finds(&self, lease: &Lease, rights: Rights) -> Result<(), Failure> {
        let is_theirs =
            self.default.as_ref() == Some(&lease.paths) || self.is_in_memory(&lease.paths);
        if rights == Rights::Owner || is_theirs {
            return Ok(());
        }
        let message = "guests of other users are restored from the daemon's own pool: export the checkpoint, and \
                       import it there";
        Err(Failure::new(FailureKind::Refused, message))
    }

    /// Returns the entry of a pool, open or not.
    fn kept(&self, id: u128) -> Result<Arc<KeptPool>, Failure> {
        let mut pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pool) = pools.get(&id) {
            return Ok(Arc::clone(pool));
        }
        // Nobody has those that are not open, and not about to be.
        pools.retain(|_, pool| Arc::strong_count(pool) > 1);
        if pools.len() >= POOLS_MAX {
            let message = format!("{POOLS_MAX} pools are open already: try again in some seconds");
            return Err(Failure::new(FailureKind::Busy, message));
        }
        let pool = Arc::new(KeptPool { state: Mutex::default(), left: Condvar::new() });
        pools.insert(id, Arc::clone(&pool));
        Ok(pool)
    }
}

/// Returns the id of the only pool at some paths. Reads its superblocks, also while it is open.
fn identify(paths: &Paths) -> Result<u128, Failure> {
    let scan = scan_pools(paths).map_err(|error| failure::of_path(&error))?;
    let shown = || {
        let paths: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
        paths.join(", ")
    };
    match (scan.pools.as_slice(), scan.unusable.first()) {
        ([pool], _) => Ok(pool.id),
        ([], Some((_, error))) => Err(failure::of_open(error)),
        ([], None) => {
            let message = format!("there is no pool at {}: see `bindery pool scan`", shown());
            Err(Failure::new(FailureKind::NoPool, message))
        }
        _ => {
            let message = format!("there are several pools at {}: name a device of one", shown());
            Err(Failure::new(FailureKind::NoPool, message))
        }
    }
}

fn failed(message: String) -> Failure {
    Failure::new(FailureKind::Failed, message)
}

fn no_pool() -> Failure {
    let message = "no pool for checkpoints is named: make one with `bindery pool create guests --capacity \
                   /srv/pool --size 200G`, and name it with --pool guests, or have the daemon use it with \
                   checkpoint_pool = \"/srv/pool\" in its configuration file (--checkpoint-pool /srv/pool)";
    Failure::new(FailureKind::NoPool, message)
}

fn open(paths: &Paths) -> Result<Store, Failure> {
    let pool = Pool::open(paths, None).map_err(|error| failure::of_path(&error))?;
    for damage in pool.healed() {
        tracing::warn!("{damage}: made good from the other copy");
    }
    let opened = Store::open(Arc::new(pool), StoreOptions::default());
    let store = opened.map_err(|error| failure::of_checkpoint(&error))?;
    if store.collected() > 0 {
        tracing::info!("{} objects of unfinished checkpoints were deleted", store.collected());
    }
    Ok(store)
}

impl KeptPool {
    fn lock(&self) -> MutexGuard<'_, PoolState> {
        // Each change is one assignment: a panic elsewhere leaves the state whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the thread that closes the pool when nobody has used it for `idle`.
    fn close_when_idle(self: &Arc<Self>, idle: Duration) -> std::io::Result<()> {
        let pool = Arc::clone(self);
        spawn_without_signals("keeper", move || {
            let mut state = pool.lock();
            loop {
                let idle_for = state.left_at.map_or(Duration::ZERO, |left| left.elapsed());
                if state.leases == 0 && state.left_at.is_some() && idle_for >= idle {
                    // Under the lock: whoever needs it next waits until it is closed.
                    state.store = None;
                    state.left_at = None;
                    return;
                }
                let is_left = state.leases == 0 && state.left_at.is_some();
                let patience = if is_left { idle.saturating_sub(idle_for) } else { LONG };
                let waited = pool.left.wait_timeout(state, patience);
                state = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
        })
        .map(drop)
    }
}

impl Lease {
    /// Opens a domain to write, or makes it.
    ///
    /// # Errors
    /// `Refused` if the daemon's keys are not the domain's.
    pub(crate) fn open_for_writing(&self, domain: &Name) -> Result<(), Failure> {
        self.keys.open_for_writing(self, domain)
    }

    /// Returns the paths that the pool was asked for by.
    pub(crate) fn paths(&self) -> &[PathBuf] {
        &self.paths
    }

    /// Returns the id of the pool, by which it is known whatever paths lead to it.
    pub(crate) const fn pool_id(&self) -> u128 {
        self.id
    }
}

impl Deref for Lease {
    type Target = Store;

    fn deref(&self) -> &Store {
        self.store.as_ref().expect("it is there until the lease is dropped")
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // First, so that the pool is closed by its thread and not here.
        if let (Some(store), Some(board)) = (self.store.take(), &self.board) {
            board.set(self.id, store.list().into_iter().map(Visible::new).collect());
        }
        let mut state = self.pool.lock();
        state.leases -= 1;
        state.left_at = Some(Instant::now());
        drop(state);
        self.pool.left.notify_all();
    }
}

impl fmt::Debug for Keeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keeper").field("default", &self.default).finish_non_exhaustive()
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
