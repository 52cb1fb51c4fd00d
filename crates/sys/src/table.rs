//! Descriptors that the process which we live in has not.
//!
//! A library inside another program shares its table of descriptors: a program that closes all numbers
//! from 3 on closes the library's, opens files of its own under their numbers, and hands all of them to
//! its children. So the threads of ours have a table to themselves. An *anchor* leaves the program's table
//! (`CLOSE_RANGE_UNSHARE` of close_range(2), which needs no privilege), keeps nothing of it, and starts
//! all other threads, which share what it has. No call that the program makes reaches that table: not
//! close_range, dup2, fork or exec, by whatever way it is made. It ends with the process.
//!
//! A thread of the program that needs one of those descriptors hands its work to an *errand* thread, and
//! waits: [`run`]. There are as many errand threads as there are such callers at once, so nobody waits for
//! another's work. Handing over allocates nothing and takes some 10 µs.
//!
//! # Rules
//! - What opens a descriptor that stays, uses it or closes it is done by [`run`]; [`Kept`] sees to that.
//! - Work of the program's threads that is handed over while they hold a lock must not wait for whoever
//!   takes that lock.
//! - `/proc/self/fd` is the program's table for our threads, too.

mod errands;

use std::cell::Cell;
use std::fmt;
use std::fs::OpenOptions;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, OnceLock, PoisonError, mpsc};

use rustix::io::fcntl_dupfd_cloexec;

pub use self::errands::Bell;
use self::errands::Errands;
use crate::birth::Mark;
use crate::event::Event;
use crate::{syscall, thread};

static TABLE: OnceLock<Table> = OnceLock::new();

struct Table {
    errands: Errands,
    /// Gone in a copy of the process, which has neither the threads nor the table.
    mark: Mark,
    own: Own,
}

/// What the table begins with.
struct Own {
    /// Has the number of a standard stream, as its copies have: whoever writes there, as a panic does,
    /// writes nothing anywhere.
    nothing: OwnedFd,
    _streams: [OwnedFd; 2],
    /// Takes the place of a descriptor that is needed for a moment.
    spare: Mutex<Option<OwnedFd>>,
    /// This process, whose first thread has the program's table. `None` where that cannot be asked for.
    process: Option<OwnedFd>,
}

thread_local! {
    /// Whether this thread has our table.
    static IS_OURS: Cell<bool> = const { Cell::new(false) };
}

/// Makes the table, if there is none yet.
///
/// # Errors
/// The kernel's: it lacks close_range(2) (Linux 5.9) and refuses unshare(2), a filter of system calls
/// does, or threads, descriptors or memory are short. Also in a copy of a process that has one.
pub fn start() -> io::Result<()> {
    static STARTING: Mutex<()> = Mutex::new(());
    let _one_at_a_time = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
    match TABLE.get() {
        Some(table) if table.mark.is_here() => return Ok(()),
        Some(_) => return Err(io::Error::other("this process is a copy of one that has a table")),
        None => {}
    }
    let mark = Mark::set()?;
    let (left, has_left) = mpsc::channel();
    let (go, may_go) = mpsc::channel();
    thread::spawn_without_signals("bindery-anchor", move || {
        let result = leave_table().and_then(|()| Own::open());
        let is_left = result.is_ok();
        // The other end waits for it.
        let _ = left.send(result);
        // Without an answer there is no table: somebody's error.
        if is_left && may_go.recv().is_ok() {
            IS_OURS.set(true);
            let table = TABLE.get().expect("set before the go-ahead");
            table.errands.start_threads_as_wanted();
        }
    })?;
    let own = has_left.recv().map_err(io::Error::other)??;
    let table = Table { errands: Errands::default(), mark, own };
    assert!(TABLE.set(table).is_ok(), "one is made at a time");
    go.send(()).map_err(io::Error::other)
}

impl Own {
    /// Opens the first descriptors of an empty table.
    fn open() -> io::Result<Self> {
        let device = OpenOptions::new().read(true).write(true).open("/dev/null").map(OwnedFd::from);
        // Without devices: what is written there is refused.
        let nothing = device.or_else(|_| Event::new().map(OwnedFd::from))?;
        // The standard library's copies leave out the numbers of the standard streams.
        let copy = || fcntl_dupfd_cloexec(&nothing, 0);
        let streams = [copy()?, copy()?];
        let spare = Mutex::new(Some(copy()?));
        Ok(Self { _streams: streams, nothing, spare, process: own_process().ok() })
    }
}

/// Gives the calling thread an empty table of its own.
fn leave_table() -> io::Result<()> {
    // SAFETY: what is closed is a copy of the program's table that this thread alone has.
    unsafe {
        if syscall!(libc::SYS_close_range, 0, u32::MAX, libc::CLOSE_RANGE_UNSHARE) < 0 {
            check(syscall!(libc::SYS_unshare, libc::CLONE_FILES))?;
            close_all()?;
        }
    }
    Ok(())
}

/// Closes all descriptors of the calling thread's table, where close_range(2) is refused.
///
/// # Safety
/// Nobody uses them.
unsafe fn close_all() -> io::Result<()> {
    // SAFETY: the caller's contract.
    if unsafe { syscall!(libc::SYS_close_range, 0, u32::MAX, 0) } == 0 {
        return Ok(());
    }
    let names: Vec<_> = std::fs::read_dir("/proc/thread-self/fd")?.flatten().collect();
    for name in names {
        if let Some(number) = name.file_name().to_str().and_then(|name| name.parse::<RawFd>().ok())
        {
            // The directory's own is closed already.
            // SAFETY: the caller's contract.
            let _ = unsafe { syscall!(libc::SYS_close, number) };
        }
    }
    Ok(())
}

fn own_process() -> io::Result<OwnedFd> {
    // SAFETY: the call takes numbers alone.
    let process = check(unsafe { syscall!(libc::SYS_pidfd_open, std::process::id(), 0) })?;
    // SAFETY: the kernel has just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(process as RawFd) })
}

fn check(answer: libc::c_long) -> io::Result<libc::c_long> {
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(answer) }
}

/// The table of this process, unless there is none or this is a copy of the process that has it.
fn table() -> Option<&'static Table> {
    TABLE.get().filter(|table| table.mark.is_here())
}

/// Returns true in a thread that has our table.
#[must_use]
pub fn is_inside() -> bool {
    IS_OURS.get()
}

/// Does `work` in a thread that has our table: in this one, or in an errand thread for which this one
/// waits. A panic goes on here.
///
/// # Panics
/// If no table was [started](start), or in a copy of the process that has one.
pub fn run<R: Send>(work: impl FnOnce() -> R + Send) -> R {
    if is_inside() {
        return work();
    }
    table().expect("our table belongs to this process").errands.run(work)
}

/// As [`run`], in a thread that is started for `work` and ends with it, from one that has our table too: for
/// `work` that leaves its thread other than it was.
///
/// # Errors
/// As clone(2).
///
/// # Panics
/// As [`run`].
pub fn run_apart<R: Send>(work: impl FnOnce() -> R + Send) -> io::Result<R> {
    let inside = || {
        IS_OURS.set(true);
        work()
    };
    run(|| {
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().spawn_scoped(scope, inside)?;
            Ok(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        })
    })
}

/// As [`run`], but returns `None` without doing any `work` where there is no table.
pub fn try_run<R: Send>(work: impl FnOnce() -> R + Send) -> Option<R> {
    if is_inside() {
        return Some(work());
    }
    table().map(|table| table.errands.run(work))
}

/// Starts a thread that has our table and that no signal is ever delivered to.
///
/// # Errors
/// As clone(2).
///
/// # Panics
/// As [`run`].
pub fn spawn<F>(name: &str, body: F) -> io::Result<std::thread::JoinHandle<()>>
where
    F: FnOnce() + Send + 'static,
{
    run(|| {
        thread::spawn_without_signals(name, || {
            IS_OURS.set(true);
            body();
        })
    })
}

/// Does `work`, which needs a descriptor for a moment, also where the table is full: RLIMIT_NOFILE holds
/// for the numbers of our table, too. One at a time. For a thread that has our table; does not keep it
/// from `work` elsewhere.
pub fn with_spare<R>(work: impl FnOnce() -> R) -> R {
    let Some(table) = table().filter(|_| is_inside()) else { return work() };
    let mut spare = table.own.spare.lock().unwrap_or_else(PoisonError::into_inner);
    drop(spare.take());
    let result = work();
    *spare = fcntl_dupfd_cloexec(&table.own.nothing, 0).ok();
    result
}

/// A copy of one of the program's descriptors. Needs no privilege. For a thread that has our table.
///
/// # Errors
/// `EBADF` if there is no such descriptor now; `ESRCH` if the program's first thread has ended; `ENOSYS`
/// or `Unsupported` before Linux 5.6, or what a filter of system calls says.
pub(crate) fn take(number: RawFd) -> io::Result<OwnedFd> {
    assert!(is_inside(), "what is taken is for our table");
    let process = table().and_then(|table| table.own.process.as_ref());
    let process = process.ok_or(io::ErrorKind::Unsupported)?.as_raw_fd();
    // SAFETY: the call takes numbers alone.
    let taken = check(unsafe { syscall!(libc::SYS_pidfd_getfd, process, number, 0) })?;
    // SAFETY: the kernel has just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(taken as RawFd) })
}

/// Moves a descriptor of the calling thread into our table.
///
/// # Errors
/// `ESRCH` if the program's first thread has ended; `ENOSYS` or `Unsupported` before Linux 5.6; or what a
/// filter of system calls says.
///
/// # Panics
/// As [`run`].
pub fn adopt(descriptor: OwnedFd) -> io::Result<Kept<OwnedFd>> {
    if is_inside() {
        return Ok(Kept(ManuallyDrop::new(descriptor)));
    }
    // The caller's own is closed here, in the table that it is in.
    let number = descriptor.as_raw_fd();
    Kept::open(|| take(number))
}

/// A descriptor of our table, or what owns some: used and closed there, whoever asks for it.
pub struct Kept<T: Send + Sync>(ManuallyDrop<T>);

impl<T: Send + Sync> Kept<T> {
    /// Keeps what `open` makes in our table.
    ///
    /// # Errors
    /// Those of `open`.
    ///
    /// # Panics
    /// As [`run`].
    pub fn open(open: impl FnOnce() -> io::Result<T> + Send) -> io::Result<Self> {
        run(|| open().map(|value| Self(ManuallyDrop::new(value))))
    }

    /// Uses it, as [`run`] does. Costs a load where the thread is one of ours.
    ///
    /// # Panics
    /// As [`run`].
    pub fn with<R: Send>(&self, work: impl FnOnce(&T) -> R + Send) -> R {
        run(|| work(&self.0))
    }

    /// Uses it in a thread that has our table.
    ///
    /// # Panics
    /// In any other thread.
    pub fn inside(&self) -> &T {
        assert!(is_inside(), "a descriptor of our table means nothing in another");
        &self.0
    }
}

impl<T: Send + Sync> Drop for Kept<T> {
    fn drop(&mut self) {
        let value = &mut self.0;
        // In a copy of the process there is nothing to close.
        // SAFETY: nobody uses the value afterwards.
        try_run(|| unsafe { ManuallyDrop::drop(value) });
    }
}

impl<T: Send + Sync + fmt::Debug> fmt::Debug for Kept<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

#[cfg(test)]
mod tests;
