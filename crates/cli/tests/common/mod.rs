//! Running the command, and daemons on sockets of their own, for tests.

#![allow(dead_code, reason = "each test program uses its own part of this module")]

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// How long anything here may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// The command, away from the user's own daemon and settings.
pub(crate) fn bindery(arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bindery"));
    command.args(arguments).env_remove("BINDERY_SOCKET").stdin(Stdio::null());
    command
}

/// How a command ended.
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Ended {
    fn of(Output { status, stdout, stderr }: Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Self { code: status.code(), out: text(stdout), err: text(stderr) }
    }

    /// What was printed, as JSON.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.out)
            .unwrap_or_else(|error| panic!("{error}: {}{}", self.out, self.err))
    }
}

/// Runs a command to its end.
pub(crate) fn run(mut command: Command) -> Ended {
    Ended::of(command.output().unwrap())
}

/// Runs a command that is to end within `limit`.
pub(crate) fn run_within(limit: Duration, mut command: Command) -> Ended {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let deadline = Instant::now() + limit;
    // What it prints fits a pipe.
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > deadline {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("{command:?} has not ended within {limit:?}");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ended::of(child.wait_with_output().unwrap())
}

/// Checks that each page which a scan found in an input is in one of its columns.
pub(crate) fn adds_up(input: &Value) {
    let field = |name: &str| input[name].as_u64().unwrap();
    let shared = ["ksm_pages", "zero_page_mapped_pages"].map(field).iter().sum::<u64>();
    let shared = shared + field("bindery_merged_bytes") / bindery_units::PAGE_BYTES as u64;
    let read = ["zero_pages", "duplicate_pages", "distinct_pages"].map(field).iter().sum::<u64>();
    assert_eq!(field("pages"), shared + read, "{input}");
}

/// A daemon on a socket of its own, killed when dropped.
pub(crate) struct TestDaemon {
    socket: PathBuf,
    log: File,
    child: Child,
    /// Made for this daemon's socket, if it was.
    directory: Option<tempfile::TempDir>,
}

impl TestDaemon {
    /// Starts a daemon in a directory of its own and waits until it answers.
    pub(crate) fn start(arguments: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut daemon = Self::start_at(&directory.path().join("b.sock"), arguments);
        daemon.directory = Some(directory);
        daemon
    }

    /// Starts a daemon on the socket at `socket` and waits until it answers.
    pub(crate) fn start_at(socket: &Path, arguments: &[&str]) -> Self {
        Self::spawn(daemon_command(socket, arguments), socket)
    }

    /// Starts a daemon by a command line that has it listen on `socket`, and waits until it answers.
    pub(crate) fn spawn(mut command: Command, socket: &Path) -> Self {
        let log = tempfile::tempfile().unwrap();
        command.stderr(log.try_clone().unwrap());
        let child = command.spawn().unwrap();
        let daemon = Self { log, socket: socket.into(), child, directory: None };
        let deadline = Instant::now() + PATIENCE;
        while daemon.ask(&["status"]).code != Some(0) {
            assert!(Instant::now() < deadline, "the daemon never answered");
            std::thread::sleep(Duration::from_millis(20));
        }
        daemon
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.socket.clone()
    }

    /// What it has logged so far.
    pub(crate) fn log(&self) -> String {
        let mut text = vec![0; self.log.metadata().unwrap().len() as usize];
        self.log.read_exact_at(&mut text, 0).unwrap();
        String::from_utf8_lossy(&text).into_owned()
    }

    /// The directory that its socket is in.
    pub(crate) fn directory(&self) -> &Path {
        self.socket.parent().unwrap()
    }

    /// Runs a command against this daemon.
    pub(crate) fn ask(&self, arguments: &[&str]) -> Ended {
        run(self.command(arguments))
    }

    /// Runs a command against this daemon that is to end within `limit`.
    pub(crate) fn ask_within(&self, limit: Duration, arguments: &[&str]) -> Ended {
        run_within(limit, self.command(arguments))
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = bindery(arguments);
        command.env("BINDERY_SOCKET", self.socket());
        command
    }

    /// Ends the daemon with `signal` and returns its exit code.
    pub(crate) fn end_with(&mut self, signal: &str) -> Option<i32> {
        signal_process(self.pid(), signal);
        self.await_end()
    }

    /// Waits until the daemon has ended and returns its exit code.
    pub(crate) fn await_end(&mut self) -> Option<i32> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(Instant::now() < deadline, "the daemon did not end");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for TestDaemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A daemon's command line, in the foreground.
pub(crate) fn daemon_command(socket: &Path, arguments: &[&str]) -> Command {
    let mut command = bindery(["daemon"]);
    command.args(arguments).arg("--socket").arg(socket).stderr(Stdio::null()).stdout(Stdio::null());
    command
}

/// The same command line with another program.
pub(crate) fn with_program(command: &Command, program: &Path) -> Command {
    let mut other = Command::new(program);
    other.args(command.get_args()).env_remove("BINDERY_SOCKET");
    other.stdin(Stdio::null()).stderr(Stdio::null()).stdout(Stdio::null());
    other
}

/// Sends a signal to one process.
pub(crate) fn signal_process(pid: u32, signal: &str) {
    let status = Command::new("kill").arg(format!("-{signal}")).arg(pid.to_string()).status();
    assert!(status.unwrap().success());
}

/// Whether tests may act as another user; prints loudly if not.
pub(crate) fn can_change_user(test: &str) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let uid = status.lines().find_map(|line| line.strip_prefix("Uid:")).unwrap();
    let is_root = uid.split_ascii_whitespace().nth(1) == Some("0");
    if !is_root {
        bindery_testkit::skipped!("{test} acts as another user, which only root can");
    }
    is_root
}

/// Opens `directory` to all users and puts the command there.
pub(crate) fn program_for_all(directory: &Path) -> PathBuf {
    let all = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(directory, all).unwrap();
    let program = directory.join("bindery");
    // By another process: if this one wrote it, a child that another thread starts meanwhile would
    // hold it open for writing, and it could not be run.
    let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_bindery")).arg(&program).status();
    assert!(copied.unwrap().success());
    program
}

/// A user that owns nothing here.
pub(crate) const NOBODY: u32 = 65534;

/// Has `command` run as [`NOBODY`].
pub(crate) fn as_nobody(mut command: Command) -> Command {
    command.uid(NOBODY).gid(NOBODY);
    command
}
