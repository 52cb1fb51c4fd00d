//! What everything that belongs to an open pool shares.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, RwLock, Weak};

use bindery_sys::process::Origin;

use super::attachment::Attachment;
use super::error::{AllocateError, FindError};
use super::member::Member;
use super::statistics::Amount;
use crate::catalogue::{Catalogue, CatalogueError, Contents, FIRST_ID};
use crate::format::record::{ObjectEntry, Record};
use crate::mblock::{Committed, Local, Uses, Whereabouts};
use crate::object::Object;
use crate::process::{self, OtherProcess};
use crate::{DeviceIndex, Extent, MediaClass, ObjectId};

/// Ids are set aside in the catalogue so many at a time.
const IDS_AT_ONCE: u64 = 4096;

/// What is shared by all that belongs to a pool open for writing.
pub(crate) struct Core {
    origin: Origin,
    pub(crate) pool: u128,
    pub(crate) opening: u64,
    pub(crate) nonce: u64,
    /// Where the catalogue is, for superblocks.
    pub(crate) places: [[Extent; 2]; 2],
    pub(crate) catalogue: Catalogue,
    pub(crate) counters: Counters,
    pub(crate) uses: Arc<Uses>,
    pub(crate) attachment: Attachment,
    members: RwLock<Vec<Arc<Member>>>,
    handles: Mutex<Handles>,
    ids: Mutex<Ids>,
}

/// Which objects somebody has.
#[derive(Debug, Default)]
pub(crate) struct Handles {
    pub(crate) mblocks: HashMap<ObjectId, Weak<Committed>>,
    /// How many of them there may be before those that are gone are taken out.
    most: usize,
    /// Objects whose deletion is being written.
    pub(crate) leaving: HashSet<ObjectId>,
    /// Objects that are on the way to the archive or back.
    pub(crate) moving: HashSet<ObjectId>,
    /// Objects in the archive that somebody still has, though they are deleted or brought back.
    lingering: Vec<Weak<Committed>>,
    /// Logs and MDCs that are open.
    pub(crate) logs: HashSet<ObjectId>,
}

impl fmt::Debug for Core {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "opening {} of pool {:032x}", self.opening, self.pool)
    }
}

impl Handles {
    pub(crate) fn insert(&mut self, object: &Arc<Committed>) {
        if self.mblocks.len() >= self.most {
            self.mblocks.retain(|_, object| object.strong_count() > 0);
            self.most = (2 * self.mblocks.len()).max(64);
        }
        self.mblocks.insert(object.id(), Arc::downgrade(object));
    }

    #[cfg(feature = "archive")]
    pub(crate) fn is_held(&self, id: ObjectId) -> bool {
        self.mblocks.get(&id).is_some_and(|object| object.strong_count() > 0)
    }

    pub(crate) fn held(&self, id: ObjectId) -> Option<Arc<Committed>> {
        self.mblocks.get(&id).and_then(Weak::upgrade)
    }

    /// Has an object found by nobody any more. It, if somebody has it.
    pub(crate) fn take(&mut self, id: ObjectId) -> Option<Arc<Committed>> {
        let held = self.mblocks.remove(&id).and_then(|object| object.upgrade());
        if let Some(object) = &held
            && object.class() == MediaClass::Archive
        {
            self.lingering.retain(|other| other.strong_count() > 0);
            self.lingering.push(Arc::downgrade(object));
        }
        held
    }

    /// Whether somebody reads an object in the archive that the catalogue has no more there.
    pub(crate) fn lingers(&self, id: ObjectId) -> bool {
        self.lingering.iter().filter_map(Weak::upgrade).any(|object| object.id() == id)
    }
}

/// Ids that were set aside and not given yet.
#[derive(Debug)]
struct Ids {
    next: u64,
    below: u64,
}

impl Core {
    pub(crate) fn new(
        pool: u128,
        (opening, nonce): (u64, u64),
        places: [[Extent; 2]; 2],
        catalogue: Catalogue,
        members: Vec<Arc<Member>>,
    ) -> Self {
        let below = catalogue.contents().ids_below().max(FIRST_ID);
        Self {
            origin: Origin::here(),
            pool,
            opening,
            nonce,
            places,
            catalogue,
            counters: Counters::default(),
            uses: Arc::new(Uses::new()),
            attachment: Attachment::default(),
            members: RwLock::new(members),
            handles: Mutex::default(),
            ids: Mutex::new(Ids { next: below, below }),
        }
    }

    /// Refuses children of the process that opened the pool, before they wait for one of its locks.
    pub(crate) fn check_here(&self) -> Result<(), OtherProcess> {
        process::check(self.origin)
    }

    pub(crate) fn members(&self) -> Vec<Arc<Member>> {
        self.members.read().expect("the list is whole at any time").clone()
    }

    pub(crate) fn add_member(&self, member: Arc<Member>) {
        self.members.write().expect("the list is whole at any time").push(member);
    }

    /// # Panics
    /// If the pool has no such device: the catalogue names only those that it has.
    pub(crate) fn member(&self, index: DeviceIndex) -> Arc<Member> {
        let members = self.members.read().expect("the list is whole at any time");
        let found = members.iter().find(|member| member.index == index);
        Arc::clone(found.expect("the devices that objects lie on were there when it was opened"))
    }

    /// The devices of a class, those with the most room first.
    pub(crate) fn members_of(&self, class: MediaClass) -> Vec<Arc<Member>> {
        let mut members = self.members();
        members.retain(|member| member.class == class);
        members.sort_by_key(|member| std::cmp::Reverse(member.free_bytes()));
        members
    }

    /// Finds room on a device of a class; where there is none, makes what was deleted free first.
    ///
    /// # Errors
    /// See [`AllocateError`].
    pub(crate) fn find_room<T>(
        &self,
        class: MediaClass,
        bytes: u64,
        mut hold: impl FnMut(&Arc<Member>) -> Option<T>,
    ) -> Result<(Arc<Member>, T), AllocateError> {
        self.check_here()?;
        let members = self.members_of(class);
        if members.is_empty() {
            return Err(AllocateError::NoClass { class });
        }
        let mut find = || {
            let found = members.iter().find_map(|member| Some((member, hold(member)?)));
            found.map(|(member, held)| (Arc::clone(member), held))
        };
        if let Some(found) = find() {
            return Ok(found);
        }
        members.iter().for_each(|member| {
            member.reclaim();
        });
        find().ok_or_else(|| self.no_space(class, bytes))
    }

    /// Returns the error for a request of `bytes` that no device of a class has room for.
    pub(crate) fn no_space(&self, class: MediaClass, bytes: u64) -> AllocateError {
        let members = self.members_of(class);
        AllocateError::NoSpace {
            class,
            bytes,
            free_bytes: members.iter().map(|member| member.free_bytes()).sum(),
            longest_bytes: members.iter().map(|member| member.longest_bytes()).max().unwrap_or(0),
        }
    }

    /// Ids that were never given before; the first of `count` that follow each other.
    pub(crate) fn new_ids(&self, count: u64) -> Result<ObjectId, CatalogueError> {
        self.check_here()?;
        let mut ids = self.ids.lock().expect("ids are set aside before they are given");
        if ids.next + count > ids.below {
            let below = ids.below + IDS_AT_ONCE;
            self.catalogue.submit(Record::Ids { below })?;
            ids.below = below;
        }
        let id = ids.next;
        ids.next += count;
        Ok(ObjectId(id))
    }

    pub(crate) fn handles(&self) -> MutexGuard<'_, Handles> {
        self.handles.lock().expect("the handles are whole at any time")
    }

    /// An object, the one that others have if there are others.
    pub(crate) fn find(&self, id: ObjectId) -> Result<Arc<Committed>, FindError> {
        self.check_here()?;
        let mut handles = self.handles();
        // Under both locks: what is deleted meanwhile finds the handle that is made here.
        let whereabouts = mblock_in(&self.catalogue.contents(), id)?;
        if let Some(object) = handles.held(id) {
            return Ok(object);
        }
        let object = Arc::new(match whereabouts {
            Whereabouts::Device(entry) => {
                let local = Local::new(entry, self.member(entry.data.device), None);
                Committed::on_device(local, Some(Arc::clone(&self.uses)))
            }
            Whereabouts::Archive(entry) => self.attachment.object(self.pool, entry)?,
        });
        handles.insert(&object);
        Ok(object)
    }

    /// Commits objects, which are found by all as those that their writers hold.
    pub(crate) fn commit_all<'a>(
        &self,
        new: impl Iterator<Item = &'a Arc<Committed>> + Clone,
    ) -> Vec<Result<(), CatalogueError>> {
        let mut handles = self.handles();
        new.clone().for_each(|object| handles.insert(object));
        drop(handles);
        let records = new.clone().map(|object| Record::Commit(object.entry()));
        let committed = self.catalogue.submit_all(records);
        let failed = new.zip(&committed).filter(|(_, committed)| committed.is_err());
        let mut handles = self.handles();
        failed.for_each(|(object, _)| drop(handles.mblocks.remove(&object.id())));
        drop(handles);
        committed
    }

    pub(crate) fn commit(&self, entry: ObjectEntry) -> Result<(), CatalogueError> {
        self.catalogue.submit(Record::Commit(entry))
    }

    /// An mblock is somewhere else from now on; the caller has seen to it that it is there, and that
    /// nobody else moves or deletes it.
    #[cfg(feature = "archive")]
    pub(crate) fn move_to(&self, entry: ObjectEntry) -> Result<(), CatalogueError> {
        self.catalogue.submit(Record::Move(entry))
    }

    /// Has an object that was moved found by all where it is now. Until then all find the handle that
    /// whoever moves it holds, so that there is never a second one of what lies on a device.
    #[cfg(feature = "archive")]
    pub(crate) fn adopt(&self, new: &Arc<Committed>) {
        let mut handles = self.handles();
        handles.take(new.id());
        handles.insert(new);
    }
}

/// What was done since the pool was opened.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    committed: Tally,
    aborted: AtomicU64,
    deleted: AtomicU64,
    archived: Tally,
    brought_back: Tally,
}

/// Objects, and the bytes in them.
#[derive(Debug, Default)]
struct Tally {
    objects: AtomicU64,
    bytes: AtomicU64,
}

impl Tally {
    fn add(&self, bytes: u64) {
        self.objects.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    fn read(&self) -> Amount {
        let [objects, bytes] =
            [&self.objects, &self.bytes].map(|counter| counter.load(Ordering::Relaxed));
        Amount { objects, bytes }
    }
}

impl Counters {
    pub(crate) fn committed(&self, bytes: u64) {
        self.committed.add(bytes);
    }

    pub(crate) fn aborted(&self) {
        self.aborted.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn deleted(&self) {
        self.deleted.fetch_add(1, Ordering::Relaxed);
    }

    #[cfg(feature = "archive")]
    pub(crate) fn archived(&self, bytes: u64) {
        self.archived.add(bytes);
    }

    #[cfg(feature = "archive")]
    pub(crate) fn brought_back(&self, bytes: u64) {
        self.brought_back.add(bytes);
    }

    /// Objects that were committed, archived and brought back.
    pub(crate) fn amounts(&self) -> [Amount; 3] {
        [&self.committed, &self.archived, &self.brought_back].map(Tally::read)
    }

    /// Aborted and deleted objects.
    pub(crate) fn ended(&self) -> [u64; 2] {
        [&self.aborted, &self.deleted].map(|counter| counter.load(Ordering::Relaxed))
    }
}

/// Where the catalogue says that an mblock is.
pub(crate) fn mblock_in(contents: &Contents, id: ObjectId) -> Result<Whereabouts, FindError> {
    let entry = contents.object(id).ok_or(FindError::NotFound(id))?;
    Whereabouts::of(entry).ok_or_else(|| wrong_kind(entry, "an mblock"))
}

pub(crate) fn wrong_kind(found: &ObjectEntry, wanted: &'static str) -> FindError {
    let kind = match found {
        ObjectEntry::Mblock(_) | ObjectEntry::Archived(_) => "an mblock",
        ObjectEntry::Log(_) => "an mlog",
        ObjectEntry::Mdc(_) => "an MDC",
    };
    FindError::Kind { id: found.id(), found: kind, wanted }
}
