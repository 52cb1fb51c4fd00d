//! Board of the checkpoints that there are, for those who look and may not wait for a pool.
//!
//! The board is written anew when a pool is opened, and whenever somebody has used one. Of a pool that another process has
//! changed since, it has what there was before.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::catalogue::Visible;
use crate::access::Rights;
use crate::protocol::checkpoint::CheckpointInfo;

/// Most pools whose checkpoints are remembered.
const POOLS_MAX: usize = 16;

/// Most guests whose failures and restores are counted.
const COUNTED_MAX: usize = 4096;

/// Guest, as checkpoints name it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct KeptGuest {
    pub(crate) guest: String,
    pub(crate) domain: String,
    /// User whose guest it is; none of a domain that is no user's.
    pub(crate) uid: Option<u32>,
}

/// Checkpoints of one guest in all pools.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct KeptFigures {
    pub(crate) checkpoints: u64,
    /// Time of the last one, in nanoseconds since 1970-01-01 UTC; 0 if there is none.
    pub(crate) last_ns: u64,
    /// Pause of the last one, where it is known.
    pub(crate) last_pause_us: Option<u64>,
    /// Size of the pages that no earlier checkpoint had, of all of them.
    pub(crate) own_bytes: u64,
    /// Size of the pages that an earlier checkpoint had, of all of them.
    pub(crate) shared_bytes: u64,
    /// Checkpoints that could not be made since the daemon began.
    pub(crate) failures: u64,
    /// Guests that went on from its checkpoints since the daemon began.
    pub(crate) restores: u64,
    /// Pages that the guest still lacks; none of one that is not being filled.
    pub(crate) missing_pages: Option<u64>,
}

/// Checkpoints by pool, and counts by guest.
#[derive(Debug, Default)]
pub(crate) struct Board {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    pools: BTreeMap<u128, Vec<Visible>>,
    counts: BTreeMap<KeptGuest, Counts>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    failures: u64,
    restores: u64,
}

impl Board {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Each change is one insertion: a panic elsewhere leaves the board whole.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes down what a pool has. Beyond [`POOLS_MAX`] another pool is forgotten.
    pub(super) fn set(&self, pool: u128, checkpoints: Vec<Visible>) {
        let mut inner = self.lock();
        inner.pools.insert(pool, checkpoints);
        if inner.pools.len() > POOLS_MAX
            && let Some(other) = inner.pools.keys().copied().find(|other| *other != pool)
        {
            inner.pools.remove(&other);
        }
    }

    /// Counts a checkpoint that could not be made.
    pub(crate) fn count_failure(&self, guest: KeptGuest) {
        self.lock().counts_of(guest).failures += 1;
    }

    /// Counts a guest that goes on from a checkpoint.
    pub(crate) fn count_restore(&self, guest: KeptGuest) {
        self.lock().counts_of(guest).restores += 1;
    }

    /// Returns the last `latest` checkpoints of each guest that an operator may see, by time.
    pub(crate) fn checkpoints(&self, rights: Rights, latest: usize) -> Vec<CheckpointInfo> {
        let inner = self.lock();
        let mut by_guest: BTreeMap<KeptGuest, Vec<&Visible>> = BTreeMap::new();
        for found in inner.pools.values().flatten().filter(|found| found.is_visible_to(rights)) {
            by_guest.entry(found.kept_guest()).or_default().push(found);
        }
        let mut infos = Vec::new();
        for mut found in by_guest.into_values() {
            found.sort_by_key(|found| (found.summary.time_ns, found.summary.id));
            let older = found.len().saturating_sub(latest);
            infos.extend(found[older..].iter().map(|found| found.info()));
        }
        infos.sort_by_key(|info| info.time_ns);
        infos
    }

    /// Returns the figures of each guest that has checkpoints, or had some made, restored or missed.
    pub(crate) fn by_guest(&self) -> BTreeMap<KeptGuest, KeptFigures> {
        let inner = self.lock();
        let mut guests: BTreeMap<KeptGuest, KeptFigures> = BTreeMap::new();
        for found in inner.pools.values().flatten() {
            guests.entry(found.kept_guest()).or_default().add(&found.info());
        }
        for (guest, counts) in &inner.counts {
            let figures = guests.entry(guest.clone()).or_default();
            (figures.failures, figures.restores) = (counts.failures, counts.restores);
        }
        guests
    }
}

impl Inner {
    /// Returns the counts of a guest. Beyond [`COUNTED_MAX`] those of another are forgotten.
    fn counts_of(&mut self, guest: KeptGuest) -> &mut Counts {
        if self.counts.len() >= COUNTED_MAX && !self.counts.contains_key(&guest) {
            self.counts.pop_first();
        }
        self.counts.entry(guest).or_default()
    }
}

impl KeptFigures {
    fn add(&mut self, info: &CheckpointInfo) {
        self.checkpoints += 1;
        self.own_bytes += info.own_bytes;
        self.shared_bytes += info.shared_bytes;
        if info.time_ns >= self.last_ns {
            (self.last_ns, self.last_pause_us) = (info.time_ns, info.pause_us);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bindery_checkpoint::{Capture, CheckpointId, CheckpointSummary};
    use bindery_pool::ObjectId;

    fn found(domain: &str, guest: &str, at: u64, pause_us: Option<u64>) -> Visible {
        let name = |text: &str| text.parse().unwrap();
        Visible::new(CheckpointSummary {
            id: CheckpointId(at),
            domain: name(domain),
            guest: name(guest),
            name: name(&format!("n{at}")),
            time_ns: at,
            manifest: ObjectId(1),
            memory_pages: 9,
            stored_pages: 5,
            new_pages: 2,
            new_bytes: 1,
            capture: Some(Capture { pause_us, rounds: 1 }),
            touched: None,
        })
    }

    fn kept(guest: &str, uid: u32) -> KeptGuest {
        KeptGuest { guest: guest.into(), domain: "web".into(), uid: Some(uid) }
    }

    #[test]
    fn figures_are_sums_and_the_last_pause() {
        let board = Board::default();
        board.set(1, vec![found("7:web", "a", 5, Some(50)), found("7:web", "a", 9, Some(90))]);
        board.set(2, vec![found("7:web", "a", 7, Some(70)), found("8:web", "b", 3, None)]);
        board.count_failure(kept("c", 7));
        board.count_restore(kept("a", 7));
        let guests = board.by_guest();
        let a = &guests[&kept("a", 7)];
        assert_eq!((a.checkpoints, a.last_ns, a.last_pause_us), (3, 9, Some(90)));
        assert_eq!((a.own_bytes, a.shared_bytes, a.restores), (6 * 4096, 9 * 4096, 1));
        assert_eq!(guests[&kept("b", 8)].last_pause_us, None);
        assert_eq!((guests[&kept("c", 7)].failures, guests[&kept("c", 7)].checkpoints), (1, 0));
        board.set(1, Vec::new());
        assert_eq!(board.by_guest()[&kept("a", 7)].checkpoints, 1);
    }

    #[test]
    fn each_user_sees_the_last_ones_of_the_own_guests() {
        let board = Board::default();
        let of_a = (0..9).map(|at| found("7:web", "a", at, None));
        board.set(
            1,
            of_a.chain([found("8:web", "b", 4, None), found("nobody", "c", 3, None)]).collect(),
        );
        let times = |rights, latest| -> Vec<u64> {
            board.checkpoints(rights, latest).iter().map(|info| info.time_ns).collect()
        };
        assert_eq!(times(Rights::Owner, 2), [3, 4, 7, 8]);
        assert_eq!(times(Rights::Member { uid: 7 }, 2), [7, 8]);
        assert_eq!(times(Rights::Member { uid: 8 }, usize::MAX), [4]);
        assert!(times(Rights::None, 9).is_empty());
    }

    #[test]
    fn pools_and_counts_are_bounded() {
        let board = Board::default();
        for pool in 0..100 {
            board.set(pool, vec![found("7:web", "a", 1, None)]);
        }
        for guest in 0..COUNTED_MAX + 9 {
            board.count_failure(kept(&format!("g{guest}"), 7));
        }
        assert_eq!(board.by_guest()[&kept("a", 7)].checkpoints, POOLS_MAX as u64);
        assert_eq!(board.lock().counts.len(), COUNTED_MAX);
    }
}
