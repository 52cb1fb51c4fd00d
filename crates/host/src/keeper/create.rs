//! Checkpoints of guests that run.

use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, TryLockError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bindery_checkpoint::{
    Capture as CaptureFigures, CheckpointSummary, CheckpointWriter, Description, Disk, MemoryBlock,
    Name, NewCheckpoint, PageEncoding, Vmm,
};
use bindery_guest::{Connection, Guest};
use bindery_transfer::{
    GuestMemory, Limits, Outcome, PlacedBlock, Sink, SinkError, Tracker, TransferError,
    place_blocks,
};
use bindery_units::{PAGE_BYTES, PageIndex, PageRange};
use bindery_vmm::{GuestDescription, Overlay, Purpose, Qemu, Vmm as _, VmmError};

use super::catalogue::Visible;
use super::disks::note_captured;
use super::overlays::overlays;
use super::pauses::Pauses;
use super::sources::Sources;
use super::trackers::{Followed, LastCheckpoint};
use super::{Lease, failure};
use crate::jobs::{self, Progress};
use crate::protocol::checkpoint::{Created, DiskPolicy};
use crate::protocol::job::JobResult;
use crate::protocol::{Failure, FailureKind};

/// Longest pause of a guest that writes too much for rounds to help, unless the operator allows a longer one.
const PAUSE_LIMIT: Duration = Duration::from_secs(1);

/// A checkpoint that is to be made.
pub(crate) struct Create {
    pub(crate) guest: Arc<Guest>,
    /// QEMU, whose monitor is the guest's own.
    pub(crate) qemu: Qemu,
    /// Path of that monitor.
    pub(crate) monitor: PathBuf,
    pub(crate) names: CheckpointNames,
    pub(crate) disks: DiskPolicy,
    pub(crate) pause_max: Option<Duration>,
    pub(crate) encoding: PageEncoding,
}

/// Names of a checkpoint in a store.
#[derive(Clone, Debug)]
pub(crate) struct CheckpointNames {
    pub(crate) guest: Name,
    pub(crate) name: Name,
    pub(crate) domain: Name,
}

/// Makes a checkpoint: what has changed since the guest's last one in this pool, while the guest runs but for a
/// pause at the end.
///
/// # Errors
/// `Busy` while another checkpoint of the guest is made, or if it turns out to lack memory; `Refused` if it cannot be saved; `Cancelled`, `Taken`,
/// `Failed`. Whatever happens, the guest is as it was, unless the message says how else.
pub(crate) fn create(
    lease: &Lease,
    followed: &Mutex<Followed>,
    (sources, pauses): (&Sources, &Pauses),
    mut create: Create,
    progress: &Progress,
) -> Result<JobResult, Failure> {
    let mut followed = match followed.try_lock() {
        Ok(followed) => followed,
        Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
        Err(TryLockError::WouldBlock) => return Err(busy()),
    };
    progress.begin("asking the VMM", None);
    let vmm = create.qemu.describe().map_err(|error| of_vmm(&error))?;
    if !vmm.obstacles.is_empty() {
        return Err(of_vmm(&VmmError::Obstructed(vmm.obstacles)));
    }
    let blocks = place(&create.guest, &vmm)?;
    let overlays = overlays(&create.disks, &vmm.disks, &create.names)?;
    let base = followed.base(lease, &blocks);
    let domain = create.names.domain.clone();
    lease.open_for_writing(&domain)?;
    let new = NewCheckpoint {
        description: describe(&create, &vmm, &blocks)?,
        base: base.as_ref().map(|last| last.id),
        encoding: create.encoding,
    };
    let writer = lease.create(new).map_err(|error| failure::of_checkpoint(&error))?;
    let limits = limits(create.pause_max, followed.bytes_per_second);
    let tracker = follow(&mut followed.tracker, &create.guest, base.is_some())?;
    let guest = Arc::clone(&create.guest);
    let is_whole = || sources.require_whole(&guest);
    let note = || note_captured(lease, &create.names, &vmm.disks, &overlays);
    let capture =
        Capture { writer, overlays: &overlays, note: &note, limits, is_whole: &is_whole, progress };
    let pid = create.guest.identity().pid;
    let pause = vmm.is_running.then(|| pauses.begin(pid, &create.monitor));
    let captured = capture.run(tracker, blocks.clone(), &mut create.qemu);
    drop(pause);
    let (created, bytes_per_second, summary) =
        captured.map_err(|failure| of_capture(failure, &guest))?;
    let CheckpointSummary { id, time_ns, .. } = summary;
    let (pool, made) = (lease.pool_id(), Instant::now());
    followed.last = Some(LastCheckpoint { pool, id, time_ns, blocks, made });
    followed.bytes_per_second = bytes_per_second.or(followed.bytes_per_second);
    Ok(JobResult::Created(Box::new(created)))
}

/// Capture of a guest into a checkpoint.
struct Capture<'a> {
    writer: CheckpointWriter,
    overlays: &'a [Overlay],
    /// Notes the overlays, once disks write to them.
    note: &'a dyn Fn(),
    limits: Limits,
    /// Fails if memory was missing that was read.
    is_whole: &'a dyn Fn() -> Result<(), Failure>,
    progress: &'a Progress,
}

impl Capture<'_> {
    /// Captures the guest that `tracker` follows, and finishes the checkpoint.
    fn run(
        self,
        tracker: &mut Tracker,
        blocks: Vec<PlacedBlock>,
        qemu: &mut Qemu,
    ) -> Result<(Created, Option<u64>, CheckpointSummary), Failure> {
        let Self { mut writer, overlays, note, limits, is_whole, progress } = self;
        let failed = |error: TransferError| of_transfer(&error, progress);
        let mut memory = GuestMemory::new(tracker, blocks).map_err(|error| failed(error.into()))?;
        let request = bindery_transfer::Request {
            overlays,
            purpose: Purpose::Checkpoint,
            limits,
            is_cancelled: progress.cancel_flag(),
            progress: &|now| show(progress, &now),
        };
        let mut sink = Packs(&mut writer);
        let outcome = bindery_transfer::run(qemu, &mut memory, &mut sink, &request);
        let outcome = outcome.map_err(failed)?;
        note();
        let left = |Failure { kind, message }| {
            Failure::new(kind, format!("{message}; {}", left_behind(overlays)))
        };
        is_whole().map_err(left)?;
        require_same(qemu, &outcome.description).map_err(left)?;
        progress.begin("committing", None);
        let time = outcome.last.pause.stopped_at.unwrap_or_else(SystemTime::now);
        writer.set_time(since_epoch_ns(time));
        let state = &outcome.device_state;
        writer.set_device_state(state.method.as_str(), state.bytes.clone());
        writer.set_capture(capture_of(&outcome));
        let summary = writer.finish().map_err(|error| left(failure::of_checkpoint(&error)))?;
        let created = describe_outcome(Visible::new(summary.clone()), &outcome, overlays);
        let bytes_per_second = outcome.bytes_per_second;
        outcome.epoch.commit();
        Ok((created, bytes_per_second, summary))
    }
}

/// Makes sure that the guest has the memory and the disks that it had before: what is plugged in meanwhile is in the
/// device state alone.
fn require_same(qemu: &mut Qemu, before: &GuestDescription) -> Result<(), Failure> {
    let now = qemu.describe().map_err(|error| of_vmm(&error))?;
    let is_same = now.memory == before.memory
        && now.disks.len() == before.disks.len()
        && now.plugged_arguments == before.plugged_arguments;
    if is_same {
        return Ok(());
    }
    let message =
        "memory or disks of the guest came or went while the checkpoint was made: try again";
    Err(Failure::new(FailureKind::Failed, message))
}

/// Packs of a checkpoint, as the place that pages go to.
struct Packs<'w>(&'w mut CheckpointWriter);

impl Sink for Packs<'_> {
    fn put(&mut self, block: usize, first: PageIndex, bytes: &[u8]) -> Result<(), SinkError> {
        Ok(self.0.put(block, first, bytes)?)
    }

    fn zeros(&mut self, block: usize, pages: PageRange) -> Result<(), SinkError> {
        Ok(self.0.put_zeros(block, pages)?)
    }
}

impl Followed {
    /// Returns the last checkpoint, if what has changed since is known and it is still there.
    fn base(&self, lease: &Lease, blocks: &[PlacedBlock]) -> Option<LastCheckpoint> {
        let last = self.last.as_ref().filter(|_| self.tracker.is_some())?;
        let is_it =
            |summary: &CheckpointSummary| (summary.id, summary.time_ns) == (last.id, last.time_ns);
        let is_there = || lease.list().iter().any(is_it);
        let is_base = last.pool == lease.pool_id() && last.blocks == blocks && is_there();
        is_base.then(|| last.clone())
    }
}

/// Returns the tracker that goes on from the last checkpoint, or a new one, for which everything has changed.
fn follow<'t>(
    tracker: &'t mut Option<Tracker>,
    guest: &Arc<Guest>,
    goes_on: bool,
) -> Result<&'t mut Tracker, Failure> {
    if !goes_on || tracker.is_none() {
        // Its seat is needed for the new one.
        *tracker = None;
        let begun = Tracker::begin(Arc::clone(guest));
        let begun = begun.map_err(|error| Failure::new(FailureKind::Failed, error.to_string()))?;
        *tracker = Some(begun);
    }
    Ok(tracker.as_mut().expect("it was just begun"))
}

/// Finds the guest's memory blocks in its process.
fn place(guest: &Guest, vmm: &GuestDescription) -> Result<Vec<PlacedBlock>, Failure> {
    let offered = guest.offered();
    let offered: Vec<_> = offered.iter().map(|range| (range.address, range.bytes)).collect();
    let placed = place_blocks(&vmm.memory, &offered);
    placed.map_err(|error| Failure::new(FailureKind::Failed, error.to_string()))
}

fn limits(pause_max: Option<Duration>, bytes_per_second: Option<u64>) -> Limits {
    let limits = Limits { bytes_per_second, ..Limits::default() };
    let pause_max = pause_max.unwrap_or(limits.pause_max);
    Limits { pause_max, pause_limit: Some(PAUSE_LIMIT.max(pause_max)), ..limits }
}

fn describe(
    create: &Create,
    vmm: &GuestDescription,
    blocks: &[PlacedBlock],
) -> Result<Description, Failure> {
    let pid = create.guest.identity().pid;
    let block = |block: &PlacedBlock| MemoryBlock {
        name: block.name.clone(),
        bytes: u64::from(block.pages) * PAGE_BYTES as u64,
    };
    let disk = |disk: &bindery_vmm::Disk| Disk {
        device: if disk.device.is_empty() { disk.node.clone() } else { disk.device.clone() },
        path: disk.image.clone().into_bytes(),
        format: disk.format.clone(),
    };
    let is_without = create.disks == DiskPolicy::Without;
    let disks = if is_without { Vec::new() } else { vmm.disks.iter().map(disk).collect() };
    let CheckpointNames { guest, name, domain } = create.names.clone();
    Ok(Description {
        guest,
        name,
        domain,
        time_ns: since_epoch_ns(SystemTime::now()),
        vmm: Vmm {
            kind: "qemu".into(),
            version: vmm.version.clone(),
            machine: vmm.machine.clone(),
            device_state: String::new(),
            arguments: arguments(pid, &vmm.plugged_arguments)?,
        },
        blocks: blocks.iter().map(block).collect(),
        disks,
        device_state: Vec::new(),
    })
}

/// Reads the arguments that a process was started with, and appends some.
fn arguments(pid: i32, more: &[String]) -> Result<Vec<Vec<u8>>, Failure> {
    let path = format!("/proc/{pid}/cmdline");
    let bytes = fs::read(&path).map_err(|error| {
        Failure::new(
            FailureKind::Failed,
            format!("cannot read the VMM's arguments: {path}: {error}"),
        )
    })?;
    let arguments = bytes.strip_suffix(b"\0").unwrap_or(&bytes);
    let own = arguments.split(|byte| *byte == 0).map(<[u8]>::to_vec);
    Ok(own.chain(more.iter().map(|word| word.clone().into_bytes())).collect())
}

fn since_epoch_ns(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}

fn describe_outcome(made: Visible, outcome: &Outcome<'_>, overlays: &[Overlay]) -> Created {
    let micros = |time: Duration| time.as_micros() as u64;
    let pause = outcome.last.pause;
    Created {
        checkpoint: made.info(),
        pause_us: pause.outage.map(micros),
        device_state_us: micros(pause.save),
        disks_us: micros(pause.disks),
        memory_us: micros(outcome.taking + outcome.reading),
        rounds: outcome.rounds.len() as u32,
        pages_in_pause: outcome.last.pages,
        overlays: overlays.iter().map(|overlay| overlay.path.display().to_string()).collect(),
    }
}

fn capture_of(outcome: &Outcome<'_>) -> CaptureFigures {
    let pause_us = outcome.last.pause.outage.map(|outage| outage.as_micros() as u64);
    CaptureFigures { pause_us, rounds: outcome.rounds.len() as u32 }
}

fn show(progress: &Progress, now: &bindery_transfer::Progress) {
    progress.set("copying memory", now.pages_done, now.pages_done + now.pages_left);
}

fn left_behind(overlays: &[Overlay]) -> String {
    if overlays.is_empty() {
        return "the guest runs on".to_owned();
    }
    let paths: Vec<String> =
        overlays.iter().map(|overlay| overlay.path.display().to_string()).collect();
    format!(
        "the guest runs on, and its disks write to overlays, which must stay: {}",
        paths.join(", ")
    )
}

fn of_transfer(error: &TransferError, progress: &Progress) -> Failure {
    match error {
        TransferError::Cancelled if progress.is_cancelled() => jobs::cancelled(),
        TransferError::Vmm(error) => of_vmm(error),
        error => Failure::new(FailureKind::Failed, error.to_string()),
    }
}

/// Failure of a capture. Of a guest whose process is gone, nothing goes on.
fn of_capture(failure: Failure, guest: &Guest) -> Failure {
    // Its connections end somewhat before.
    let is_gone = || {
        guest.has_ended() || {
            std::thread::sleep(Duration::from_millis(10));
            false
        }
    };
    if failure.kind != FailureKind::Failed || !(0..50).any(|_| is_gone()) {
        return failure;
    }
    let message = "the guest has ended before its checkpoint was made: its VMM's output says why";
    Failure::new(FailureKind::Failed, message)
}

/// Failure of a VMM, in the words of operators.
pub(super) fn of_vmm(error: &VmmError) -> Failure {
    let kind = match error {
        VmmError::Obstructed(_) => FailureKind::Refused,
        _ => FailureKind::Failed,
    };
    Failure::new(kind, error.to_string())
}

fn busy() -> Failure {
    let message = "another checkpoint of this guest is being made: wait for it, or cancel it";
    Failure::new(FailureKind::Busy, message)
}
