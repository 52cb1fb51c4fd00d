//! Objects that are handed in while none can be committed.

use std::fs;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use bindery_pool::device::{Device, DeviceAccess, DeviceOptions, FileDevice, IoEngine, UnderWay};
use bindery_pool::write::Writer;
use bindery_pool::{AttachedDevice, CreateOptions, MediaClass, NewDevice, Pool};
use bindery_sys::direct::{Buffer, Source};
use bindery_testkit::skipped;

use crate::rig::{MIB, Rig};

/// What becomes of a sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gate {
    Open,
    Closed,
    Panics,
}

/// A device whose syncs wait for a test.
#[derive(Debug)]
struct Gated {
    inner: Arc<dyn Device>,
    gate: Mutex<Gate>,
    changed: Condvar,
}

impl Gated {
    fn set(&self, gate: Gate) {
        *self.gate.lock().unwrap() = gate;
        self.changed.notify_all();
    }

    fn pass(&self) -> Gate {
        let is_closed = |gate: &mut Gate| *gate == Gate::Closed;
        let (deadline, gate) = (Duration::from_secs(20), self.gate.lock().unwrap());
        let (gate, waited) = self.changed.wait_timeout_while(gate, deadline, is_closed).unwrap();
        assert!(!waited.timed_out(), "the gate was never opened");
        *gate
    }
}

impl Device for Gated {
    fn bytes(&self) -> u64 {
        self.inner.bytes()
    }

    fn read(&self, offset_bytes: u64, into: &mut Buffer) -> io::Result<()> {
        self.inner.read(offset_bytes, into)
    }

    fn write(&self, offset_bytes: u64, from: &Buffer) -> io::Result<()> {
        self.inner.write(offset_bytes, from)
    }

    fn sync(&self) -> io::Result<()> {
        assert!(self.pass() == Gate::Open, "a sync that panics");
        self.inner.sync()
    }

    fn discard(&self, offset_bytes: u64, bytes: u64) -> io::Result<()> {
        self.inner.discard(offset_bytes, bytes)
    }

    fn grow(&self, bytes: u64) -> io::Result<u64> {
        self.inner.grow(bytes)
    }

    fn under_way(&self) -> UnderWay {
        self.inner.under_way()
    }

    fn begin_write(
        &self,
        under_way: &mut UnderWay,
        offset_bytes: u64,
        from: Source,
    ) -> io::Result<()> {
        self.inner.begin_write(under_way, offset_bytes, from)
    }

    fn end_writes(&self, under_way: &mut UnderWay) -> io::Result<()> {
        self.inner.end_writes(under_way)
    }
}

/// A pool on such a device, whose next ids are set aside.
fn gated_pool(inner: Arc<dyn Device>) -> (Pool, Arc<Gated>) {
    let (gate, changed) = (Mutex::new(Gate::Open), Condvar::new());
    let gated = Arc::new(Gated { inner, gate, changed });
    let device = Arc::clone(&gated) as Arc<dyn Device>;
    let attached = AttachedDevice { label: "gated".into(), device };
    let new = NewDevice { attached, class: MediaClass::Capacity };
    let options = CreateOptions { force: false, catalogue_bytes: Some(512 << 10) };
    let pool = Pool::create_on("gated".parse().unwrap(), vec![new], &options).unwrap();
    small(&pool).abort();
    (pool, gated)
}

fn small(pool: &Pool) -> Writer {
    let mut writer = pool.allocate_mblock(MediaClass::Capacity, 4096).unwrap();
    writer.append(&[7; 4000]).unwrap();
    writer
}

/// How many rings this process has.
fn rings() -> usize {
    let entries = fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().path());
    let links = entries.filter_map(|path| fs::read_link(path).ok());
    links.filter(|link| link.to_string_lossy().contains("io_uring")).count()
}

/// A ring each would use up all descriptors that a process has by default.
#[test]
fn small_objects_that_wait_for_a_sync_have_no_ring_each() {
    const OBJECTS: usize = 600;
    let directory = tempfile::tempdir().unwrap();
    let options = DeviceOptions::new(DeviceAccess::Write);
    let path = directory.path().join("disk");
    let device = FileDevice::create(&path, 32 * MIB, &options).unwrap();
    if device.engine() != IoEngine::Uring {
        return skipped!("objects that wait for a sync have no ring each: no io_uring here");
    }
    let (pool, gated) = gated_pool(Arc::new(device));
    let (before, committer) = (rings(), pool.committer().unwrap());
    gated.set(Gate::Closed);
    for _ in 0..OBJECTS {
        committer.commit(small(&pool)).unwrap();
    }
    let more = rings().saturating_sub(before);
    gated.set(Gate::Open);
    let committed = committer.finish().into_iter().filter(Result::is_ok).count();
    assert_eq!(committed, OBJECTS);
    assert!(more < 64, "{more} rings for {OBJECTS} objects");
}

#[test]
fn who_waits_for_a_committer_that_panicked_panics_and_no_more() {
    let rig = Rig::new(&[(MediaClass::Capacity, 16 * MIB)]);
    let (pool, gated) = gated_pool(rig.attached().remove(0).device);
    let committer = pool.committer().unwrap();
    gated.set(Gate::Closed);
    for _ in 0..1024 {
        committer.commit(small(&pool)).unwrap();
    }
    gated.set(Gate::Panics);
    // The committer goes while this thread panics: a second panic would end the process.
    let more = catch_unwind(AssertUnwindSafe(|| {
        let committer = committer;
        committer.commit(small(&pool))
    }));
    assert!(more.is_err());
    gated.set(Gate::Open);
}
