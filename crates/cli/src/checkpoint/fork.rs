//! `bindery fork`: children of a guest that runs, with no disk between.
//!
//! The daemon captures the guest into a pool in memory. Children are started from there as clones are, and the pool
//! goes once the last of them has all of its memory.

use bindery_host::printable;
use bindery_host::protocol::Request;
use bindery_host::protocol::checkpoint::{Created, DiskPolicy, Restored};
use bindery_host::protocol::job::JobResult;
use serde::Serialize;

use super::args::{CloneArgs, ForkArgs, OwnerArgs, PoolArgs};
use super::ask;
use super::clone::{Clones, start_all};
use super::create::{absolute, show_pause};
use super::job::{Cancel, begun, follow};
use super::verify::other;
use crate::args::Global;
use crate::exit::Failure;
use crate::output::{print, print_json};

/// Guest that was forked, and its children.
#[derive(Debug, Serialize)]
struct Fork {
    parent: Created,
    guests: Vec<Restored>,
}

pub(crate) fn run(global: &Global, arguments: &ForkArgs) -> Result<(), Failure> {
    let cancel = Cancel::on_signals()?;
    let (mut client, answer) = ask(global, &request(arguments)?)?;
    let (parent, pool) = match follow(&mut client, begun(&answer)?, &cancel)? {
        JobResult::Forked { created, pool } => (*created, pool),
        result => return Err(other(&result)),
    };
    let children = start_all(global, &children(arguments, &parent, &pool), &cancel);
    // The daemon lets go of it a minute later by itself, should it not hear this.
    if let Err(failure) = ask(global, &Request::ForkRelease { pool }) {
        eprintln!("bindery: the memory between parent and children is free in a minute: {failure}");
    }
    let (Clones { guests }, failure) =
        children.map_err(|failure| with_overlays(&failure, &parent))?;
    if global.json {
        print_json(&Fork { parent, guests })?;
    } else {
        print(|out| {
            writeln!(out, "{} runs on", printable(&parent.checkpoint.guest))?;
            show_pause(out, &parent)
        })?;
        Clones { guests }.show()?;
    }
    failure.map_or(Ok(()), Err)
}

fn request(arguments: &ForkArgs) -> Result<Request, Failure> {
    let directory = arguments.start.disks_directory.as_deref().map(absolute).transpose()?;
    let disks = match arguments.without_disks {
        true => DiskPolicy::Without,
        false => DiskPolicy::Overlays { directory },
    };
    Ok(Request::Fork {
        guest: arguments.guest.clone(),
        disks,
        monitor: arguments.qmp.as_deref().map(absolute).transpose()?,
        pause_max_ms: arguments.pause_max.map(|pause| pause.as_millis() as u64),
    })
}

/// Returns the children as clones of the checkpoint in memory.
fn children(arguments: &ForkArgs, parent: &Created, pool: &str) -> CloneArgs {
    CloneArgs {
        checkpoint: bindery_host::protocol::checkpoint::CheckpointName {
            guest: parent.checkpoint.guest.clone(),
            name: parent.checkpoint.name.clone(),
            domain: None,
            uid: None,
        },
        start: arguments.start.clone(),
        owner: OwnerArgs { domain: None, user: None },
        pool: PoolArgs { pool: Some(pool.to_owned()) },
    }
}

/// Adds what stays of a fork without all of its children.
fn with_overlays(failure: &Failure, parent: &Created) -> Failure {
    let overlays = match parent.overlays.as_slice() {
        [] => String::new(),
        paths => format!(", and writes to overlays, which must stay: {}", paths.join(", ")),
    };
    let guest = &parent.checkpoint.guest;
    Failure::new(failure.reason(), printable(&format!("{failure}; {guest} runs on{overlays}")))
}
