//! Numbers of objects that were committed, moved and deleted since the pool was opened.

use std::sync::atomic::{AtomicU64, Ordering};

/// Objects, and the bytes in them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObjectAmount {
    /// Number of objects.
    pub objects: u64,
    /// Bytes of the objects together.
    pub bytes: u64,
}

/// Counts since the pool was opened.
#[derive(Debug, Default)]
pub(crate) struct SessionCounters {
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

    fn read(&self) -> ObjectAmount {
        let [objects, bytes] =
            [&self.objects, &self.bytes].map(|counter| counter.load(Ordering::Relaxed));
        ObjectAmount { objects, bytes }
    }
}

impl SessionCounters {
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
    pub(crate) fn amounts(&self) -> [ObjectAmount; 3] {
        [&self.committed, &self.archived, &self.brought_back].map(Tally::read)
    }

    /// Aborted and deleted objects.
    pub(crate) fn ended(&self) -> [u64; 2] {
        [&self.aborted, &self.deleted].map(|counter| counter.load(Ordering::Relaxed))
    }
}
