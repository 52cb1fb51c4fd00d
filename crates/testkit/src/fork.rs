//! Children of fork(2) that run a part of a test, and say what came of it.
//!
//! A child has the calling thread alone, and whatever locks the others held stay locked. What it runs must
//! count with that; one that hangs is ended, and told of.

use std::io::{BufRead, BufReader, PipeReader, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A child that runs, or has run.
#[derive(Debug)]
pub struct Child {
    pid: libc::pid_t,
    said: BufReader<PipeReader>,
}

impl Child {
    /// Forks. The child runs `body`, says what it returns, and ends without unwinding further or running what
    /// is to run at exit; after `limit_s` seconds it is ended.
    ///
    /// # Panics
    /// If there can be no child.
    pub fn start(limit_s: u32, body: impl FnOnce() -> String) -> Self {
        let (said, mut saying) = std::io::pipe().expect("a pipe");
        // SAFETY: the child runs `body` and calls that may be made in any thread, and ends in this block.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            // SAFETY: neither call touches memory.
            unsafe { libc::alarm(limit_s) };
            let text = catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| "panicked".into());
            let is_said = saying.write_all(format!("{text}\0").as_bytes()).is_ok();
            // SAFETY: ends this process.
            unsafe { libc::_exit(i32::from(!is_said)) };
        }
        assert!(pid > 0, "fork: {}", std::io::Error::last_os_error());
        Self { pid, said: BufReader::new(said) }
    }

    /// Waits until it has ended; what `body` returned.
    ///
    /// # Panics
    /// If it was ended by a signal, as one that hangs is.
    #[must_use]
    pub fn wait(mut self) -> String {
        let mut text = Vec::new();
        // Not to the end: children that others start at this moment have the other end, too.
        self.said.read_until(0, &mut text).expect("a pipe can be read");
        let mut status = 0;
        // SAFETY: waits for a child of this process, and writes to a number.
        let waited = unsafe { libc::waitpid(self.pid, &raw mut status, 0) };
        assert_eq!(waited, self.pid, "the child is waited for once");
        let signal = libc::WIFSIGNALED(status).then(|| libc::WTERMSIG(status));
        assert_eq!(signal, None, "the child was ended: 14 is that it hung");
        assert_eq!(text.pop(), Some(0), "the child ended without a word");
        String::from_utf8(text).expect("it says text")
    }
}

/// Runs a part of a test in a child, as [`Child::start`] does, and waits for it.
#[must_use]
pub fn in_child(body: impl FnOnce() -> String) -> String {
    const LIMIT_S: u32 = 60;
    Child::start(LIMIT_S, body).wait()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_says_what_came_of_it() {
        let mut here = 1;
        assert_eq!(
            in_child(|| {
                here += 1;
                here.to_string()
            }),
            "2"
        );
        assert_eq!(here, 1);
        assert_eq!(in_child(|| panic!("as it may")), "panicked");
    }

    #[test]
    #[should_panic(expected = "the child was ended")]
    fn a_child_that_hangs_is_told_of() {
        let hang = || loop {
            std::thread::park();
        };
        let _ = Child::start(1, hang).wait();
    }
}
