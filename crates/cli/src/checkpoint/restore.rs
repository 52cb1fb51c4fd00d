//! `bindery restore`: a guest that goes on from a checkpoint.
//!
//! This process becomes the VMM, as `bindery run` does, so that whoever started it sees the VMM's process id, signals
//! and exit code. Before that it starts another, which waits for the VMM and asks the daemon to have the guest go on;
//! if that fails, it says why and ends the VMM. With `--detach` it is the other way round.

use std::ffi::OsString;
use std::fs::File;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bindery_host::monitors::Monitors;
use bindery_host::printable;
use bindery_host::protocol::checkpoint::{CheckpointDetail, DiskInfo, Restored};
use bindery_host::protocol::job::JobResult;
use bindery_host::protocol::{Answer, Request};
use bindery_sys::process;
use bindery_vmm::qemu::arguments::{DiskReplacement, RestoreArguments, SharedIdentity};
use rustix::process::{Pid, Signal, kill_process};

use super::args::RestoreArgs;
use super::ask;
use super::create::absolute;
use super::job::{Cancel, begun, follow};
use super::verify::other;
use crate::args::{Global, RunArgs};
use crate::connect::{ask_guests, connect, find_guest, misplaced};
use crate::exit::{Failure, Reason};
use crate::output::{print, print_json};
use crate::run;

/// Time in which a VMM must have connected to the daemon.
const START_PATIENCE: Duration = Duration::from_secs(30);

const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Warning about a guest that nothing has draw random numbers anew.
pub(super) const NO_GENERATION_ID: &str = "the guest has no vmgenid device (-device vmgenid), and goes on with the \
    state of random numbers of the saved one: have it draw them anew";

/// Restores a checkpoint. Returns once the guest runs in the background, or only if it failed.
pub(crate) fn run(global: &Global, arguments: &RestoreArgs) -> Result<(), Failure> {
    if arguments.attach.is_none() && !arguments.wait {
        check_names(global, arguments)?;
    }
    if arguments.attach.is_some() || arguments.detach {
        // Before the VMM is started, so that it is not left behind.
        let cancel = Cancel::on_signals()?;
        let pid = match arguments.attach {
            Some(pid) => pid,
            None => start_in_background(arguments)?.id(),
        };
        let restored = attach(global, arguments, pid, &cancel).inspect_err(|_| end(pid))?;
        return report(global, arguments, &restored);
    }
    if !arguments.wait {
        start_attaching()?;
    }
    become_vmm(global, arguments)
}

/// Makes sure that there is such a checkpoint, and no guest of the name, before anything is started.
fn check_names(global: &Global, arguments: &RestoreArgs) -> Result<(), Failure> {
    let detail = show(global, arguments)?;
    let name = arguments.name.as_ref().unwrap_or(&detail.info.guest);
    if find_guest(global, name)?.is_none() {
        return Ok(());
    }
    let message =
        format!("there is a guest {} already: choose another with --name", printable(name));
    Err(Failure::new(Reason::Taken, message))
}

/// Starts this command once more, with a flag, as the process that becomes the VMM.
fn start_in_background(arguments: &RestoreArgs) -> Result<Child, Failure> {
    let mut command = again(&["--wait"], &["--detach", "--log"])?;
    let output = match &arguments.log {
        None => (Stdio::null(), Stdio::null()),
        Some(path) => {
            let of_io =
                |error| Failure::of_io(format_args!("cannot write {}", path.display()), &error);
            let log = File::options().append(true).create(true).open(path).map_err(of_io)?;
            (log.try_clone().map_err(of_io)?.into(), log.into())
        }
    };
    command.stdin(Stdio::null()).stdout(output.0).stderr(output.1);
    command.spawn().map_err(|error| Failure::of_io("cannot start another process", &error))
}

/// Starts this command once more, to have the guest go on that this process is about to wait with.
fn start_attaching() -> Result<(), Failure> {
    let pid = std::process::id().to_string();
    let mut command = again(&["--attach", &pid], &[])?;
    // The VMM's output is its own.
    command.stdin(Stdio::null());
    command
        .spawn()
        .map(drop)
        .map_err(|error| Failure::of_io("cannot start another process", &error))
}

/// Returns the command that this process was started by, with flags more and without some.
fn again(more: &[&str], without: &[&str]) -> Result<Command, Failure> {
    let program = std::env::current_exe();
    let program = program.map_err(|error| Failure::of_io("cannot find this program", &error))?;
    let mut command = Command::new(program);
    command.args(edited(std::env::args_os().skip(1), more, without));
    Ok(command)
}

/// Returns words with flags more and without some. All lie before the VMM's own options.
fn edited(words: impl Iterator<Item = OsString>, more: &[&str], without: &[&str]) -> Vec<OsString> {
    let mut kept = Vec::new();
    let mut words = words.peekable();
    while let Some(word) = words.next_if(|word| word != "--") {
        let text = word.to_string_lossy();
        let flag = text.split('=').next().unwrap_or_default();
        if !without.contains(&flag) {
            kept.push(word);
        } else if flag == "--log" && !text.contains('=') {
            words.next();
        }
    }
    kept.extend(more.iter().map(OsString::from));
    kept.extend(words);
    kept
}

/// Becomes the VMM, which waits for device state. Returns only if that fails.
fn become_vmm(global: &Global, arguments: &RestoreArgs) -> Result<(), Failure> {
    if arguments.wait {
        // Nothing that happens to the terminal is to end it. A process that leads its group stays in its session.
        let _ = rustix::process::setsid();
    }
    let detail = show(global, arguments)?;
    let socket = absolute(&global.socket())?;
    let monitors = Monitors::of_daemon(Path::new(&socket));
    let monitor = monitors.make_room(process::effective_user(), std::process::id());
    let monitor = monitor.map_err(|error| Failure::new(Reason::Failed, error.to_string()))?;
    let words = RestoreArguments {
        saved: saved_words(&detail)?,
        disks: detail
            .disks
            .iter()
            .map(|disk| overlay(arguments, &detail, disk))
            .collect::<Result<_, _>>()?,
        instead: arguments.instead.iter().cloned().map(OsString::into_vec).collect(),
        name: arguments.name.clone(),
        uuid: None,
    };
    let restored = words.rewrite(&monitor);
    let restored =
        restored.map_err(|error| Failure::new(Reason::Unsupported, error.to_string()))?;
    restored
        .dropped
        .iter()
        .for_each(|option| eprintln!("bindery: left out: {}", printable(option)));
    restored.shared.iter().for_each(warn_of);
    let run = RunArgs {
        name: Some(arguments.name.clone().unwrap_or_else(|| detail.info.guest.clone())),
        domain: Some(detail.info.domain.clone()),
        no_monitor: true,
        command: restored.words.into_iter().map(OsString::from_vec).collect(),
    };
    run::run(global, &run)
}

fn show(global: &Global, arguments: &RestoreArgs) -> Result<CheckpointDetail, Failure> {
    let checkpoint = arguments.owner.of(&arguments.checkpoint);
    let request = Request::CheckpointShow { pool: arguments.pool.paths()?, checkpoint };
    match ask(global, &request)? {
        (_, Answer::Checkpoint(detail)) => Ok(*detail),
        (_, answer) => Err(misplaced(&answer)),
    }
}

fn saved_words(detail: &CheckpointDetail) -> Result<Vec<Vec<u8>>, Failure> {
    let unreadable =
        detail.arguments.iter().find(|word| word.contains(char::REPLACEMENT_CHARACTER));
    if let Some(word) = unreadable {
        let message = format!("an argument of the saved VMM is no text: {}", printable(word));
        return Err(Failure::new(Reason::Unsupported, message));
    }
    Ok(detail.arguments.iter().map(|word| word.clone().into_bytes()).collect())
}

/// Makes the overlay that a disk writes to, above its image as of the checkpoint.
fn overlay(
    arguments: &RestoreArgs,
    detail: &CheckpointDetail,
    disk: &DiskInfo,
) -> Result<DiskReplacement, Failure> {
    let image = Path::new(&disk.path);
    let beside = image.parent().filter(|_| image.is_absolute());
    let directory = match (&arguments.disks_directory, beside) {
        (Some(directory), _) => absolute(directory)?,
        (None, Some(beside)) => beside.display().to_string(),
        (None, None) => {
            let message = format!(
                "the image of disk {} is {}, which has no directory for an overlay: name one with \
                 --disks-directory",
                disk.device, disk.path
            );
            return Err(Failure::new(Reason::Usage, message));
        }
    };
    let name = arguments.name.as_ref().unwrap_or(&detail.info.guest);
    let letters = |text: &str| -> String {
        text.chars()
            .map(|letter| if letter.is_ascii_alphanumeric() { letter } else { '_' })
            .collect()
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_millis());
    let path = format!("{directory}/{}-{}-{now}.qcow2", letters(name), letters(&disk.device));
    make_overlay(&path, disk, &detail.arguments)?;
    let names = vec![disk.device.clone(), disk.path.clone()];
    Ok(DiskReplacement { names, path, format: "qcow2".into() })
}

fn make_overlay(path: &str, disk: &DiskInfo, saved: &[String]) -> Result<(), Failure> {
    // The one that came with the QEMU, if it is there.
    let beside = saved.first().map(|program| Path::new(program).with_file_name("qemu-img"));
    let program = beside.filter(|program| program.is_absolute() && program.exists());
    let program = program.unwrap_or_else(|| "qemu-img".into());
    let mut command = Command::new(&program);
    command.args(["create", "-q", "-f", "qcow2", "-F", &disk.format, "-b", &disk.path, path]);
    let made = command.output().map_err(|error| {
        let what = format_args!("cannot run {} (Debian has it in qemu-utils)", program.display());
        Failure::of_io(what, &error)
    })?;
    if made.status.success() {
        return Ok(());
    }
    let words = printable(String::from_utf8_lossy(&made.stderr).trim());
    Err(Failure::new(Reason::Failed, format!("no overlay for disk {}: {words}", disk.device)))
}

fn warn_of(shared: &SharedIdentity) {
    let what = match shared {
        SharedIdentity::Mac(mac) => format!("the network address {mac}"),
        SharedIdentity::Network(other) => format!("the network {other}"),
        SharedIdentity::Uuid(uuid) => format!("the UUID {uuid}"),
        SharedIdentity::RandomNumbers => return eprintln!("bindery: {NO_GENERATION_ID}"),
    };
    eprintln!(
        "bindery: the restored guest has {} of the saved one: see that only one is in use",
        printable(&what)
    );
}

/// Asks the daemon to let the guest of process `pid`, which is starting, go on.
fn attach(
    global: &Global,
    arguments: &RestoreArgs,
    pid: u32,
    cancel: &Cancel,
) -> Result<Restored, Failure> {
    await_guest(global, pid, cancel)?;
    let request = Request::CheckpointRestore {
        pool: arguments.pool.paths()?,
        checkpoint: arguments.owner.of(&arguments.checkpoint),
        guest: pid.to_string(),
        paused: arguments.paused,
    };
    let (mut client, answer) = ask(global, &request)?;
    match follow(&mut client, begun(&answer)?, cancel)? {
        JobResult::Restored(restored) => Ok(restored),
        result => Err(other(&result)),
    }
}

/// Waits until the library in the VMM has connected to the daemon.
fn await_guest(global: &Global, pid: u32, cancel: &Cancel) -> Result<(), Failure> {
    let begun = Instant::now();
    let mut client = connect(global)?;
    loop {
        let guests = ask_guests(&mut client)?;
        if guests.iter().any(|guest| u32::try_from(guest.pid) == Ok(pid)) {
            return Ok(());
        }
        if process::has_ended(pid) {
            let message = "the VMM has ended before it was ready: its own output says why (with --detach, name a \
                           file for it with --log)";
            return Err(Failure::new(Reason::Failed, message));
        }
        if cancel.is_set() {
            let message = "interrupted before the VMM was ready; it is ended";
            return Err(Failure::new(Reason::Failed, message));
        }
        if begun.elapsed() > START_PATIENCE {
            let message =
                format!("the VMM (pid {pid}) has offered no memory within {START_PATIENCE:?}");
            return Err(Failure::new(Reason::Failed, message));
        }
        thread::sleep(LOOK_EVERY);
    }
}

fn report(global: &Global, arguments: &RestoreArgs, restored: &Restored) -> Result<(), Failure> {
    let Restored { guest, pid, checkpoint, total_us, .. } = restored;
    let state = if arguments.paused { "is ready, and paused," } else { "runs" };
    let words = format!(
        "{guest} (pid {pid}) {state} from {checkpoint}, {:.1} ms after its VMM was ready",
        *total_us as f64 / 1000.0
    );
    match (arguments.attach.is_some(), global.json) {
        // Standard output is the VMM's.
        (true, _) => eprintln!("bindery: {}", printable(&words)),
        (false, true) => return print_json(restored),
        (false, false) => return print(|out| writeln!(out, "{}", printable(&words))),
    }
    Ok(())
}

/// Ends a VMM that no guest can run in. At once: it may wait for memory that never comes, and asked to end it would
/// report success to whoever started it.
pub(super) fn end(pid: u32) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, Signal::KILL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_started_again_with_other_flags() {
        let edit = |text: &str, more: &[&str], without: &[&str]| -> String {
            let words = edited(text.split(' ').map(OsString::from), more, without);
            words.join(" ".as_ref()).into_string().unwrap()
        };
        let detach = |text| edit(text, &["--wait"], &["--detach", "--log"]);
        assert_eq!(detach("restore w@m --detach"), "restore w@m --wait");
        let long = "--socket restore restore --log f --detach w@m --name restore -- --log x -m 1";
        let edited = "--socket restore restore w@m --name restore --wait -- --log x -m 1";
        assert_eq!(detach(long), edited);
        assert_eq!(
            edit("restore w@m --log=f", &["--attach", "7"], &["--log"]),
            "restore w@m --attach 7"
        );
    }
}
