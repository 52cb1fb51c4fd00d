//! Work on checkpoints that takes long, each the body of a job.

use std::collections::BTreeSet;
use std::io::{BufReader, BufWriter, Write};
use std::ops::ControlFlow;
use std::os::fd::OwnedFd;

use bindery_checkpoint::{
    CheckpointError, CheckpointId, ExportOptions, ImportOptions, Name, PageEncoding, SecretKey,
    VerifyReport,
};
use bindery_guest::printable;

use super::catalogue::Visible;
use super::disks::{RunningVmm, tidy, users_of};
use super::sources::Sources;
use super::stream::OperatorStream;
use super::{Lease, failure};
use crate::jobs::{self, Progress};
use crate::protocol::checkpoint::{DAMAGE_MAX, DamageInfo, ExportKey, Verified};
use crate::protocol::job::JobResult;
use crate::protocol::{Failure, FailureKind};

/// Buffer of a stream, in bytes.
const STREAM_BUFFER_BYTES: usize = 256 << 10;

/// Reads all of some checkpoints. One that is damaged does not keep the others from being read.
///
/// # Errors
/// `Cancelled`.
pub(crate) fn verify(
    lease: &Lease,
    checkpoints: &[Visible],
    progress: &Progress,
) -> Result<JobResult, Failure> {
    let pages = checkpoints.iter().map(|checkpoint| checkpoint.summary.stored_pages).sum();
    progress.begin("reading", Some(pages));
    let mut verified = Vec::with_capacity(checkpoints.len());
    for checkpoint in checkpoints {
        match lease.verify_watched(checkpoint.summary.id, &mut watching(progress)) {
            Ok(report) => verified.push(of_report(checkpoint, report)),
            // Somebody has deleted it meanwhile.
            Err(CheckpointError::NoCheckpoint(_)) => {}
            Err(CheckpointError::Stopped) => return Err(jobs::cancelled()),
            Err(error @ CheckpointError::Locked(_)) => return Err(failure::of_checkpoint(&error)),
            Err(error) => {
                let unreadable = VerifyReport::default();
                let unreadable = Verified {
                    unreadable: Some(error.to_string()),
                    ..of_report(checkpoint, unreadable)
                };
                verified.push(unreadable);
            }
        }
    }
    Ok(JobResult::Verified(verified))
}

/// Counts pages, and breaks once the job is cancelled.
fn watching(progress: &Progress) -> impl FnMut(u64) -> ControlFlow<()> {
    move |pages| {
        progress.add(pages);
        if progress.is_cancelled() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

fn of_report(checkpoint: &Visible, report: VerifyReport) -> Verified {
    let damaged_pages = report.damaged.iter().map(|run| u64::from(run.pages.count)).sum();
    let damaged = report.damaged.into_iter().take(DAMAGE_MAX).map(|run| DamageInfo {
        block: printable(&run.block),
        first_page: run.pages.first.0,
        pages: run.pages.count,
        why: run.why,
    });
    Verified {
        checkpoint: checkpoint.name(),
        pages: report.pages,
        damaged_pages,
        damaged: damaged.collect(),
        unreadable: None,
        touched: report.touched,
    }
}

/// Deletes checkpoints, one after the other. Those that were deleted before one that cannot be stay deleted.
///
/// # Errors
/// `Busy` where a guest is filled from one, and where overlays of restored guests stand on its disks unless it is forced;
/// `Cancelled`, `Failed`. The message counts those that are gone.
pub(crate) fn delete(
    lease: &Lease,
    checkpoints: &[Visible],
    (sources, vmms, is_forced): (&Sources, &[RunningVmm], bool),
    progress: &Progress,
) -> Result<JobResult, Failure> {
    progress.begin("deleting", Some(checkpoints.len() as u64));
    let (mut gone, mut bytes, mut has_kept_packs) = (Vec::new(), 0, false);
    for checkpoint in checkpoints {
        let id = checkpoint.summary.id;
        let unused = progress.check().and_then(|()| sources.require_unused(lease.pool_id(), id));
        let unused = unused.and_then(|()| require_unused_disks(lease, checkpoint, is_forced));
        let deleted = unused.and_then(|()| match lease.delete(id) {
            Err(CheckpointError::NoCheckpoint(_)) => Ok(None),
            deleted => deleted.map(Some).map_err(|error| failure::of_checkpoint(&error)),
        });
        let deleted = deleted.map_err(|Failure { kind, message }| {
            let (done, all) = (gone.len(), checkpoints.len());
            Failure::new(kind, format!("{message}; {done} of {all} checkpoints were deleted"))
        })?;
        if let Some(deleted) = deleted {
            bytes += deleted.bytes;
            has_kept_packs |= deleted.has_kept_packs;
            gone.push(checkpoint.name());
        }
        progress.add(1);
    }
    // What nobody reads any more is free before the job ends.
    lease.pool().reclaim();
    let (merged_layers, layers_left) = tidy_disks(lease, checkpoints, vmms, progress);
    Ok(JobResult::Deleted { checkpoints: gone, bytes, has_kept_packs, merged_layers, layers_left })
}

/// Makes sure that no restored guest writes to overlays over a checkpoint's disks.
fn require_unused_disks(
    lease: &Lease,
    checkpoint: &Visible,
    is_forced: bool,
) -> Result<(), Failure> {
    let users = if is_forced { Vec::new() } else { users_of(lease, checkpoint) };
    if users.is_empty() {
        return Ok(());
    }
    let message = format!(
        "disks of guests that were restored from {} stand on its disks: {}. End those guests and remove their overlays, \
         or delete it all the same with --force: their disks stay as they are, and so do the layers below",
        checkpoint.name(),
        users.join(", ")
    );
    Err(Failure::new(FailureKind::Busy, message))
}

/// Merges layers of the disks of guests whose checkpoints were deleted. Returns the number of layers that are gone, and
/// why others are left.
fn tidy_disks(
    lease: &Lease,
    checkpoints: &[Visible],
    vmms: &[RunningVmm],
    progress: &Progress,
) -> (u64, Option<String>) {
    let guests = checkpoints.iter().map(|it| (&it.summary.domain, &it.summary.guest));
    let guests: BTreeSet<(&Name, &Name)> = guests.collect();
    let (mut merged, mut left) = (0, None);
    for guest in guests {
        match tidy(lease, guest, vmms, progress) {
            Ok(layers) => merged += layers,
            Err(failure) => {
                tracing::warn!(guest = %guest.1, "layers of disks are left for the next deletion: {failure}");
                left = Some(failure.message);
            }
        }
    }
    (merged, left)
}

/// Writes a checkpoint into an operator's stream.
///
/// # Errors
/// `Damaged` if pages cannot be read, `Cancelled`, `Failed` if the stream breaks.
pub(crate) fn export(
    lease: &Lease,
    checkpoint: &Visible,
    (socket, key): (OwnedFd, Option<SecretKey>),
    progress: &Progress,
) -> Result<JobResult, Failure> {
    progress.begin("writing", Some(checkpoint.summary.stored_pages));
    let stream = OperatorStream::new(socket, progress, false);
    let mut stream = BufWriter::with_capacity(STREAM_BUFFER_BYTES, stream);
    let (id, options) = (checkpoint.summary.id, ExportOptions { key });
    let exported = lease.export_watched(id, &mut stream, &options, &mut watching(progress));
    let exported = exported.and_then(|exported| {
        stream.flush().map_err(CheckpointError::Export)?;
        Ok(exported)
    });
    if exported.is_err() {
        // What is buffered of a stream that is no whole one need not be sent.
        drop(stream.into_parts());
    }
    let exported = exported.map_err(|error| of_stream(&error, progress))?;
    Ok(JobResult::Exported { pages: exported.pages, bytes: exported.bytes })
}

/// Writes the device state of a checkpoint into an operator's stream.
///
/// # Errors
/// `Damaged` if the manifest cannot be read, `Cancelled`, `Failed` if the stream breaks.
pub(crate) fn device_state(
    lease: &Lease,
    checkpoint: &Visible,
    socket: OwnedFd,
    progress: &Progress,
) -> Result<JobResult, Failure> {
    progress.begin("writing", None);
    let manifest = lease.manifest(checkpoint.summary.id);
    let state = manifest.map_err(|error| failure::of_checkpoint(&error))?.description.device_state;
    let written = OperatorStream::new(socket, progress, false).write_all(&state);
    let written = written.map_err(CheckpointError::Export);
    written.map_err(|error| of_stream(&error, progress))?;
    Ok(JobResult::DeviceState { bytes: state.len() as u64 })
}

/// Place of an imported checkpoint.
#[derive(Clone, Debug)]
pub(crate) struct Import {
    /// Domain in the store, which is made if it is not there.
    pub(crate) domain: Name,
    pub(crate) guest: Option<Name>,
    pub(crate) name: Option<Name>,
    pub(crate) key: Option<SecretKey>,
    /// Length of the stream, where it is known.
    pub(crate) bytes: Option<u64>,
    /// Checkpoint of which every page counts that the stream lacks.
    pub(crate) base: Option<CheckpointId>,
}

/// Makes a checkpoint of an operator's stream.
///
/// # Errors
/// `BadFile` if the stream is damaged, cut off or of another key; `Taken`, `Cancelled`, `Failed`.
pub(crate) fn import(
    lease: &Lease,
    socket: OwnedFd,
    import: Import,
    progress: &Progress,
) -> Result<JobResult, Failure> {
    progress.begin("reading", import.bytes);
    let Import { domain, guest, name, key, base, .. } = import;
    let failed = |error: CheckpointError| of_stream(&error, progress);
    lease.open_for_writing(&domain)?;
    let encoding = PageEncoding::default();
    let options = ImportOptions { domain, key, guest, name, encoding, base };
    let stream = OperatorStream::new(socket, progress, true);
    let mut stream = BufReader::with_capacity(STREAM_BUFFER_BYTES, stream);
    let summary = lease.import(&mut stream, &options).map_err(failed)?;
    Ok(JobResult::Imported(Visible::new(summary).info()))
}

fn of_stream(error: &CheckpointError, progress: &Progress) -> Failure {
    // The stream breaks when the job is cancelled.
    if progress.is_cancelled() { jobs::cancelled() } else { failure::of_checkpoint(error) }
}

/// Reads the key of an export.
///
/// # Errors
/// `BadRequest` if it is none.
pub(crate) fn key(key: &ExportKey) -> Result<SecretKey, Failure> {
    let digit = |byte: u8| (byte as char).to_digit(16).map(|digit| digit as u8);
    let byte = |pair: &[u8; 2]| Some(digit(pair[0])? << 4 | digit(pair[1])?);
    let (pairs, rest) = key.0.as_bytes().as_chunks::<2>();
    let bytes: Option<Vec<u8>> = pairs.iter().map(byte).collect();
    let bytes = bytes.filter(|_| rest.is_empty()).and_then(|bytes| bytes.try_into().ok());
    bytes
        .map(SecretKey::from_bytes)
        .ok_or_else(|| Failure::new(FailureKind::BadRequest, "\"key\" is 64 hexadecimal digits"))
}
