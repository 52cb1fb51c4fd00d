//! `bindery daemon`, and starting one in the background.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, IsTerminal};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use bindery_host::endpoint::prepare_directory;
use bindery_host::{Config, Daemon};
use serde::{Deserialize, Serialize};
use tracing_subscriber::EnvFilter;

use crate::args::{DaemonArgs, Global};
use crate::exit::{Failure, Reason};
use crate::output::{print, print_json};

/// Allocations of this size and more are given back when they are freed: what a period plans in may
/// be megabytes, and most periods need next to none of it.
const LARGE_BYTES: u32 = 128 << 10;

/// A daemon that listens.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Started {
    /// Its process id.
    pub(crate) pid: u32,
    /// Where it listens.
    pub(crate) socket: PathBuf,
}

/// Runs the daemon until it is told to end, or starts one in the background.
pub(crate) fn run(global: &Global, arguments: &DaemonArgs) -> Result<(), Failure> {
    let socket = global.socket();
    if arguments.background {
        let started = start_in_background(&socket, arguments)?;
        return if global.json {
            print_json(&started)
        } else {
            let Started { pid, socket } = started;
            print(|out| writeln!(out, "daemon {pid} listens on {}", socket.display()))
        };
    }
    let served = serve(&socket, arguments, global.json);
    if let Err(failure) = &served
        && arguments.detached
    {
        // For whoever started this daemon, and waits for its first line.
        print(|out| writeln!(out, "{}", failure.to_json()))?;
    }
    served
}

fn serve(socket: &Path, arguments: &DaemonArgs, json: bool) -> Result<(), Failure> {
    bindery_sys::heap::give_back_from(LARGE_BYTES);
    start_log(arguments)?;
    if arguments.detached {
        bindery_sys::process::start_session()
            .map_err(|error| Failure::of_io("cannot leave the terminal's session", &error))?;
    }
    let daemon = Daemon::bind(&Config {
        socket: socket.into(),
        workers: arguments.workers,
        period: arguments.period,
        store_bytes_max: arguments.store_mib.map(|mib| mib << 20),
        unmerge_at_exit: arguments.unmerge_at_exit,
    })?;
    let of_io = |error| Failure::of_io("the daemon failed", &error);
    daemon.take_signals().map_err(of_io)?;
    let started = Started { pid: std::process::id(), socket: socket.into() };
    if arguments.detached || json {
        print(|out| writeln!(out, "{}", serde_json::to_string(&started)?))?;
    }
    daemon.run().map_err(of_io)
}

fn start_log(arguments: &DaemonArgs) -> Result<(), Failure> {
    let filter = EnvFilter::try_from_env("BINDERY_LOG").unwrap_or_else(|_| "info".into());
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_target(false);
    match &arguments.log {
        Some(path) => builder.with_ansi(false).with_writer(open_log(path)?).init(),
        None => builder.with_ansi(io::stderr().is_terminal()).with_writer(io::stderr).init(),
    }
    Ok(())
}

fn open_log(path: &Path) -> Result<File, Failure> {
    let file = OpenOptions::new().append(true).create(true).mode(0o600).open(path);
    file.map_err(|error| Failure::of_io(format_args!("cannot write {}", path.display()), &error))
}

/// Starts a daemon that outlives this command, and waits until it listens.
pub(crate) fn start_in_background(
    socket: &Path,
    arguments: &DaemonArgs,
) -> Result<Started, Failure> {
    let absolute = |path: &Path| {
        std::path::absolute(path)
            .map_err(|error| Failure::of_io(format_args!("{}", path.display()), &error))
    };
    let socket = absolute(socket)?;
    prepare_directory(&socket)?;
    let log = match &arguments.log {
        Some(path) => absolute(path)?,
        // In the socket's directory, which is known by now to be safe.
        None => socket.with_extension("log"),
    };
    let program = std::env::current_exe()
        .map_err(|error| Failure::of_io("cannot find my own program", &error))?;
    let mut command = Command::new(program);
    command.arg("daemon").arg("--detached").arg("--socket").arg(&socket);
    command.arg("--period").arg(format!("{}ms", arguments.period.as_millis()));
    if let Some(workers) = arguments.workers {
        command.arg("--workers").arg(workers.to_string());
    }
    if let Some(mib) = arguments.store_mib {
        command.arg("--store-mib").arg(mib.to_string());
    }
    if arguments.unmerge_at_exit {
        command.arg("--unmerge-at-exit");
    }
    // Not here: the daemon must not keep this directory's file system from being unmounted.
    command.current_dir("/");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(open_log(&log)?);
    let child = command.spawn();
    let child = child.map_err(|error| Failure::of_io("cannot start the daemon", &error))?;
    await_start(child, &log)
}

/// Its first line says that it listens, or why not.
fn await_start(mut child: Child, log: &Path) -> Result<Started, Failure> {
    let mut line = String::new();
    if let Some(stdout) = child.stdout.take() {
        let read = BufReader::new(stdout).read_line(&mut line);
        read.map_err(|error| Failure::of_io("cannot hear the daemon", &error))?;
    }
    if let Ok(started) = serde_json::from_str(&line) {
        return Ok(started);
    }
    let ended = child.wait().map(|status| status.to_string()).unwrap_or_default();
    Err(Failure::from_json(&line).unwrap_or_else(|| {
        let message = format!("the daemon did not start ({ended}); see {}", log.display());
        Failure::new(Reason::Failed, message)
    }))
}
