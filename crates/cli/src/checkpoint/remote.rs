//! `bindery checkpoint push` and `pull`, and checkpoints in an object store listed and deleted.
//!
//! This command speaks to the store, by its own user's rights and credentials. The daemon writes and reads a
//! stream of pages, as for `export` and `import`: it sees neither the store nor the key.

use std::io::{self, BufReader, BufWriter, Read, Write};
use std::ops::ControlFlow;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use bindery_checkpoint::{
    CheckpointError, Name, Pushed, Remote, RemoteCheckpoint, RemoteError, SecretKey,
};
use bindery_host::protocol::Request;
use bindery_host::protocol::checkpoint::CheckpointName;
use bindery_host::protocol::job::JobResult;
use bindery_host::{is_name, printable, stored_names};
use bindery_pool::archive::ArchiveOptions;
use bindery_sys::socket;
use bindery_units::PAGE_BYTES;
use serde_json::{Value, json};

use super::PATIENCE;
use super::args::parse_checkpoint;
use super::job::{Cancel, begun, follow};
use super::list::age;
use super::remote_args::{PullArgs, PushArgs};
use super::transfer::{STREAM_PATIENCE, pair};
use super::verify::other;
use crate::args::Global;
use crate::connect::connect;
use crate::exit::{Failure, Reason};
use crate::output::{Table, human_bytes, print, print_json};

/// Buffer of a stream, in bytes.
const STREAM_BUFFER_BYTES: usize = 256 << 10;

/// Time in which the store's end says why a job has failed, and a push takes its claim back.
const REASON_PATIENCE: Duration = Duration::from_secs(3);

const PAGE: u64 = PAGE_BYTES as u64;

impl From<RemoteError> for Failure {
    fn from(error: RemoteError) -> Self {
        let reason = match error {
            RemoteError::Open(error) => return error.into(),
            RemoteError::Exists { .. } => Reason::Taken,
            RemoteError::Missing { .. } => Reason::NotFound,
            RemoteError::Damaged { .. } | RemoteError::Lost { .. } => Reason::Damaged,
            _ => Reason::Failed,
        };
        Self::new(reason, error.to_string())
    }
}

/// Stream of pages between this command and the daemon.
struct PageStream(OwnedFd);

impl Read for PageStream {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        socket::receive(&self.0, bytes, &mut Vec::new())
    }
}

impl Write for PageStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        socket::send_all(&self.0, bytes, &[], STREAM_PATIENCE)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn watching(cancel: &Cancel) -> impl FnMut(u64) -> ControlFlow<()> + use<> {
    let cancel = cancel.clone();
    move |_| if cancel.is_set() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
}

pub(super) fn push(global: &Global, arguments: &PushArgs) -> Result<(), Failure> {
    let PushArgs { checkpoint, url, no_read_back, key, owner, pool } = arguments;
    let (key, pool) = (key.read()?, pool.paths()?);
    let mut client = connect(global)?;
    let cancel = Cancel::on_signals()?;
    let options = ArchiveOptions { read_back: !no_read_back, ..ArchiveOptions::default() };
    let remote = Remote::open(url, options, key.as_ref())?;
    let (ours, theirs) = pair()?;
    let request = Request::CheckpointExport { pool, checkpoint: owner.of(checkpoint), key: None };
    let answer = client.ask_passing(&request, &[theirs.as_fd()], PATIENCE)?;
    drop(theirs);
    let mut watch = watching(&cancel);
    let sending = thread::spawn(move || {
        // Closed when it ends, so that the daemon's job ends as well.
        let mut stream = BufReader::with_capacity(STREAM_BUFFER_BYTES, PageStream(ours));
        remote.push(&mut stream, &mut watch)
    });
    let job = begun(&answer).and_then(|job| follow(&mut client, job, &cancel));
    let pushed = settle(job, sending)?;
    let Pushed { checkpoint: there, objects, bytes } = pushed;
    if global.json {
        let mut shown = describe(&there);
        shown["objects"] = objects.into();
        shown["all_sent_bytes"] = bytes.into();
        return print_json(&shown);
    }
    let name = printable(&checkpoint.to_string());
    let (stored, sent) =
        (human_bytes(there.stored_pages * PAGE), human_bytes(there.sent_pages * PAGE));
    let bytes = human_bytes(bytes);
    print(|out| {
        writeln!(out, "{name} is at {url}, {stored}; {sent} of it were new there and took {bytes}")
    })
}

pub(super) fn pull(global: &Global, arguments: &PullArgs) -> Result<(), Failure> {
    let PullArgs { url, checkpoint, guest, name, domain, key, pool } = arguments;
    let (key, pool) = (key.read()?, pool.paths()?);
    let mut client = connect(global)?;
    let cancel = Cancel::on_signals()?;
    let remote = Remote::open(url, ArchiveOptions::default(), key.as_ref())?;
    let (stored_guest, stored_name) = stored(checkpoint)?;
    let there = remote.show(&stored_guest, &stored_name)?;
    let request = Request::CheckpointImport {
        base: None,
        pool,
        guest: guest.clone(),
        name: name.clone(),
        domain: Some(domain.clone().unwrap_or_else(|| domain_here(&there))),
        key: None,
        bytes: Some(there.stored_pages * PAGE),
    };
    let (ours, theirs) = pair()?;
    let answer = client.ask_passing(&request, &[theirs.as_fd()], PATIENCE)?;
    drop(theirs);
    let mut watch = watching(&cancel);
    let fetching = thread::spawn(move || {
        let mut stream = BufWriter::with_capacity(STREAM_BUFFER_BYTES, PageStream(ours));
        let pulled = remote.pull((&stored_guest, &stored_name), &mut stream, &mut watch);
        // What is buffered of a stream that is no whole one need not be sent.
        drop(stream.into_parts());
        pulled
    });
    let job = begun(&answer).and_then(|job| follow(&mut client, job, &cancel));
    let imported = match &job {
        Ok(JobResult::Imported(info)) => Some(info.clone()),
        Ok(result) => return Err(other(result)),
        Err(_) => None,
    };
    settle(job, fetching)?;
    let info = imported.expect("a job that failed has been reported");
    if global.json {
        return print_json(&info);
    }
    let name = printable(&format!("{}@{}", info.guest, info.name));
    let (stored, own) = (human_bytes(info.stored_bytes), human_bytes(info.own_bytes));
    print(|out| writeln!(out, "{name} is there, {stored}, of which {own} are new"))
}

/// Waits for the store's end of a transfer. Where both ends have failed, the one that broke the stream says why.
fn settle<T>(
    job: Result<JobResult, Failure>,
    transfer: JoinHandle<Result<T, RemoteError>>,
) -> Result<T, Failure> {
    // It may wait for the store for long, and is not waited for where the job has failed.
    let deadline = Instant::now() + REASON_PATIENCE;
    while job.is_err() && !transfer.is_finished() && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(5));
    }
    let job = match job {
        Err(failure) if !transfer.is_finished() => return Err(failure),
        job => job,
    };
    let transferred = transfer.join().expect("a transfer does not panic");
    match (job, transferred) {
        (Ok(_), transferred) => Ok(transferred?),
        (Err(failure), Ok(_) | Err(RemoteError::Stopped)) => Err(failure),
        (Err(failure), Err(RemoteError::Stream(error))) if is_of_stream(&error) => Err(failure),
        (Err(_), Err(error)) => Err(error.into()),
    }
}

const fn is_of_stream(error: &CheckpointError) -> bool {
    matches!(
        error,
        CheckpointError::Stream(_) | CheckpointError::Export(_) | CheckpointError::Import(_)
    )
}

/// Returns the names under which a store has a checkpoint.
fn stored(checkpoint: &CheckpointName) -> Result<(Name, Name), Failure> {
    let refused =
        |failure: bindery_host::protocol::Failure| Failure::new(Reason::Usage, failure.message);
    let guest = stored_names::guest(&checkpoint.guest).map_err(refused)?;
    Ok((guest, stored_names::checkpoint(&checkpoint.name).map_err(refused)?))
}

/// Returns the domain of a checkpoint as people know it, where there can be such a one here.
fn domain_here(checkpoint: &RemoteCheckpoint) -> String {
    let domain = stored_names::split_domain(&checkpoint.domain).map(|(_, domain)| domain);
    domain.filter(|domain| is_name(domain)).unwrap_or_else(|| "default".into())
}

fn describe(checkpoint: &RemoteCheckpoint) -> Value {
    let of_user = stored_names::split_domain(&checkpoint.domain);
    json!({
        "guest": stored_names::shown_guest(&checkpoint.guest),
        "name": checkpoint.name.as_str(),
        "domain": of_user.as_ref().map_or(checkpoint.domain.as_str(), |(_, domain)| domain),
        "uid": of_user.as_ref().map(|(uid, _)| uid),
        "time_ns": checkpoint.time_ns,
        "memory_bytes": checkpoint.memory_pages * PAGE,
        "stored_bytes": checkpoint.stored_pages * PAGE,
        "own_bytes": checkpoint.sent_pages * PAGE,
        "sent_bytes": checkpoint.sent_bytes,
    })
}

/// Lists checkpoints in an object store, of one guest or all.
pub(super) fn list(
    global: &Global,
    (url, key): (&str, Option<SecretKey>),
    guest: Option<&str>,
) -> Result<(), Failure> {
    let remote = Remote::open(url, ArchiveOptions::default(), key.as_ref())?;
    let mut listing = remote.list()?;
    listing.checkpoints.retain(|checkpoint| {
        guest.is_none_or(|guest| stored_names::shown_guest(&checkpoint.guest) == guest)
    });
    if listing.checkpoints.is_empty() && remote.has_others()? && !global.json {
        eprintln!("bindery: {url} has checkpoints of other keys, or without one");
    }
    if global.json {
        print_json(&listing.checkpoints.iter().map(describe).collect::<Vec<_>>())?;
    } else {
        table(&listing.checkpoints).print()?;
    }
    match listing.unreadable.into_iter().next() {
        Some(error) => Err(error.into()),
        None => Ok(()),
    }
}

fn table(checkpoints: &[RemoteCheckpoint]) -> Table {
    let mut table = Table::new(["GUEST", "NAME", " AGE", " RAM", " STORED", " OWN", " SENT"]);
    for checkpoint in checkpoints {
        table.row([
            printable(&stored_names::shown_guest(&checkpoint.guest)),
            printable(checkpoint.name.as_str()),
            age(checkpoint.time_ns),
            human_bytes(checkpoint.memory_pages * PAGE),
            human_bytes(checkpoint.stored_pages * PAGE),
            human_bytes(checkpoint.sent_pages * PAGE),
            human_bytes(checkpoint.sent_bytes),
        ]);
    }
    table
}

/// Deletes checkpoints in an object store, by name or all of a guest but the last ones.
pub(super) fn delete(
    global: &Global,
    (url, key): (&str, Option<SecretKey>),
    names: &[String],
    keep: Option<u64>,
) -> Result<(), Failure> {
    let usage = |message: String| Failure::new(Reason::Usage, message);
    let remote = Arc::new(Remote::open(url, ArchiveOptions::default(), key.as_ref())?);
    let chosen: Vec<(Name, Name)> = match (keep, names) {
        (Some(keep), [guest]) => older(&remote, guest, keep)?,
        (Some(_), _) => return Err(usage("--keep goes with one guest".into())),
        (None, names) => {
            let named = names.iter().map(|name| stored(&parse_checkpoint(name).map_err(usage)?));
            named.collect::<Result<_, _>>()?
        }
    };
    let deleted = remote.delete(&chosen)?;
    let shown = |(guest, name): &(Name, Name)| (stored_names::shown_guest(guest), name.to_string());
    let chosen: Vec<(String, String)> = chosen.iter().map(shown).collect();
    if global.json {
        let names = chosen.iter().map(|(guest, name)| json!({ "guest": guest, "name": name }));
        return print_json(&json!({
            "checkpoints": names.collect::<Vec<_>>(), "objects": deleted.objects,
            "bytes": deleted.bytes, "has_kept_packs": deleted.has_kept_packs,
        }));
    }
    print(|out| {
        for (guest, name) in &chosen {
            writeln!(out, "{} is deleted", printable(&format!("{guest}@{name}")))?;
        }
        writeln!(out, "{} checkpoints, {} were removed", chosen.len(), human_bytes(deleted.bytes))?;
        if deleted.has_kept_packs {
            writeln!(
                out,
                "some packs are kept: a push goes on, or ended without its checkpoint in the last week, or a \
                 manifest cannot be read; they go with a later deletion"
            )?;
        }
        Ok(())
    })
}

/// Returns all checkpoints of a guest but the last `keep`.
fn older(remote: &Remote, guest: &str, keep: u64) -> Result<Vec<(Name, Name)>, Failure> {
    let mut listing = remote.list()?;
    if let Some(error) = listing.unreadable.pop() {
        return Err(error.into());
    }
    let is_of = |it: &RemoteCheckpoint| stored_names::shown_guest(&it.guest) == guest;
    let mut found: Vec<RemoteCheckpoint> = listing.checkpoints;
    found.retain(is_of);
    if found.is_empty() {
        let message = format!("{} has no checkpoint of guest {}", remote.url(), printable(guest));
        return Err(Failure::new(Reason::NotFound, message));
    }
    let keep = usize::try_from(keep).unwrap_or(usize::MAX);
    found.truncate(found.len().saturating_sub(keep));
    Ok(found.into_iter().map(|it| (it.guest, it.name)).collect())
}
