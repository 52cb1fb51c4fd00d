//! Programs of the tests in C, built once, and run with the shim in front.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::peer::SOON;

/// The shim, as cargo built it for these tests: beside them. The one a directory further up is from
/// the last `cargo build`.
pub(crate) fn shim() -> PathBuf {
    let program = std::env::current_exe().expect("this test has a path");
    let shim = program.with_file_name("libbindery_shim.so");
    assert!(shim.exists(), "{} is built with this test", shim.display());
    shim
}

/// Builds `tests/c/<name>.c`, or all of `tests/c/<name>/`, with arguments before and after, and returns
/// where the program is.
pub(crate) fn build(name: &str, before: &[&str], after: &[&str]) -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c").join(name);
    let sources: Vec<PathBuf> = match std::fs::read_dir(&path) {
        Ok(entries) => entries.flatten().map(|entry| entry.path()).collect(),
        Err(_) => vec![path.with_extension("c")],
    };
    let sources = sources.iter().filter(|path| path.extension().is_some_and(|kind| kind == "c"));
    // Tests build at the same time: each in a directory of its own, and then into its place.
    let target = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let directory = tempfile::tempdir_in(target).expect("directory");
    let program = directory.path().join(name);
    let built = Command::new("cc")
        .args(["-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"])
        .arg(&program)
        .args(before)
        .args(sources)
        .args(after)
        .output()
        .expect("a C compiler");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let variant = BuildHasherDefault::<DefaultHasher>::default().hash_one(before);
    let place = target.join(format!("{name}-{variant:x}"));
    std::fs::rename(program, &place).expect("the same file system");
    place
}

/// A program that runs with the shim in front. Killed if the test ends before it does.
pub(crate) struct Vmm {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    directory: TempDir,
}

/// How a program ended.
#[derive(Debug)]
pub(crate) struct Ended {
    /// Its last line.
    pub(crate) said: String,
    /// What the shim logged.
    pub(crate) log: String,
}

impl Vmm {
    /// Where a program in `directory` finds its daemon.
    pub(crate) fn socket_in(directory: &TempDir) -> PathBuf {
        directory.path().join("socket")
    }

    /// The little VMM's command line in `directory`. The shim logs to standard error.
    pub(crate) fn command(directory: &TempDir, arguments: &[&str]) -> Command {
        static PROGRAM: std::sync::OnceLock<PathBuf> = std::sync::OnceLock::new();
        let program = PROGRAM.get_or_init(|| build("vmm", &[], &[]));
        let mut command = Command::new(program);
        command
            .args(arguments)
            .env("LD_PRELOAD", shim())
            .env("BINDERY_SOCKET", Self::socket_in(directory))
            .env("BINDERY_NAME", "little-vmm")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        command
    }

    /// Starts the little VMM, with a file for the shim to log to.
    pub(crate) fn start(directory: TempDir, arguments: &[&str]) -> Self {
        let mut command = Self::command(&directory, arguments);
        command.env("BINDERY_LOG_FILE", directory.path().join("log"));
        let mut child = command.spawn().expect("the little VMM");
        let stdin = child.stdin.take().expect("piped");
        let stdout = BufReader::new(child.stdout.take().expect("piped"));
        Self { child, stdin, stdout, directory }
    }

    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("the VMM's output");
        line.trim_end().to_owned()
    }

    /// Returns what the shim has logged so far.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }

    /// Waits until the shim has logged something.
    pub(crate) fn wait_for_log(&self, wanted: &str) {
        let begun = Instant::now();
        while !self.log().contains(wanted) {
            assert!(begun.elapsed() < SOON, "not a word of {wanted:?}: {}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Gives it a line to read.
    pub(crate) fn send(&mut self, line: &str) {
        writeln!(self.stdin, "{line}").expect("the VMM listens");
    }

    /// Lets it do what it is for, and waits for its end.
    pub(crate) fn go(mut self) -> Ended {
        self.send("go");
        Ended { said: self.line(), log: self.log() }
    }
}

impl Drop for Vmm {
    fn drop(&mut self) {
        // It may have ended already; either way it is not left behind.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
