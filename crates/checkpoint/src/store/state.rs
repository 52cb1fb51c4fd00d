//! State of an open store.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::slice::from_ref;
use std::sync::{Arc, RwLock};

use super::pack_uses::PackUses;
use crate::catalogue::{Contents, DomainNumber, Record, encode_change};
use crate::domain_keys::DomainKeys;
use crate::error::CheckpointError;
use crate::known::KnownPages;
use crate::name::Name;
use crate::root::Root;

/// Known pages of a domain; none until the digests of its packs were read.
///
/// Order of locks: the state may be locked while this is held. This may be locked while the state is held only
/// if nobody writes a checkpoint of the domain.
pub(crate) type SharedKnownPages = Arc<RwLock<Option<KnownPages>>>;

/// Names of a checkpoint in the pool.
pub(crate) type FullName = (DomainNumber, Name, Name);

/// State of an open store: its root, and what is derived from that.
pub(crate) struct State {
    root: Root,
    pub(crate) contents: Contents,
    /// Keys of the domains that were opened.
    pub(super) keys: HashMap<DomainNumber, Arc<DomainKeys>>,
    known: HashMap<DomainNumber, SharedKnownPages>,
    /// Number of checkpoints that are being written, by domain: packs of these are not deleted.
    writers: HashMap<DomainNumber, usize>,
    /// Domains in which a checkpoint was deleted while others were written.
    pub(super) unswept: BTreeSet<DomainNumber>,
    /// Names of checkpoints that are being written.
    pub(super) reserved: HashSet<FullName>,
    /// Uses of the packs of each domain; none until they were counted.
    pub(super) pack_uses: HashMap<DomainNumber, PackUses>,
}

impl State {
    pub(super) fn new(root: Root, contents: Contents) -> Self {
        Self {
            root,
            contents,
            keys: HashMap::new(),
            known: HashMap::new(),
            writers: HashMap::new(),
            unswept: BTreeSet::new(),
            reserved: HashSet::new(),
            pack_uses: HashMap::new(),
        }
    }

    /// Makes changes durable, all of them or none, and takes them in. Blocks for a sync.
    pub(super) fn commit(&mut self, records: Vec<Record>) -> Result<(), CheckpointError> {
        let contents = &self.contents;
        // Smaller than before where something is deleted: that a full root takes.
        let live = || {
            let mut next = contents.clone();
            next.apply_all(records.clone())?;
            Ok(next.records().iter().map(|record| encode_change(from_ref(record))).collect())
        };
        self.root.append(&encode_change(&records), live)?;
        self.contents.apply_all(records)
    }

    pub(super) fn known(&mut self, domain: DomainNumber) -> SharedKnownPages {
        Arc::clone(self.known.entry(domain).or_default())
    }

    pub(super) fn begin_writing(&mut self, domain: DomainNumber) {
        *self.writers.entry(domain).or_default() += 1;
    }

    /// Returns true if nobody writes a checkpoint of the domain any more.
    pub(super) fn end_writing(&mut self, domain: DomainNumber) -> bool {
        let writers = self.writers.get_mut(&domain).expect("whoever ends has begun");
        *writers -= 1;
        *writers == 0
    }

    pub(super) fn is_written(&self, domain: DomainNumber) -> bool {
        self.writers.get(&domain).is_some_and(|writers| *writers > 0)
    }
}
