//! A running guest.
//!
//! Invariant: only the process that this guest was started as is ever ended. QEMU's pid comes from
//! the pid file in a directory of this guest alone, and is believed only while that process's
//! command line names the directory, since the launcher may have started QEMU as a child of its own
//! and pids are used again.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::channel::{Channel, Output};
use super::{GuestBuilder, GuestError, GuestImage, Kit, Qmp};

/// How often a guest that is starting or ending is looked at.
const POLL: Duration = Duration::from_millis(20);

/// The longest that [`QemuGuest::run`] waits. TCG is slow, and slower on a busy host.
const RUN_TIMEOUT: Duration = Duration::from_secs(300);

/// What a kernel writes when something went wrong that no guest of a correct host should see.
const COMPLAINTS: [&str; 9] = [
    "BUG",
    "Oops",
    "I/O error",
    "EXT4-fs error",
    "corrupt",
    "Call Trace",
    "Bad page",
    "general protection",
    "Out of memory",
];

/// A guest; dropping it ends QEMU at once.
#[derive(Debug)]
pub struct QemuGuest {
    child: Child,
    directory: TempDir,
    channel: Option<Channel>,
    qmp: Option<Qmp>,
    started: Instant,
}

impl QemuGuest {
    /// Describes a guest that boots `image`.
    pub fn builder(kit: &Kit, image: &GuestImage) -> GuestBuilder {
        GuestBuilder::new(kit, image)
    }

    pub(crate) fn start(mut command: Command, directory: TempDir) -> Result<Self, GuestError> {
        let log = directory.path().join("qemu.log");
        let log = File::create(&log).map_err(GuestError::io(format!("{}", log.display())))?;
        let second = log.try_clone().map_err(GuestError::io("the guest's log"))?;
        let program = command.get_program().to_owned();
        let child = command
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(second)
            .spawn()
            .map_err(GuestError::io(format!("starting {}", program.display())))?;
        Ok(Self { child, directory, channel: None, qmp: None, started: Instant::now() })
    }

    /// Takes over a QEMU in the background, whose `agent.sock`, `qmp.sock` and `console.log` are in a directory that its
    /// command line names. It is ended when this is dropped.
    ///
    /// # Errors
    /// [`GuestError::Io`].
    pub fn adopt(pid: u32, directory: TempDir) -> Result<Self, GuestError> {
        let path = directory.path().join("qemu.pid");
        std::fs::write(&path, pid.to_string()).map_err(GuestError::io("the guest's pid file"))?;
        // A child that ends when QEMU does.
        let mut command = Command::new("tail");
        command.args(["-s", "0.1", "-f", "/dev/null", &format!("--pid={pid}")]);
        Self::start(command, directory)
    }

    /// Waits until the guest runs commands; returns how long that took since QEMU was started.
    ///
    /// # Errors
    /// [`GuestError::Ended`] when QEMU ends meanwhile, [`GuestError::Timeout`] when the guest is
    /// not there in time; both carry the end of its console.
    pub fn wait_ready(&mut self, timeout: Duration) -> Result<Duration, GuestError> {
        let deadline = self.started + timeout;
        loop {
            self.check_running()?;
            if self.channel.is_none() {
                self.channel = Channel::connect(&self.path("agent.sock")).ok();
            }
            if let Some(channel) = &mut self.channel
                && channel.run("true", Duration::from_millis(500)).is_ok()
            {
                return Ok(self.started.elapsed());
            }
            if Instant::now() >= deadline {
                return Err(self.timeout_error("to be ready", timeout));
            }
            std::thread::sleep(POLL);
        }
    }

    /// Runs a shell command in the guest and returns what it did; blocks until it ends.
    ///
    /// # Errors
    /// [`GuestError::Timeout`] after five minutes, [`GuestError::Ended`] when QEMU ends.
    pub fn run(&mut self, script: &str) -> Result<Output, GuestError> {
        self.run_for(script, RUN_TIMEOUT)
    }

    /// As [`Self::run`], with a time limit of one's own. The command itself is not ended by it.
    ///
    /// # Errors
    /// As [`Self::run`].
    pub fn run_for(&mut self, script: &str, timeout: Duration) -> Result<Output, GuestError> {
        if self.channel.is_none() {
            self.wait_ready(timeout)?;
        }
        let answer = self.channel.as_mut().map(|channel| channel.run(script, timeout));
        match answer {
            Some(Ok(output)) => Ok(output),
            Some(Err(error)) if error.kind() != std::io::ErrorKind::WouldBlock => {
                self.check_running()?;
                Err(GuestError::io(format!("running {script:?} in the guest"))(error))
            }
            _ => Err(self.timeout_error(script, timeout)),
        }
    }

    /// Runs a command that must succeed; returns its standard output.
    ///
    /// # Errors
    /// [`GuestError::Command`] when it fails, else as [`Self::run`].
    pub fn check(&mut self, script: &str) -> Result<String, GuestError> {
        let output = self.run(script)?;
        if output.status == 0 {
            return Ok(output.stdout);
        }
        Err(GuestError::Command {
            command: script.to_owned(),
            status: output.status,
            output: output.stdout + &output.stderr,
        })
    }

    /// Starts a command in the guest's background; its output goes to `/tmp/NAME.log`, and its
    /// exit status, once it has ended, to `/tmp/NAME.status`, there.
    ///
    /// # Errors
    /// As [`Self::run`].
    pub fn run_in_background(&mut self, name: &str, script: &str) -> Result<(), GuestError> {
        let quoted = script.replace('\'', r"'\''");
        self.check(&format!(
            "rm -f /tmp/{name}.status; setsid sh -c '{quoted}\necho $? > /tmp/{name}.status' \
             > /tmp/{name}.log 2>&1 < /dev/null &"
        ))
        .map(drop)
    }

    /// The lines of the guest's kernel log and console that speak of damage. Empty is good.
    ///
    /// # Errors
    /// As [`Self::run`].
    pub fn kernel_complaints(&mut self) -> Result<Vec<String>, GuestError> {
        let mut log = self.check("dmesg")?;
        log.push_str(&self.console());
        let complains = |line: &&str| COMPLAINTS.iter().any(|pattern| line.contains(pattern));
        Ok(log.lines().filter(complains).map(str::to_owned).collect())
    }

    /// Everything that the guest's console has shown.
    #[must_use]
    pub fn console(&self) -> String {
        self.text("console.log")
    }

    /// Everything that QEMU itself, and what was preloaded into it, has said.
    #[must_use]
    pub fn log(&self) -> String {
        self.text("qemu.log")
    }

    /// The connection to QEMU's monitor, opened at first use. QEMU serves one at a time, so the
    /// guest keeps it.
    ///
    /// # Errors
    /// [`GuestError::Qmp`] when nobody answers.
    pub fn qmp(&mut self) -> Result<&mut Qmp, GuestError> {
        let qmp = match self.qmp.take() {
            Some(qmp) => qmp,
            None => Qmp::connect(&self.path("qmp.sock"))?,
        };
        Ok(self.qmp.insert(qmp))
    }

    /// The pid of QEMU itself, once it has written its pid file, whoever started it. One that has no pid file
    /// takes the place of its launcher.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        let file = self.text("qemu.pid");
        let pid = if file.is_empty() { self.child.id() } else { file.trim().parse().ok()? };
        let command_line = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let ours = self.directory.path().as_os_str().as_encoded_bytes();
        command_line.windows(ours.len()).any(|window| window == ours).then_some(pid)
    }

    /// The pid of the process that was started: the launcher's, or QEMU's own without one.
    #[must_use]
    pub fn launcher_pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether what was started still runs.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Has QEMU quit and waits for it and its launcher, ten seconds at most, then ends them.
    pub fn shut_down(mut self) {
        if let Ok(qmp) = self.qmp() {
            // The answer may get lost with the socket.
            let _ = qmp.execute("quit", &serde_json::json!({}));
        }
        let deadline = Instant::now() + Duration::from_secs(10);
        while self.is_running() && Instant::now() < deadline {
            std::thread::sleep(POLL);
        }
    }

    fn check_running(&mut self) -> Result<(), GuestError> {
        match self.child.try_wait() {
            Ok(Some(status)) => Err(GuestError::Ended {
                status: status.to_string(),
                words: format!("{}{}", self.log(), self.console_end()),
            }),
            _ => Ok(()),
        }
    }

    fn timeout_error(&self, what: &str, timeout: Duration) -> GuestError {
        let console = format!("{}{}", self.log(), self.console_end());
        GuestError::Timeout { what: what.to_owned(), timeout, console }
    }

    fn console_end(&self) -> String {
        let console = self.console();
        let lines: Vec<&str> = console.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        std::fs::read(Path::new(&self.path(name)))
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .unwrap_or_default()
    }
}

impl Drop for QemuGuest {
    fn drop(&mut self) {
        if self.is_running()
            && let Some(pid) = self.pid().and_then(|pid| Pid::from_raw(pid.cast_signed()))
        {
            // Fails only when QEMU has ended in between, which is what is wanted.
            let _ = kill_process(pid, Signal::KILL);
        }
        // A launcher that waits for QEMU ends by itself and cleans up; one that hangs is ended.
        let deadline = Instant::now() + Duration::from_secs(2);
        while self.is_running() && Instant::now() < deadline {
            std::thread::sleep(POLL);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
