//! The store's threads: one makes what was put durable, one makes tables of it, and one merges them. A merge
//! takes seconds, in which memory tables must not wait to become tables.

use std::panic::{self, AssertUnwindSafe};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use bindery_pool::pace::Pace;

use crate::compact;
use crate::course::MergeCourse;
use crate::error::StoreError;
use crate::merge::Entry;
use crate::shelf::Shelf;
use crate::store::Shared;
use crate::table::Table;

/// How long what was put may wait in memory.
const JOURNAL_INTERVAL: Duration = Duration::from_millis(10);

/// How many times as many root tables there may be as are merged together. Then whoever fills a memory table
/// waits for a merge.
const ROOT_TABLES_BEHIND: usize = 4;

/// What threads wait for, and what they tell each other.
#[derive(Default)]
pub(crate) struct Bell {
    notes: Mutex<Notes>,
    rung: Condvar,
}

#[derive(Default)]
struct Notes {
    has_ended: bool,
    /// Who waits until all root tables are merged, however few.
    settling: usize,
    failed: Option<Arc<StoreError>>,
}

impl Notes {
    fn check(&self) -> Result<(), StoreError> {
        self.failed.as_ref().map_or(Ok(()), |error| Err(StoreError::Stopped(Arc::clone(error))))
    }
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

    /// Has root tables merged, however few, until what this gives is dropped: those too that come while
    /// others are merged.
    pub(crate) fn settle(&self) -> Settling<'_> {
        self.notes().settling += 1;
        self.rung.notify_all();
        Settling(self)
    }

    fn fail(&self, error: StoreError) {
        // The first says why; those that follow, that it has.
        self.notes().failed.get_or_insert_with(|| Arc::new(error));
        self.rung.notify_all();
    }

    /// Returns true while somebody waits for merges, or the threads are to end.
    pub(crate) fn is_pressing(&self) -> bool {
        let notes = self.notes();
        notes.settling > 0 || notes.has_ended
    }

    /// Whether the threads go on.
    pub(crate) fn has_not_failed(&self) -> Result<(), StoreError> {
        self.notes().check()
    }

    /// Waits until there is something to do; false once threads are to end.
    fn await_work(&self, has_work: impl Fn(&Notes) -> bool) -> bool {
        let is_idle = |notes: &mut Notes| !notes.has_ended && !has_work(notes);
        let notes = self.rung.wait_while(self.notes(), is_idle);
        !notes.unwrap_or_else(PoisonError::into_inner).has_ended
    }

    /// Waits until something holds, or the threads end, which then do nothing for it any more.
    pub(crate) fn await_that(&self, holds: impl Fn() -> bool) -> Result<(), StoreError> {
        let mut notes = self.notes();
        loop {
            notes.check()?;
            if notes.has_ended || holds() {
                return Ok(());
            }
            notes = self.rung.wait(notes).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Somebody waits until all root tables are merged.
pub(crate) struct Settling<'a>(&'a Bell);

impl Drop for Settling<'_> {
    fn drop(&mut self) {
        self.0.notes().settling -= 1;
    }
}

type Body = fn(&Shared) -> Result<(), StoreError>;

/// Starts them.
pub(crate) fn start(shared: &Arc<Shared>) -> Vec<JoinHandle<()>> {
    let bodies: [Body; 3] = [keep_journal, keep_flushed, keep_merged];
    bodies
        .map(|body| {
            let shared = Arc::clone(shared);
            thread::spawn(move || {
                // Whoever waits for a thread must hear of its end, whatever ended it.
                let ended = panic::catch_unwind(AssertUnwindSafe(|| body(&shared)));
                match ended.unwrap_or(Err(StoreError::Panicked)) {
                    Ok(()) => {}
                    Err(error) => shared.bell.fail(error),
                }
            })
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
        shared.sync()?;
    }
}

fn keep_flushed(shared: &Shared) -> Result<(), StoreError> {
    let root_tables_most = shared.options.root_tables_max * ROOT_TABLES_BEHIND;
    let has_work = |_: &Notes| {
        let state = shared.state();
        state.frozen.is_some() && state.root.len() < root_tables_most
    };
    while shared.bell.await_work(has_work) {
        flush(shared)?;
    }
    Ok(())
}

fn keep_merged(shared: &Shared) -> Result<(), StoreError> {
    let has_work = |notes: &Notes| {
        let root_tables = shared.state().root.len();
        let least = if notes.settling > 0 { 1 } else { shared.options.root_tables_max };
        root_tables >= least
    };
    while shared.bell.await_work(has_work) {
        merge(shared)?;
        shared.bell.ring();
    }
    Ok(())
}

/// Makes a root table of the frozen memory table.
fn flush(shared: &Shared) -> Result<(), StoreError> {
    let Some((number, frozen)) = shared.frozen() else { return Ok(()) };
    let mut pace = Pace::begin();
    let entries: Vec<Entry> = frozen.read(|entries| {
        let owned = entries.iter().map(|(key, value)| {
            pace.step();
            (key.to_vec(), value.as_deref().map(<[u8]>::to_vec))
        });
        owned.collect()
    });
    let (pool, mapper) = (&shared.pool, &*shared.mapper);
    let table = compact::root_table(pool, mapper, &shared.options, entries)?;
    shared.replace(|state| drop(state.root.splice(0..0, table)))?;
    // Frozen until its log is empty: the next table to be frozen makes room for one that uses this log.
    shared.journal.forget(number)?;
    shared.thaw();
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
    let course = MergeCourse::begin(shared, &state);
    let tables = (&*state.root, &*state.shelves);
    compact::compact(pool, mapper, &shared.options, tables, &mut replace, &|bytes| {
        course.wrote(bytes);
    })?;
    shared.replace(|changed| changed.root.truncate(changed.root.len() - state.root.len()))?;
    state.root.iter().try_for_each(|shelf| delete(shared, shelf))
}

/// Deletes the objects of a shelf; they stay until its readers are through.
fn delete(shared: &Shared, shelf: &Shelf) -> Result<(), StoreError> {
    let mut objects = shelf.tables.iter().flat_map(Table::objects);
    objects.try_for_each(|object| Ok(shared.pool.delete(object)?))
}
