//! The process itself: obeys orders from its standard input until that ends.

use std::error::Error;
use std::fs::{self, File};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::net::{Shutdown, shutdown};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use super::machines::Machines;
use super::memory::Memory;
use super::{MachineFigures, VARIABLE, Verified};
use crate::coprocess;
use crate::kvm::TinyGuestError;

/// Is the guest's process, if this process was started as one; returns at once if not.
///
/// # Panics
/// When the standard streams fail.
pub fn serve_if_started() {
    if std::env::var_os(VARIABLE).is_none() {
        return;
    }
    let mut guest = None;
    let obey = |order: &str| obey(&mut guest, &order.splitn(3, ' ').collect::<Vec<_>>());
    coprocess::serve(obey).expect("the parent listens");
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

fn obey(guest: &mut Option<Guest>, words: &[&str]) -> Result<String, Box<dyn Error>> {
    if let &["fill", pages, seed] = words {
        let memory = Memory::filled(pages.parse()?, seed.parse()?)?;
        let address = memory.pages().page(0).addr();
        *guest = Some(Guest { memory: Arc::new(Mutex::new(memory)), churn: None, machines: None });
        return Ok(address.to_string());
    }
    let guest = guest.as_mut().ok_or("memory is filled first")?;
    match *words {
        ["offer"] => guest.memory().pages().offer()?,
        ["churn", pause_us] => guest.churn(Duration::from_micros(pause_us.parse()?)),
        ["rest"] => guest.rest(),
        ["verify"] => {
            let Verified { pages, bad } = guest.memory().verify_all();
            return Ok(format!("{pages} {bad}"));
        }
        ["machines", count, pause_us] => {
            guest.run_machines(count.parse()?, Duration::from_micros(pause_us.parse()?))?;
        }
        ["figures"] => return Ok(say(guest.machines.as_ref().ok_or(NO_MACHINES)?.figures())),
        ["halt"] => return Ok(say(guest.machines.take().ok_or(NO_MACHINES)?.halt()?)),
        ["cut"] => return Ok(cut_connections().to_string()),
        ["open", for_writing, path] => {
            let opened = File::options().read(true).write(for_writing.parse()?).open(path);
            return Ok(opened.is_ok().to_string());
        }
        _ => return Err(format!("{words:?} is no order").into()),
    }
    Ok(String::new())
}

const NO_MACHINES: &str = "no machine runs";

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

fn say(MachineFigures { read, written, bad }: MachineFigures) -> String {
    format!("{read} {written} {bad}")
}

/// Shuts down every socket of the library's table.
fn cut_connections() -> usize {
    let Some(thread) = library_thread() else { return 0 };
    let Ok(files) = fs::read_dir(format!("/proc/self/task/{thread}/fd")) else { return 0 };
    let flags = PidfdFlags::from_bits_retain(PIDFD_THREAD);
    let pid = Pid::from_raw(thread).expect("a thread has a number");
    let table = pidfd_open(pid, flags).expect("Linux 6.9 or later: a thread of ours");
    let sockets = files.filter_map(|entry| {
        let entry = entry.ok()?;
        let link = fs::read_link(entry.path()).ok()?;
        let number: i32 = entry.file_name().to_str()?.parse().ok()?;
        link.to_string_lossy().starts_with("socket:").then_some(number)
    });
    // Some may be closed meanwhile.
    let taken =
        sockets.filter_map(|number| pidfd_getfd(&table, number, PidfdGetfdFlags::empty()).ok());
    taken.filter(|socket| shutdown(socket, Shutdown::Both).is_ok()).count()
}

/// `PIDFD_THREAD` of pidfd_open(2): the thread, and with it the table of descriptors that it has.
const PIDFD_THREAD: u32 = libc::O_EXCL.cast_unsigned();

/// A thread that has the library's table of descriptors, which is not this program's.
fn library_thread() -> Option<i32> {
    let threads = fs::read_dir("/proc/self/task").ok()?.flatten();
    let mut numbers = threads.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers.find(|number| {
        let name = fs::read_to_string(format!("/proc/self/task/{number}/comm"));
        name.is_ok_and(|name| name.trim_end() == "bindery-ctl")
    })
}
