//! Guests that go on from one checkpoint, in the background.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use crate::bindery::{BinderyError, Daemon};
use crate::guest::{Kit, Qemu};

const POLL: Duration = Duration::from_millis(20);
const END_TIMEOUT: Duration = Duration::from_secs(10);

/// Running clones of one checkpoint of a guest that [`GuestBuilder`](crate::guest::GuestBuilder) described. They are
/// ended when this is dropped.
#[derive(Debug)]
pub struct Clones {
    pids: Vec<u32>,
    // Removed once they have ended.
    _directory: TempDir,
}

impl Clones {
    /// Starts so many clones of a checkpoint, named `clone-1` and so on, and waits until they run.
    ///
    /// # Errors
    /// [`BinderyError::Command`] with what the command said. Clones that run by then are left.
    pub fn start(
        daemon: &Daemon,
        (kit, qemu): (&Kit, Qemu),
        checkpoint: &str,
        count: u32,
    ) -> Result<Self, BinderyError> {
        let failed = |source| BinderyError::Io { context: "starting clones", source };
        // In /tmp by intent: a socket's path must fit into 108 bytes.
        let directory = tempfile::Builder::new().prefix("bindery-clones-").tempdir();
        let directory = directory.map_err(failed)?;
        let at = |name: &str| directory.path().join(name).display().to_string();
        let mut command = Command::new(daemon.program());
        command.args(["clone", checkpoint, "--name", "clone", "--json", "--socket"]);
        command.arg(daemon.socket()).args(["--count", &count.to_string(), "--"]);
        command.args(["-qmp", &format!("unix:{},server=on,wait=off", at("qmp{}"))]);
        command.args(["-chardev", &format!("file,id=console,path={}", at("console{}"))]);
        let agent = format!("socket,id=agent,path={},server=on,wait=off", at("agent{}"));
        command.args(["-chardev", &agent]).env("LD_LIBRARY_PATH", kit.library_path(qemu));
        let output = command.stdin(Stdio::null()).output().map_err(failed)?;
        let pids = output.status.success().then(|| pids_in(&output.stdout)).flatten();
        let Some(pids) = pids else {
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            return Err(BinderyError::Command {
                command: format!("clone {checkpoint}"),
                status: output.status.to_string(),
                output: text(&output.stdout) + &text(&output.stderr),
            });
        };
        Ok(Self { pids, _directory: directory })
    }

    /// The pids of their QEMUs.
    #[must_use]
    pub fn pids(&self) -> &[u32] {
        &self.pids
    }
}

/// The pids in an answer of `bindery clone --json`.
fn pids_in(answer: &[u8]) -> Option<Vec<u32>> {
    let answer: Value = serde_json::from_slice(answer).ok()?;
    let guests = answer["guests"].as_array()?.iter();
    guests.map(|guest| guest["pid"].as_u64()?.try_into().ok()).collect()
}

impl Drop for Clones {
    fn drop(&mut self) {
        for pid in self.pids.iter().filter_map(|&pid| Pid::from_raw(pid.cast_signed())) {
            // It fails only for those that have ended.
            let _ = kill_process(pid, Signal::KILL);
        }
        let deadline = Instant::now() + END_TIMEOUT;
        while self.pids.iter().any(|&pid| is_running(pid)) && Instant::now() < deadline {
            std::thread::sleep(POLL);
        }
    }
}

/// Returns true until the process has ended, whoever is to wait for it.
fn is_running(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
    // Behind the name, which is in parentheses, is the state.
    stat.is_ok_and(|stat| stat.rsplit(')').next().is_some_and(|rest| !rest.starts_with(" Z")))
}
