//! Parts in the archive that no catalogue has: copies that a crash interrupted, and removals.

use std::time::{Duration, SystemTime};

use uuid::Uuid;

use super::{Archive, Fault, Header};
use crate::ObjectId;

/// A part that nobody knew when it was listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Orphan {
    /// The pool whose it was.
    pub pool: Uuid,
    /// The object whose part it is.
    pub object: ObjectId,
    /// Number of the part; the first is 0.
    pub part: u32,
    /// Key of the part.
    pub key: String,
    /// Bytes that the part takes in the store.
    pub stored_bytes: u64,
    /// When it was made, by the store's clock.
    pub made: SystemTime,
}

/// Parts that a listing showed. A listing may be stale: parts may be missing from it, or gone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// Number of parts of objects that the catalogue knows.
    pub known: u64,
    /// Number of parts of unknown objects that are too young to remove.
    pub young: u64,
    /// Parts that nobody knows.
    pub orphans: Vec<Orphan>,
    /// Keys that no archive would give; never touched.
    pub strangers: Vec<String>,
}

/// Outcome of the removal of an orphan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Removal {
    /// Removed.
    Removed,
    /// Not there any more.
    Gone,
    /// Kept: the catalogue knows the object by now.
    Known,
    /// Kept: the part was made again, and is young.
    Young,
    /// Kept: another host wrote the part, which is named.
    Anothers(String),
    /// Kept: the part is damaged, or not Bindery's.
    Strange,
}

impl Archive {
    /// Finds the parts of a pool that its catalogue does not know and that are older than `grace`.
    /// Blocks for a request for each thousand keys.
    ///
    /// `known` says yes to objects that are being copied, too: a copy takes up parts of an earlier
    /// attempt, which may be old. `grace` is longer than the longest copy takes from its first part to its entry in the
    /// catalogue, and much longer than clocks differ (S3 refuses when it is more than 15 minutes): a
    /// day is a good choice.
    ///
    /// # Errors
    /// See [`Fault`].
    pub fn orphans(
        &self,
        pool: Uuid,
        grace: Duration,
        known: impl Fn(ObjectId) -> bool,
    ) -> Result<Listing, Fault> {
        let mut listing = Listing::default();
        for entry in self.0.list(self.0.location.keys.pool(pool))? {
            let key = entry.location.to_string();
            let Some((object, part)) = self.0.location.keys.parse(pool, &entry.location) else {
                listing.strangers.push(key);
                continue;
            };
            let made = SystemTime::from(entry.last_modified);
            if known(object) {
                listing.known += 1;
            } else if is_younger(made, grace) {
                listing.young += 1;
            } else {
                let stored_bytes = entry.size;
                listing.orphans.push(Orphan { pool, object, part, key, stored_bytes, made });
            }
        }
        Ok(listing)
    }

    /// Removes an orphan, if it is one still: the listing that showed it may have been stale, so the
    /// catalogue is asked again and the key itself is looked at. What another host wrote is kept: it
    /// may have a copy of the pool, and a catalogue that knows the object. Blocks for three requests.
    ///
    /// # Errors
    /// See [`Fault`].
    pub fn remove_orphan(
        &self,
        orphan: &Orphan,
        grace: Duration,
        known: impl Fn(ObjectId) -> bool,
    ) -> Result<Removal, Fault> {
        let key = self.0.location.keys.part(orphan.pool, orphan.object, orphan.part);
        let (now, header) = match self.0.look(key.clone()) {
            Err(Fault::Absent { .. }) => return Ok(Removal::Gone),
            now => now?,
        };
        let Ok(header) = Header::decode(&header) else { return Ok(Removal::Strange) };
        if (header.pool, header.object, header.part) != (orphan.pool, orphan.object, orphan.part) {
            return Ok(Removal::Strange);
        }
        if known(orphan.object) {
            return Ok(Removal::Known);
        }
        if is_younger(now.last_modified.into(), grace) {
            return Ok(Removal::Young);
        }
        if header.writer != self.0.options.writer {
            return Ok(Removal::Anothers(header.writer));
        }
        self.0.delete(key).map(|()| Removal::Removed)
    }
}

fn is_younger(made: SystemTime, grace: Duration) -> bool {
    // What was made in the future is young.
    SystemTime::now().duration_since(made).map_or(true, |age| age < grace)
}
