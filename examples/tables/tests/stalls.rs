//! Who puts does not wait for the device.
#![expect(clippy::unwrap_used, reason = "a test: what fails is to be seen where it fails")]

mod common;

use std::collections::BTreeSet;
use std::sync::mpsc;
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use bindery_example_tables::{Mapped, Mapper, Options, StoreError, Tables};
use bindery_pool::device::{DeviceAccess, DeviceOptions, FileDevice};
use bindery_pool::map::{Maps, Temperature};
use bindery_pool::object::Object;
use bindery_pool::{AttachedDevice, CreateOptions, MediaClass, NewDevice, Pool};
use common::{Await, Syncing};

const DEADLINE: Duration = Duration::from_secs(20);

const MEMORY_TABLE_BYTES: usize = 32 << 10;

/// Holds a device's syncs, each until it is let pass, while it is closed.
#[derive(Debug, Default)]
struct Gate {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    is_closed: bool,
    syncs: u64,
    waiting: BTreeSet<u64>,
}

impl Gate {
    fn close(&self) {
        self.state.lock().unwrap().is_closed = true;
    }

    fn open(&self) {
        let mut state = self.state.lock().unwrap();
        state.is_closed = false;
        state.waiting.clear();
        self.changed.notify_all();
    }

    fn pass(&self) {
        let mut state = self.state.lock().unwrap();
        if !state.is_closed {
            return;
        }
        let sync = state.syncs;
        state.syncs += 1;
        state.waiting.insert(sync);
        drop(self.changed.wait_while(state, |state| state.waiting.contains(&sync)).unwrap());
    }

    fn waiting(&self) -> BTreeSet<u64> {
        self.state.lock().unwrap().waiting.clone()
    }

    fn let_pass(&self, syncs: &BTreeSet<u64>) {
        self.state.lock().unwrap().waiting.retain(|sync| !syncs.contains(sync));
        self.changed.notify_all();
    }
}

impl Await for Arc<Gate> {
    fn await_it(&self) {
        self.pass();
    }
}

/// Shows nothing of what was merged before it may.
struct Late(Maps, Mutex<mpsc::Receiver<()>>);

impl Mapper for Late {
    fn map(
        &self,
        objects: &[Arc<dyn Object>],
        temperature: Temperature,
    ) -> Result<Box<dyn Mapped>, StoreError> {
        if temperature == Options::default().temperature {
            // Its other end is dropped when it may.
            let _ = self.1.lock().unwrap().recv();
        }
        Mapper::map(&self.0, objects, temperature)
    }
}

fn store(gate: &Arc<Gate>, mapper: Arc<dyn Mapper>) -> (tempfile::TempDir, Tables) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("device");
    let file =
        FileDevice::create(&path, 64 << 20, &DeviceOptions::new(DeviceAccess::Write)).unwrap();
    let device = Arc::new(Syncing(file, Arc::clone(gate)));
    let attached = AttachedDevice { label: "the device".into(), device };
    let device = NewDevice { attached, class: MediaClass::Capacity };
    let options = CreateOptions::default();
    let pool = Pool::create_on("tables".parse().unwrap(), vec![device], &options).unwrap();
    let options = Options { memory_table_bytes: MEMORY_TABLE_BYTES, ..Options::default() };
    (directory, Tables::open(Arc::new(pool), mapper, options).unwrap())
}

/// Puts a little, which fills no memory table however often; whether that ended in time.
fn can_put(tables: &Arc<Tables>) -> bool {
    let (done, is_done) = mpsc::channel();
    let theirs = Arc::clone(tables);
    thread::spawn(move || {
        (0..16_usize).for_each(|key| theirs.put(&key.to_be_bytes(), &[3]).unwrap());
        // Nobody listens to one that comes too late.
        let _ = done.send(());
    });
    is_done.recv_timeout(DEADLINE).is_ok()
}

/// Wherever the threads that make tables of what was put wait for the device, at their objects, at the pool's
/// catalogue or at the list of tables: puts go on until the next memory table is full, too. No sync passes
/// that was not held while somebody put.
#[test]
fn puts_go_on_while_a_table_is_made_durable() {
    let gate = Arc::new(Gate::default());
    let (_directory, tables) = store(&gate, Arc::new(Maps::default()));
    let tables = Arc::new(tables);
    gate.close();
    for key in 0..=MEMORY_TABLE_BYTES / 512 {
        tables.put(&key.to_be_bytes(), &[1; 512]).unwrap();
    }
    let theirs = Arc::clone(&tables);
    let settling = thread::spawn(move || theirs.settle());
    let (mut held, mut since) = (0, Instant::now());
    while !settling.is_finished() {
        let syncs = gate.waiting();
        if syncs.is_empty() {
            assert!(since.elapsed() < DEADLINE, "nobody syncs after {held} syncs");
            thread::sleep(Duration::from_millis(1));
            continue;
        }
        if !can_put(&tables) {
            gate.open();
            panic!("puts wait for the device after {held} syncs");
        }
        gate.let_pass(&syncs);
        (held, since) = (held + syncs.len(), Instant::now());
    }
    gate.open();
    settling.join().unwrap().unwrap();
    assert!(held > 0, "nothing was made durable");
}

/// A merge of the whole store takes many times as long as a memory table is filled.
#[test]
fn puts_go_on_while_tables_are_merged() {
    let (may_merge, late) = mpsc::channel();
    let late = Arc::new(Late(Maps::default(), Mutex::new(late)));
    let (_directory, tables) = store(&Arc::default(), late);
    let tables = Arc::new(tables);
    let (done, is_done) = mpsc::channel();
    let theirs = Arc::clone(&tables);
    // Three times what is merged together.
    let entries = Options::default().root_tables_max * 3 * MEMORY_TABLE_BYTES / 512;
    let putting = thread::spawn(move || {
        (0..entries).for_each(|key| theirs.put(&key.to_be_bytes(), &[1; 512]).unwrap());
        let _ = done.send(());
    });
    let went_on = is_done.recv_timeout(DEADLINE).is_ok();
    drop(may_merge);
    assert!(went_on, "puts wait for a merge");
    putting.join().unwrap();
    tables.settle().unwrap();
    let mut value = Vec::new();
    for key in 0..entries {
        assert!(tables.get(&key.to_be_bytes(), &mut value).unwrap(), "{key} is lost");
    }
    assert_eq!(value.len(), entries * 512);
}
