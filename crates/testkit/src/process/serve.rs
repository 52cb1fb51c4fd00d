//! The process itself: obeys orders from its standard input until that ends.

use std::fs::{self, File};
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, FromRawFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use bindery_units::PAGE_BYTES;
use rustix::fs::{FallocateFlags, fallocate};
use rustix::net::{Shutdown, shutdown};

use super::machines::Machines;
use super::memory::Memory;
use super::{MARK, MachineFigures, VARIABLE};
use crate::kvm::TinyGuestError;

/// Is the guest's process, if this process was started as one; returns at once if not.
///
/// # Panics
/// When an order makes no sense, which ends the process and is seen by who gave it.
pub fn serve_if_started() {
    if std::env::var_os(VARIABLE).is_none() {
        return;
    }
    let mut guest = None;
    for order in io::stdin().lines() {
        let order = order.expect("orders are text");
        let words: Vec<&str> = order.splitn(3, ' ').collect();
        println!("{MARK}{}", obey(&mut guest, &words).replace('\n', " "));
    }
}

struct Guest {
    memory: Arc<Mutex<Memory>>,
    churn: Option<Churn>,
    machines: Option<Machines>,
}

struct Churn {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

fn obey(guest: &mut Option<Guest>, words: &[&str]) -> String {
    if let &["fill", pages, seed] = words {
        let pages = pages.parse().expect("a number of pages");
        let memory = Memory::filled(pages, seed.parse().expect("a seed"));
        let address = memory.address();
        *guest = Some(Guest { memory: Arc::new(Mutex::new(memory)), churn: None, machines: None });
        return address.to_string();
    }
    let guest = guest.as_mut().expect("memory is filled first");
    match *words {
        ["offer"] => match guest.memory().offer() {
            Ok(()) => "offered".into(),
            Err(error) => error.to_string(),
        },
        ["churn", pause_us] => {
            guest.churn(Duration::from_micros(pause_us.parse().expect("a pause")));
            "churning".into()
        }
        ["rest"] => {
            guest.rest();
            "resting".into()
        }
        ["verify"] => {
            let verified = guest.memory().verify_all();
            format!("{} {}", verified.pages, verified.bad)
        }
        ["machines", count, pause_us] => {
            let pause = Duration::from_micros(pause_us.parse().expect("a pause"));
            match guest.run_machines(count.parse().expect("a number of machines"), pause) {
                Ok(()) => "running".into(),
                Err(error) => error.to_string(),
            }
        }
        ["figures"] => say(&guest.machines.as_ref().expect("machines run").figures()),
        ["halt"] => match guest.machines.take().expect("machines run").halt() {
            Ok(figures) => say(&figures),
            Err(error) => error.to_string(),
        },
        ["cut"] => cut_connections().to_string(),
        ["change", descriptor] => change(descriptor.parse().expect("a descriptor")),
        ["open", for_writing, path] => {
            File::options().read(true).write(for_writing == "true").open(path).is_ok().to_string()
        }
        _ => panic!("{words:?} is no order"),
    }
}

impl Guest {
    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().expect("no thread panicked while it wrote")
    }

    fn churn(&mut self, pause: Duration) {
        self.rest();
        let stop = Arc::new(AtomicBool::new(false));
        let (memory, seen) = (Arc::clone(&self.memory), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            while !seen.load(Ordering::Relaxed) {
                memory.lock().expect("no thread panicked while it wrote").churn();
                std::thread::sleep(pause);
            }
        });
        self.churn = Some(Churn { stop, thread });
    }

    fn run_machines(&mut self, count: usize, pause: Duration) -> Result<(), TinyGuestError> {
        self.rest();
        let seed = self.memory().seed();
        self.machines = Some(Machines::start(&self.memory, count, seed, pause)?);
        Ok(())
    }

    fn rest(&mut self) {
        if let Some(churn) = self.churn.take() {
            churn.stop.store(true, Ordering::Relaxed);
            churn.thread.join().expect("the thread that writes does not panic");
        }
    }
}

fn say(MachineFigures { read, written, bad }: &MachineFigures) -> String {
    format!("{read} {written} {bad}")
}

/// A descriptor of this process, whoever opened it. Not closed when dropped.
fn borrow(descriptor: i32) -> ManuallyDrop<File> {
    // SAFETY: used for one call, which the kernel refuses if the number is nobody's by now; nothing
    // is closed.
    ManuallyDrop::new(unsafe { File::from_raw_fd(descriptor) })
}

/// Every socket that this process has open is the agent's.
fn cut_connections() -> usize {
    let descriptors = fs::read_dir("/proc/self/fd").expect("/proc is mounted");
    let sockets = descriptors.filter_map(|entry| {
        let entry = entry.ok()?;
        let link = fs::read_link(entry.path()).ok()?;
        let number: i32 = entry.file_name().to_str()?.parse().ok()?;
        // The standard streams may be sockets of who started us.
        (number > 2 && link.to_string_lossy().starts_with("socket:")).then_some(number)
    });
    let sockets: Vec<i32> = sockets.collect();
    sockets
        .iter()
        .filter(|&&number| shutdown(borrow(number).as_fd(), Shutdown::Both).is_ok())
        .count()
}

/// Tries every way to change a file through a descriptor; returns those that worked.
fn change(descriptor: i32) -> String {
    let file = borrow(descriptor);
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let page = PAGE_BYTES as u64;
    let tried = [
        ("write", file.write_at(&[0xEE; 8], 0).is_ok()),
        ("truncate", file.set_len(0).is_ok()),
        ("punch", fallocate(file.as_fd(), punch, 0, page).is_ok()),
        ("allocate", fallocate(file.as_fd(), FallocateFlags::empty(), 0, page).is_ok()),
        ("map", map_writable(&file)),
        ("protect", make_mapping_writable(&file)),
    ];
    tried.iter().filter(|(_, worked)| *worked).map(|(way, _)| *way).collect::<Vec<_>>().join(" ")
}

fn map_writable(file: &File) -> bool {
    let both = libc::PROT_READ | libc::PROT_WRITE;
    map(file, both).is_some_and(|address| {
        unmap(address);
        true
    })
}

fn make_mapping_writable(file: &File) -> bool {
    let Some(address) = map(file, libc::PROT_READ) else { return false };
    // SAFETY: the mapping was made just now and nothing refers to it.
    let result = unsafe { libc::mprotect(address, PAGE_BYTES, libc::PROT_READ | libc::PROT_WRITE) };
    unmap(address);
    result == 0
}

/// Maps the first page, shared.
fn map(file: &File, protection: i32) -> Option<*mut libc::c_void> {
    // SAFETY: the kernel chooses where; nothing that exists is replaced.
    let address = unsafe {
        let (null, fd) = (std::ptr::null_mut(), file.as_raw_fd());
        libc::mmap(null, PAGE_BYTES, protection, libc::MAP_SHARED, fd, 0)
    };
    (address != libc::MAP_FAILED).then_some(address)
}

fn unmap(address: *mut libc::c_void) {
    // SAFETY: the page was mapped by `map`, and nothing refers to it.
    unsafe { libc::munmap(address, PAGE_BYTES) };
}
