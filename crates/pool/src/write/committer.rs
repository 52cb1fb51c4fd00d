//! Objects that are committed while the next ones are written.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};

use super::commit::{CommitError, Outcome, Sealed, Written, commit_all};
use super::writer::{AppendError, Writer};
use crate::mblock::Committed;
use crate::session::PoolSession;

/// Number of uncommitted objects at which whoever hands in more waits: then the device, or its
/// syncs, are what is slow.
const MOST_WAITING: usize = 1024;

/// An object behind which so much is on its way has been written, or is about to be: to wait for it
/// leaves the device with work.
const UNDER_WAY_BYTES: u64 = 8 << 20;

/// Number of objects on their way at which the oldest is waited for: each has a queue, which is a descriptor, and those of a process are
/// few.
const UNDER_WAY_OBJECTS: usize = 16;

/// Commits objects while their writer goes on with the next ones, those that wait at the same time with
/// the same two syncs. So a device is kept busy by one thread that writes one object after the other,
/// however long its syncs take.
///
/// What a commit promises is the same: an object is durable before it is visible, and an outcome that
/// is no error is of one that is both. In what order objects become visible is not promised.
///
/// Dropping it waits until all are committed, and forgets the outcomes.
#[derive(Debug)]
pub struct Committer {
    session: Arc<PoolSession>,
    shared: Arc<Shared>,
    /// There until it is dropped.
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Objects that may not be written yet, the oldest first.
    sealed: VecDeque<Sealed>,
    /// Objects that are written.
    written: Vec<Written>,
    /// Handed in, and without an outcome.
    waiting: usize,
    outcomes: Vec<Outcome>,
    is_closed: bool,
    /// Nothing will be committed any more.
    has_ended: bool,
}

/// Wakes those who wait when the thread has ended, also where it panicked.
struct End<'a>(&'a Shared);

impl Committer {
    /// Starts its thread.
    pub(crate) fn start(session: Arc<PoolSession>) -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let own = Arc::clone(&shared);
        let thread = thread::Builder::new().name("pool-commit".into());
        let thread = Some(thread.spawn(move || own.commit_all())?);
        Ok(Self { session, shared, thread })
    }

    /// Hands in an object that is to be committed. Begins to write what is left of it, and blocks while
    /// the device is behind; waits for no sync, unless 1024 objects are waiting for theirs.
    ///
    /// # Errors
    /// See [`CommitError`]. The object is aborted then, and has no other outcome.
    ///
    /// # Panics
    /// If the object is another pool's, or the thread that commits has panicked.
    pub fn commit(&self, writer: Writer) -> Result<(), CommitError> {
        assert!(Arc::ptr_eq(&self.session, &writer.session), "{writer:?} is another pool's");
        let sealed = writer.seal()?;
        let mut state = self.shared.room().expect("the thread that commits has not panicked");
        state.waiting += 1;
        state.sealed.push_back(sealed);
        let older = state.take_older();
        drop(state);
        self.shared.changed.notify_all();
        for sealed in older {
            let ended = sealed.end();
            self.shared.state().note(ended);
            self.shared.changed.notify_all();
        }
        Ok(())
    }

    /// Returns the outcomes since the last call, in any order.
    ///
    /// In a child of the process that opened the pool this is one error: what became of them the parent knows.
    #[must_use = "nothing else says which objects were lost"]
    pub fn outcomes(&self) -> Vec<Result<Arc<Committed>, CommitError>> {
        if let Err(error) = self.session.check_here() {
            return vec![Err(AppendError::from(error).into())];
        }
        std::mem::take(&mut self.shared.state().outcomes)
    }

    /// Waits until all objects that were handed in are committed, or could not be. Returns the
    /// outcomes that were not returned before, in any order.
    #[must_use = "nothing else says which objects were lost"]
    pub fn finish(mut self) -> Vec<Result<Arc<Committed>, CommitError>> {
        self.close();
        self.outcomes()
    }

    fn close(&mut self) {
        if self.session.check_here().is_err() {
            // The thread is the parent's; to detach it would be to write to its memory.
            return std::mem::forget(self.thread.take());
        }
        self.shared.state().is_closed = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take()
            && let Err(panic) = thread.join()
            && !thread::panicking()
        {
            std::panic::resume_unwind(panic);
        }
    }
}

impl Drop for Committer {
    fn drop(&mut self) {
        self.close();
    }
}

impl Shared {
    /// Commits what comes, until no more does: all that has come while the last were committed.
    fn commit_all(&self) {
        let _end = End(self);
        while let Some((sealed, mut group)) = self.next() {
            for ended in sealed.into_iter().map(Sealed::end) {
                match ended {
                    Ok(written) => group.push(written),
                    failed => self.state().note(failed),
                }
            }
            let outcomes = commit_all(group);
            let mut state = self.state();
            state.waiting -= outcomes.len();
            state.outcomes.extend(outcomes);
            drop(state);
            self.changed.notify_all();
        }
    }

    /// All that has come, once something has; none if nothing will any more.
    fn next(&self) -> Option<(VecDeque<Sealed>, Vec<Written>)> {
        let mut state = self.state();
        while state.sealed.is_empty() && state.written.is_empty() {
            if state.is_closed {
                return None;
            }
            state = self.wait(state);
        }
        Some((std::mem::take(&mut state.sealed), std::mem::take(&mut state.written)))
    }

    /// Waits until one more may wait; none if nothing will be committed any more.
    fn room(&self) -> Option<MutexGuard<'_, State>> {
        let mut state = self.state();
        while state.waiting >= MOST_WAITING && !state.has_ended {
            state = self.wait(state);
        }
        // Nobody panics while the state is locked: those who end beside him would as well.
        (!state.has_ended).then_some(state)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("what waits is whole at any time")
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).expect("what waits is whole at any time")
    }
}

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.state().has_ended = true;
        self.0.changed.notify_all();
    }
}

impl State {
    /// Takes those out behind which enough is on its way.
    fn take_older(&mut self) -> Vec<Sealed> {
        let mut behind: u64 = self.sealed.iter().map(Sealed::length_bytes).sum();
        let mut older = Vec::new();
        while let Some(oldest) = self.sealed.front() {
            behind -= oldest.length_bytes();
            if behind < UNDER_WAY_BYTES && self.sealed.len() <= UNDER_WAY_OBJECTS {
                break;
            }
            older.extend(self.sealed.pop_front());
        }
        older
    }

    /// Notes the outcome of an object whose writes were waited for.
    fn note(&mut self, ended: Result<Written, CommitError>) {
        match ended {
            Ok(written) => self.written.push(written),
            Err(error) => {
                self.waiting -= 1;
                self.outcomes.push(Err(error));
            }
        }
    }
}
