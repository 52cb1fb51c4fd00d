//! Threads that ask.

use std::thread;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use thiserror::Error;

use crate::acknowledged::Acknowledged;
use crate::record::{Records, VALUE_BYTES, WrongAnswer};
use crate::report::{Latency, Report};
use crate::store::{BoxError, Store};
use crate::workload::{Operation, Requests, Workload};

/// What is to be asked of a store.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// The records that it was loaded with.
    pub records: Records,
    /// What is asked.
    pub workload: Workload,
    /// By how many threads.
    pub threads: u64,
    /// For how long without measuring, until caches hold what they will.
    pub warm_up: Duration,
    /// For how long.
    pub duration: Duration,
    /// How many requests a second are asked, by all threads together; as many as are answered, without.
    pub target_per_s: Option<f64>,
    /// Whether an update writes all fields of a record at once (YCSB: `writeallfields`). Otherwise it is one
    /// field, for which the record is read first.
    pub write_all_fields: bool,
    /// One more thread reads all records in the order of their keys, again and again, untimed.
    pub scan: bool,
    /// Equal seeds ask for the same, thread by thread.
    pub seed: u64,
}

/// Why there are no figures.
#[derive(Debug, Error)]
pub enum RunError {
    /// The store failed.
    #[error("the store failed: {0}")]
    Store(#[source] BoxError),
    /// The store answered with what it must not.
    #[error(transparent)]
    Wrong(#[from] WrongAnswer),
}

/// Puts all records into a store and has it settle.
///
/// # Errors
/// [`RunError::Store`].
pub fn load(store: &dyn Store, records: Records) -> Result<(), RunError> {
    let mut filled = records.sorted().into_iter().map(|(key, record)| {
        let mut value = [0; VALUE_BYTES];
        records.fill(record, 0, &mut value);
        (key, value)
    });
    store.fill(&mut filled).map_err(RunError::Store)?;
    store.settle().map_err(RunError::Store)
}

/// Asks a loaded store. Blocks for the warm-up and the run.
///
/// # Errors
/// [`RunError`]; the first of any thread, after all threads have ended.
///
/// # Panics
/// If a thread of the store's caller does.
pub fn run(store: &dyn Store, run: Run) -> Result<Report, RunError> {
    let begin = Instant::now() + run.warm_up;
    let end = begin + run.duration;
    let mut read_before = None;
    let threads = thread::scope(|scope| {
        let asking: Vec<_> = (0..run.threads)
            .map(|thread| scope.spawn(move || Asker::new(store, run, thread).ask(begin, end)))
            .collect();
        let scanning = run.scan.then(|| scope.spawn(move || scan(store, run.records, end)));
        thread::sleep(begin.saturating_duration_since(Instant::now()));
        read_before = device_read_bytes();
        let ended = asking.into_iter().map(|thread| thread.join().expect("no asker panics"));
        let ended = ended.collect::<Vec<Result<Measured, RunError>>>();
        let scanned = scanning.map_or(Ok(()), |thread| thread.join().expect("no scan panics"));
        scanned.map(|()| ended)
    })?;
    let mut all = Measured::new();
    for thread in threads {
        let thread = thread?;
        all.reads += thread.reads;
        all.updates += thread.updates;
    }
    let elapsed_s = (Instant::now() - begin).as_secs_f64();
    let device_read_bytes =
        device_read_bytes().zip(read_before).map(|(after, before)| after - before);
    let requests = all.reads.len() + all.updates.len();
    Ok(Report {
        requests_per_s: requests as f64 / elapsed_s,
        elapsed_s,
        device_read_bytes,
        reads: Latency::of(&all.reads),
        updates: Latency::of(&all.updates),
    })
}

/// Reads all records in the order of their keys, again and again until `end`.
fn scan(store: &dyn Store, records: Records, end: Instant) -> Result<(), RunError> {
    let mut value = Vec::new();
    for (key, _) in records.sorted().iter().cycle() {
        if Instant::now() >= end {
            break;
        }
        value.clear();
        store.read(key, &mut value).map_err(RunError::Store)?;
    }
    Ok(())
}

/// What this process has had read from devices so far, by faults too (proc_pid_io(5)).
fn device_read_bytes() -> Option<u64> {
    let counters = std::fs::read_to_string("/proc/self/io").ok()?;
    counters.lines().find_map(|line| line.strip_prefix("read_bytes: "))?.parse().ok()
}

/// Longer requests are counted as this long.
const LATENCY_NS_MAX: u64 = 600_000_000_000;

/// Nanoseconds of each request.
struct Measured {
    reads: Histogram<u64>,
    updates: Histogram<u64>,
}

impl Measured {
    fn new() -> Self {
        let histogram =
            || Histogram::new_with_max(LATENCY_NS_MAX, 3).expect("the bounds are of a histogram");
        Self { reads: histogram(), updates: histogram() }
    }
}

/// When a thread is to ask.
struct Timetable {
    due: Instant,
    interval: Duration,
}

impl Timetable {
    /// Waits until the next request is due. When that was, and when it counts as asked: where the thread is
    /// late, because the request before took too long, since it was due, as whoever wants an answer sees it
    /// (Tene, "How not to measure latency": coordinated omission).
    fn await_next(&mut self) -> (Instant, Instant) {
        let due = self.due;
        self.due += self.interval;
        let pause = due.saturating_duration_since(Instant::now());
        if pause.is_zero() {
            return (due, due);
        }
        thread::sleep(pause);
        // That it woke late is not the store's.
        (due, Instant::now())
    }
}

/// One thread that asks.
struct Asker<'a> {
    store: &'a dyn Store,
    timetable: Option<Timetable>,
    records: Records,
    requests: Requests,
    write_all_fields: bool,
    acknowledged: Acknowledged,
    /// Told apart from other threads' versions by their lowest bits.
    version: u64,
    threads: u64,
    answer: Vec<u8>,
    value: [u8; VALUE_BYTES],
}

impl<'a> Asker<'a> {
    fn new(store: &'a dyn Store, run: Run, thread: u64) -> Self {
        let requests = Requests::new(run.records, run.workload, run.seed * 1_000 + thread);
        let answer = Vec::with_capacity(VALUE_BYTES);
        let (records, threads) = (run.records, run.threads);
        let (version, value) = (thread + 1, [0; VALUE_BYTES]);
        let timetable = run.target_per_s.map(|target_per_s| {
            let interval = Duration::from_secs_f64(threads as f64 / target_per_s);
            // Threads take turns.
            Timetable { due: Instant::now() + interval / threads as u32 * thread as u32, interval }
        });
        Self {
            store,
            timetable,
            records,
            requests,
            write_all_fields: run.write_all_fields,
            acknowledged: Acknowledged::new(),
            version,
            threads,
            answer,
            value,
        }
    }

    fn ask(mut self, begin: Instant, end: Instant) -> Result<Measured, RunError> {
        let mut measured = Measured::new();
        loop {
            let request = self.requests.next().expect("requests never end");
            let (due, asked) = match &mut self.timetable {
                Some(timetable) => timetable.await_next(),
                None => [Instant::now(); 2].into(),
            };
            let histogram = match request {
                Operation::Read(record) => {
                    self.read(record)?;
                    &mut measured.reads
                }
                Operation::Update { record, field } => {
                    self.update(record, field)?;
                    &mut measured.updates
                }
            };
            let answered = Instant::now();
            if let Operation::Read(record) = request {
                self.check(record)?;
            }
            if due >= begin {
                histogram.saturating_record((answered - asked).as_nanos() as u64);
            }
            if answered >= end {
                return Ok(measured);
            }
        }
    }

    fn read(&mut self, record: u64) -> Result<(), RunError> {
        self.answer.clear();
        let key = self.records.key(record);
        let is_there = self.store.read(&key, &mut self.answer).map_err(RunError::Store)?;
        let missing = || WrongAnswer { record, what: "it is not there".into() };
        is_there.then_some(()).ok_or_else(|| RunError::Wrong(missing()))
    }

    /// Writes a field, as YCSB's bindings do for stores that know of none (its `RocksDBClient.update`): reads
    /// the record, changes it, and puts all of it. Of two threads that do so at once, one may undo the other's
    /// change, there as here.
    fn update(&mut self, record: u64, field: usize) -> Result<(), RunError> {
        self.version += self.threads;
        if self.write_all_fields {
            self.records.fill(record, self.version, &mut self.value);
        } else {
            self.read(record)?;
            self.check(record)?;
            self.value.copy_from_slice(&self.answer);
            self.records.change(record, field, self.version, &mut self.value);
        }
        let key = self.records.key(record);
        self.store.put(&key, &self.value).map_err(RunError::Store)?;
        self.acknowledged.put(record, self.version);
        Ok(())
    }

    /// Checks what was read: it is the record, and no older than what this thread has put. What another has
    /// put cannot be told to be older.
    fn check(&self, record: u64) -> Result<(), WrongAnswer> {
        let version = self.records.check(record, &self.answer)?;
        // The store was loaded with version 0.
        let is_others = version != 0 && version % self.threads != self.version % self.threads;
        match self.acknowledged.version(record) {
            Some(newest) if !is_others && version < newest => Err(WrongAnswer {
                record,
                what: format!("the answer is version {version}, after {newest} was acknowledged"),
            }),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::RwLock;
    use std::sync::atomic::AtomicU64;
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;
    use crate::record::KEY_BYTES;

    #[derive(Default)]
    struct Map {
        entries: RwLock<BTreeMap<[u8; KEY_BYTES], Vec<u8>>>,
        forgets: bool,
        loses_updates: bool,
        put_pause: Duration,
        reads: AtomicU64,
    }

    impl Store for Map {
        fn fill(
            &self,
            records: &mut dyn Iterator<Item = ([u8; KEY_BYTES], [u8; VALUE_BYTES])>,
        ) -> Result<(), BoxError> {
            let mut entries = self.entries.write().unwrap();
            entries.extend(records.map(|(key, value)| (key, value.to_vec())));
            Ok(())
        }

        fn read(&self, key: &[u8; KEY_BYTES], value: &mut Vec<u8>) -> Result<bool, BoxError> {
            self.reads.fetch_add(1, Relaxed);
            let entries = self.entries.read().unwrap();
            let found = entries.get(key);
            value.extend_from_slice(found.map_or(&[], Vec::as_slice));
            Ok(found.is_some() && !self.forgets)
        }

        fn put(&self, key: &[u8; KEY_BYTES], value: &[u8; VALUE_BYTES]) -> Result<(), BoxError> {
            thread::sleep(self.put_pause);
            if !self.loses_updates {
                self.entries.write().unwrap().insert(*key, value.to_vec());
            }
            Ok(())
        }

        fn settle(&self) -> Result<(), BoxError> {
            Ok(())
        }
    }

    const RUN: Run = Run {
        records: Records { count: 1_000 },
        workload: Workload::B,
        threads: 2,
        warm_up: Duration::from_millis(10),
        duration: Duration::from_millis(500),
        target_per_s: None,
        write_all_fields: false,
        scan: false,
        seed: 1,
    };

    #[test]
    fn every_request_is_counted_and_timed_and_every_answer_checked() {
        let store = Map { put_pause: Duration::from_millis(5), ..Map::default() };
        load(&store, RUN.records).unwrap();
        let report = run(&store, RUN).unwrap();
        let requests = (report.reads.requests + report.updates.requests) as f64;
        assert!((report.requests_per_s * report.elapsed_s - requests).abs() < 1.0);
        assert!(report.updates.requests > 0 && report.reads.p50_us <= report.reads.p9999_us);
        assert!(report.updates.p50_us >= 5_000.0, "{report:?}");
        let text = serde_json::to_string(&report).unwrap();
        assert_eq!(serde_json::from_str::<Report>(&text).unwrap(), report);

        store.entries.write().unwrap().values_mut().for_each(|value| value[500] ^= 1);
        let error = run(&store, Run { workload: Workload::C, ..RUN }).unwrap_err();
        assert!(matches!(error, RunError::Wrong(_)), "{error}");
    }

    #[test]
    fn a_scan_reads_beside_and_is_not_counted() {
        let store = Map::default();
        load(&store, RUN.records).unwrap();
        let report = run(&store, Run { target_per_s: Some(100.0), scan: true, ..RUN }).unwrap();
        assert!(report.reads.requests + report.updates.requests <= 60);
        assert!(store.reads.into_inner() > 2 * RUN.records.count);
    }

    #[test]
    fn no_more_is_asked_than_the_target_and_who_is_late_counts_since_it_was_due() {
        let store = Map::default();
        load(&store, RUN.records).unwrap();
        let report = run(&store, Run { target_per_s: Some(400.0), ..RUN }).unwrap();
        let requests = report.reads.requests + report.updates.requests;
        assert!((1..=202).contains(&requests), "{requests}");
        // Updates take ten times as long as there is between two requests: those after them wait.
        let store = Map { put_pause: Duration::from_millis(50), ..store };
        let report = run(&store, Run { target_per_s: Some(400.0), ..RUN }).unwrap();
        assert!(report.reads.max_us >= 40_000.0, "{report:?}");
    }

    #[test]
    fn a_field_is_written_after_a_read_and_a_record_without() {
        for (write_all_fields, reads, versions) in [(false, 1, [0, 3, 0]), (true, 0, [3; 3])] {
            let store = Map::default();
            load(&store, RUN.records).unwrap();
            let run = Run { write_all_fields, ..RUN };
            Asker::new(&store, run, 0).update(7, 1).unwrap();
            assert_eq!(store.reads.into_inner(), reads);
            let entries = store.entries.into_inner().unwrap();
            let value = &entries[&RUN.records.key(7)];
            assert_eq!(RUN.records.check(7, value).unwrap(), 3);
            // Where the versions of three fields lie.
            let found =
                [16, 100, 200].map(|at| u64::from_le_bytes(value[at..at + 8].try_into().unwrap()));
            assert_eq!(found, versions);
        }
    }

    #[test]
    fn a_store_that_acknowledges_and_loses_is_told() {
        for write_all_fields in [false, true] {
            let store = Map { loses_updates: true, ..Map::default() };
            load(&store, RUN.records).unwrap();
            let error = run(&store, Run { write_all_fields, ..RUN }).unwrap_err().to_string();
            assert!(error.contains("version 0, after"), "{error}");
        }
    }

    #[test]
    fn a_store_that_forgets_is_told() {
        let store = Map { forgets: true, ..Map::default() };
        load(&store, RUN.records).unwrap();
        let error = run(&store, RUN).unwrap_err().to_string();
        assert!(error.contains("not there"), "{error}");
    }
}
