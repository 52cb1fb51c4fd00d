//! A trust boundary: the guests in it share pages with each other and with nobody else.
//!
//! Each domain has its own secret, its own index and its own store. Nothing here reaches from one
//! to another.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Display};
use std::sync::{Arc, Mutex};

use bindery_guest::{Connection, Identity};
use bindery_index::{Guard, Handle, Heads, Index, pin};
use bindery_page::DigestKey;
use bindery_units::{NumaNode, PAGE_BYTES, PageIndex, PageRange, Slot, SlotRange};

use crate::classes::Classes;
use crate::grant::Grant;
use crate::guest::Guest;
use crate::huge::HugePolicy;
use crate::index_entry::{GUESTS_MAX, IndexEntry};
use crate::links::Link;
use crate::lock::{locked, locked_mut};
use crate::meter::Meter;
use crate::nodes::StoreNode;
use crate::plan::{Join, Seed};
use crate::pressure::{Pressure, Shortage};
use crate::retry_pause::RetryPause;
use crate::rows::Rows;
use crate::settings::MAPPING_BYTES;
use crate::slots::{Slots, runs_of};
use crate::status::{Counts, DomainStatus, GuestStatus};
use crate::stayed::Stayed;
use crate::store::{Store, StoreError};
use crate::troubles::Troubles;

/// Domains of an engine.
pub(crate) type Domains = BTreeMap<DomainId, Domain>;

/// Name of a domain, and the node of its guests where merging stays within nodes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct DomainId {
    pub(crate) name: String,
    pub(crate) node: Option<NumaNode>,
}

impl Display for DomainId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        self.node.map_or(Ok(()), |node| write!(f, " on {node}"))
    }
}

/// Findings of a round.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) seeds: Vec<Seed>,
    pub(crate) joins: Vec<Join>,
}

/// A domain at work.
pub(crate) struct Domain {
    pub(crate) id: DomainId,
    grant: Arc<Grant>,
    pub(crate) store: Arc<Store>,
    pub(crate) key: DigestKey,
    pub(crate) index: Index<Heads>,
    pub(crate) slots: Slots,
    pub(crate) rows: Rows,
    pub(crate) guests: BTreeMap<u32, Guest>,
    /// Guests whose connection failed. What they map is counted until their processes end, or come back and
    /// map nothing of it any more.
    pub(crate) departed: Vec<Guest>,
    /// Number that the next guest gets, if no guest has it.
    pub(crate) next_guest: u32,
    /// Classes made in this round.
    pub(crate) classes: Classes,
    pub(crate) found: Mutex<Found>,
    /// Slots whose last reference was given back in this phase.
    unmapped: Mutex<Vec<Slot>>,
    pub(crate) shortage: Mutex<Option<Shortage>>,
    pub(crate) pressure: Pressure,
    /// Slots that a compaction left behind.
    pub(crate) stayed: Stayed,
    /// Pacing of compaction.
    pub(crate) compaction: RetryPause,
    pub(crate) backs_off: bool,
    /// Policy of this period for huge pages.
    pub(crate) huge: HugePolicy,
    /// True if pages are merged in this period: blocks are looked at for nothing else.
    pub(crate) looks: bool,
    meter: Arc<Meter>,
    pub(crate) troubles: Arc<Troubles>,
    /// Breaks until the end of the last period.
    pub(crate) breaks_seen: u64,
    /// Counts of guests that left.
    left: Counts,
}

impl Domain {
    pub(crate) fn new(
        id: DomainId,
        grant: Arc<Grant>,
        node: Option<StoreNode>,
        backs_off: bool,
        meter: Arc<Meter>,
        troubles: Arc<Troubles>,
    ) -> Self {
        Self {
            id,
            store: Arc::new(Store::create(grant.slots, node)),
            key: DigestKey::from_secret(&grant.secret),
            index: Index::with_capacity(0, grant.index_keys, Heads),
            slots: Slots::new(grant.slots, grant.segment_slots()),
            rows: Rows::default(),
            grant,
            guests: BTreeMap::new(),
            departed: Vec::new(),
            next_guest: 0,
            classes: Classes::default(),
            found: Mutex::default(),
            unmapped: Mutex::default(),
            shortage: Mutex::default(),
            pressure: Pressure::default(),
            stayed: Stayed::default(),
            compaction: RetryPause::default(),
            backs_off,
            huge: HugePolicy::default(),
            looks: true,
            meter,
            troubles,
            breaks_seen: 0,
            left: Counts::default(),
        }
    }

    pub(crate) fn add(&mut self, connection: Arc<dyn Connection>) {
        let number = self.free_number();
        self.next_guest = (number + 1) % GUESTS_MAX;
        let (meter, troubles) = (Arc::clone(&self.meter), Arc::clone(&self.troubles));
        // What the last connection is linked to is given back by what this one reports.
        let returns = self.knows(connection.identity());
        self.guests.insert(number, Guest::new(number, connection, returns, meter, troubles));
    }

    /// Returns true if a guest has the same process, a departed one included.
    pub(crate) fn knows(&self, process: &Identity) -> bool {
        let mut all = self.guests.values().chain(&self.departed);
        all.any(|guest| guest.is_of_process(process))
    }

    /// Returns the next number that no guest has, departed ones included. They come round: a domain
    /// may live to see more connections than there are numbers, one of a guest that comes again and
    /// again each time.
    fn free_number(&self) -> u32 {
        let is_free = |number: &u32| {
            let has_it = |guest: &Guest| guest.number == *number;
            !self.guests.contains_key(number) && !self.departed.iter().any(has_it)
        };
        let mut numbers = (self.next_guest..GUESTS_MAX).chain(0..self.next_guest);
        numbers.find(is_free).expect("no machine has as many guests as there are numbers")
    }

    /// Gives a reference back. What nobody maps any more is freed when the phase is over.
    pub(crate) fn give_back(&self, slot: Slot) {
        if self.slots.give_back(slot) {
            locked(&self.unmapped).push(slot);
        }
    }

    /// Links `page` to nothing, and gives back what it was linked to.
    pub(crate) fn unlink(&self, guest: &Guest, page: PageIndex, epoch: &Guard) {
        match guest.link(page, Link::None) {
            Link::Candidate(leaf) => self.delete(leaf, epoch),
            Link::Merged(slot) => self.give_back(slot),
            Link::None | Link::Zero => {}
        }
    }

    /// Unlinks all pages of `range`.
    pub(crate) fn unlink_range(&self, guest: &Guest, range: PageRange) {
        let epoch = pin();
        for (page, _) in guest.links.linked(range) {
            self.unlink(guest, page, &epoch);
        }
    }

    /// Unlinks pages that were written: nothing that was known of them holds any more, except that merged
    /// ones are lost only when their guest says so.
    pub(crate) fn unlink_written(
        &self,
        guest: &Guest,
        range: PageRange,
        handles: &mut Vec<Handle>,
    ) {
        handles.clear();
        for (page, link) in guest.links.linked(range) {
            match link {
                Link::Candidate(leaf) => {
                    guest.link(page, Link::None);
                    handles.push(Handle::from_bits(leaf));
                }
                Link::Zero => {
                    guest.link(page, Link::None);
                }
                Link::Merged(_) | Link::None => {}
            }
        }
        if !handles.is_empty() {
            let deleted = self.index.delete_many(handles, &pin());
            let all = deleted == handles.len() as u64;
            assert!(all, "a candidate's leaf lives as long as its link");
        }
    }

    /// Returns true if the block of a guest's page is split: only there pages may be merged.
    pub(crate) fn is_split(&self, guest: u32, page: PageIndex) -> bool {
        self.guests.get(&guest).is_some_and(|guest| guest.gains.is_split(page))
    }

    /// Adds a page to what is gained by splitting its block.
    pub(crate) fn add_gain(&self, guest: u32, page: PageIndex) {
        if let Some(guest) = self.guests.get(&guest) {
            guest.gains.add(page);
        }
    }

    /// Deletes a leaf. Each is deleted once, by whoever holds the one link to it.
    pub(crate) fn delete(&self, leaf: u32, epoch: &Guard) {
        let deleted = self.index.delete(Handle::from_bits(leaf), epoch);
        assert!(deleted, "a leaf lives as long as the page or the slot that is linked to it");
    }

    /// Notes what was short; the first thing in a period counts.
    pub(crate) fn note_shortage(&self, shortage: Shortage) {
        locked(&self.shortage).get_or_insert(shortage);
    }

    /// Returns the first shortage of this period.
    pub(crate) fn shortage(&self) -> Option<Shortage> {
        *locked(&self.shortage)
    }

    /// The subject of troubles with writing to the store.
    pub(crate) fn writes(&self) -> impl Display {
        fmt::from_fn(|f| write!(f, "store of domain {}", self.id))
    }

    /// Frees the slots that no guest maps any more, and closes segments of which none is left. Between phases
    /// only.
    pub(crate) fn sweep(&mut self) {
        let mut slots = std::mem::take(locked_mut(&mut self.unmapped));
        slots.sort_unstable();
        slots.dedup();
        // A reference may have been taken again, and the slot be given back twice.
        slots.retain(|slot| self.slots.references(*slot) == 0);
        let slots = self.free_rows(slots);
        self.bequeath(&slots);
        let epoch = pin();
        for leaf in slots.iter().filter_map(|slot| self.slots.leaf(*slot)) {
            self.delete(leaf, &epoch);
        }
        for run in runs_of(&slots) {
            self.release(run);
        }
        self.index.flush(&epoch);
    }

    /// Hands the leaves of slots that are about to be freed over to those that stayed with their contents.
    fn bequeath(&mut self, freed: &[Slot]) {
        freed.iter().for_each(|slot| self.stayed.forget(*slot));
        for leader in freed {
            if let Some(heir) = self.stayed.take_heir(*leader) {
                self.hand_over_leaf(*leader, heir);
            }
        }
    }

    /// Points the leaf of a slot to another one, which has the same content. Between phases only.
    pub(crate) fn hand_over_leaf(&mut self, from: Slot, to: Slot) {
        let leaf = self.slots.leaf(from).expect("who hands a leaf over has it");
        let [old, new] = [from, to].map(|slot| IndexEntry::Canonical { slot }.to_bits());
        let exchanged = self.index.exchange_value(Handle::from_bits(leaf), old, new);
        assert!(exchanged.is_ok(), "a slot's leaf leads to it between phases");
        self.slots.set_leaf(from, None);
        self.slots.set_leaf(to, Some(leaf));
    }

    /// Frees the rows that no page maps any more, of `unmapped` slots. Returns the slots that can be
    /// freed with their leaves.
    fn free_rows(&mut self, unmapped: Vec<Slot>) -> Vec<Slot> {
        let (mut rows, mut heads) = (BTreeMap::new(), BTreeSet::new());
        for slot in unmapped {
            match self.rows.row_of(slot) {
                Some((row, head)) => drop(rows.insert(row.first, (row, head))),
                None => drop(heads.insert(slot)),
            }
        }
        for (row, head) in rows.into_values() {
            if !row.slots().any(|slot| self.slots.references(slot) > 0) {
                self.rows.remove(row);
                self.release(row);
                heads.insert(head);
            }
        }
        heads.retain(|head| self.slots.references(*head) == 0 && !self.rows.has_rows(*head));
        heads.into_iter().collect()
    }

    /// Frees slots that have no leaf (any more), and closes the segments that are empty then.
    pub(crate) fn release(&mut self, run: SlotRange) {
        for segments in self.slots.free(run) {
            self.store.drop_segments(segments);
            self.slots.give_back_segments(segments);
        }
    }

    /// Closes what segments are written by of which no slot is free any more. Between periods only.
    pub(crate) fn finish_segments(&self) {
        let slots = self.store.segment_slots();
        self.store.finish(|number| self.slots.is_taken(Slot(number * slots)));
    }

    /// Notes that nothing could be written to the store. The log has one line for it until merging goes on.
    pub(crate) fn note_store_error(&self, error: &StoreError) {
        if self.troubles.note(self.writes(), error) {
            tracing::warn!(domain = %self.id, %error, "merging pauses");
        }
        self.note_shortage(error.shortage());
    }

    /// Keeps the index as small as it may be and as wide as its keys ask for: see the crate's
    /// documentation, "What holds".
    pub(crate) fn reshape_for(&mut self, keys: u64) {
        const ROOT_BITS_MAX: u32 = 28;
        let wanted = keys.max(1).ilog2().min(ROOT_BITS_MAX);
        let has = self.index.root_bits();
        // Not for every key that comes or goes around a power of two.
        if (wanted > has || wanted + 1 < has)
            && let Err(error) = self.index.reshape(wanted)
            && self.troubles.note("indexes", error)
        {
            tracing::warn!(%error, "the index keeps its shape: searches take longer");
        }
    }

    /// Takes a guest out: its pages are all private, or its process has ended.
    pub(crate) fn forget(&mut self, mut guest: Guest) {
        self.left += Counts {
            pages_managed: 0,
            pages_merged: 0,
            zero_pages: 0,
            pages_unshared: 0,
            pages_volatile: 0,
            pages_pending: 0,
            pages_foreign: 0,
            huge_pages: 0,
            huge_pages_split: 0,
            ..guest.counts()
        };
        let range = guest.links.range();
        self.unlink_range(&guest, range);
        let state = guest.state_mut();
        for merge in state.doubt.take_in_flight().into_iter().chain(state.round.take_merges()) {
            self.give_back(merge.slot);
        }
    }

    /// Merged pages that map the store, of all guests.
    pub(crate) fn merged(&self) -> u64 {
        self.guests.values().chain(&self.departed).map(Guest::merged).sum()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.guests.is_empty() && self.departed.is_empty()
    }

    /// The sums over all guests, those that left included.
    pub(crate) fn counts(&self) -> Counts {
        let mut counts = self.left;
        for guest in self.guests.values().chain(&self.departed) {
            counts += guest.counts();
        }
        counts
    }

    pub(crate) fn status(&self) -> DomainStatus {
        let all = || self.guests.values().chain(&self.departed);
        let counts = self.counts();
        let found = locked(&self.found);
        let lists = found.seeds.capacity() * size_of::<Seed>()
            + found.joins.capacity() * size_of::<Join>()
            + self.classes.memory_bytes()
            + self.stayed.memory_bytes()
            + size_of::<Self>();
        let mappings_bytes = all().map(Guest::merge_mappings).sum::<u64>() * MAPPING_BYTES;
        let metadata_bytes = self.index.memory().0
            + (self.slots.memory_bytes() + self.rows.memory_bytes() + lists) as u64
            + all().map(Guest::memory_bytes).sum::<u64>();
        let pages_shared = u64::from(self.slots.used());
        let pages_sharing = counts.pages_merged.saturating_sub(pages_shared);
        let store_bytes = self.store.allocated_bytes();
        let shown_bytes = (counts.pages_merged + counts.zero_pages) * PAGE_BYTES as u64;
        // Copies may outnumber the pages that map them.
        let saved_bytes = shown_bytes.cast_signed() - store_bytes.cast_signed();
        let node = self.id.node.map(|node| node.0);
        DomainStatus {
            name: self.id.name.clone(),
            node,
            state: self.pressure.state(),
            pages_shared,
            pages_sharing,
            general_profit: saved_bytes - (metadata_bytes + mappings_bytes).cast_signed(),
            metadata_bytes,
            mappings_bytes,
            store_bytes,
            store_slots_max: u64::from(self.grant.slots),
            index_keys: self.index.len(),
            counts,
            guests: all().map(|guest| GuestStatus { node, ..guest.status() }).collect(),
        }
    }
}
