//! Who puts does not wait for the device.
#![expect(clippy::unwrap_used, reason = "a test: what fails is to be seen where it fails")]

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::mpsc;
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use bindery_example_tables::{Options, Tables};
use bindery_pool::device::{Access, Device, FileDevice, Options as DeviceOptions};
use bindery_pool::map::Maps;
use bindery_pool::pool::{Attached, CreateOptions, NewDevice};
use bindery_pool::{MediaClass, Pool};
use bindery_sys::direct::Buffer;

const DEADLINE: Duration = Duration::from_secs(20);

const MEMORY_TABLE_BYTES: usize = 32 << 10;

/// Of a device's syncs so many pass, and those after them wait; all pass where there is no number.
#[derive(Debug, Default)]
struct Gate {
    state: Mutex<(Option<usize>, usize)>,
    changed: Condvar,
}

impl Gate {
    fn let_pass(&self, syncs: Option<usize>) {
        self.state.lock().unwrap().0 = syncs;
        self.changed.notify_all();
    }

    fn pass(&self) {
        let mut state = self.state.lock().unwrap();
        state.1 += 1;
        while state.0 == Some(0) {
            state = self.changed.wait(state).unwrap();
        }
        state.1 -= 1;
        state.0 = state.0.map(|syncs| syncs - 1);
    }

    fn waiting(&self) -> usize {
        let state = self.state.lock().unwrap();
        if state.0 == Some(0) { state.1 } else { 0 }
    }
}

#[derive(Debug)]
struct Gated(FileDevice, Arc<Gate>);

impl Device for Gated {
    fn bytes(&self) -> u64 {
        self.0.bytes()
    }

    fn read(&self, offset_bytes: u64, into: &mut Buffer) -> io::Result<()> {
        self.0.read(offset_bytes, into)
    }

    fn write(&self, offset_bytes: u64, from: &Buffer) -> io::Result<()> {
        self.0.write(offset_bytes, from)
    }

    fn sync(&self) -> io::Result<()> {
        self.1.pass();
        Ok(())
    }

    fn discard(&self, offset_bytes: u64, bytes: u64) -> io::Result<()> {
        self.0.discard(offset_bytes, bytes)
    }

    fn grow(&self, bytes: u64) -> io::Result<u64> {
        self.0.grow(bytes)
    }

    fn file(&self) -> Option<BorrowedFd<'_>> {
        self.0.file()
    }
}

fn store(gate: &Arc<Gate>) -> (tempfile::TempDir, Tables) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("device");
    let file = FileDevice::create(&path, 64 << 20, &DeviceOptions::new(Access::Write)).unwrap();
    let device = Arc::new(Gated(file, Arc::clone(gate)));
    let attached = Attached { label: "the device".into(), device };
    let device = NewDevice { attached, class: MediaClass::Capacity };
    let options = CreateOptions::default();
    let pool = Pool::create_on("tables".parse().unwrap(), vec![device], &options).unwrap();
    let options = Options { memory_table_bytes: MEMORY_TABLE_BYTES, ..Options::default() };
    (directory, Tables::open(Arc::new(pool), Arc::new(Maps::default()), options).unwrap())
}

/// Wherever the thread that makes a table of what was put waits for the device, at its objects, at the
/// pool's catalogue or at the list of tables: puts go on until the next memory table is full, too.
#[test]
fn puts_go_on_while_a_table_is_made_durable() {
    let gate = Arc::new(Gate::default());
    let (_directory, tables) = store(&gate);
    let tables = Arc::new(tables);
    for syncs in 0..12 {
        gate.let_pass(Some(syncs));
        for key in 0..=MEMORY_TABLE_BYTES / 512 {
            tables.put(&key.to_be_bytes(), &[1; 512]).unwrap();
        }
        let began = Instant::now();
        // The journal's thread and the one that makes tables.
        while gate.waiting() < 2 && began.elapsed() < Duration::from_millis(100) {
            tables.put(b"now and then", &[2]).unwrap();
            thread::sleep(Duration::from_millis(1));
        }
        let (done, is_done) = mpsc::channel();
        let theirs = Arc::clone(&tables);
        let putting = thread::spawn(move || {
            (0..16_usize).for_each(|key| theirs.put(&key.to_be_bytes(), &[3]).unwrap());
            done.send(()).unwrap();
        });
        let in_time = is_done.recv_timeout(DEADLINE);
        gate.let_pass(None);
        assert!(in_time.is_ok(), "puts wait for the device after {syncs} syncs");
        putting.join().unwrap();
        tables.settle().unwrap();
    }
}
