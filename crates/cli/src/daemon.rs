//! `bindery daemon`, and starting one in the background.

use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use bindery_host::access::Group;
use bindery_host::daemon_settings::{Change, DaemonSettings, Refused};
use bindery_host::endpoint::prepare_directory;
use bindery_host::{CheckpointKeys, Config, Daemon, HttpConfig, Reload};
use bindery_sys::handover;
use clap::parser::ValueSource;
use clap::{ArgMatches, CommandFactory, FromArgMatches, ValueHint};
use serde::{Deserialize, Serialize};
use tracing_subscriber::filter::LevelFilter;

use crate::args::{Arguments, DaemonArgs, Global};
use crate::config::{self, ConfigFile, Start};
use crate::exit::{Failure, Reason};
use crate::logging;
use crate::output::{print, print_json};
use crate::setting_names;

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

/// Flags of whoever starts a daemon in the background, which the daemon has not.
const NOT_PASSED_ON: [&str; 2] = ["background", "detached"];

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
        let words: Vec<OsString> = std::env::args_os().collect();
        let started = start_in_background(&socket, &words)?;
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
    logging::start(arguments.log.as_deref().or(file.start.log.as_deref()), LevelFilter::INFO)?;
    let flags = flags(arguments)?;
    let usage = |refused: Refused| Failure::new(Reason::Usage, refused.message);
    let settings = settings_of(file, &flags).map_err(usage)?;
    let daemon = Daemon::bind(Config {
        socket: socket.into(),
        group: arguments.group.clone().or(file.start.group.clone()),
        settings,
        store_bytes_max: arguments.store_mib.or(file.start.store_mib).map(|mib| mib << 20),
        checkpoint_pool: checkpoint_pool(arguments, file)?,
        checkpoint_keys: checkpoint_keys(arguments, file)?,
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

/// Returns the pool of checkpoints; the daemon's directory counts for a flag.
fn checkpoint_pool(arguments: &DaemonArgs, file: &ConfigFile) -> Result<Option<PathBuf>, Failure> {
    let flag = arguments.checkpoint_pool.as_deref().map(absolute).transpose()?;
    Ok(flag.or(file.start.checkpoint_pool.clone()))
}

/// Returns the key files of domains; the daemon's directory counts for a flag.
fn checkpoint_keys(arguments: &DaemonArgs, file: &ConfigFile) -> Result<CheckpointKeys, Failure> {
    let flag = arguments.checkpoint_key.as_deref().map(absolute).transpose()?;
    let default = flag.or(file.start.checkpoint_key.clone());
    Ok(CheckpointKeys { default, domains: file.start.checkpoint_keys.clone() })
}

/// What the flags say of what can be changed later.
fn flags(arguments: &DaemonArgs) -> Result<Change, Failure> {
    let mut flags = setting_names::change(&arguments.set)
        .map_err(|message| Failure::new(Reason::Usage, message))?;
    flags.workers = arguments.workers.or(flags.workers);
    flags.period_ms = arguments.period.map(|time| time.as_millis() as u64).or(flags.period_ms);
    Ok(flags)
}

/// Defaults, changed by the file, changed by flags.
fn settings_of(file: &ConfigFile, flags: &Change) -> Result<DaemonSettings, Refused> {
    file.change.apply(&DaemonSettings::of_machine()).and_then(|settings| flags.apply(&settings))
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

/// Starts a daemon that outlives this command, and waits until it listens. `words` are the command line
/// that it would have in the foreground: `bindery daemon` and flags.
pub(crate) fn start_in_background(socket: &Path, words: &[OsString]) -> Result<Started, Failure> {
    let (arguments, given) = parse(words);
    let socket = absolute(socket)?;
    prepare_directory(&socket, group_of(&arguments)?.as_ref())?;
    let log = match &arguments.log {
        Some(path) => absolute(path)?,
        // In the socket's directory, which is known by now to be safe.
        None => socket.with_extension("log"),
    };
    let program = std::env::current_exe()
        .map_err(|error| Failure::of_io("cannot find my own program", &error))?;
    let mut command = Command::new(program);
    command.arg("daemon").arg("--detached").arg("--socket").arg(&socket);
    command.args(flags_given(&given)?);
    // Not here: the daemon must not keep this directory's file system from being unmounted.
    command.current_dir("/");
    OTHERS_VARIABLES.into_iter().for_each(|variable| _ = command.env_remove(variable));
    handover::detach(&mut command);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(logging::open(&log)?);
    let child = command.spawn();
    let child = child.map_err(|error| Failure::of_io("cannot start the daemon", &error))?;
    await_start(child, &log)
}

fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    let absolute = std::path::absolute(path);
    absolute.map_err(|error| Failure::of_io(format_args!("{}", path.display()), &error))
}

/// Reads a command line that begins with `bindery daemon`. Ends the process if it cannot be.
fn parse(words: &[OsString]) -> (DaemonArgs, ArgMatches) {
    let mut matches = Arguments::command().get_matches_from(words);
    let (_, given) = matches.remove_subcommand().expect("the daemon command was given");
    let arguments = DaemonArgs::from_arg_matches(&given).expect("they are those of the daemon");
    (arguments, given)
}

/// Returns the flags that were given, as a daemon in another directory can be given them again: all that
/// there are but [`NOT_PASSED_ON`], with absolute paths.
fn flags_given(given: &ArgMatches) -> Result<Vec<OsString>, Failure> {
    let command = Arguments::command();
    let daemon = command.find_subcommand("daemon").expect("there is a daemon command");
    let mut words = Vec::new();
    for flag in daemon.get_arguments() {
        let id = flag.get_id().as_str();
        let is_given = given.value_source(id) == Some(ValueSource::CommandLine);
        if !is_given || NOT_PASSED_ON.contains(&id) {
            continue;
        }
        let name = format!("--{}", flag.get_long().expect("the daemon takes flags alone"));
        if !flag.get_action().takes_values() {
            words.push(name.into());
            continue;
        }
        let is_path = flag.get_value_hint() == ValueHint::AnyPath;
        for value in given.get_raw(id).into_iter().flatten() {
            let value = if is_path { absolute(Path::new(value))?.into() } else { value.to_owned() };
            words.extend([name.clone().into(), value]);
        }
    }
    Ok(words)
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A value for each flag that takes one.
    const VALUES: [(&str, &str); 12] = [
        ("checkpoint_key", "/etc/bindery/key"),
        ("checkpoint_pool", "/srv/pool"),
        ("group", "root"),
        ("config", "/etc/bindery.toml"),
        ("workers", "3"),
        ("period", "1500ms"),
        ("set", "advisor_max_cpu=7"),
        ("store_mib", "64"),
        ("http", "127.0.0.1:9480"),
        ("http_token_file", "/etc/token"),
        ("log", "/var/log/bindery.log"),
        ("socket", "/run/b.sock"),
    ];

    /// The command line with these words behind `bindery daemon`.
    fn line(words: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
        ["bindery", "daemon"].into_iter().map(OsString::from).chain(words).collect()
    }

    #[test]
    fn every_flag_reaches_a_daemon_in_the_background() {
        let command = Arguments::command();
        let daemon = command.find_subcommand("daemon").unwrap();
        let (mut words, mut names) = (Vec::new(), Vec::new());
        let passed = |flag: &&clap::Arg| !NOT_PASSED_ON.contains(&flag.get_id().as_str());
        for flag in daemon.get_arguments().filter(passed) {
            let (id, name) = (flag.get_id().as_str(), format!("--{}", flag.get_long().unwrap()));
            names.push(OsString::from(&name));
            words.push(name.into());
            if flag.get_action().takes_values() {
                let value = VALUES.iter().find(|(known, _)| *known == id);
                words.push(value.unwrap_or_else(|| panic!("{id} has no value here")).1.into());
            }
        }
        words.extend(["--set", "advisor_mode=none", "--background"].map(OsString::from));
        let (asked, given) = parse(&line(words));
        let flags = flags_given(&given).unwrap();
        let dropped: Vec<_> = names.iter().filter(|name| !flags.contains(name)).collect();
        assert!(dropped.is_empty(), "{dropped:?}");
        // They mean the same there.
        let (heard, _) = parse(&line(flags));
        assert!(asked.background && !heard.background);
        let text = |arguments: &DaemonArgs| {
            format!("{arguments:?}").replace("ground: true", "ground: false")
        };
        assert_eq!(text(&heard), text(&asked));
    }

    #[test]
    fn paths_are_those_of_the_directory_that_they_were_given_in() {
        let words = ["--config", "b.toml", "--log=b.log", "--workers", "2"].map(OsString::from);
        let flags = flags_given(&parse(&line(words)).1).unwrap();
        let here = std::env::current_dir().unwrap();
        let expected = [
            "--config".into(),
            here.join("b.toml"),
            "--workers".into(),
            "2".into(),
            "--log".into(),
        ];
        assert_eq!(flags[..5], expected.map(OsString::from));
        assert_eq!(flags[5], here.join("b.log"));
    }
}
