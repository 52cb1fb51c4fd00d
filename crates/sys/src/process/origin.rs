//! The process that something was made in, which a child of fork(2) or clone(2) is not.

use std::io;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::birth::Mark;

/// The process that a value was made in. A copy of the value in a child is told from the original.
///
/// A child that shares its parent's memory (vfork(2), `CLONE_VM`) counts as the same process: it
/// sees and changes the same values, as a thread does.
#[derive(Clone, Copy, Debug)]
pub struct Origin(&'static Process);

#[derive(Debug)]
struct Process {
    pid: u32,
    /// None where there was no memory for one: then the id has to do.
    mark: Option<Mark>,
}

/// The calling process, or one that it is a copy of; null at first. A value is never freed.
static HERE: AtomicPtr<Process> = AtomicPtr::new(ptr::null_mut());

impl Origin {
    /// Returns the calling process. Takes no lock: one that another thread holds while it forks stays locked
    /// in the child.
    #[must_use]
    pub fn here() -> Self {
        loop {
            let known = HERE.load(Ordering::Acquire);
            // SAFETY: null, or a value that was leaked below.
            match unsafe { known.as_ref() }.map(Self) {
                Some(origin) if origin.is_here() => return origin,
                _ => {}
            }
            let new = Box::new(Process { pid: std::process::id(), mark: Mark::set().ok() });
            let new = Box::into_raw(new);
            // Whoever was first has said which process this is; a page more is lost once.
            let _ = HERE.compare_exchange(known, new, Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    /// Returns true if the caller runs in this process. Costs two loads; may be called in a signal
    /// handler.
    #[must_use]
    pub fn is_here(self) -> bool {
        self.0.mark.map_or_else(|| self.0.pid == std::process::id(), Mark::is_here)
    }

    /// Returns false if the caller is known to have a descriptor table of its own: closing a descriptor here
    /// then closes none there. A child of `clone(CLONE_FILES)` shares it.
    #[must_use]
    pub fn may_share_descriptors(self) -> bool {
        const KCMP_FILES: libc::c_long = 2;
        if self.is_here() {
            return true;
        }
        let (mine, theirs) = (std::process::id(), self.0.pid);
        // SAFETY: the call takes two processes and a kind of resource, and touches no memory.
        match unsafe { libc::syscall(libc::SYS_kcmp, mine, theirs, KCMP_FILES, 0, 0) } {
            0 => true,
            -1 => io::Error::last_os_error().raw_os_error() != Some(libc::ESRCH),
            _ => false,
        }
    }

    /// Process id, as the process itself saw it.
    #[must_use]
    pub const fn pid(self) -> u32 {
        self.0.pid
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{Pid, WaitOptions, waitpid};

    /// Runs `body` in a child of fork, and returns its exit code.
    fn in_child(body: impl FnOnce() -> i32) -> i32 {
        // SAFETY: the child takes no lock that another thread may hold, and ends
        // without running what is to be run at exit.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let code = body();
            // SAFETY: ends this process.
            unsafe { libc::_exit(code) };
        }
        let pid = Pid::from_raw(pid).expect("a child");
        let (_, status) = waitpid(Some(pid), WaitOptions::empty()).expect("waits").expect("ended");
        status.exit_status().expect("not killed")
    }

    #[test]
    fn children_and_their_children_are_other_processes() {
        let parent = Origin::here();
        assert!(parent.is_here());
        let code = in_child(|| {
            if parent.is_here() {
                return 1;
            }
            let child = Origin::here();
            if !child.is_here() || ptr::eq(child.0, parent.0) {
                return 2;
            }
            in_child(|| {
                let is_elder = parent.is_here() || child.is_here();
                i32::from(is_elder || !Origin::here().is_here()) * 3
            })
        });
        assert_eq!(code, 0);
        assert!(parent.is_here());
        assert_eq!(parent.pid(), std::process::id());
    }

    #[test]
    fn a_forked_child_has_descriptors_of_its_own() {
        let parent = Origin::here();
        assert!(parent.may_share_descriptors());
        let code = in_child(|| i32::from(parent.may_share_descriptors()));
        // A container may forbid kcmp(2): then nothing is known, and nothing is closed.
        // SAFETY: the call touches no memory.
        let known =
            unsafe { libc::syscall(libc::SYS_kcmp, parent.pid(), parent.pid(), 2, 0, 0) } == 0;
        assert_eq!(code, i32::from(!known));
    }

    #[test]
    fn threads_are_the_same_process() {
        let origin = Origin::here();
        std::thread::spawn(move || assert!(origin.is_here())).join().expect("a thread");
    }
}
