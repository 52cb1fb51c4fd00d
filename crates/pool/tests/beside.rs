//! Readers of an MDC beside its writer.
#![expect(clippy::unwrap_used, reason = "a test")]

mod simulated;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bindery_pool::log::WriteError;
use bindery_pool::mdc::{Half, Mdc, MdcReader};
use bindery_pool::{LogIdentity, ObjectId};
use simulated::{Machine, places};

/// How many records count, of those that were appended: the last ones.
const KEPT: u64 = 20;
const READS: u32 = 400;

/// How often the log is compacted while it is read once, at most, beside what had begun before: this one
/// is in memory, and a writer could be faster than any reader. What one read leaves is not the next
/// one's, or a writer that came late would overtake it as often as all before it together.
const COMPACTIONS: u64 = 3;

/// How far readers and the writer are.
#[derive(Default)]
struct Progress {
    synced: AtomicU64,
    reads: AtomicU64,
    done: AtomicBool,
}

impl Progress {
    fn is_done(&self) -> bool {
        self.done.load(Ordering::SeqCst)
    }
}

/// Has the writer end when it goes, by whatever way.
struct Ends<'a>(&'a Progress);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.done.store(true, Ordering::SeqCst);
    }
}

/// Appends numbers, and compacts whenever the log is full, until there are no readers any more.
fn write(mut mdc: Mdc, progress: &Progress) {
    let (mut read, mut compactions) = (0, 0);
    for number in 0_u64.. {
        if let Err(WriteError::Full { .. }) = mdc.append(&number.to_le_bytes()) {
            while !progress.is_done() {
                let reads = progress.reads.load(Ordering::SeqCst);
                if reads != read {
                    (read, compactions) = (reads, 0);
                }
                if compactions < COMPACTIONS {
                    break;
                }
                std::thread::yield_now();
            }
            compactions += 1;
            mdc.compact::<WriteError>(|compaction| {
                let mut kept = number.saturating_sub(KEPT)..=number;
                kept.try_for_each(|number| compaction.append(&number.to_le_bytes()))
            })
            .unwrap();
        }
        mdc.sync().unwrap();
        progress.synced.store(number + 1, Ordering::SeqCst);
        if progress.is_done() {
            return;
        }
    }
}

/// Each sees the last records as of some moment since it came, and none that is gone.
#[test]
fn readers_see_whole_metadata_while_it_is_written_and_compacted() {
    let mut machine = Machine::new();
    let halves = [1, 2].map(|log| Half {
        identity: LogIdentity { pool: 0xb1d, log: ObjectId(log) },
        places: places(&mut machine, 2, 70),
    });
    let mdc = Mdc::create(halves.clone(), 1).unwrap();
    let progress = Progress::default();
    let deadline = Instant::now() + Duration::from_secs(20);
    std::thread::scope(|scope| {
        let _ends = Ends(&progress);
        scope.spawn(|| write(mdc, &progress));
        for _ in 0..READS {
            let before = progress.synced.load(Ordering::SeqCst);
            let reader = MdcReader::open(&halves).unwrap();
            progress.reads.fetch_add(1, Ordering::SeqCst);
            let numbers: Vec<u64> =
                reader.records().map(|it| u64::from_le_bytes(it.try_into().unwrap())).collect();
            assert!(numbers.is_sorted_by(|first, second| first + 1 == *second), "{numbers:?}");
            let last = numbers.last().map_or(0, |last| last + 1);
            assert!(last >= before, "{last} is older than {before}");
            assert!(numbers.len() as u64 >= KEPT.min(before));
            if Instant::now() > deadline {
                break;
            }
        }
    });
}
