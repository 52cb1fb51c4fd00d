//! Clients' mlogs and MDCs.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use super::error::LogError;
use super::handle::Pool;
use crate::catalogue::CatalogueError;
use crate::format::record::{LogEntry, MOST_COPIES, MdcEntry, ObjectEntry};
use crate::log::{Log, LogCopy};
use crate::mdc::{Half, Mdc};
use crate::media::PoolDevice;
use crate::session::{AllocateError, FindError, PoolSession, wrong_kind};
use crate::{BLOCK_BYTES, Extent, LogIdentity, MediaClass, ObjectId};

/// An mlog that is open; it can be opened again once this is dropped.
#[derive(Debug)]
pub struct OpenLog {
    log: Log,
    turn: Turn,
}

/// An MDC that is open; it can be opened again once this is dropped.
#[derive(Debug)]
pub struct OpenMdc {
    mdc: Mdc,
    turn: Turn,
}

/// The right to write one log or MDC.
#[derive(Debug)]
struct Turn {
    session: Arc<PoolSession>,
    id: ObjectId,
}

impl Pool {
    /// Makes an mlog of a length, in one copy or two. It is there when this returns. Blocks; writes all
    /// of it once.
    ///
    /// # Errors
    /// See [`LogError`].
    pub fn create_log(
        &self,
        class: MediaClass,
        bytes: u64,
        copies: usize,
    ) -> Result<OpenLog, LogError> {
        let id = self.session.new_ids(1)?;
        let places = Held::find(&self.session, class, bytes, copies)?;
        let turn = self.turn(id)?;
        let log = Log::create(self.identity(id), places.places(), self.session.opening)?;
        places.commit(|[copies]| ObjectEntry::Log(LogEntry { id, copies }))?;
        Ok(OpenLog { log, turn })
    }

    /// Opens an mlog, which one at a time may.
    ///
    /// # Errors
    /// See [`LogError`].
    pub fn open_log(&self, id: ObjectId) -> Result<OpenLog, LogError> {
        let turn = self.turn(id)?;
        let copies = match self.entry(id)? {
            ObjectEntry::Log(entry) => entry.copies,
            other => return Err(wrong_kind(&other, "an mlog").into()),
        };
        let log = Log::open(self.identity(id), self.places(&copies), self.session.opening)?;
        Ok(OpenLog { log, turn })
    }

    /// Makes an MDC of two logs of a length each, in one copy or two.
    ///
    /// # Errors
    /// See [`LogError`].
    pub fn create_mdc(
        &self,
        class: MediaClass,
        log_bytes: u64,
        copies: usize,
    ) -> Result<OpenMdc, LogError> {
        self.make_mdc(class, log_bytes, copies, false)
    }

    /// As [`create_mdc`](Self::create_mdc), of the one MDC that clients find without knowing its name.
    ///
    /// # Errors
    /// See [`LogError`].
    pub fn create_root(
        &self,
        class: MediaClass,
        log_bytes: u64,
        copies: usize,
    ) -> Result<OpenMdc, LogError> {
        let _alone = self.administration()?;
        match self.root() {
            Some(root) => Err(LogError::HasRoot(root)),
            None => self.make_mdc(class, log_bytes, copies, true),
        }
    }

    /// The MDC that clients begin at; none if none was made.
    #[must_use]
    pub fn root(&self) -> Option<ObjectId> {
        self.session.catalogue.contents().root()
    }

    /// Opens an MDC, which one at a time may.
    ///
    /// # Errors
    /// See [`LogError`].
    pub fn open_mdc(&self, id: ObjectId) -> Result<OpenMdc, LogError> {
        let turn = self.turn(id)?;
        let halves = match self.entry(id)? {
            ObjectEntry::Mdc(entry) => entry.halves,
            other => return Err(wrong_kind(&other, "an MDC").into()),
        };
        let places = halves.map(|copies| self.places(&copies));
        let mdc = Mdc::open(self.halves(id, places), self.session.opening)?;
        Ok(OpenMdc { mdc, turn })
    }

    fn make_mdc(
        &self,
        class: MediaClass,
        log_bytes: u64,
        copies: usize,
        is_root: bool,
    ) -> Result<OpenMdc, LogError> {
        let id = self.session.new_ids(3)?;
        let find = || Held::find(&self.session, class, log_bytes, copies);
        let [first, second] = [find()?, find()?];
        let turn = self.turn(id)?;
        let places = [first.places(), second.places()];
        let mdc = Mdc::create(self.halves(id, places), self.session.opening)?;
        first.and(second).commit(|halves| ObjectEntry::Mdc(MdcEntry { id, is_root, halves }))?;
        Ok(OpenMdc { mdc, turn })
    }

    fn halves(&self, id: ObjectId, places: [Vec<LogCopy>; 2]) -> [Half; 2] {
        let [first, second] = places;
        [(1, first), (2, second)]
            .map(|(at, places)| Half { identity: self.identity(ObjectId(id.0 + at)), places })
    }

    fn identity(&self, log: ObjectId) -> LogIdentity {
        LogIdentity { pool: self.session.pool_id, log }
    }

    fn places(&self, copies: &[Extent]) -> Vec<LogCopy> {
        let device = |extent: &Extent| Arc::clone(&self.session.pool_device(extent.device).device);
        copies.iter().map(|extent| LogCopy { device: device(extent), extent: *extent }).collect()
    }

    fn entry(&self, id: ObjectId) -> Result<ObjectEntry, FindError> {
        self.session.catalogue.contents().object(id).cloned().ok_or(FindError::NotFound(id))
    }

    fn turn(&self, id: ObjectId) -> Result<Turn, LogError> {
        self.session.check_here().map_err(FindError::from)?;
        let mut handles = self.session.handles();
        if handles.leaving.contains(&id) {
            return Err(FindError::NotFound(id).into());
        }
        if !handles.logs.insert(id) {
            return Err(LogError::Open(id));
        }
        Ok(Turn { session: Arc::clone(&self.session), id })
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if self.session.check_here().is_ok() {
            self.session.handles().logs.remove(&self.id);
        }
    }
}

/// Places for the copies of `N` logs, given back unless they are committed.
struct Held<'a, const N: usize> {
    session: &'a Arc<PoolSession>,
    copies: [Vec<(Arc<PoolDevice>, Extent)>; N],
}

impl<'a> Held<'a, 1> {
    /// Finds places for the copies of a log, on different devices if there are.
    fn find(
        session: &'a Arc<PoolSession>,
        class: MediaClass,
        bytes: u64,
        copies: usize,
    ) -> Result<Self, LogError> {
        if !(1..=MOST_COPIES).contains(&copies) {
            return Err(LogError::Copies(copies));
        }
        let bytes = bytes.max(1).checked_next_multiple_of(BLOCK_BYTES as u64);
        let bytes = bytes.ok_or(AllocateError::Nothing)?;
        let mut held = Self { session, copies: [Vec::new()] };
        for _ in 0..copies {
            let taken: Vec<_> =
                held.copies[0].iter().map(|(pool_device, _)| pool_device.index).collect();
            let elsewhere = |pool_device: &Arc<PoolDevice>| !taken.contains(&pool_device.index);
            let other = |pool_device: &Arc<PoolDevice>| {
                elsewhere(pool_device).then(|| pool_device.hold_low(bytes))?
            };
            let found = session.find_room(class, bytes, other).or_else(|_| {
                session.find_room(class, bytes, |pool_device| pool_device.hold_high(bytes))
            })?;
            held.copies[0].push(found);
        }
        for (pool_device, extent) in &held.copies[0] {
            let device = || pool_device.label.clone();
            let written = pool_device.write_zeros(*extent);
            written.map_err(|source| LogError::Write { device: device(), source })?;
        }
        Ok(held)
    }

    fn and(mut self, mut other: Self) -> Held<'a, 2> {
        let copies = [&mut self, &mut other].map(|held| std::mem::take(&mut held.copies[0]));
        Held { session: self.session, copies }
    }

    fn places(&self) -> Vec<LogCopy> {
        let place = |(pool_device, extent): &(Arc<PoolDevice>, Extent)| LogCopy {
            device: Arc::clone(&pool_device.device),
            extent: *extent,
        };
        self.copies[0].iter().map(place).collect()
    }
}

impl<const N: usize> Held<'_, N> {
    /// Enters the object that has these places.
    fn commit(
        mut self,
        entry: impl FnOnce([Vec<Extent>; N]) -> ObjectEntry,
    ) -> Result<(), CatalogueError> {
        let extents =
            |copies: &Vec<(Arc<PoolDevice>, Extent)>| copies.iter().map(|copy| copy.1).collect();
        let committed = self.session.commit(entry(self.copies.each_ref().map(extents)));
        match &committed {
            // It may be durable: its place is nobody else's before the pool is opened again.
            Err(CatalogueError::Failed(_)) => self.copies.iter_mut().for_each(Vec::clear),
            Err(CatalogueError::Full { .. } | CatalogueError::OtherProcess(_)) => {}
            Ok(()) => {
                let copies = self.copies.iter_mut().flat_map(std::mem::take);
                copies.for_each(|(pool_device, extent)| pool_device.settle(extent.bytes));
            }
        }
        committed
    }
}

impl<const N: usize> Drop for Held<'_, N> {
    fn drop(&mut self) {
        for (pool_device, extent) in self.copies.iter().flatten() {
            pool_device.abandon(*extent);
        }
    }
}

impl Deref for OpenLog {
    type Target = Log;

    fn deref(&self) -> &Log {
        &self.log
    }
}

impl DerefMut for OpenLog {
    fn deref_mut(&mut self) -> &mut Log {
        &mut self.log
    }
}

impl OpenLog {
    /// Returns the id of the object.
    #[must_use]
    pub const fn id(&self) -> ObjectId {
        self.turn.id
    }
}

impl Deref for OpenMdc {
    type Target = Mdc;

    fn deref(&self) -> &Mdc {
        &self.mdc
    }
}

impl DerefMut for OpenMdc {
    fn deref_mut(&mut self) -> &mut Mdc {
        &mut self.mdc
    }
}

impl OpenMdc {
    /// Returns the id of the object.
    #[must_use]
    pub const fn id(&self) -> ObjectId {
        self.turn.id
    }
}
