//! `SIGBUS` handler of the process: ranges of memory have their faults served, in the thread that touched.
//!
//! The handler looks up the range of the address and lets its server serve the fault. A fault that nobody
//! serves goes to the handler that was there before, or ends the process as ever. The handler blocks all
//! signals, waits for nothing but the server, and leaves `errno` as it was.

use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, OnceLock};

use bindery_sys::process::Origin;
use bindery_units::HostAddress;

use crate::published::Published;

/// Server of the faults of a range of memory.
pub trait Serve: Send + Sync {
    /// Serves a fault at `address`, which is in the range. Returns true if the thread is to try the access
    /// again.
    ///
    /// Called in a signal handler, in the thread that touched the memory: takes no lock that a thread may
    /// hold while it reads such memory, allocates nothing, and does not panic, which ends the process.
    /// [Registering](register) a range here, or dropping a registration, waits for ever.
    fn serve(&self, address: HostAddress) -> bool;
}

/// Addresses whose faults are served.
#[derive(Clone)]
struct ServedRange {
    start: usize,
    end: usize,
    server: Arc<dyn Serve>,
}

/// Ranges of the process that made them; null at first. A child has none of its parent's: the memory may not
/// be there, and its server may rely on a thread or a userfaultfd of the parent's.
static RANGES: AtomicPtr<ProcessRanges> = AtomicPtr::new(ptr::null_mut());

/// Disposition of `SIGBUS` before the handler was installed.
static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();

/// Ranges of one process.
struct ProcessRanges {
    origin: Origin,
    /// Sorted by address; none overlaps another.
    ranges: Published<Vec<ServedRange>>,
}

/// Returns this process's ranges; `None` before its first was registered.
fn ranges() -> Option<&'static ProcessRanges> {
    // SAFETY: null, or a value that was leaked.
    let ranges = unsafe { RANGES.load(Ordering::Acquire).as_ref() };
    ranges.filter(|ranges| ranges.origin.is_here())
}

/// Returns this process's ranges, made where there are none. A child leaves those that it inherits as they
/// are: a thread of its parent's may have been changing them.
fn ranges_or_new() -> &'static Published<Vec<ServedRange>> {
    loop {
        if let Some(found) = ranges() {
            return &found.ranges;
        }
        let inherited = RANGES.load(Ordering::Acquire);
        let new = Box::new(ProcessRanges { origin: Origin::here(), ranges: Published::default() });
        let new = Box::into_raw(new);
        let (acquire, release) = (Ordering::Acquire, Ordering::AcqRel);
        if RANGES.compare_exchange(inherited, new, release, acquire).is_err() {
            // SAFETY: from `Box::into_raw`, and nobody else has seen it.
            drop(unsafe { Box::from_raw(new) });
        }
    }
}

/// Registration of a range, whose faults are served until this is dropped. In a child of fork, where nobody
/// serves the range, dropping a copy does nothing.
///
/// Dropping it waits until the faults that the process serves at the moment have been served, those of other
/// ranges too.
#[derive(Debug)]
pub struct Registration {
    start: usize,
    origin: Origin,
}

/// Registers a range whose faults `server` serves from now on.
///
/// Installs the handler if it is not yet there. A program that installs its own later must hand on the
/// signals that are not for it. Waits as dropping a [`Registration`] does.
///
/// # Errors
/// As sigaction(2), whenever the first installation failed.
///
/// # Panics
/// If a part of the range is served already.
pub fn register(
    start: HostAddress,
    bytes: usize,
    server: Arc<dyn Serve>,
) -> io::Result<Registration> {
    let ranges = ranges_or_new();
    let new = ServedRange { start: start.0, end: start.0 + bytes, server };
    ranges.update(|ranges| {
        let ranges = ranges.map_or(&[][..], Vec::as_slice);
        let at = ranges.partition_point(|range| range.start < new.start);
        let (before, after) = ranges.split_at(at);
        assert!(before.last().is_none_or(|range| range.end <= new.start), "served already");
        assert!(after.first().is_none_or(|range| new.end <= range.start), "served already");
        Some([before, std::slice::from_ref(&new), after].concat())
    });
    let registration = Registration { start: start.0, origin: Origin::here() };
    install()?;
    Ok(registration)
}

impl Drop for Registration {
    fn drop(&mut self) {
        let Some(found) = ranges().filter(|_| self.origin.is_here()) else { return };
        found.ranges.update(|ranges| {
            let left = |range: &&ServedRange| range.start != self.start;
            Some(ranges.into_iter().flatten().filter(left).cloned().collect())
        });
    }
}

/// Installs the handler, once in the life of the process.
fn install() -> io::Result<()> {
    static INSTALLED: OnceLock<Result<(), i32>> = OnceLock::new();
    let installed = INSTALLED.get_or_init(|| {
        exchange(None, |previous| PREVIOUS.set(previous).map_err(|_| ()))
            .and_then(|()| exchange(Some(&action()), |_| Ok(())))
            .map_err(|error| error.raw_os_error().unwrap_or(libc::EINVAL))
    });
    installed.map_err(io::Error::from_raw_os_error)
}

fn action() -> libc::sigaction {
    let mut blocked = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigfillset(3) initialises the set that it is given, and cannot fail for a valid one.
    let blocked = unsafe {
        libc::sigfillset(blocked.as_mut_ptr());
        blocked.assume_init()
    };
    let handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) = on_bus_error;
    libc::sigaction {
        sa_sigaction: handler as usize,
        sa_mask: blocked,
        sa_flags: libc::SA_SIGINFO | libc::SA_RESTART,
        sa_restorer: None,
    }
}

/// Sets the disposition of `SIGBUS`, if one is given, and calls `old` with the one before.
fn exchange(
    new: Option<&libc::sigaction>,
    old: impl FnOnce(libc::sigaction) -> Result<(), ()>,
) -> io::Result<()> {
    let new = new.map_or(ptr::null(), ptr::from_ref);
    let mut previous = MaybeUninit::uninit();
    // SAFETY: `new` is null or a whole action whose handler is safe to call in any thread at any time,
    // and `previous` is writable for one.
    if unsafe { libc::sigaction(libc::SIGBUS, new, previous.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a call that succeeded filled it.
    let previous = unsafe { previous.assume_init() };
    old(previous).map_err(|()| io::ErrorKind::AlreadyExists.into())
}

extern "C" fn on_bus_error(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: with SA_SIGINFO the kernel passes a whole siginfo; for a fault (BUS_ADRERR) it has an
    // address. errno is this thread's own.
    let (errno, code, address) =
        unsafe { (*libc::__errno_location(), (*info).si_code, (*info).si_addr() as usize) };
    let served = code == libc::BUS_ADRERR && serve(address);
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
    if !served {
        // SAFETY: these are the arguments that the kernel gave this handler.
        unsafe { hand_on(signal, info, context, code) };
    }
}

/// Serves a fault. Returns true if the thread is to try the access again.
fn serve(address: usize) -> bool {
    let Some(found) = ranges() else { return false };
    found.ranges.read(|ranges| {
        let ranges = ranges.map_or(&[][..], Vec::as_slice);
        let after = ranges.partition_point(|range| range.start <= address);
        let found = after.checked_sub(1).map(|at| &ranges[at]);
        let found = found.filter(|range| address < range.end);
        found.is_some_and(|range| range.server.serve(HostAddress(address)))
    })
}

/// Does with a signal as would have been done without this module.
///
/// # Safety
/// The arguments must be those of a signal handler.
unsafe fn hand_on(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void, code: i32) {
    let sent_by_a_process = code <= 0;
    let previous = PREVIOUS.get().map_or(libc::SIG_DFL, |previous| previous.sa_sigaction);
    match previous {
        libc::SIG_IGN if sent_by_a_process => {}
        // The kernel does not let a fault be ignored.
        libc::SIG_DFL | libc::SIG_IGN => {
            // SAFETY: both calls may be made in a signal handler. A fault happens again when this
            // handler returns, and ends the process; a signal that was sent must be sent again.
            unsafe {
                libc::signal(signal, libc::SIG_DFL);
                if sent_by_a_process {
                    libc::raise(signal);
                }
            }
        }
        handler if flags_of_previous() & libc::SA_SIGINFO != 0 => {
            // SAFETY: with that flag, this is what sigaction(2) says the number is.
            let handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) =
                unsafe { std::mem::transmute(handler) };
            handler(signal, info, context);
        }
        handler => {
            // SAFETY: without it, this.
            let handler: extern "C" fn(i32) = unsafe { std::mem::transmute(handler) };
            handler(signal);
        }
    }
}

fn flags_of_previous() -> i32 {
    PREVIOUS.get().map_or(0, |previous| previous.sa_flags)
}
