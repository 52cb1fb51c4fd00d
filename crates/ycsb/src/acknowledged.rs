//! What a store has acknowledged to a thread: enough of it to find that some was lost, and so little that
//! the store misses no memory, and no request waits for it to grow.

use crate::record::scatter;

/// Updates that are remembered.
const REMEMBERED: u64 = 4096;

/// Versions of records, each until another record needs its place.
pub(crate) struct Acknowledged(Vec<Option<(u64, u64)>>);

impl Acknowledged {
    pub(crate) fn new() -> Self {
        Self(vec![None; REMEMBERED as usize])
    }

    /// Where a record is remembered.
    fn place(record: u64) -> usize {
        (scatter(record) % REMEMBERED) as usize
    }

    /// Remembers a version in place of the record's last.
    pub(crate) fn put(&mut self, record: u64, version: u64) {
        self.0[Self::place(record)] = Some((record, version));
    }

    /// The last one of a record, if it is remembered.
    pub(crate) fn version(&self, record: u64) -> Option<u64> {
        let (found, version) = self.0[Self::place(record)]?;
        (found == record).then_some(version)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_has_its_last_version_or_none() {
        let mut acknowledged = Acknowledged::new();
        for record in 0..10_000 {
            acknowledged.put(record, 1);
            acknowledged.put(record, record + 2);
            assert_eq!(acknowledged.version(record), Some(record + 2));
        }
        let remembered = (0..10_000).filter(|&record| match acknowledged.version(record) {
            Some(version) => version == record + 2,
            None => false,
        });
        assert!(remembered.count() > 3_000);
    }
}
