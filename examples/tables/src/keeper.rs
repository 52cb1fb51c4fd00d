//! The store's two threads: one makes what was put durable, the other makes tables and merges them.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::compact;
use crate::error::StoreError;
use crate::merge::Entry;
use crate::shelf::Shelf;
use crate::store::Shared;
use crate::table::Table;

/// How long what was put may wait in memory.
const JOURNAL_INTERVAL: Duration = Duration::from_millis(10);

/// What threads wait for, and what they tell each other.
#[derive(Default)]
pub(crate) struct Bell {
    notes: Mutex<Notes>,
    rung: Condvar,
}

#[derive(Default)]
struct Notes {
    has_ended: bool,
    /// Root tables are merged, however few.
    must_merge: bool,
    failed: Option<Arc<StoreError>>,
}

impl Bell {
    fn notes(&self) -> MutexGuard<'_, Notes> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has everybody look again.
    pub(crate) fn ring(&self) {
        drop(self.notes());
        self.rung.notify_all();
    }

    /// Ends the threads.
    pub(crate) fn end(&self) {
        self.notes().has_ended = true;
        self.rung.notify_all();
    }

    pub(crate) fn ask_to_merge(&self) {
        self.notes().must_merge = true;
        self.rung.notify_all();
    }

    fn fail(&self, error: StoreError) {
        self.notes().failed = Some(Arc::new(error));
        self.rung.notify_all();
    }

    /// Waits until something holds.
    pub(crate) fn await_that(&self, holds: impl Fn() -> bool) -> Result<(), StoreError> {
        let mut notes = self.notes();
        loop {
            if let Some(error) = &notes.failed {
                return Err(StoreError::Stopped(Arc::clone(error)));
            }
            if holds() {
                return Ok(());
            }
            notes = self.rung.wait(notes).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

type Body = fn(&Shared) -> Result<(), StoreError>;

/// Starts both.
pub(crate) fn start(shared: &Arc<Shared>) -> Vec<JoinHandle<()>> {
    let bodies: [Body; 2] = [keep_journal, keep_tables];
    bodies
        .map(|body| {
            let shared = Arc::clone(shared);
            thread::spawn(move || body(&shared).unwrap_or_else(|error| shared.bell.fail(error)))
        })
        .into()
}

fn keep_journal(shared: &Shared) -> Result<(), StoreError> {
    loop {
        let notes = shared.bell.notes();
        let wait =
            shared.bell.rung.wait_timeout_while(notes, JOURNAL_INTERVAL, |notes| !notes.has_ended);
        if wait.unwrap_or_else(PoisonError::into_inner).0.has_ended {
            return Ok(());
        }
        if shared.journal.drain()? && shared.state().frozen.is_none() {
            shared.freeze()?;
        }
    }
}

fn keep_tables(shared: &Shared) -> Result<(), StoreError> {
    loop {
        let has_work = |must_merge: bool| {
            let state = shared.state();
            state.frozen.is_some()
                || state.root.len() >= shared.options.root_tables_max
                || must_merge && !state.root.is_empty()
        };
        let is_idle = |notes: &mut Notes| !notes.has_ended && !has_work(notes.must_merge);
        let notes = shared.bell.rung.wait_while(shared.bell.notes(), is_idle);
        let mut notes = notes.unwrap_or_else(PoisonError::into_inner);
        // Taken before the work: who asks while it goes on asks for what comes after it.
        let must_merge = std::mem::take(&mut notes.must_merge);
        let has_ended = notes.has_ended;
        drop(notes);
        if has_ended {
            return Ok(());
        }
        flush(shared)?;
        if must_merge || shared.state().root.len() >= shared.options.root_tables_max {
            merge(shared)?;
        }
        shared.bell.ring();
    }
}

/// Makes a root table of the frozen memory table.
fn flush(shared: &Shared) -> Result<(), StoreError> {
    let Some(frozen) = shared.state().frozen.clone() else { return Ok(()) };
    let entries = frozen.read(|entries| {
        let owned =
            entries.iter().map(|(key, value)| (key.to_vec(), value.as_deref().map(<[u8]>::to_vec)));
        owned.collect::<Vec<Entry>>()
    });
    let (pool, mapper) = (&shared.pool, &*shared.mapper);
    let table = compact::root_table(pool, mapper, &shared.options, entries.into_iter())?;
    shared.replace(|state| {
        state.frozen = None;
        state.root.splice(0..0, table);
    })?;
    shared.journal.forget(shared.frozen_number())?;
    shared.bell.ring();
    Ok(())
}

/// Merges all root tables that there are now into the shelves.
fn merge(shared: &Shared) -> Result<(), StoreError> {
    let state = shared.state();
    let mut replace = |old: Option<&Arc<Shelf>>, new: Vec<Arc<Shelf>>| {
        shared.replace(|state| {
            let is_old = |shelf: &Arc<Shelf>| old.is_some_and(|old| Arc::ptr_eq(old, shelf));
            let at = state.shelves.iter().position(is_old);
            let range = at.map_or(0..0, |at| at..at + 1);
            state.shelves.splice(range, new);
        })?;
        old.map_or(Ok(()), |old| delete(shared, old))
    };
    let (pool, mapper) = (&shared.pool, &*shared.mapper);
    compact::compact(pool, mapper, &shared.options, &state.root, &state.shelves, &mut replace)?;
    shared.replace(|changed| changed.root.truncate(changed.root.len() - state.root.len()))?;
    state.root.iter().try_for_each(|shelf| delete(shared, shelf))
}

/// Deletes the objects of a shelf; they stay until its readers are through.
fn delete(shared: &Shared, shelf: &Shelf) -> Result<(), StoreError> {
    let mut objects = shelf.tables.iter().flat_map(Table::objects);
    objects.try_for_each(|object| Ok(shared.pool.delete(object)?))
}
