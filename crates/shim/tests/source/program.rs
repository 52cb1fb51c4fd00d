//! This program as a guest, with the library in front.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use bindery_sys::socket;
use tempfile::TempDir;

/// Names the scenario that the guest plays.
pub(crate) const SCENARIO: &str = "BINDERY_TEST_SCENARIO";

/// Start of the guest's lines among those of the test harness.
pub(crate) const MARK: &str = "guest: ";

pub(crate) struct Program {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    directory: TempDir,
    pub(crate) listener: OwnedFd,
}

impl Program {
    pub(crate) fn start(scenario: &str) -> Self {
        let directory = tempfile::tempdir().expect("directory");
        let socket = directory.path().join("socket");
        let listener = socket::listen(&socket, 4).expect("listen");
        let program = std::env::current_exe().expect("this test has a path");
        let mut child = Command::new(&program)
            .args(["guest_role", "--exact", "--nocapture", "--test-threads=1"])
            .env(SCENARIO, scenario)
            .env("LD_PRELOAD", program.with_file_name("libbindery_shim.so"))
            .env("BINDERY_SOCKET", &socket)
            .env("BINDERY_LOG_FILE", directory.path().join("log"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("this program");
        let stdin = child.stdin.take().expect("piped");
        let stdout = BufReader::new(child.stdout.take().expect("piped"));
        Self { child, stdin, stdout, directory, listener }
    }

    /// Returns the guest's next line.
    pub(crate) fn line(&mut self) -> String {
        let mut all = String::new();
        loop {
            let mut line = String::new();
            if self.stdout.read_line(&mut line).expect("the guest's output") == 0 {
                return format!("the guest ended: {all} {}", self.log());
            }
            // The harness begins a line of its own without ending it.
            if let Some((_, said)) = line.split_once(MARK) {
                return said.trim_end().to_owned();
            }
            all += &line;
        }
    }

    pub(crate) fn send(&mut self, line: &str) {
        writeln!(self.stdin, "{line}").expect("the guest listens");
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It may have ended already; either way it is not left behind.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
