//! A VMM that keeps its guest by itself: pause, save, resume, and go on from what was kept, without a daemon.
//!
//! The "guest" is a thread that counts in each page of its memory, one after the other, and its only register is the
//! number of the round. [`Vmm`] and [`IncomingVmm`] are all that a VMM has to implement.
//!
//! ```sh
//! cargo run -p bindery-checkpoint --example in_process
//! ```

use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bindery_checkpoint::{
    Description, MemoryBlock, NewCheckpoint, PageEncoding, Store, StoreOptions,
};
use bindery_pool::{CreateOptions, DevicePath, MediaClass, Pool};
use bindery_units::{PAGE_BYTES, PageIndex};
use bindery_vmm::{
    DeviceState, GuestDescription, IncomingVmm, Overlay, Pause, Paused, Purpose, SaveMethod, Vmm,
    VmmError,
};

const MACHINE: &str = "counter-1";
const PAGES: usize = 64;
const BLOCK: &str = "ram";

/// Guest with 64 pages, each of which holds the number of the last round that counted there.
#[derive(Debug, Default)]
struct Machine {
    memory: Vec<u8>,
    /// Round, and the page that is next: all of its device state.
    round: u64,
    next: usize,
}

/// A VMM of one guest.
#[derive(Clone, Debug)]
struct Counter {
    machine: Arc<Mutex<Machine>>,
    /// True while the guest runs. A guest that stands is not in the middle of a page: that is done under the lock.
    runs: Arc<AtomicBool>,
}

impl Counter {
    /// Makes a guest that stands.
    fn new() -> Self {
        let machine = Machine { memory: vec![0; PAGES * PAGE_BYTES], ..Machine::default() };
        let counter = Self { machine: Arc::new(Mutex::new(machine)), runs: Arc::default() };
        let guest = counter.clone();
        thread::spawn(move || {
            loop {
                guest.step();
            }
        });
        counter
    }

    fn machine(&self) -> MutexGuard<'_, Machine> {
        self.machine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn step(&self) {
        let mut machine = self.machine();
        if !self.runs.load(Ordering::Relaxed) {
            drop(machine);
            return thread::sleep(Duration::from_millis(1));
        }
        let (page, round) = (machine.next, machine.round + 1);
        machine.memory[page * PAGE_BYTES..][..8].copy_from_slice(&round.to_le_bytes());
        machine.next = (page + 1) % PAGES;
        machine.round += u64::from(machine.next == 0);
    }

    /// Checks that pages before the next one are a round ahead of the others: nothing is torn.
    fn check(&self) -> u64 {
        let machine = self.machine();
        for (page, bytes) in machine.memory.chunks(PAGE_BYTES).enumerate() {
            let found = u64::from_le_bytes(*bytes.first_chunk().expect("a page has 8 bytes"));
            assert_eq!(found, machine.round + u64::from(page < machine.next), "page {page}");
        }
        machine.round
    }
}

impl Vmm for Counter {
    fn describe(&mut self) -> Result<GuestDescription, VmmError> {
        Ok(GuestDescription {
            name: Some("counter".into()),
            machine: MACHINE.into(),
            version: "1".into(),
            vcpus: 1,
            is_running: self.runs.load(Ordering::Relaxed),
            memory: Vec::new(),
            disks: Vec::new(),
            plugged_arguments: Vec::new(),
            obstacles: Vec::new(),
        })
    }

    fn pause(&mut self) -> Result<Pause, VmmError> {
        let was_running = self.runs.swap(false, Ordering::Relaxed);
        // Whoever holds the lock may count one more page.
        drop(self.machine());
        let stopped = Pause::Stopped { at: SystemTime::now() };
        Ok(if was_running { stopped } else { Pause::WasPaused })
    }

    fn snapshot_disks(&mut self, _overlays: &[Overlay]) -> Result<(), VmmError> {
        Ok(())
    }

    fn save_device_state(&mut self, _purpose: Purpose) -> Result<DeviceState, VmmError> {
        let machine = self.machine();
        let bytes = [machine.round, machine.next as u64].map(u64::to_le_bytes).concat();
        let (version, method) = ("1".into(), SaveMethod::Callback);
        Ok(DeviceState { machine: MACHINE.into(), version, method, bytes })
    }

    fn resume(&mut self) -> Result<SystemTime, VmmError> {
        self.runs.store(true, Ordering::Relaxed);
        Ok(SystemTime::now())
    }
}

impl IncomingVmm for Counter {
    fn load_device_state(&mut self, state: &DeviceState) -> Result<Duration, VmmError> {
        let begun = Instant::now();
        let (words, rest) = state.bytes.as_chunks::<8>();
        let ([round, next], []) = (words, rest) else {
            let (doing, reason) = ("loading".into(), "the state has another length".into());
            return Err(VmmError::Callback { doing, reason });
        };
        let mut machine = self.machine();
        machine.round = u64::from_le_bytes(*round);
        machine.next = u64::from_le_bytes(*next) as usize % PAGES;
        drop(machine);
        Ok(begun.elapsed())
    }

    fn resume(&mut self) -> Result<SystemTime, VmmError> {
        Vmm::resume(self)
    }
}

/// Keeps a guest while it runs. Returns the time that it stood still.
fn keep(store: &Store, vmm: &mut Counter, name: &str) -> Result<Duration, Box<dyn Error>> {
    let bytes = (PAGES * PAGE_BYTES) as u64;
    let description = Description {
        guest: "counter".parse()?,
        name: name.parse()?,
        domain: "examples".parse()?,
        time_ns: SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos() as u64,
        vmm: bindery_checkpoint::Vmm {
            kind: "counter".into(),
            ..bindery_checkpoint::Vmm::default()
        },
        blocks: vec![MemoryBlock { name: BLOCK.into(), bytes }],
        disks: Vec::new(),
        device_state: Vec::new(),
    };
    let new = NewCheckpoint { description, base: None, encoding: PageEncoding::Raw };
    let mut writer = store.create(new)?;
    let machine = Arc::clone(&vmm.machine);
    let mut paused = Paused::begin(vmm, &[])?;
    let state = paused.save(Purpose::Checkpoint)?;
    let memory = machine.lock().unwrap_or_else(PoisonError::into_inner).memory.clone();
    let times = paused.resume()?;
    // The guest runs on while its memory is stored.
    writer.put(0, PageIndex(0), &memory)?;
    writer.set_device_state(state.method.as_str(), state.bytes);
    writer.finish()?;
    Ok(times.outage.unwrap_or_default())
}

/// Makes a guest that goes on from a checkpoint.
fn restore(store: &Store, name: &str) -> Result<Counter, Box<dyn Error>> {
    let summary = store.find(&"examples".parse()?, &"counter".parse()?, &name.parse()?)?;
    let reader = store.reader(summary.id)?;
    let description = &reader.manifest().description;
    let mut vmm = Counter::new();
    reader.read(0, PageIndex(0), &mut vmm.machine().memory)?;
    let state = DeviceState {
        machine: MACHINE.into(),
        version: "1".into(),
        method: description.vmm.device_state.parse()?,
        bytes: description.device_state.clone(),
    };
    vmm.load_device_state(&state)?;
    vmm.check();
    IncomingVmm::resume(&mut vmm)?;
    Ok(vmm)
}

fn main() -> Result<(), Box<dyn Error>> {
    let directory = tempfile::tempdir()?;
    let (path, class) = (directory.path().into(), MediaClass::Capacity);
    let device = DevicePath { path, class, bytes: Some(64 << 20) };
    let options = CreateOptions { force: false, catalogue_bytes: None };
    let pool = Pool::create(&"examples".parse()?, &[device], &options)?;
    let store = Store::open(Arc::new(pool), StoreOptions::default())?;
    store.open_domain(&"examples".parse()?, None)?;

    let mut vmm = Counter::new();
    Vmm::resume(&mut vmm)?;
    for name in ["one", "two", "three"] {
        thread::sleep(Duration::from_millis(20));
        let outage = keep(&store, &mut vmm, name)?;
        println!("{name}: the guest stood still for {outage:?}, and is in round {}", vmm.check());
    }
    for name in ["three", "one"] {
        let restored = restore(&store, name)?;
        println!("a guest from {name} goes on in round {}", restored.check());
    }
    Ok(())
}
