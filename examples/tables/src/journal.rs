//! What was put and is in no table yet, in two mlogs that take turns.
//!
//! Memory tables are numbered, and table n is in log n mod 2: when it has become a table of the pool, its
//! log is erased and waits for table n + 2. A record is the number, then the entry:
//!
//! ```text
//! number u64 | key_bytes u16 | has_value u8 | key | value
//! ```
//!
//! Putting never waits for the device: entries queue up in memory, and [`Journal::drain`] writes them a
//! few milliseconds later. Whoever must not lose them waits for it.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bindery_pool::{MediaClass, ObjectId, OpenLog, Pool};

use crate::block::{ENTRY_BYTES_MAX, Value};
use crate::error::StoreError;
use crate::memory::MemoryTable;

const HEADER_BYTES: usize = 11;

/// What a log adds to a record: its checksum, and the header of its one piece (a second one where it
/// goes over the end of a block).
const FRAME_BYTES: usize = 8;

/// A record taken apart: its table's number, a key, and what is said of it.
type Parsed<'a> = (u64, &'a [u8], Value<'a>);

fn encode(number: u64, key: &[u8], value: Value<'_>) -> Vec<u8> {
    let mut record = Vec::with_capacity(HEADER_BYTES + key.len() + value.map_or(0, <[u8]>::len));
    record.extend_from_slice(&number.to_le_bytes());
    record.extend_from_slice(&(key.len() as u16).to_le_bytes());
    record.push(value.is_some().into());
    record.extend_from_slice(key);
    record.extend_from_slice(value.unwrap_or_default());
    record
}

/// What an entry takes in its log.
pub(crate) fn record_bytes(key: &[u8], value: Value<'_>) -> usize {
    HEADER_BYTES + FRAME_BYTES + key.len() + value.map_or(0, <[u8]>::len)
}

fn decode(record: &[u8]) -> Option<Parsed<'_>> {
    let (header, rest) = record.split_first_chunk::<HEADER_BYTES>()?;
    let number = u64::from_le_bytes(header[..8].try_into().ok()?);
    let key_bytes = u16::from_le_bytes([header[8], header[9]]);
    let (key, value) = rest.split_at_checked(key_bytes.into())?;
    // What is longer was not put, and fits no table.
    let value = match header[10] {
        0 if value.is_empty() => None,
        1 => Some(value),
        _ => return None,
    };
    (rest.len() <= ENTRY_BYTES_MAX).then_some((number, key, value))
}

/// Records, and the numbers of their tables.
type Pending = VecDeque<(u64, Vec<u8>)>;

/// The two logs, and what is not in them yet.
pub(crate) struct Journal {
    /// Locked before `pending` by those who take both.
    logs: Mutex<[OpenLog; 2]>,
    pending: Mutex<Pending>,
    /// How full a log may become before its table must.
    log_bytes_max: u64,
}

impl Journal {
    /// Makes the logs of a new store for memory tables of a size.
    pub(crate) fn create(
        pool: &Pool,
        class: MediaClass,
        memory_table_bytes: usize,
    ) -> Result<Self, StoreError> {
        // A table's records take a quarter. Each sync ends a block, which is what the rest is for.
        let log_bytes = 4 * memory_table_bytes as u64;
        let create = || pool.create_log(class, log_bytes, 1);
        Ok(Self::of([create()?, create()?]))
    }

    /// Opens the logs of a store: the memory tables that were in no table, the oldest first, with their
    /// numbers.
    pub(crate) fn open(
        pool: &Pool,
        logs: [ObjectId; 2],
    ) -> Result<(Self, Vec<(u64, MemoryTable)>), StoreError> {
        let [first, second] = logs;
        let logs = [pool.open_log(first)?, pool.open_log(second)?];
        let mut tables = Vec::new();
        for (at, log) in (0..).zip(&logs) {
            tables.extend(replay(log, at)?);
        }
        tables.sort_by_key(|(number, _)| *number);
        Ok((Self::of(logs), tables))
    }

    fn of(logs: [OpenLog; 2]) -> Self {
        let log_bytes_max = logs[0].capacity_bytes() / 2;
        Self { logs: Mutex::new(logs), pending: Mutex::default(), log_bytes_max }
    }

    fn logs(&self) -> MutexGuard<'_, [OpenLog; 2]> {
        self.logs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pending(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the logs are called.
    pub(crate) fn ids(&self) -> [ObjectId; 2] {
        self.logs().each_ref().map(OpenLog::id)
    }

    /// Queues an entry of the memory table of a number.
    pub(crate) fn put(&self, number: u64, key: &[u8], value: Value<'_>) {
        self.pending().push_back((number, encode(number, key, value)));
    }

    /// Makes everything durable that was put before. Blocks.
    pub(crate) fn drain(&self) -> Result<(), StoreError> {
        let mut logs = self.logs();
        let pending = std::mem::take(&mut *self.pending());
        let written = write(&mut logs, &pending);
        if written.is_err() {
            // It goes back: who asks next must not hear that all is durable because nothing is left.
            let mut queue = self.pending();
            let newer = std::mem::replace(&mut *queue, pending);
            queue.extend(newer);
        }
        written
    }

    /// Whether a memory table's log is so full that it must become a table of the pool.
    pub(crate) fn is_full(&self, number: u64) -> bool {
        self.logs()[(number % 2) as usize].used_bytes() > self.log_bytes_max
    }

    /// Forgets a memory table that has become one of the pool, durably.
    pub(crate) fn forget(&self, number: u64) -> Result<(), StoreError> {
        let mut logs = self.logs();
        // Nothing of it may come into its log behind this.
        self.pending().retain(|(pending, _)| *pending != number);
        Ok(logs[(number % 2) as usize].erase()?)
    }
}

fn write(logs: &mut [OpenLog; 2], pending: &Pending) -> Result<(), StoreError> {
    let mut is_written = [false; 2];
    for (number, record) in pending {
        let at = (number % 2) as usize;
        logs[at].append(record)?;
        is_written[at] = true;
    }
    let mut written = logs.iter_mut().zip(is_written).filter(|(_, is_written)| *is_written);
    written.try_for_each(|(log, _)| Ok(log.sync()?))
}

/// The memory table that log `at` of the two holds, if it holds one.
fn replay(log: &OpenLog, at: u64) -> Result<Option<(u64, MemoryTable)>, StoreError> {
    let (table, mut found) = (MemoryTable::default(), None);
    for record in log.records() {
        let record = record?;
        // The last number of all is none: there must be one more.
        let decoded = decode(&record).filter(|it| it.0 % 2 == at && it.0 < u64::MAX);
        let (number, key, value) = decoded.ok_or(StoreError::ForeignLog(log.id()))?;
        table.put(key, value);
        found = Some(number);
    }
    Ok(found.map(|number| (number, table)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_nobody_put_is_refused() {
        let put = encode(3, b"key", Some(b"value"));
        assert_eq!(decode(&put), Some((3, &b"key"[..], Some(&b"value"[..]))));
        assert_eq!(decode(&encode(3, b"key", None)), Some((3, &b"key"[..], None)));
        let longest = encode(3, b"key", Some(&[7; ENTRY_BYTES_MAX - 3]));
        assert!(decode(&longest).is_some());
        assert_eq!(decode(&[&longest[..], &[7]].concat()), None);
        // Deleted, and yet it has a value; and neither.
        for has_value in [0, 2] {
            let mut record = put.clone();
            record[10] = has_value;
            assert_eq!(decode(&record), None);
        }
    }

    proptest! {
        #[test]
        fn what_is_decoded_is_encoded_to_the_same(
            mut record in prop::collection::vec(any::<u8>(), 0..40),
        ) {
            if let Some(high) = record.get_mut(9) {
                *high = 0;
            }
            if let Some((number, key, value)) = decode(&record) {
                prop_assert_eq!(encode(number, key, value), record);
            }
        }
    }
}
