//! `bindery checkpoint create --every`: checkpoints of a guest at an interval, of which the last ones are kept.

use std::thread;
use std::time::{Duration, Instant, SystemTime};

use bindery_host::printable;
use bindery_host::protocol::checkpoint::{CheckpointInfo, CheckpointName, Selection};
use bindery_host::protocol::job::JobResult;
use bindery_host::protocol::{Answer, Request};

use super::args::CreateArgs;
use super::ask;
use super::create::{create, show};
use super::job::{Cancel, begun, follow};
use crate::args::Global;
use crate::connect::misplaced;
use crate::exit::{Failure, Reason};
use crate::output::print;

/// Start of the names of checkpoints that were made at an interval: no others are deleted.
const PREFIX: &str = "every-";

/// Interval at which signals are looked for.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Makes checkpoints until it is told to end, or the guest is gone. One that fails is reported, and the next is made
/// in its time.
pub(super) fn run(global: &Global, arguments: &CreateArgs, every: Duration) -> Result<(), Failure> {
    let cancel = Cancel::on_signals()?;
    let mut next = Instant::now();
    while !cancel.is_set() {
        match make(global, arguments, &cancel) {
            Ok(()) => {}
            Err(_) if cancel.is_set() => break,
            Err(failure) if failure.reason() == Reason::NotFound => return Err(failure),
            // Its exit code is not this command's.
            Err(failure) => _ = failure.report(global.json),
        }
        // Those that took longer than the interval are not made up for.
        next = (next + every).max(Instant::now());
        while !cancel.is_set() && Instant::now() < next {
            thread::sleep(LOOK_EVERY.min(next.saturating_duration_since(Instant::now())));
        }
    }
    Ok(())
}

fn make(global: &Global, arguments: &CreateArgs, cancel: &Cancel) -> Result<(), Failure> {
    let name = format!("{PREFIX}{}", time_in_utc());
    let created = create(global, arguments, Some(&name), cancel)?;
    if global.json {
        let line = serde_json::to_string(&created).map_err(|error| {
            Failure::new(Reason::Failed, format!("the answer is no JSON: {error}"))
        })?;
        print(|out| writeln!(out, "{line}"))?;
    } else {
        show(&created)?;
    }
    match arguments.keep {
        Some(keep) => delete_older(global, arguments, &created.checkpoint, keep as usize, cancel),
        None => Ok(()),
    }
}

/// Deletes checkpoints of the guest that were made at an interval, but for the last `keep`.
fn delete_older(
    global: &Global,
    arguments: &CreateArgs,
    last: &CheckpointInfo,
    keep: usize,
    cancel: &Cancel,
) -> Result<(), Failure> {
    let (pool, guest) = (arguments.pool.paths()?, Some(last.guest.clone()));
    let checkpoints = match ask(global, &Request::CheckpointList { pool: pool.clone(), guest })? {
        (_, Answer::Checkpoints { checkpoints }) => checkpoints,
        (_, answer) => return Err(misplaced(&answer)),
    };
    let older = older(checkpoints, last, keep);
    // One that cannot be deleted keeps none of the others.
    let mut failed = Ok(());
    for name in older {
        if let Err(failure) = delete(global, pool.clone(), name, cancel) {
            let message =
                format!("older checkpoints of {} are left: {failure}", printable(&last.guest));
            failed = Err(Failure::new(failure.reason(), message));
        }
    }
    failed
}

fn delete(
    global: &Global,
    pool: Option<Vec<String>>,
    name: CheckpointName,
    cancel: &Cancel,
) -> Result<(), Failure> {
    let select = Selection::Named(vec![name]);
    let request = Request::CheckpointDelete { pool, select, force: false };
    let (mut client, answer) = ask(global, &request)?;
    match follow(&mut client, begun(&answer)?, cancel)? {
        JobResult::Deleted { layers_left: Some(why), .. } => {
            eprintln!(
                "bindery: layers of disks are left for a later deletion: {}",
                printable(&why)
            );
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Returns the checkpoints that are to go, of those of the same guest.
fn older(
    mut checkpoints: Vec<CheckpointInfo>,
    last: &CheckpointInfo,
    keep: usize,
) -> Vec<CheckpointName> {
    checkpoints.retain(|found| {
        found.name.starts_with(PREFIX) && found.domain == last.domain && found.uid == last.uid
    });
    checkpoints.sort_by_key(|found| found.time_ns);
    checkpoints.truncate(checkpoints.len().saturating_sub(keep));
    let named = checkpoints.into_iter().map(|found| CheckpointName {
        guest: found.guest,
        name: found.name,
        domain: Some(found.domain),
        uid: found.uid,
    });
    named.collect()
}

fn time_in_utc() -> String {
    humantime::format_rfc3339_millis(SystemTime::now()).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(name: &str, domain: &str, time_ns: u64) -> CheckpointInfo {
        CheckpointInfo {
            guest: "web1".into(),
            name: name.into(),
            domain: domain.into(),
            uid: Some(7),
            time_ns,
            pause_us: None,
            rounds: None,
            memory_bytes: 0,
            stored_bytes: 0,
            own_bytes: 0,
            shared_bytes: 0,
            written_bytes: 0,
        }
    }

    #[test]
    fn the_last_ones_and_those_of_other_names_stay() {
        let last = info("every-d", "web", 9);
        let there = vec![
            last.clone(),
            info("every-a", "web", 3),
            info("every-c", "web", 5),
            info("monday", "web", 1),
            info("every-b", "web", 4),
            info("every-a", "mail", 2),
        ];
        let names = |keep| -> Vec<String> {
            older(there.clone(), &last, keep).into_iter().map(|found| found.name).collect()
        };
        assert_eq!(names(2), ["every-a", "every-b"]);
        assert_eq!(names(0).len(), 4);
        assert!(names(4).is_empty() && names(100).is_empty());
    }
}
