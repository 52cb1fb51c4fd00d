//! `bindery serve-faults`: the memory of microVMs that Firecracker restores, from a checkpoint.
//!
//! The faults are served here, with the rights of whoever asks, and the pages come from the daemon, which reads the
//! pool. So the daemon never calls into a stranger's memory, and may end and come back.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use bindery_host::client::Client;
use bindery_host::printable;
use bindery_host::protocol::checkpoint::{CheckpointDetail, CheckpointName};
use bindery_host::protocol::{Answer, Request};
use bindery_sys::process::effective_user;
use bindery_sys::socket;
use bindery_sys::thread::spawn_without_signals;
use bindery_vmm::firecracker::{KIND, MicroVm, Step};
use rustix::fs::Mode;
use rustix::process::umask;
use serde_json::{Value, json};

use super::args::ServeFaultsArgs;
use super::ask;
use super::job::Cancel;
use super::transfer::save_device_state;
use crate::args::Global;
use crate::connect::misplaced;
use crate::exit::{Failure, Reason};
use crate::output::{human_bytes, print};

/// Interval at which signals are looked for.
const INTERVAL: Duration = Duration::from_millis(100);

/// Time in which the daemon opens the pool, when it is asked for pages.
const PATIENCE: Duration = Duration::from_secs(60);

/// MicroVMs that may wait to be accepted.
const BACKLOG: i32 = 1024;

/// Content that is served, and to whom.
struct Service {
    daemon: PathBuf,
    request: Request,
    memory_bytes: u64,
    time_ns: u64,
    /// User whose microVMs are served.
    user: u32,
    json: bool,
    /// MicroVMs that were taken.
    taken: AtomicUsize,
    /// MicroVMs that could not be served to their end.
    broken: AtomicUsize,
}

pub(crate) fn run(global: &Global, arguments: &ServeFaultsArgs) -> Result<(), Failure> {
    let checkpoint = arguments.owner.of(&arguments.checkpoint);
    let pool = arguments.pool.paths()?;
    let detail = look_up(global, (pool.clone(), checkpoint.clone()))?;
    if let Some(file) = &arguments.state_to {
        save_device_state(global, (pool.clone(), checkpoint.clone()), file)?;
    }
    let user = arguments.socket_user.unwrap_or_else(effective_user);
    let service = Arc::new(Service {
        daemon: global.socket(),
        request: Request::CheckpointServe { pool, checkpoint, lazy: arguments.lazy },
        memory_bytes: detail.info.memory_bytes,
        time_ns: detail.info.time_ns,
        user,
        json: global.json,
        taken: AtomicUsize::new(0),
        broken: AtomicUsize::new(0),
    });
    let cancel = Cancel::on_signals()?;
    let listener = Listener::open(&arguments.listen, user)?;
    service.say(
        &format!("listening at {}", arguments.listen.display()),
        json!({ "event": "listening", "socket": arguments.listen }),
    )?;
    let most = if arguments.once { Some(1) } else { arguments.count.map(|count| count as usize) };
    let threads = accept(&service, &listener, most, &cancel)?;
    // Nobody connects in vain.
    drop(listener);
    threads.into_iter().for_each(|thread| drop(thread.join()));
    match service.broken.load(Ordering::Relaxed) {
        0 => Ok(()),
        broken => {
            let message =
                format!("{broken} microVMs were not served to their end, as was reported");
            Err(Failure::new(Reason::Failed, message))
        }
    }
}

/// Makes sure that there is such a checkpoint, of a Firecracker.
fn look_up(
    global: &Global,
    (pool, checkpoint): (Option<Vec<String>>, CheckpointName),
) -> Result<CheckpointDetail, Failure> {
    let request = Request::CheckpointShow { pool, checkpoint };
    let detail = match ask(global, &request)? {
        (_, Answer::Checkpoint(detail)) => *detail,
        (_, answer) => return Err(misplaced(&answer)),
    };
    if detail.vmm == KIND {
        return Ok(detail);
    }
    let message = format!(
        "the checkpoint is of a {:?}, not of a Firecracker: `bindery checkpoint import-memory` makes one of its \
         snapshots, and `bindery restore` is for QEMU",
        detail.vmm
    );
    Err(Failure::new(Reason::Unsupported, message))
}

/// Takes microVMs until there were enough, or a signal came. Returns the threads that serve them.
fn accept(
    service: &Arc<Service>,
    listener: &Listener,
    most: Option<usize>,
    cancel: &Cancel,
) -> Result<Vec<JoinHandle<()>>, Failure> {
    let mut threads: Vec<JoinHandle<()>> = Vec::new();
    let is_enough = || most.is_some_and(|most| service.taken.load(Ordering::Relaxed) >= most);
    let of = |error: io::Error| Failure::of_io("cannot accept microVMs", &error);
    while !cancel.is_set() && !is_enough() {
        threads.retain(|thread| !thread.is_finished());
        if !socket::wait_readable(&listener.socket, INTERVAL).map_err(of)? {
            continue;
        }
        let started = socket::accept(&listener.socket).and_then(|connection| {
            let service = Arc::clone(service);
            spawn_without_signals("microvm", move || service.serve(connection))
        });
        match started {
            Ok(thread) => threads.push(thread),
            // It waits in the backlog, or has gone.
            Err(error) => {
                service.say(
                    &format!("a microVM waits: {error} (is RLIMIT_NOFILE too low?)"),
                    json!({ "event": "waiting", "why": error.to_string() }),
                )?;
                std::thread::sleep(INTERVAL);
            }
        }
    }
    Ok(threads)
}

impl Service {
    /// Serves one microVM until it ends.
    fn serve(&self, connection: OwnedFd) {
        let pid = socket::peer(&connection).map_or(0, |peer| peer.pid);
        let vm = match MicroVm::receive(connection, self.memory_bytes, self.user) {
            Ok(vm) => vm,
            Err(error) => {
                let why = printable(&error.to_string());
                let text = format!("process {pid} is refused: {why}; it waits for memory: end it");
                self.tell(&text, json!({ "event": "refused", "pid": pid, "why": why }));
                return;
            }
        };
        self.taken.fetch_add(1, Ordering::Relaxed);
        let bytes = vm.memory_bytes();
        self.tell(
            &format!("process {pid} is served, {}", human_bytes(bytes)),
            json!({ "event": "served", "pid": pid, "memory_bytes": bytes }),
        );
        let mut open = || self.open();
        let mut report = |step: Step| self.report(pid, step);
        match vm.serve(&mut open, &mut report) {
            Ok(served) => {
                let text = format!(
                    "process {pid} has ended: {} faults, {} pages, {} zero pages, {} discarded before they were \
                     there",
                    served.faults, served.content_pages, served.zero_pages, served.discarded_pages
                );
                let json = json!({
                    "event": "ended", "pid": pid, "faults": served.faults,
                    "content_pages": served.content_pages, "zero_pages": served.zero_pages,
                    "damaged_pages": served.damaged_pages, "discarded_pages": served.discarded_pages,
                });
                self.tell(&text, json);
            }
            Err(error) => {
                self.broken.fetch_add(1, Ordering::Relaxed);
                let text =
                    format!("process {pid} is not served any more, and may wait for ever: {error}");
                self.tell(
                    &text,
                    json!({ "event": "broken", "pid": pid, "why": error.to_string() }),
                );
            }
        }
    }

    fn report(&self, pid: i32, step: Step) {
        let (text, json) = match step {
            Step::Filled(time) => (
                format!(
                    "process {pid} has all of its memory, after {:.1} ms",
                    time.as_secs_f64() * 1e3
                ),
                json!({ "event": "filled", "pid": pid, "us": time.as_micros() as u64 }),
            ),
            Step::SourceLost(why) => {
                let why = printable(&why);
                let text =
                    format!("process {pid} waits for memory: {why}; tried again each second");
                (text, json!({ "event": "source-lost", "pid": pid, "why": why }))
            }
            Step::SourceFound => (
                format!("process {pid} gets its memory again"),
                json!({ "event": "source-found", "pid": pid }),
            ),
            Step::Damaged { offset, pages } => (
                format!(
                    "{pages} damaged pages from byte {offset} of the memory on: process {pid} gets SIGBUS where it \
                     touches them; `bindery checkpoint verify` names them"
                ),
                json!({ "event": "damaged", "pid": pid, "offset": offset, "pages": pages }),
            ),
            Step::Unfollowed => (
                format!(
                    "process {pid} has forked or moved its memory: what is missing there does not come"
                ),
                json!({ "event": "unfollowed", "pid": pid }),
            ),
        };
        self.tell(&text, json);
    }

    /// Asks the daemon for the memory. Returns the socket that it comes over.
    fn open(&self) -> Result<OwnedFd, String> {
        let (ours, theirs) = socket::seqpacket_pair().map_err(|error| error.to_string())?;
        let mut client = Client::connect(&self.daemon).map_err(|error| error.to_string())?;
        let answer = client.ask_passing(&self.request, &[theirs.as_fd()], PATIENCE);
        match answer.map_err(|error| error.to_string())? {
            Answer::Source { memory_bytes, time_ns }
                if (memory_bytes, time_ns) == (self.memory_bytes, self.time_ns) =>
            {
                Ok(ours)
            }
            Answer::Source { .. } => Err("another checkpoint has the name by now".into()),
            answer => Err(misplaced(&answer).to_string()),
        }
    }

    /// Says what happens, on a line of standard output.
    fn say(&self, text: &str, json: Value) -> Result<(), Failure> {
        print(|out| if self.json { writeln!(out, "{json}") } else { writeln!(out, "{text}") })
    }

    /// Says what happens as [`say`](Self::say) does. Nobody may listen: microVMs are served all the same.
    fn tell(&self, text: &str, json: Value) {
        let _ = self.say(text, json);
    }
}

/// A socket in the file system, removed when this is dropped.
struct Listener {
    socket: OwnedFd,
    path: PathBuf,
    /// Device and inode of the path.
    identity: (u64, u64),
}

impl Listener {
    fn open(path: &Path, user: u32) -> Result<Self, Failure> {
        let cannot = |error: io::Error| {
            let reason = match error.kind() {
                io::ErrorKind::AddrInUse => Reason::Taken,
                io::ErrorKind::NotFound => Reason::NotFound,
                io::ErrorKind::PermissionDenied => Reason::Refused,
                _ => Reason::Failed,
            };
            Failure::new(reason, format!("cannot listen at {}: {error}", path.display()))
        };
        // Made as it is to be: afterwards another file may lie there. Others are refused when they connect.
        let is_ours = user == effective_user();
        let before = umask(Mode::from_raw_mode(if is_ours { 0o177 } else { 0o111 }));
        let socket = listen(path);
        umask(before);
        let socket = socket.map_err(cannot)?;
        let found = fs::symlink_metadata(path).map_err(cannot)?;
        Ok(Self { socket, path: path.into(), identity: (found.dev(), found.ino()) })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // Another may be there by now.
        let found = fs::symlink_metadata(&self.path);
        if found.is_ok_and(|found| (found.dev(), found.ino()) == self.identity) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Listens at a path, also where a socket was left behind.
fn listen(path: &Path) -> io::Result<OwnedFd> {
    match socket::listen(path, BACKLOG) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            let is_left = socket::connect(path)
                .is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused);
            // A file that is no socket refuses connections, too.
            let is_socket = fs::symlink_metadata(path)?.file_type().is_socket();
            if !is_left || !is_socket {
                return Err(error);
            }
            fs::remove_file(path)?;
            socket::listen(path, BACKLOG)
        }
        listening => listening,
    }
}
