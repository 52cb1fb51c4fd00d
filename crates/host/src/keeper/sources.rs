//! Guests that are filled from checkpoints: who sends their memory, and from where.
//!
//! A guest has one entry from before its memory is bound until all of it is there. The thread that sends its memory
//! holds a mark, by which it ends its own entry alone: a guest that has lost one source may have the next before the
//! thread of the first has ended.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bindery_checkpoint::CheckpointId;
use bindery_guest::{Connection, Guest, Identity, LostSource, SourceHandle, SourceLink};
use bindery_sys::thread::spawn_without_signals;
use bindery_units::PAGE_BYTES;

use super::board::KeptGuest;
use super::content::Content;
use super::memory_pools::MemoryPools;
use super::token::Token;
use super::turns::Turns;
use super::{Keeper, failed};
use crate::access::Rights;
use crate::jobs::Progress;
use crate::protocol::{Failure, FailureKind};

/// Time until a source that broke is offered again.
pub(crate) const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// Time within which a guest reports that it has lost its source.
const REPORT_PATIENCE: Duration = Duration::from_secs(2);

/// Time for which a checkpoint waits for memory that nobody sends.
const LOST_PATIENCE: Duration = Duration::from_secs(5);

/// Time within which a guest's restored memory comes under management.
const SETTLING: Duration = Duration::from_secs(2);

/// Interval at which a guest that is being restored is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Most sources that operators ask at once: each takes two threads.
const ASKED_MAX: usize = 4096;

/// Most sources that one user asks at once.
const ASKED_MAX_OF_USER: usize = 1024;

/// Guests whose memory is sent to them.
#[derive(Debug)]
pub(crate) struct Sources {
    table: Mutex<Table>,
    memory: Arc<MemoryPools>,
    turns: Arc<Turns>,
}

#[derive(Debug, Default)]
struct Table {
    /// Number of the last mark.
    last: u64,
    /// Guests that are filled, by what their libraries drew: a guest that connects anew has another number.
    filled: BTreeMap<u64, Filled>,
    /// Last attempts that failed, of each guest: when, and why.
    broke: BTreeMap<u64, (Instant, String)>,
    /// Times at which guests had all of their memory.
    whole: BTreeMap<u64, Instant>,
    /// Sources that operators ask in the place of guests without the library, by their numbers.
    asked: BTreeMap<u64, AskedSource>,
}

/// A source that an operator asks.
#[derive(Debug)]
struct AskedSource {
    uid: u32,
    from: (u128, CheckpointId),
    /// None until the operator's end has spoken.
    handle: Option<SourceHandle>,
}

/// Entry of a source that an operator asks, ended when this is dropped.
pub(super) struct AskedMark {
    sources: Arc<Sources>,
    number: u64,
}

/// A guest that is filled.
#[derive(Debug)]
struct Filled {
    mark: u64,
    /// Pool and checkpoint that its memory is in.
    from: (u128, CheckpointId),
    /// Guest that is filled.
    guest: KeptGuest,
    stage: Stage,
    /// True once its connection has ended: it may be gone.
    has_left: bool,
}

#[derive(Debug)]
enum Stage {
    /// Memory is about to be bound.
    Binding,
    Sent(SourceHandle),
    /// Pages are missing, and nobody sends them.
    Broken,
}

/// Entry of a guest that is filled, ended when this is dropped.
pub(super) struct Mark {
    sources: Arc<Sources>,
    guest: u64,
    number: u64,
    is_done: bool,
    /// Paths of the pool, and process of the guest.
    needs: (Vec<PathBuf>, i32),
}

impl AskedMark {
    /// Notes who serves, so that it can be ended.
    pub(super) fn set_handle(&self, handle: SourceHandle) {
        if let Some(asked) = self.sources.lock().asked.get_mut(&self.number) {
            asked.handle = Some(handle);
        }
    }
}

impl Drop for AskedMark {
    fn drop(&mut self) {
        self.sources.lock().asked.remove(&self.number);
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        let mut table = self.sources.lock();
        let Some(filled) = table.filled.get_mut(&self.guest) else { return };
        if filled.mark != self.number {
            return;
        }
        // Memory that was never bound is whole, and one that has left may never come back.
        let is_over = self.is_done || filled.has_left || matches!(filled.stage, Stage::Binding);
        let has_left = filled.has_left;
        // One that has left may come back for what it lacks.
        let needs_none = self.is_done || matches!(filled.stage, Stage::Binding);
        if is_over {
            table.filled.remove(&self.guest);
            if self.is_done && !has_left {
                table.whole.insert(self.guest, Instant::now());
            }
        } else {
            filled.stage = Stage::Broken;
        }
        drop(table);
        if needs_none {
            self.sources.memory.note_whole(&self.needs.0, self.needs.1);
        }
    }
}

impl Sources {
    /// Fills guests from pools, of which some may be in memory.
    pub(crate) fn new(memory: Arc<MemoryPools>) -> Self {
        Self { table: Mutex::default(), memory, turns: Arc::default() }
    }

    pub(crate) fn turns(&self) -> &Turns {
        &self.turns
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Table> {
        // Each change is one insertion or removal: a panic elsewhere leaves the table whole.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters a guest whose memory is about to be bound to a checkpoint.
    ///
    /// # Errors
    /// `Failed` if a pool in memory does not learn of it.
    pub(super) fn mark(
        self: &Arc<Self>,
        guest: &Guest,
        content: &Content,
    ) -> Result<Mark, Failure> {
        let Identity { name, domain, uid, instance, pid, .. } = guest.identity().clone();
        let needs = (content.lease.paths().to_vec(), pid);
        self.memory.note_filled(&needs.0, needs.1)?;
        let kept = KeptGuest { guest: name, domain, uid: Some(uid) };
        let (guest, from) = (instance, (content.lease.pool_id(), content.id));
        let mut table = self.lock();
        table.last += 1;
        let number = table.last;
        let filled =
            Filled { mark: number, from, guest: kept, stage: Stage::Binding, has_left: false };
        table.filled.insert(guest, filled);
        drop(table);
        Ok(Mark { sources: Arc::clone(self), guest, number, is_done: false, needs })
    }

    /// Enters a source that user `uid` asks.
    ///
    /// # Errors
    /// `Busy` if there are too many.
    pub(super) fn mark_asked(
        self: &Arc<Self>,
        content: &Content,
        uid: u32,
    ) -> Result<AskedMark, Failure> {
        let mut table = self.lock();
        let of_user = table.asked.values().filter(|asked| asked.uid == uid).count();
        if table.asked.len() >= ASKED_MAX || of_user >= ASKED_MAX_OF_USER {
            let message = format!(
                "{of_user} sources are asked already: {ASKED_MAX} at once are served, {ASKED_MAX_OF_USER} for \
                 one user; one is over once its microVM has all of its memory"
            );
            return Err(Failure::new(FailureKind::Busy, message));
        }
        table.last += 1;
        let number = table.last;
        let from = (content.lease.pool_id(), content.id);
        table.asked.insert(number, AskedSource { uid, from, handle: None });
        drop(table);
        Ok(AskedMark { sources: Arc::clone(self), number })
    }

    /// Sends a guest its memory, on a thread of its own.
    pub(super) fn serve(
        &self,
        guest: &Guest,
        link: SourceLink,
        content: Content,
        mut mark: Mark,
    ) -> Result<(), Failure> {
        let (id, name) = (guest.identity().instance, guest.identity().name.clone());
        let (origin, handle) = ((content.lease.pool_id(), content.id), link.handle());
        let turn = self.turns.enter(origin, guest.identity().id, move || handle.unsent_pages());
        if let Some(filled) = self.lock().filled.get_mut(&id) {
            filled.stage = Stage::Sent(link.handle());
        }
        let started = spawn_without_signals("source", move || {
            mark.is_done = content.serve(link, &name, &turn);
            drop(turn);
            if !mark.is_done {
                let why = "the connection to it broke".to_owned();
                mark.sources.lock().broke.insert(id, (Instant::now(), why));
            }
        });
        let message = "cannot start the thread that sends memory";
        started.map(drop).map_err(|error| failed(format!("{message}: {error}")))
    }

    /// Goes on with a guest that has lost its source, from its checkpoint. Failures are logged, and it is tried again
    /// when the guest is looked at next, [`AGAIN_AFTER`] that.
    pub(crate) fn go_on(self: &Arc<Self>, keeper: &Keeper, guest: &Guest, rights: Rights) {
        let Some(lost) = guest.lost_source() else { return };
        let id = guest.identity().instance;
        let last = self.lock().broke.get(&id).cloned();
        if last.as_ref().is_some_and(|(at, _)| at.elapsed() < AGAIN_AFTER) {
            return;
        }
        let Err(failure) = self.find_again(keeper, guest, &lost, rights) else { return };
        let why = failure.to_string();
        let is_news = last.is_none_or(|(_, last)| last != why);
        self.lock().broke.insert(id, (Instant::now(), why));
        if is_news {
            tracing::error!(
                guest = guest.identity().name,
                missing_pages = lost.missing_pages,
                "a restored guest waits for memory that cannot be had: {failure}"
            );
        }
    }

    fn find_again(
        self: &Arc<Self>,
        keeper: &Keeper,
        guest: &Guest,
        lost: &LostSource,
        rights: Rights,
    ) -> Result<(), Failure> {
        let token = Token::decode(&lost.token)?;
        let uid = guest.identity().uid;
        // The guest's word is worth no more than a request of its user.
        let lease = keeper.lease(Some(&token.pool), rights)?;
        let found = token.find(&lease, uid)?;
        let content = Content::open(lease, found.summary.id)?;
        let mark = self.mark(guest, &content)?;
        let link = guest.rebind(lost).map_err(|error| {
            if guest.lost_source().is_some()
                && let Some(filled) = self.lock().filled.get_mut(&mark.guest)
            {
                filled.stage = Stage::Broken;
            }
            failed(error.to_string())
        })?;
        self.serve(guest, link, content, mark)
    }

    /// Waits until a guest that was restored has all of its memory: pages that it lacks would be taken for zero.
    ///
    /// # Errors
    /// `Cancelled`; `Failed` if the guest ends, or its memory cannot be had.
    pub(crate) fn await_whole(&self, guest: &Guest, progress: &Progress) -> Result<(), Failure> {
        let (begun, mut total) = (Instant::now(), None);
        loop {
            // It may have come back from another daemon meanwhile.
            self.turns.hurry(guest.identity().id);
            let missing = self.missing_pages(guest);
            if missing.is_none() && self.has_settled(guest) {
                return Ok(());
            }
            if guest.has_ended() {
                return Err(failed("the guest has ended".into()));
            }
            progress.check()?;
            if begun.elapsed() > LOST_PATIENCE
                && let Some(why) = self.why_lost(guest)
            {
                return Err(failed(format!("the guest lacks memory that cannot be had: {why}")));
            }
            let missing = missing.unwrap_or(0);
            let total = *total.get_or_insert(missing);
            progress.set("waiting for restored memory", total.saturating_sub(missing), total);
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// Returns true unless a guest had all of its memory only now, and it is not managed again yet: unmanaged memory
    /// would be read whole in the pause.
    fn has_settled(&self, guest: &Guest) -> bool {
        let whole = self.lock().whole.get(&guest.identity().instance).copied();
        let managed: u64 = guest.regions().iter().map(|region| u64::from(region.pages.count)).sum();
        let offered: u64 =
            guest.offered().iter().map(|range| range.bytes / PAGE_BYTES as u64).sum();
        managed * 10 >= offered * 9 || whole.is_none_or(|whole| whole.elapsed() > SETTLING)
    }

    /// Returns why nobody sends a guest what it lacks.
    fn why_lost(&self, guest: &Guest) -> Option<String> {
        let table = self.lock();
        let id = guest.identity().instance;
        let is_sent =
            table.filled.get(&id).is_some_and(|filled| !matches!(filled.stage, Stage::Broken));
        table.broke.get(&id).filter(|_| !is_sent).map(|(_, why)| why.clone())
    }

    /// Makes sure that a guest whose memory was just read lacked none of it. A guest that comes back from another
    /// daemon reports only after it was taken that it lacks pages.
    ///
    /// # Errors
    /// `Busy` if pages are missing.
    pub(crate) fn require_whole(&self, guest: &Guest) -> Result<(), Failure> {
        if self.missing_pages(guest).is_none() {
            return Ok(());
        }
        let message = "the guest was restored, and its memory is not all there yet: try again";
        Err(Failure::new(FailureKind::Busy, message))
    }

    /// Returns the number of pages that a guest lacks, as far as it is known; `None` if it lacks none.
    pub(crate) fn missing_pages(&self, guest: &Guest) -> Option<u64> {
        let (table, id) = (self.lock(), guest.identity().instance);
        let is_fresh = |(at, _): &(Instant, String)| at.elapsed() < REPORT_PATIENCE;
        let unsent = match table.filled.get(&id).map(|filled| &filled.stage) {
            Some(Stage::Sent(handle)) => Some(handle.unsent_pages()),
            Some(Stage::Binding) => Some(0),
            // The guest's report is on its way.
            Some(Stage::Broken) if table.broke.get(&id).is_some_and(is_fresh) => Some(0),
            Some(Stage::Broken) | None => None,
        };
        drop(table);
        // Of one that broke the guest knows more: it may have got the last page just before.
        unsent.or_else(|| guest.lost_source().map(|lost| lost.missing_pages))
    }

    /// Makes sure that no guest is filled from a checkpoint.
    ///
    /// # Errors
    /// `Busy`.
    pub(super) fn require_unused(
        &self,
        pool: u128,
        checkpoint: CheckpointId,
    ) -> Result<(), Failure> {
        let (table, from) = (self.lock(), (pool, checkpoint));
        let is_unused = table.filled.values().all(|filled| filled.from != from)
            && table.asked.values().all(|asked| asked.from != from);
        drop(table);
        if is_unused {
            return Ok(());
        }
        let message = "a guest that was restored from the checkpoint lacks pages of it still: wait until the \
                       guest has all of its memory, or end the guest";
        Err(Failure::new(FailureKind::Busy, message))
    }

    /// Returns the guests that are filled, and the number of pages that each lacks still; none where nobody sends them.
    pub(crate) fn filled(&self) -> Vec<(KeptGuest, Option<u64>)> {
        let left = |stage: &Stage| match stage {
            Stage::Sent(handle) => Some(handle.unsent_pages()),
            Stage::Binding | Stage::Broken => None,
        };
        let table = self.lock();
        table.filled.values().map(|filled| (filled.guest.clone(), left(&filled.stage))).collect()
    }

    /// Hangs up on all guests, which look for another daemon.
    pub(crate) fn end_all(&self) {
        let table = self.lock();
        for filled in table.filled.values() {
            if let Stage::Sent(handle) = &filled.stage {
                handle.hang_up();
            }
        }
        table
            .asked
            .values()
            .filter_map(|asked| asked.handle.as_ref())
            .for_each(SourceHandle::hang_up);
    }

    /// Forgets a guest that has left. Its memory is sent on, if its connection is all that has ended.
    pub(crate) fn leave(&self, guest: u64) {
        let mut table = self.lock();
        table.broke.remove(&guest);
        table.whole.remove(&guest);
        let is_broken = |filled: &mut Filled| {
            filled.has_left = true;
            matches!(filled.stage, Stage::Broken)
        };
        if table.filled.get_mut(&guest).is_some_and(is_broken) {
            table.filled.remove(&guest);
        }
    }
}
