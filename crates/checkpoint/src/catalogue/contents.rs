//! Contents of the catalogue: the sum of its records.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use bindery_pool::ObjectId;

use super::overlay::DiskOverlay;
use super::record::{CheckpointId, CheckpointSummary, DomainEntry, Record};
use crate::error::CheckpointError;
use crate::name::Name;

/// Number of a domain in a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct DomainNumber(pub(crate) u32);

/// Domains, checkpoints and packs that there are.
#[derive(Clone, Debug, Default)]
pub(crate) struct Contents {
    domains: Vec<DomainEntry>,
    checkpoints: BTreeMap<CheckpointId, (DomainNumber, CheckpointSummary)>,
    /// Packs that may be used, by object.
    packs: BTreeMap<ObjectId, DomainNumber>,
    /// Overlays of disks, by path and domain: what one user notes hides nothing of another's.
    overlays: BTreeMap<(Vec<u8>, DomainNumber), DiskOverlay>,
    next_id: u64,
}

impl Contents {
    pub(crate) fn domain(&self, name: &Name) -> Option<&DomainEntry> {
        self.domains.iter().find(|domain| domain.name == *name)
    }

    pub(crate) fn domain_name(&self, number: DomainNumber) -> Option<&Name> {
        self.domains.get(number.0 as usize).map(|domain| &domain.name)
    }

    pub(crate) fn domains(&self) -> Vec<DomainNumber> {
        self.domains.iter().map(|domain| domain.number).collect()
    }

    /// Returns the number of the next domain.
    pub(crate) const fn next_domain(&self) -> DomainNumber {
        DomainNumber(self.domains.len() as u32)
    }

    /// Returns the number of the next checkpoint.
    pub(crate) const fn next_id(&self) -> CheckpointId {
        CheckpointId(self.next_id)
    }

    pub(crate) fn checkpoint(
        &self,
        id: CheckpointId,
    ) -> Option<&(DomainNumber, CheckpointSummary)> {
        self.checkpoints.get(&id)
    }

    pub(crate) fn checkpoints(
        &self,
    ) -> impl Iterator<Item = &(DomainNumber, CheckpointSummary)> + '_ {
        self.checkpoints.values()
    }

    pub(crate) fn overlays(&self) -> impl Iterator<Item = &DiskOverlay> + '_ {
        self.overlays.values()
    }

    pub(crate) fn has_overlay(&self, domain: DomainNumber, path: &[u8]) -> bool {
        self.overlays.contains_key(&(path.to_vec(), domain))
    }

    pub(crate) fn packs_of(&self, domain: DomainNumber) -> BTreeSet<ObjectId> {
        let packs = self.packs.iter().filter(|(_, owner)| **owner == domain);
        packs.map(|(pack, _)| *pack).collect()
    }

    /// Returns all objects that are named: packs, manifests, records of touched pages.
    pub(crate) fn named(&self) -> HashSet<ObjectId> {
        let own = self.checkpoints().flat_map(|(_, it)| [Some(it.manifest), it.touched]);
        self.packs.keys().copied().chain(own.flatten()).collect()
    }

    /// Takes a record in.
    ///
    /// # Errors
    /// A description of the contradiction, if it cannot follow what there is.
    fn apply(&mut self, record: Record) -> Result<(), &'static str> {
        match record {
            Record::Domain(entry) => self.add_domain(entry),
            Record::Checkpoint { domain, summary, packs } => {
                self.add_packs(domain, packs)?;
                self.next_id = self.next_id.max(summary.id.0.saturating_add(1));
                match self.checkpoints.insert(summary.id, (domain, summary)) {
                    None => Ok(()),
                    Some(_) => Err("a checkpoint was made twice"),
                }
            }
            Record::Removed(id) => match self.checkpoints.remove(&id) {
                Some(_) => Ok(()),
                None => Err("a checkpoint was removed that there is not"),
            },
            Record::Packs(domain, packs) => self.add_packs(domain, packs),
            Record::PacksRemoved(domain, packs) => {
                let is_known = |pack: &ObjectId| self.packs.remove(pack) == Some(domain);
                let all = packs.iter().all(is_known);
                all.then_some(()).ok_or("a pack was removed that there is not")
            }
            Record::Touched(id, object) => {
                let checkpoint = self.checkpoints.get_mut(&id);
                let (_, summary) =
                    checkpoint.ok_or("a restore of a checkpoint that there is not")?;
                summary.touched = object;
                Ok(())
            }
            Record::Captured(id, capture) => {
                let checkpoint = self.checkpoints.get_mut(&id);
                let (_, summary) =
                    checkpoint.ok_or("a capture of a checkpoint that there is not")?;
                summary.capture = Some(capture);
                Ok(())
            }
            Record::Overlay(domain, overlay) => {
                self.overlays.insert((overlay.path.clone(), domain), overlay);
                Ok(())
            }
            Record::OverlayGone(domain, path) => match self.overlays.remove(&(path, domain)) {
                Some(_) => Ok(()),
                None => Err("an overlay was forgotten that there is not"),
            },
            Record::NextId(id) => {
                self.next_id = self.next_id.max(id.0);
                Ok(())
            }
        }
    }

    /// Takes the records of a change in.
    pub(crate) fn apply_all(&mut self, records: Vec<Record>) -> Result<(), CheckpointError> {
        let mut records = records.into_iter();
        records.try_for_each(|it| self.apply(it)).map_err(CheckpointError::Contradiction)
    }

    fn add_domain(&mut self, entry: DomainEntry) -> Result<(), &'static str> {
        if entry.number != self.next_domain() || self.domain(&entry.name).is_some() {
            return Err("a domain was made twice, or out of order");
        }
        self.domains.push(entry);
        Ok(())
    }

    fn add_packs(
        &mut self,
        domain: DomainNumber,
        packs: Vec<ObjectId>,
    ) -> Result<(), &'static str> {
        if self.domain_name(domain).is_none() {
            return Err("packs are of a domain that there is not");
        }
        let mut is_new = |pack| self.packs.insert(pack, domain).is_none();
        packs.into_iter().all(&mut is_new).then_some(()).ok_or("a pack was written twice")
    }

    /// Returns the domains, in the order of their numbers.
    pub(crate) fn domain_entries(&self) -> impl Iterator<Item = &DomainEntry> {
        self.domains.iter()
    }

    /// Returns the records that come to this.
    pub(crate) fn records(&self) -> Vec<Record> {
        let mut records: Vec<Record> = self.domains.iter().cloned().map(Record::Domain).collect();
        for domain in &self.domains {
            let packs: Vec<ObjectId> = self.packs_of(domain.number).into_iter().collect();
            let chunks = packs.chunks(super::record::RECORD_PACKS);
            records.extend(chunks.map(|packs| Record::Packs(domain.number, packs.to_vec())));
        }
        for (domain, summary) in self.checkpoints() {
            let CheckpointSummary { id, touched, capture, .. } = *summary;
            let summary = CheckpointSummary { touched: None, capture: None, ..summary.clone() };
            records.push(Record::Checkpoint { domain: *domain, summary, packs: Vec::new() });
            records.extend(capture.map(|capture| Record::Captured(id, capture)));
            records.extend(touched.map(|object| Record::Touched(id, Some(object))));
        }
        let overlays = self.overlays.iter();
        records.extend(overlays.map(|((_, domain), it)| Record::Overlay(*domain, it.clone())));
        records.push(Record::NextId(self.next_id()));
        records
    }
}
