//! Objects that somebody has.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};

use crate::mblock::Committed;
use crate::object::Object;
use crate::{MediaClass, ObjectId};

/// Objects that somebody has.
#[derive(Debug, Default)]
pub(crate) struct ObjectHandles {
    pub(crate) mblocks: HashMap<ObjectId, Weak<Committed>>,
    /// Number of handles at which those that are gone are taken out.
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

impl ObjectHandles {
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

    /// Removes the object from lookup. Returns the live handle, if any.
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

    /// Returns true if somebody reads an object in the archive that the catalogue has no more there.
    pub(crate) fn lingers(&self, id: ObjectId) -> bool {
        self.lingering.iter().filter_map(Weak::upgrade).any(|object| object.id() == id)
    }
}
