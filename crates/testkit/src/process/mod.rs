//! A guest without a VMM: a process that offers its memory to be merged as a VMM does
//! (`madvise(MADV_MERGEABLE)`), writes to it all the time, and verifies every byte.
//!
//! The test program itself is that process, run once more as a [coprocess](crate::coprocess). A test
//! program that uses it has one test named [`ENTRY`], which does nothing else than call [`serve_if_started`].
//!
//! Its memory can be that of KVM guests instead, which then write and verify.
//!
//! Concurrency: a [`ProcessGuest`] is used by one thread at a time; the process has a thread that
//! writes beside the one that obeys, or one for each KVM guest.

mod machines;
mod memory;
mod serve;

use std::ffi::OsString;
use std::io;
use std::process::Command;

use crate::coprocess::Coprocess;
pub use serve::serve_if_started;

/// The test that is the process.
pub const ENTRY: &str = "guest_process";

/// Set in the process.
const VARIABLE: &str = "BINDERY_TEST_PROCESS";

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
    process: Coprocess,
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
        let mut process = Coprocess::start(launcher, program, |command| {
            command.args(["--exact", ENTRY, "--nocapture"]).env(VARIABLE, "1");
            prepare(command);
        })?;
        let address = process.ask_for(&format!("fill {pages} {seed}"))?;
        Ok(Self { process, address, pages })
    }

    /// Has it offer all of its memory.
    ///
    /// # Errors
    /// When the advice is refused, or the process has ended.
    pub fn offer(&mut self) -> io::Result<()> {
        self.process.ask("offer").map(drop)
    }

    /// Has it write and verify pages from now on, in batches with a pause between them.
    ///
    /// # Errors
    /// When the process has ended.
    pub fn churn(&mut self, pause_us: u64) -> io::Result<()> {
        self.process.ask(&format!("churn {pause_us}")).map(drop)
    }

    /// Has it stop writing.
    ///
    /// # Errors
    /// When the process has ended.
    pub fn rest(&mut self) -> io::Result<()> {
        self.process.ask("rest").map(drop)
    }

    /// Has it compare all of its memory with what it wrote.
    ///
    /// # Errors
    /// When the process has ended.
    pub fn verify(&mut self) -> io::Result<Verified> {
        let [pages, bad] = self.figures("verify")?;
        Ok(Verified { pages, bad })
    }

    /// Has it run `count` KVM guests in its memory, offered or not, which write and verify in
    /// batches with a pause between them. The memory is theirs from now on.
    ///
    /// # Errors
    /// Without KVM, or when the process has ended.
    pub fn run_machines(&mut self, count: usize, pause_us: u64) -> io::Result<()> {
        self.process.ask(&format!("machines {count} {pause_us}")).map(drop)
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
        let [read, written, bad] = self.figures(order)?;
        Ok(MachineFigures { read, written, bad })
    }

    fn figures<const COUNT: usize>(&mut self, order: &str) -> io::Result<[u64; COUNT]> {
        let answer = self.process.ask(order)?;
        let figures: Vec<u64> = answer.split(' ').filter_map(|word| word.parse().ok()).collect();
        figures.try_into().map_err(|_| io::Error::other(answer))
    }

    /// Has it shut down every socket that it has: those of the agent in it. Returns how many.
    ///
    /// # Errors
    /// When the process has ended.
    pub fn cut_connections(&mut self) -> io::Result<usize> {
        self.process.ask_for("cut")
    }

    /// Has it try to open a file for reading, or for reading and writing. Returns whether it could.
    ///
    /// # Errors
    /// When the process has ended.
    pub fn try_to_open(&mut self, path: &str, for_writing: bool) -> io::Result<bool> {
        self.process.ask_for(&format!("open {for_writing} {path}"))
    }

    /// Its pid.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.pid()
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
}
