//! Which tables there are, kept in the pool's own MDC for its user: each record is the whole list, and
//! the last one counts.
//!
//! ```text
//! logs u64 × 2
//! root tables u32 | (data u64, index u64) × root tables, the newest first
//! shelves u32 | each: tables u32 | (data u64, index u64) × tables
//! ```

use bindery_pool::ObjectId;

/// The objects of a table: entries and index.
pub(crate) type TableObjects = [ObjectId; 2];

/// All tables of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Manifest {
    /// The journal's.
    pub(crate) logs: [ObjectId; 2],
    /// The newest first.
    pub(crate) root: Vec<TableObjects>,
    /// By their first keys.
    pub(crate) shelves: Vec<Vec<TableObjects>>,
}

fn put_tables(record: &mut Vec<u8>, tables: &[TableObjects]) {
    record.extend_from_slice(&(tables.len() as u32).to_le_bytes());
    for object in tables.iter().flatten() {
        record.extend_from_slice(&object.0.to_le_bytes());
    }
}

fn take_id(record: &mut &[u8]) -> Option<ObjectId> {
    let (number, rest) = record.split_first_chunk()?;
    *record = rest;
    Some(ObjectId(u64::from_le_bytes(*number)))
}

fn take_u32(record: &mut &[u8]) -> Option<usize> {
    let (number, rest) = record.split_first_chunk()?;
    *record = rest;
    Some(u32::from_le_bytes(*number) as usize)
}

fn take_tables(record: &mut &[u8]) -> Option<Vec<TableObjects>> {
    let count = take_u32(record)?;
    let (tables, rest) = record.split_at_checked(count.checked_mul(16)?)?;
    *record = rest;
    let number = |bytes: &[u8; 8]| ObjectId(u64::from_le_bytes(*bytes));
    let (numbers, _) = tables.as_chunks::<8>();
    Some(numbers.chunks_exact(2).map(|pair| [number(&pair[0]), number(&pair[1])]).collect())
}

impl Manifest {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut record = Vec::new();
        for log in self.logs {
            record.extend_from_slice(&log.0.to_le_bytes());
        }
        put_tables(&mut record, &self.root);
        record.extend_from_slice(&(self.shelves.len() as u32).to_le_bytes());
        self.shelves.iter().for_each(|tables| put_tables(&mut record, tables));
        record
    }

    /// The list that a record holds; none if it holds none.
    pub(crate) fn decode(mut record: &[u8]) -> Option<Self> {
        let logs = [take_id(&mut record)?, take_id(&mut record)?];
        let root = take_tables(&mut record)?;
        let shelves = take_u32(&mut record)?;
        // Each takes four bytes at least: what a record promises is not believed.
        if shelves > record.len() / 4 {
            return None;
        }
        let shelves = (0..shelves).map(|_| take_tables(&mut record)).collect::<Option<_>>()?;
        let manifest = Self { logs, root, shelves };
        record.is_empty().then_some(manifest)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_was_encoded_is_decoded(
            root in prop::collection::vec(any::<[u64; 2]>(), 0..5),
            shelves in prop::collection::vec(prop::collection::vec(any::<[u64; 2]>(), 0..5), 0..5),
        ) {
            let ids = |tables: Vec<[u64; 2]>| tables.into_iter().map(|table| table.map(ObjectId)).collect();
            let logs = [ObjectId(7), ObjectId(8)];
            let manifest = Manifest { logs, root: ids(root), shelves: shelves.into_iter().map(ids).collect() };
            let record = manifest.encode();
            prop_assert_eq!(Manifest::decode(&record), Some(manifest));
            for bytes in 0..record.len() {
                prop_assert_eq!(Manifest::decode(&record[..bytes]), None);
            }
        }

        #[test]
        fn anything_is_decoded_or_refused(record in prop::collection::vec(any::<u8>(), 0..64)) {
            if let Some(manifest) = Manifest::decode(&record) {
                prop_assert_eq!(manifest.encode(), record);
            }
        }
    }
}
