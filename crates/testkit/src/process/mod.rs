//! A guest without a VMM: a process that offers its memory to be merged as a VMM does
//! (`madvise(MADV_MERGEABLE)`), writes to it all the time, and verifies every byte.
//!
//! It is the test program itself, run once more. A test program that uses it has one test named
//! [`ENTRY`], which does nothing else than call [`serve_if_started`].
//!
//! Its memory can be that of KVM guests instead, which then write and verify.
//!
//! Concurrency: a [`ProcessGuest`] is used by one thread at a time; the process has a thread that
//! writes beside the one that obeys, or one for each KVM guest.

mod machines;
mod memory;
mod serve;

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

pub use serve::serve_if_started;

/// The test that is the process.
pub const ENTRY: &str = "guest_process";

/// Set in the process.
const VARIABLE: &str = "BINDERY_TEST_PROCESS";

/// What answers begin with: the test harness writes to the same stream.
const MARK: &str = "guest: ";

/// How much of a guest's memory was compared with what it wrote.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verified {
    /// Pages compared so far, by the thread that writes too.
    pub pages: u64,
    /// Of them, those that were not what was written. Zero is good.
    pub bad: u64,
}

/// What KVM guests in a process did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MachineFigures {
    /// Pages read and compared, by a guest or from outside.
    pub read: u64,
    /// Pages written by a guest.
    pub written: u64,
    /// Of the pages read, those that were not what was written. Zero is good.
    pub bad: u64,
}

/// A running process; dropping it ends it at once.
#[derive(Debug)]
pub struct ProcessGuest {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
    address: u64,
    pages: usize,
}

impl ProcessGuest {
    /// Starts a process with `pages` pages of memory, filled and not yet offered. `launcher` are
    /// the words before its command line, as of
    /// [`Daemon::launcher`](crate::bindery::Daemon::launcher). Guests fill alike but for every
    /// fourth page, which is theirs by `seed`.
    ///
    /// # Errors
    /// When the process cannot be started, or ends.
    pub fn start(launcher: &[OsString], pages: usize, seed: u64) -> io::Result<Self> {
        Self::start_as(launcher, pages, seed, |_| ())
    }

    /// As [`Self::start`]; `prepare` changes the command, such as its user or environment.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn start_as(
        launcher: &[OsString],
        pages: usize,
        seed: u64,
        prepare: impl FnOnce(&mut Command),
    ) -> io::Result<Self> {
        let program = std::env::current_exe()?.into_os_string();
        Self::start_program(launcher, program, pages, seed, prepare)
    }

    /// As [`Self::start_as`], with a copy of the test program that another user may run.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn start_program(
        launcher: &[OsString],
        program: OsString,
        pages: usize,
        seed: u64,
        prepare: impl FnOnce(&mut Command),
    ) -> io::Result<Self> {
        let mut words = launcher.iter().cloned().chain([program]);
        let mut command = Command::new(words.next().expect("the program is the last word"));
        command.args(words).args(["--exact", ENTRY, "--nocapture"]).env(VARIABLE, "1");
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        prepare(&mut command);
        let mut child = command.spawn()?;
        let (Some(orders), Some(answers)) = (child.stdin.take(), child.stdout.take()) else {
            unreachable!("both were asked for")
        };
        let answers = BufReader::new(answers);
        let mut guest = Self { child, orders, answers, address: 0, pages };
        let address = guest.order(&format!("fill {pages} {seed}"))?;
        guest.address = address.parse().map_err(|_| io::Error::other(address))?;
        Ok(guest)
    }

    /// Has it offer all of its memory.
    ///
    /// # Errors
    /// When the advice is refused, or the process has ended.
    pub fn offer(&mut self) -> io::Result<()> {
        self.expect("offer", "offered")
    }

    /// Has it write and verify pages from now on, in batches with a pause between them.
    ///
    /// # Errors
    /// When the process has ended.
    pub fn churn(&mut self, pause_us: u64) -> io::Result<()> {
        self.expect(&format!("churn {pause_us}"), "churning")
    }

    /// Has it stop writing.
    ///
    /// # Errors
    /// When the process has ended.
    pub fn rest(&mut self) -> io::Result<()> {
        self.expect("rest", "resting")
    }

    /// Has it compare all of its memory with what it wrote.
    ///
    /// # Errors
    /// When the process has ended.
    pub fn verify(&mut self) -> io::Result<Verified> {
        let answer = self.order("verify")?;
        let mut figures = answer.split(' ').map(str::parse);
        match (figures.next(), figures.next()) {
            (Some(Ok(pages)), Some(Ok(bad))) => Ok(Verified { pages, bad }),
            _ => Err(io::Error::other(answer)),
        }
    }

    /// Has it run `count` KVM guests in its memory, offered or not, which write and verify in
    /// batches with a pause between them. The memory is theirs from now on.
    ///
    /// # Errors
    /// Without KVM, or when the process has ended.
    pub fn run_machines(&mut self, count: usize, pause_us: u64) -> io::Result<()> {
        self.expect(&format!("machines {count} {pause_us}"), "running")
    }

    /// What its KVM guests have done so far.
    ///
    /// # Errors
    /// When there are none, or the process has ended.
    pub fn machine_figures(&mut self) -> io::Result<MachineFigures> {
        self.machine_order("figures")
    }

    /// Has its KVM guests compare all of their memory once more, from inside and from outside, and
    /// end.
    ///
    /// # Errors
    /// When one of them left its program, or the process has ended.
    pub fn halt_machines(&mut self) -> io::Result<MachineFigures> {
        self.machine_order("halt")
    }

    fn machine_order(&mut self, order: &str) -> io::Result<MachineFigures> {
        let answer = self.order(order)?;
        let figures: Vec<u64> = answer.split(' ').filter_map(|word| word.parse().ok()).collect();
        let [read, written, bad] = figures[..] else { return Err(io::Error::other(answer)) };
        Ok(MachineFigures { read, written, bad })
    }

    /// Has it shut down every socket that it has: those of the agent in it. Returns how many.
    ///
    /// # Errors
    /// When the process has ended.
    pub fn cut_connections(&mut self) -> io::Result<usize> {
        let answer = self.order("cut")?;
        answer.parse().map_err(|_| io::Error::other(answer))
    }

    /// Has it try to open a file for reading, or for reading and writing. Returns whether it could.
    ///
    /// # Errors
    /// When the process has ended.
    pub fn try_to_open(&mut self, path: &str, for_writing: bool) -> io::Result<bool> {
        let answer = self.order(&format!("open {for_writing} {path}"))?;
        answer.parse().map_err(|_| io::Error::other(answer))
    }

    /// Its pid.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Where its memory is.
    #[must_use]
    pub const fn address(&self) -> u64 {
        self.address
    }

    /// How many pages it has.
    #[must_use]
    pub const fn pages(&self) -> usize {
        self.pages
    }

    fn expect(&mut self, order: &str, expected: &str) -> io::Result<()> {
        let answer = self.order(order)?;
        if answer == expected { Ok(()) } else { Err(io::Error::other(answer)) }
    }

    fn order(&mut self, order: &str) -> io::Result<String> {
        writeln!(self.orders, "{order}")?;
        loop {
            let mut line = String::new();
            if self.answers.read_line(&mut line)? == 0 {
                let status = self.child.wait()?;
                return Err(io::Error::other(format!("the process has ended ({status})")));
            }
            if let Some((_, answer)) = line.trim_end_matches('\n').split_once(MARK) {
                return Ok(answer.to_owned());
            }
        }
    }
}

impl Drop for ProcessGuest {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
