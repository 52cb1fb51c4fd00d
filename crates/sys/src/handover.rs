//! What this process hands on to the programs that it starts.
//!
//! A program in the background gets nothing that belongs to whoever started this process:
//! [`detach`]. One that takes this process's place gets exactly what this process was given:
//! [`replace`]. Rust's runtime changes some of that before `main` runs: it opens `/dev/null` where a
//! standard descriptor is closed, and ignores `SIGPIPE`. So the state is noted before the runtime
//! starts, and put back before the other program does.

use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicU8, Ordering};

use rustix::fs::Mode;

/// The signals that [`replace`] hands on as they were found.
const SIGNALS: [libc::c_int; 2] = [libc::SIGPIPE, libc::SIGXFSZ];

/// The standard descriptors.
const STANDARD: [libc::c_int; 3] = [0, 1, 2];

/// What was found when this process began: bit N for a closed descriptor N, and above them a bit for
/// each of [`SIGNALS`] that was ignored.
static FOUND: AtomicU8 = AtomicU8::new(0);

// SAFETY: the section holds functions that the C library calls once, before `main`, with arguments that
// a C function may leave alone. This one needs nothing that Rust's runtime sets up.
#[used]
#[unsafe(link_section = ".init_array")]
static NOTE: extern "C" fn() = note;

extern "C" fn note() {
    let mut found = 0;
    for (bit, fd) in STANDARD.into_iter().enumerate() {
        // SAFETY: only asks, and any number may be asked about.
        let is_closed = unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0;
        found |= u8::from(is_closed) << bit;
    }
    for (bit, signal) in SIGNALS.into_iter().enumerate() {
        found |= u8::from(is_ignored(signal)) << (STANDARD.len() + bit);
    }
    // Relaxed: no other thread is there yet.
    FOUND.store(found, Ordering::Relaxed);
}

fn is_ignored(signal: libc::c_int) -> bool {
    // SAFETY: only asks; the answer is plain data.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, std::ptr::null(), &raw mut action) == 0
            && action.sa_sigaction == libc::SIG_IGN
    }
}

/// Has a write beyond the allowed size of files (`ulimit -f`) fail with `EFBIG`, where `SIGXFSZ` would
/// end this process. Programs started by [`detach`] and [`replace`] get the signal as it was.
pub fn survive_file_limit() {
    // SAFETY: no handler of anybody's is replaced by ignoring the signal in a program of our own.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// Leads standard output to `/dev/null` from here on; whoever reads it sees its end.
///
/// # Errors
/// The kernel's, when descriptors are short.
pub fn end_stdout() -> io::Result<()> {
    let null = File::options().write(true).open("/dev/null")?;
    Ok(rustix::stdio::dup2_stdout(null)?)
}

/// Makes what `command` starts a program in the background, as daemon(7) asks: in a session of its own
/// without a terminal, with the standard descriptors that `command` names and no others, no signal
/// blocked or ignored, and files that it makes for its user alone.
pub fn detach(command: &mut Command) {
    // SAFETY: the function makes system calls alone: it allocates nothing and takes no lock, as a child
    // of a process with threads may not.
    unsafe { command.pre_exec(detach_child) };
}

fn detach_child() -> io::Result<()> {
    rustix::process::setsid()?;
    rustix::process::umask(Mode::RWXG | Mode::RWXO);
    let first = STANDARD.len() as libc::c_long;
    // SAFETY: the child is about to execute another program, and ours uses no descriptor in it. They are
    // closed by that, not now: one reports to the parent that it could not be done.
    let closed = unsafe {
        libc::syscall(libc::SYS_close_range, first, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC)
    };
    if closed < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a child that is about to execute another program; the set is filled before it is used.
    // Signals that cannot be changed (SIGKILL, the C library's own) are refused, and left as they are.
    unsafe {
        for signal in 1..=libc::SIGRTMAX() {
            libc::signal(signal, libc::SIG_DFL);
        }
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
    }
    Ok(())
}

/// Executes `command` in place of this process, with the descriptors and signals that this process
/// was given. Returns only if that fails.
#[must_use]
pub fn replace(command: &mut Command) -> io::Error {
    // SAFETY: the function makes system calls alone, and runs in this process, right before exec.
    unsafe { command.pre_exec(put_back) };
    command.exec()
}

/// Puts back what was changed since [`note`].
fn put_back() -> io::Result<()> {
    let found = FOUND.load(Ordering::Relaxed);
    for (bit, fd) in STANDARD.into_iter().enumerate() {
        if found >> bit & 1 == 1 {
            // SAFETY: closes, once another program runs, what was closed when this one began. Until then
            // it stays open: if that program cannot run, there is a message to write.
            unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) };
        }
    }
    for (bit, signal) in SIGNALS.into_iter().enumerate() {
        let was_ignored = found >> (STANDARD.len() + bit) & 1 == 1;
        let disposition = if was_ignored { libc::SIG_IGN } else { libc::SIG_DFL };
        // SAFETY: ours has no handler for either.
        unsafe { libc::signal(signal, disposition) };
    }
    Ok(())
}
