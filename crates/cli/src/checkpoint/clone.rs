//! `bindery clone`: several guests that go on from one checkpoint.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::process::{Command, Stdio};

use bindery_host::printable;
use bindery_host::protocol::Answer;
use bindery_host::protocol::Request;
use bindery_host::protocol::checkpoint::Restored;
use bindery_vmm::qemu::arguments::has_generation_id;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use super::args::CloneArgs;
use super::ask;
use super::create::absolute;
use super::hook::{self, Child};
use super::job::Cancel;
use super::restore::NO_GENERATION_ID;
use crate::args::Global;
use crate::connect::misplaced;
use crate::exit::{Failure, Reason};
use crate::output::{print, print_json};

/// Guests that were started.
#[derive(Debug, Serialize)]
pub(super) struct Clones {
    pub(super) guests: Vec<Restored>,
}

pub(crate) fn run(global: &Global, arguments: &CloneArgs) -> Result<(), Failure> {
    let cancel = Cancel::on_signals()?;
    let (clones, failure) = start_all(global, arguments, &cancel)?;
    match global.json {
        true => print_json(&clones)?,
        false => clones.show()?,
    }
    failure.map_or(Ok(()), Err)
}

/// Starts all guests, one after the other. Those that their hook failed for are ended, and named in the failure that
/// is returned beside the others.
///
/// # Errors
/// The first other failure, which names those that run. No more are started then.
pub(super) fn start_all(
    global: &Global,
    arguments: &CloneArgs,
    cancel: &Cancel,
) -> Result<(Clones, Option<Failure>), Failure> {
    warn_of_alike(global, arguments)?;
    let count = arguments.start.count;
    let bar = ProgressBar::new(count.into());
    let template = "starting {bar:40} {pos} of {len}, {eta} left";
    bar.set_style(ProgressStyle::with_template(template).expect("the template is a valid one"));
    let (mut clones, mut failed) = (Clones { guests: Vec::new() }, Vec::new());
    for number in 1..=count {
        let started = start(global, arguments, number);
        let restored = started.map_err(|failure| failure_of(&failure, &clones))?;
        match prepare(global, arguments, &restored, number) {
            Ok(()) => clones.guests.push(restored),
            Err(failure) => failed.push(failure.to_string()),
        }
        if cancel.is_set() && number < count {
            let failure = Failure::new(Reason::Failed, "interrupted");
            return Err(failure_of(&failure, &clones));
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    let failure = (!failed.is_empty()).then(|| Failure::new(Reason::Failed, failed.join("; ")));
    Ok((clones, failure))
}

impl Clones {
    pub(super) fn show(&self) -> Result<(), Failure> {
        print(|out| {
            for Restored { guest, pid, total_us, .. } in &self.guests {
                let ms = *total_us as f64 / 1000.0;
                writeln!(
                    out,
                    "{} (pid {pid}) runs, {ms:.1} ms after its VMM was ready",
                    printable(guest)
                )?;
            }
            Ok(())
        })
    }
}

/// Warns once of what nothing has the guests draw anew: their own output may go nowhere.
fn warn_of_alike(global: &Global, arguments: &CloneArgs) -> Result<(), Failure> {
    let checkpoint = arguments.owner.of(&arguments.checkpoint);
    let request = Request::CheckpointShow { pool: arguments.pool.paths()?, checkpoint };
    match ask(global, &request)? {
        (_, Answer::Checkpoint(detail)) if !has_generation_id(&detail.arguments) => {
            eprintln!("bindery: {NO_GENERATION_ID}");
            Ok(())
        }
        (_, Answer::Checkpoint(_)) => Ok(()),
        (_, answer) => Err(misplaced(&answer)),
    }
}

/// Runs the hook of a guest that waits for it, and lets the guest run. If that fails, the guest is ended.
fn prepare(
    global: &Global,
    arguments: &CloneArgs,
    restored: &Restored,
    number: u32,
) -> Result<(), Failure> {
    let Some(program) = &arguments.start.hook else { return Ok(()) };
    let child = Child {
        guest: &restored.guest,
        pid: restored.pid,
        number,
        checkpoint: &arguments.checkpoint,
        socket: global.socket(),
    };
    let prepared = hook::run(program, &child);
    let prepared = prepared.and_then(|()| match arguments.start.paused {
        true => Ok(()),
        false => child.resume(),
    });
    prepared.map_err(|failure| {
        child.end();
        let name = printable(&restored.guest);
        Failure::new(failure.reason(), format!("{name} was ended: {failure}"))
    })
}

/// Starts one guest, by this program's own `restore`.
fn start(global: &Global, arguments: &CloneArgs, number: u32) -> Result<Restored, Failure> {
    let program = std::env::current_exe();
    let program = program.map_err(|error| Failure::of_io("cannot find this program", &error))?;
    let CloneArgs { start, checkpoint, .. } = arguments;
    let name = start.name.as_ref().unwrap_or(&checkpoint.guest);
    let name = format!("{name}-{number}");
    let mut command = Command::new(program);
    command.args(["restore", "--detach", "--json", "--name", &name, "--socket"]);
    command.arg(global.socket()).arg(checkpoint.to_string());
    command.args((start.paused || start.hook.is_some()).then_some("--paused"));
    if let Some(directory) = &start.log_directory {
        command.arg("--log").arg(directory.join(format!("{name}.log")));
    }
    if let Some(directory) = &start.disks_directory {
        command.args(["--disks-directory", &absolute(directory)?]);
    }
    pass(&mut command, arguments, number);
    let ended = command.stdin(Stdio::null()).output();
    let ended = ended.map_err(|error| Failure::of_io("cannot start another process", &error))?;
    if !ended.status.success() {
        let failure = failure_in(&String::from_utf8_lossy(&ended.stderr));
        return Err(Failure::new(failure.reason(), format!("{name}: {failure}")));
    }
    serde_json::from_slice(&ended.stdout)
        .map_err(|error| Failure::new(Reason::Failed, format!("{name}: no answer: {error}")))
}

/// Passes on the names of the checkpoint, and the options of the VMM.
fn pass(command: &mut Command, arguments: &CloneArgs, number: u32) {
    let CloneArgs { owner, pool, start, .. } = arguments;
    if let Some(domain) = &owner.domain {
        command.args(["--domain", domain]);
    }
    if let Some(user) = owner.user {
        command.args(["--user", &user.to_string()]);
    }
    if let Some(pool) = &pool.pool {
        command.args(["--pool", pool]);
    }
    if !start.instead.is_empty() {
        command.arg("--").args(start.instead.iter().map(|word| numbered(word, number)));
    }
}

/// Puts the guest's number in place of each `{}`.
fn numbered(word: &OsString, number: u32) -> OsString {
    let (mut rest, mut numbered) = (word.as_bytes(), Vec::new());
    while let Some((first, behind)) = rest.split_first() {
        if let Some(behind) = rest.strip_prefix(b"{}") {
            numbered.extend_from_slice(number.to_string().as_bytes());
            rest = behind;
        } else {
            numbered.push(*first);
            rest = behind;
        }
    }
    OsString::from_vec(numbered)
}

/// Returns the failure of a command that ended with these words, as `--json` has them.
fn failure_in(words: &str) -> Failure {
    let failure = words.lines().find_map(Failure::from_json);
    failure.unwrap_or_else(|| Failure::new(Reason::Failed, printable(words.trim())))
}

fn failure_of(failure: &Failure, clones: &Clones) -> Failure {
    let names: Vec<&str> = clones.guests.iter().map(|guest| &*guest.guest).collect();
    let before = match names.as_slice() {
        [] => String::new(),
        names => format!("; these run: {}", names.join(", ")),
    };
    Failure::new(failure.reason(), format!("{failure}{before}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_guest_has_its_number_in_its_options() {
        let numbered = |word: &str| numbered(&word.into(), 12).into_string().unwrap();
        assert_eq!(numbered("unix:/run/{}.sock,id={}"), "unix:/run/12.sock,id=12");
        assert_eq!(numbered("{\"a\":{}}{"), "{\"a\":12}{");
        assert_eq!(numbered(""), "");
    }

    #[test]
    fn a_failure_is_shown_without_its_wrapping() {
        let words = "warning\n{\"error\":{\"exit_code\":6,\"message\":\"taken\"}}\n";
        assert_eq!(failure_in(words).reason(), Reason::Taken);
        assert_eq!(failure_in("killed\n").to_string(), "killed");
    }
}
