//! A `bindery` daemon of one's own, on a private socket, run as an operator would run it.
//!
//! Tests that need the programs as they are installed use this: the built `bindery` and the shim
//! beside it. `cargo xtask test` builds both and names them in [`PROGRAM_VARIABLE`].
//!
//! Concurrency: any number of daemons may run beside each other; each has its own directory.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use crate::background_process::BackgroundProcess;

/// Names the `bindery` program to use.
pub const PROGRAM_VARIABLE: &str = "BINDERY_PROGRAM";

const POLL: Duration = Duration::from_millis(20);
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// Why the daemon could not be used.
#[derive(Debug, thiserror::Error)]
pub enum BinderyError {
    /// The programs were not built.
    #[error(
        "no built bindery was found: run `cargo build --release -p bindery-cli -p bindery-shim`, \
         or name the program in {PROGRAM_VARIABLE}"
    )]
    NotBuilt,
    /// A file could not be made or the program not be started.
    #[error("{context}: {source}")]
    Io {
        /// What was being done.
        context: &'static str,
        /// What the kernel answered.
        source: io::Error,
    },
    /// The daemon ended, or did not listen in time.
    #[error("the daemon did not come up:\n{log}")]
    NotUp {
        /// What it said.
        log: String,
    },
    /// A command failed.
    #[error("`bindery {command}` ended with {status}:\n{output}")]
    Command {
        /// The command.
        command: String,
        /// Its exit status.
        status: String,
        /// What it wrote.
        output: String,
    },
}

/// The built program.
#[derive(Debug, Clone)]
pub struct Bindery {
    program: PathBuf,
    /// Log level of daemons (`BINDERY_LOG`), if not their default.
    log_level: Option<&'static str>,
}

impl Bindery {
    /// Names a built program, with the shim beside it.
    #[must_use]
    pub fn at(program: impl Into<PathBuf>) -> Self {
        Self { program: program.into(), log_level: None }
    }

    /// Has daemons log no more than `level`, as in `BINDERY_LOG`: what they log costs CPU time.
    #[must_use]
    pub fn with_log_level(self, level: &'static str) -> Self {
        Self { log_level: Some(level), ..self }
    }

    /// What [`PROGRAM_VARIABLE`] names, or the release build beside the running program.
    ///
    /// # Errors
    /// [`BinderyError::NotBuilt`].
    pub fn locate() -> Result<Self, BinderyError> {
        let named = std::env::var_os(PROGRAM_VARIABLE).map(PathBuf::from);
        let beside = || {
            let program = std::env::current_exe().ok()?;
            // target/debug/xtask, target/debug/deps/some_test: the target directory is above.
            program
                .ancestors()
                .map(|above| above.join("release/bindery"))
                .find(|path| path.exists())
        };
        named
            .filter(|path| path.exists())
            .or_else(beside)
            .map(Self::at)
            .ok_or(BinderyError::NotBuilt)
    }

    /// The program's path.
    #[must_use]
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// Makes a pool of one directory, `pool` below `directory`, that may grow to so many MiB. Returns that
    /// directory, which is what `--checkpoint-pool` of a daemon takes. The registry of pools is beside it.
    ///
    /// # Errors
    /// [`BinderyError::Command`] with what the program said.
    pub fn create_pool(&self, directory: &Path, mib: u64) -> Result<PathBuf, BinderyError> {
        let pool = directory.join("pool");
        let failed = |source| BinderyError::Io { context: "making a pool", source };
        std::fs::create_dir(&pool).map_err(failed)?;
        let mut command = Command::new(&self.program);
        command.args(["pool", "create", "checkpoints", "--size", &format!("{mib}M")]);
        command.arg("--capacity").arg(&pool).env("BINDERY_POOLS", directory.join("registry"));
        let output = command.stdin(Stdio::null()).output().map_err(failed)?;
        if output.status.success() {
            return Ok(pool);
        }
        Err(BinderyError::Command {
            command: "pool create".into(),
            status: output.status.to_string(),
            output: String::from_utf8_lossy(&output.stderr).into_owned(),
        })
    }

    /// Starts a daemon on a socket of its own and waits until it listens. `arguments` are those of
    /// `bindery daemon`.
    ///
    /// # Errors
    /// [`BinderyError::NotUp`] with what it said.
    pub fn daemon(&self, arguments: &[&str]) -> Result<Daemon, BinderyError> {
        let directory = tempfile::Builder::new()
            .prefix("bindery-daemon-")
            .tempdir()
            .map_err(|source| BinderyError::Io { context: "the daemon's directory", source })?;
        let mut daemon = Daemon {
            bindery: self.clone(),
            arguments: arguments.iter().map(Into::into).collect(),
            process: None,
            directory,
        };
        daemon.start()?;
        Ok(daemon)
    }
}

/// A running daemon; dropping it has it end, leaving guests as they are.
#[derive(Debug)]
pub struct Daemon {
    bindery: Bindery,
    arguments: Vec<OsString>,
    // Ended before its directory is removed.
    process: Option<BackgroundProcess>,
    directory: TempDir,
}

impl Daemon {
    /// Starts it again after [`Self::kill`], on the same socket.
    ///
    /// # Errors
    /// As [`Bindery::daemon`].
    pub fn start(&mut self) -> Result<(), BinderyError> {
        let failed = |context| move |source| BinderyError::Io { context, source };
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.log_path())
            .map_err(failed("the daemon's log"))?;
        let second = log.try_clone().map_err(failed("the daemon's log"))?;
        let mut command = Command::new(&self.bindery.program);
        command
            .args(["daemon", "--socket"])
            .arg(self.socket())
            .args(&self.arguments)
            .envs(self.bindery.log_level.map(|level| ("BINDERY_LOG", level)))
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(second);
        let mut process =
            BackgroundProcess::start(&mut command).map_err(failed("starting bindery"))?;
        let deadline = Instant::now() + START_TIMEOUT;
        while UnixStream::connect(self.socket()).is_err() {
            if Instant::now() >= deadline || !process.is_running() {
                process.kill();
                return Err(BinderyError::NotUp { log: self.log() });
            }
            std::thread::sleep(POLL);
        }
        self.process = Some(process);
        Ok(())
    }

    /// Ends it at once, as `kill -9` does.
    pub fn kill(&mut self) {
        if let Some(process) = self.process.take() {
            process.kill();
        }
    }

    /// The program that it is of.
    #[must_use]
    pub fn program(&self) -> &Path {
        self.bindery.program()
    }

    /// Its pid, while it runs.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(BackgroundProcess::pid)
    }

    /// Its socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.directory.path().join("bindery.sock")
    }

    /// Everything that it has written.
    #[must_use]
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    /// The words before a VMM's command line that put its guest under this daemon; for
    /// [`GuestBuilder::launcher`](crate::guest::GuestBuilder::launcher).
    #[must_use]
    pub fn launcher(&self, name: &str) -> Vec<OsString> {
        let mut words = vec![self.bindery.program.clone().into_os_string()];
        words.extend(["run", "--socket"].map(OsString::from));
        words.push(self.socket().into_os_string());
        words.extend(["--name", name, "--"].map(OsString::from));
        words
    }

    /// Runs a command of the program against this daemon; returns what it prints.
    ///
    /// # Errors
    /// [`BinderyError::Command`] when it fails.
    pub fn command(&self, arguments: &[&str]) -> Result<String, BinderyError> {
        let output = Command::new(&self.bindery.program)
            .args(arguments)
            .arg("--socket")
            .arg(self.socket())
            .stdin(Stdio::null())
            .output()
            .map_err(|source| BinderyError::Io { context: "starting bindery", source })?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if output.status.success() {
            return Ok(text(&output.stdout));
        }
        Err(BinderyError::Command {
            command: arguments.join(" "),
            status: output.status.to_string(),
            output: text(&output.stdout) + &text(&output.stderr),
        })
    }

    /// What `bindery status --json` says.
    ///
    /// # Errors
    /// As [`Self::command`].
    pub fn status(&self) -> Result<Value, BinderyError> {
        self.json("status")
    }

    /// What `bindery ps --json` says: an array of guests.
    ///
    /// # Errors
    /// As [`Self::command`].
    pub fn guests(&self) -> Result<Value, BinderyError> {
        self.json("ps")
    }

    fn json(&self, command: &str) -> Result<Value, BinderyError> {
        let output = self.command(&[command, "--json"])?;
        serde_json::from_str(&output).map_err(|error| BinderyError::Command {
            command: format!("{command} --json"),
            status: error.to_string(),
            output,
        })
    }

    fn log_path(&self) -> PathBuf {
        self.directory.path().join("daemon.log")
    }
}
