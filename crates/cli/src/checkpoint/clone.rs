//! `bindery clone`: several guests that go on from one checkpoint.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::process::{Command, Stdio};

use bindery_host::printable;
use bindery_host::protocol::checkpoint::Restored;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use super::args::CloneArgs;
use super::create::absolute;
use crate::args::Global;
use crate::exit::{Failure, Reason};
use crate::output::{print, print_json};

/// Guests that were started.
#[derive(Debug, Serialize)]
struct Clones {
    guests: Vec<Restored>,
}

pub(crate) fn run(global: &Global, arguments: &CloneArgs) -> Result<(), Failure> {
    let bar = ProgressBar::new(arguments.count.into());
    let template = "starting {bar:40} {pos} of {len}, {eta} left";
    bar.set_style(ProgressStyle::with_template(template).expect("the template is a valid one"));
    let mut clones = Clones { guests: Vec::new() };
    for number in 1..=arguments.count {
        let started = start(global, arguments, number);
        clones.guests.push(started.map_err(|failure| failure_of(&failure, &clones))?);
        bar.inc(1);
    }
    bar.finish_and_clear();
    if global.json {
        return print_json(&clones);
    }
    print(|out| {
        for Restored { guest, pid, total_us, .. } in &clones.guests {
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

/// Starts one guest, by this program's own `restore`.
fn start(global: &Global, arguments: &CloneArgs, number: u32) -> Result<Restored, Failure> {
    let program = std::env::current_exe();
    let program = program.map_err(|error| Failure::of_io("cannot find this program", &error))?;
    let name = arguments.name.as_ref().unwrap_or(&arguments.checkpoint.guest);
    let name = format!("{name}-{number}");
    let mut command = Command::new(program);
    command.args(["restore", "--detach", "--json", "--name", &name, "--socket"]);
    command.arg(global.socket()).arg(arguments.checkpoint.to_string());
    command.args(arguments.paused.then_some("--paused"));
    if let Some(directory) = &arguments.log_directory {
        command.arg("--log").arg(directory.join(format!("{name}.log")));
    }
    if let Some(directory) = &arguments.disks_directory {
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
    let CloneArgs { owner, pool, instead, .. } = arguments;
    if let Some(domain) = &owner.domain {
        command.args(["--domain", domain]);
    }
    if let Some(user) = owner.user {
        command.args(["--user", &user.to_string()]);
    }
    if let Some(pool) = &pool.pool {
        command.args(["--pool", pool]);
    }
    if !instead.is_empty() {
        command.arg("--").args(instead.iter().map(|word| numbered(word, number)));
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
