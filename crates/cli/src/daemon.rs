//! `bindery daemon`, and starting one in the background.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use bindery_host::access::Group;
use bindery_host::endpoint::prepare_directory;
use bindery_host::settings::{Change, Refused, Settings};
use bindery_host::{Config, Daemon, HttpConfig, Reload};
use bindery_sys::handover;
use serde::{Deserialize, Serialize};

use crate::args::{DaemonArgs, Global};
use crate::config::{self, ConfigFile, Start};
use crate::exit::{Failure, Reason};
use crate::logging;
use crate::output::{print, print_json};
use crate::settings::{self, Setting};

/// Allocations of this size and more are given back when they are freed: what a period plans in may
/// be megabytes, and most periods need next to none of it.
const LARGE_BYTES: u32 = 128 << 10;

/// Variables that are for the process that starts a daemon in the background, and not for the daemon:
/// libraries to preload, and what a service manager (systemd.exec(5)) says to its service. A daemon that
/// had the latter would report its own state as that of the VMM's service.
const OTHERS_VARIABLES: [&str; 7] = [
    "LD_PRELOAD",
    "NOTIFY_SOCKET",
    "WATCHDOG_PID",
    "WATCHDOG_USEC",
    "LISTEN_PID",
    "LISTEN_FDS",
    "LISTEN_FDNAMES",
];

/// A daemon that listens.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Started {
    /// Its process id.
    pub(crate) pid: u32,
    /// Where it listens.
    pub(crate) socket: PathBuf,
    /// Where it can be looked at over HTTP.
    pub(crate) http: Option<SocketAddr>,
}

/// Runs the daemon until it is told to end, or starts one in the background.
pub(crate) fn run(global: &Global, arguments: &DaemonArgs) -> Result<(), Failure> {
    if arguments.print_config {
        return print(|out| write!(out, "{}", config::example()));
    }
    let path = config::locate(arguments.config.as_deref());
    let file = path.as_deref().map(config::read).transpose()?.unwrap_or_default();
    let socket = global.socket.clone().or(file.start.socket.clone());
    let socket = socket.unwrap_or_else(|| global.socket());
    if arguments.background {
        let started = start_in_background(&socket, arguments)?;
        return if global.json {
            print_json(&started)
        } else {
            let Started { pid, socket, http } = started;
            let http = http.map(|http| format!(" and http://{http}/")).unwrap_or_default();
            print(|out| writeln!(out, "daemon {pid} listens on {}{http}", socket.display()))
        };
    }
    let served = serve(&socket, arguments, path, &file, global.json);
    if let Err(failure) = &served
        && arguments.detached
    {
        // For whoever started this daemon, and waits for its first line.
        print(|out| writeln!(out, "{}", failure.to_json()))?;
    }
    served
}

fn serve(
    socket: &Path,
    arguments: &DaemonArgs,
    path: Option<PathBuf>,
    file: &ConfigFile,
    json: bool,
) -> Result<(), Failure> {
    bindery_sys::heap::give_back_from(LARGE_BYTES);
    logging::start(arguments.log.as_deref().or(file.start.log.as_deref()), "info")?;
    let flags = flags(arguments)?;
    let usage = |refused: Refused| Failure::new(Reason::Usage, refused.message);
    let settings = settings_of(file, &flags).map_err(usage)?;
    let daemon = Daemon::bind(Config {
        socket: socket.into(),
        group: arguments.group.clone().or(file.start.group.clone()),
        settings,
        store_bytes_max: arguments.store_mib.or(file.start.store_mib).map(|mib| mib << 20),
        unmerge_at_exit: arguments.unmerge_at_exit || file.start.unmerge_at_exit == Some(true),
        reload: path.map(|path| reloading(path, file.start.clone(), flags)),
        http: arguments.http.or(file.start.http).map(|address| {
            let token_file = arguments.http_token_file.clone();
            HttpConfig { address, token_file: token_file.or(file.start.http_token_file.clone()) }
        }),
    })?;
    let of_io = |error| Failure::of_io("the daemon failed", &error);
    daemon.take_signals().map_err(of_io)?;
    let (pid, http) = (std::process::id(), daemon.http_address());
    let started = Started { pid, socket: socket.into(), http };
    if arguments.detached || json {
        print(|out| writeln!(out, "{}", serde_json::to_string(&started)?))?;
    }
    if arguments.detached {
        // That was all that its starter waits for.
        handover::end_stdout().map_err(of_io)?;
    }
    daemon.run().map_err(of_io)
}

/// What the flags say of what can be changed later.
fn flags(arguments: &DaemonArgs) -> Result<Change, Failure> {
    let mut flags =
        settings::change(&arguments.set).map_err(|message| Failure::new(Reason::Usage, message))?;
    flags.workers = arguments.workers.or(flags.workers);
    flags.period_ms = arguments.period.map(|time| time.as_millis() as u64).or(flags.period_ms);
    Ok(flags)
}

/// Defaults, changed by the file, changed by flags.
fn settings_of(file: &ConfigFile, flags: &Change) -> Result<Settings, Refused> {
    file.change.apply(&Settings::of_machine()).and_then(|settings| flags.apply(&settings))
}

/// Reads the file again for a running daemon; flags still go before it.
fn reloading(path: PathBuf, start: Start, flags: Change) -> Reload {
    Reload::new(move || {
        let file = config::read(&path).map_err(|failure| failure.to_string())?;
        if file.start != start {
            tracing::warn!(
                "{}: settings that take a restart have changed (see --print-config)",
                path.display()
            );
        }
        settings_of(&file, &flags).map_err(|refused| refused.message)
    })
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
    prepare_directory(&socket, group_of(arguments)?.as_ref())?;
    let log = match &arguments.log {
        Some(path) => absolute(path)?,
        // In the socket's directory, which is known by now to be safe.
        None => socket.with_extension("log"),
    };
    let program = std::env::current_exe()
        .map_err(|error| Failure::of_io("cannot find my own program", &error))?;
    let mut command = Command::new(program);
    command.arg("daemon").arg("--detached").arg("--socket").arg(&socket);
    if let Some(path) = &arguments.config {
        command.arg("--config").arg(absolute(path)?);
    }
    if let Some(group) = &arguments.group {
        command.arg("--group").arg(group.name());
    }
    if let Some(period) = arguments.period {
        command.arg("--period").arg(format!("{}ms", period.as_millis()));
    }
    for Setting { name, value } in &arguments.set {
        let value = value.as_str().map_or_else(|| value.to_string(), Into::into);
        command.arg("--set").arg(match name.as_str() {
            "period_ms" => format!("period={value}ms"),
            name => format!("{name}={value}"),
        });
    }
    if let Some(workers) = arguments.workers {
        command.arg("--workers").arg(workers.to_string());
    }
    if let Some(mib) = arguments.store_mib {
        command.arg("--store-mib").arg(mib.to_string());
    }
    if let Some(address) = arguments.http {
        command.arg("--http").arg(address.to_string());
    }
    if let Some(path) = &arguments.http_token_file {
        command.arg("--http-token-file").arg(absolute(path)?);
    }
    if arguments.unmerge_at_exit {
        command.arg("--unmerge-at-exit");
    }
    // Not here: the daemon must not keep this directory's file system from being unmounted.
    command.current_dir("/");
    OTHERS_VARIABLES.into_iter().for_each(|variable| _ = command.env_remove(variable));
    handover::detach(&mut command);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(logging::open(&log)?);
    let child = command.spawn();
    let child = child.map_err(|error| Failure::of_io("cannot start the daemon", &error))?;
    await_start(child, &log)
}

/// The group that a daemon with these arguments has.
fn group_of(arguments: &DaemonArgs) -> Result<Option<Group>, Failure> {
    if arguments.group.is_some() {
        return Ok(arguments.group.clone());
    }
    let path = config::locate(arguments.config.as_deref());
    let file = path.as_deref().map(config::read).transpose()?;
    Ok(file.and_then(|file| file.start.group))
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
