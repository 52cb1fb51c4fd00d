//! The store, as its users see it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread::JoinHandle;

use bindery_pool::map::Temperature;
use bindery_pool::{MediaClass, ObjectId, OpenMdc, Pool};

use crate::block::{ENTRY_BYTES_MAX, Value};
use crate::compact;
use crate::error::StoreError;
use crate::journal::Journal;
use crate::keeper::{self, Bell};
use crate::manifest::{Manifest, TableObjects};
use crate::memory::MemoryTable;
use crate::merge::Entry;
use crate::options::Options;
use crate::shelf::{Mapper, Shelf};
use crate::state::State;
use crate::table::Table;

/// The length of each log of the pool's root MDC: some hundred lists of a thousand tables.
const MANIFEST_LOG_BYTES: u64 = 8 << 20;

/// What the user and the store's threads share.
pub(crate) struct Shared {
    pub(crate) pool: Arc<Pool>,
    pub(crate) mapper: Arc<dyn Mapper>,
    pub(crate) options: Options,
    pub(crate) journal: Journal,
    pub(crate) bell: Bell,
    manifest: Mutex<OpenMdc>,
    /// Its memory tables take turns while `number` is locked, the others while `manifest` is.
    state: RwLock<Arc<State>>,
    /// The number of the memory table that takes what is put.
    number: Mutex<u64>,
}

/// A store that is open. Its threads end when it is dropped; what they had not written is in the logs.
pub struct Tables {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Tables {
    /// Opens the store on a pool, or makes one where the pool has no root yet.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn open(
        pool: Arc<Pool>,
        mapper: Arc<dyn Mapper>,
        options: Options,
    ) -> Result<Self, StoreError> {
        let shared = match pool.root() {
            Some(root) => Shared::open(pool, mapper, options, root)?,
            None => Shared::create(pool, mapper, options)?,
        };
        let shared = Arc::new(shared);
        let threads = keeper::start(&shared);
        Ok(Self { shared, threads })
    }

    /// Puts a value in place of what the store has under a key. Waits if tables are made more slowly than
    /// they are filled. Durable after [`sync`](Self::sync), or some milliseconds later by itself.
    ///
    /// # Errors
    /// [`StoreError::TooLong`]; [`StoreError::Stopped`] if the store's threads have failed.
    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<(), StoreError> {
        self.shared.put(key, Some(value))
    }

    /// Takes a key out.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    pub fn delete(&self, key: &[u8]) -> Result<(), StoreError> {
        self.shared.put(key, None)
    }

    /// Appends the value of a key to `into`; whether there is one.
    ///
    /// # Errors
    /// If a table cannot be read.
    pub fn get(&self, key: &[u8], into: &mut Vec<u8>) -> Result<bool, StoreError> {
        let mut read = |value: Value<'_>| {
            into.extend_from_slice(value.unwrap_or_default());
            value.is_some()
        };
        Ok(self.shared.state().find(key, &mut read)?.unwrap_or(false))
    }

    /// Makes everything durable that was put. Blocks.
    ///
    /// # Errors
    /// If the logs cannot be written: then what was put since the last sync that succeeded may be lost,
    /// and each sync after it fails, too. [`StoreError::Stopped`] if the store's threads have failed, even
    /// if all that was put is in the logs.
    pub fn sync(&self) -> Result<(), StoreError> {
        self.shared.sync()?;
        self.shared.bell.has_not_failed()
    }

    /// Makes tables of everything and merges them, and waits for it.
    ///
    /// # Errors
    /// [`StoreError::Stopped`] if the store's threads fail.
    pub fn settle(&self) -> Result<(), StoreError> {
        self.shared.settle()
    }

    /// Fills an empty store with entries in the order of their keys, without a detour by the logs.
    ///
    /// # Errors
    /// [`StoreError::NotEmpty`], or what keeps tables from being written.
    pub fn fill(
        &self,
        entries: impl Iterator<Item = (Vec<u8>, Vec<u8>)>,
    ) -> Result<(), StoreError> {
        let shared = &self.shared;
        if !shared.state().is_empty() {
            return Err(StoreError::NotEmpty);
        }
        let mut entries = entries.map(|(key, value)| Ok::<Entry, _>((key, Some(value)))).peekable();
        let (pool, mapper) = (&shared.pool, &*shared.mapper);
        let shelves = compact::shelve(pool, mapper, &shared.options, &mut entries, &|_| ())?;
        shared.replace(|state| state.shelves = shelves)
    }
}

impl Drop for Tables {
    fn drop(&mut self) {
        self.shared.bell.end();
        // A thread that has panicked has said so.
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
        let _ = self.sync();
    }
}

impl Shared {
    fn create(
        pool: Arc<Pool>,
        mapper: Arc<dyn Mapper>,
        options: Options,
    ) -> Result<Self, StoreError> {
        // With two copies: without it, there is no store.
        let manifest = pool.create_root(MediaClass::Capacity, MANIFEST_LOG_BYTES, 2)?;
        Self::begin(pool, mapper, options, manifest)
    }

    /// Makes an empty store whose manifest is empty.
    fn begin(
        pool: Arc<Pool>,
        mapper: Arc<dyn Mapper>,
        options: Options,
        mut manifest: OpenMdc,
    ) -> Result<Self, StoreError> {
        let journal = Journal::create(&pool, options.class, options.memory_table_bytes)?;
        manifest.append(&State::default().manifest(journal.ids()).encode())?;
        manifest.sync()?;
        Ok(Self::of(pool, mapper, options, journal, manifest, State::default(), 0))
    }

    fn open(
        pool: Arc<Pool>,
        mapper: Arc<dyn Mapper>,
        options: Options,
        root: ObjectId,
    ) -> Result<Self, StoreError> {
        let mdc = pool.open_mdc(root)?;
        let Some(last) = mdc.records().last().transpose()? else {
            // A crash came between the root and its first record.
            return Self::begin(pool, mapper, options, mdc);
        };
        let manifest = Manifest::decode(&last).ok_or(StoreError::ForeignManifest)?;
        let (journal, memory) = Journal::open(&pool, manifest.logs)?;
        let shelf = |objects: &[TableObjects], temperature| {
            let tables = objects.iter().map(|objects| Table::open(&pool, *objects));
            Shelf::of(&*mapper, tables.collect::<Result<_, _>>()?, temperature).map(Arc::new)
        };
        let root = |objects| shelf(std::slice::from_ref(objects), Temperature::Pinned);
        let mut state = State {
            root: manifest.root.iter().map(root).collect::<Result<_, StoreError>>()?,
            shelves: manifest
                .shelves
                .iter()
                .map(|objects| shelf(objects, options.temperature))
                .collect::<Result<_, StoreError>>()?,
            ..State::default()
        };
        // What a crash left in the logs: the newer table takes what is put, the older becomes one of the
        // pool first.
        let mut number = 0;
        for (of, memory) in memory {
            number = of;
            if !state.memory.is_empty() {
                state.frozen = Some(std::mem::take(&mut state.memory));
            }
            state.memory = Arc::new(memory);
        }
        let shared = Self::of(pool, mapper, options, journal, mdc, state, number);
        if shared.state().frozen.is_some() {
            shared.bell.ring();
        }
        Ok(shared)
    }

    fn of(
        pool: Arc<Pool>,
        mapper: Arc<dyn Mapper>,
        options: Options,
        journal: Journal,
        manifest: OpenMdc,
        state: State,
        number: u64,
    ) -> Self {
        let (manifest, state) = (Mutex::new(manifest), RwLock::new(Arc::new(state)));
        let (bell, number) = (Bell::default(), Mutex::new(number));
        Self { pool, mapper, options, journal, bell, manifest, state, number }
    }

    /// The store at this moment.
    pub(crate) fn state(&self) -> Arc<State> {
        Arc::clone(&self.state.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn number(&self) -> MutexGuard<'_, u64> {
        self.number.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The frozen memory table and its number, if there is one.
    pub(crate) fn frozen(&self) -> Option<(u64, Arc<MemoryTable>)> {
        let number = self.number();
        Some((number.wrapping_sub(1), self.state().frozen.clone()?))
    }

    /// Ends the frozen memory table: the pool has it, and its log does not any more.
    pub(crate) fn thaw(&self) {
        let _number = self.number();
        self.change(|state| state.frozen = None);
    }

    /// Makes everything durable that was put. If that filled the log, it must have become tables first.
    pub(crate) fn sync(&self) -> Result<(), StoreError> {
        self.journal.drain()?;
        let number = *self.number();
        if self.journal.is_full(number) { self.freeze() } else { Ok(()) }
    }

    /// Changes what the store consists of; readers see all of it or nothing.
    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        let mut changed = (**state).clone();
        change(&mut changed);
        *state = Arc::new(changed);
    }

    /// Changes which tables there are, durably.
    pub(crate) fn replace(&self, change: impl FnOnce(&mut State)) -> Result<(), StoreError> {
        let mut manifest = self.manifest.lock().unwrap_or_else(PoisonError::into_inner);
        let mut changed = (*self.state()).clone();
        change(&mut changed);
        let record = changed.manifest(self.journal.ids()).encode();
        if manifest.used_bytes() + 2 * record.len() as u64 > MANIFEST_LOG_BYTES {
            manifest.compact(|writer| writer.append(&record))?;
        } else {
            manifest.append(&record)?;
            manifest.sync()?;
        }
        // Who puts does not wait for the device: memory tables may have taken turns meanwhile.
        let State { root, shelves, .. } = changed;
        self.change(|state| (state.root, state.shelves) = (root, shelves));
        Ok(())
    }

    fn put(&self, key: &[u8], value: Value<'_>) -> Result<(), StoreError> {
        let bytes = key.len() + value.map_or(0, <[u8]>::len);
        if bytes > ENTRY_BYTES_MAX {
            return Err(StoreError::TooLong { bytes });
        }
        let number = self.number();
        self.journal.put(*number, key, value);
        let memory_bytes = self.state().memory.put(key, value);
        if memory_bytes < self.options.memory_table_bytes {
            return Ok(());
        }
        drop(number);
        self.freeze()
    }

    /// Has the memory table become one of the pool, as soon as the one before it has.
    pub(crate) fn freeze(&self) -> Result<(), StoreError> {
        self.bell.await_that(|| self.state().frozen.is_none())?;
        let mut number = self.number();
        // Another may have been faster.
        let state = self.state();
        if state.frozen.is_none() && !state.memory.is_empty() {
            *number += 1;
            self.change(|state| state.frozen = Some(std::mem::take(&mut state.memory)));
        }
        self.bell.ring();
        Ok(())
    }

    fn settle(&self) -> Result<(), StoreError> {
        let _settling = self.bell.settle();
        self.freeze()?;
        self.bell.await_that(|| {
            let state = self.state();
            state.frozen.is_none() && state.root.is_empty()
        })
    }
}
