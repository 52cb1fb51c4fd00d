//! Guests that go on from a checkpoint.
//!
//! The VMM was started under the library, and waits for device state. Its memory is bound to the checkpoint, so that
//! pages come when they are touched; then it loads the device state and runs. Meanwhile a thread of its own sends
//! the rest, until nothing is missing; from then on the guest is one like any other.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bindery_checkpoint::{Description, MemoryBlock as SavedBlock};
use bindery_guest::{Connection, Guest};
use bindery_transfer::{PlacedBlock, place_blocks};
use bindery_units::PAGE_BYTES;
use bindery_vmm::{
    DeviceState, IncomingQemu, IncomingVmm as _, MemoryBlock, QemuSettings, SaveMethod,
};
use bindery_wire::control::BoundRange;

use super::catalogue::Visible;
use super::content::Content;
use super::create::of_vmm;
use super::disks::note_restored;
use super::sources::Sources;
use super::token::Token;
use super::{Lease, failed};
use crate::jobs::Progress;
use crate::protocol::checkpoint::Restored;
use crate::protocol::job::JobResult;
use crate::protocol::{Failure, FailureKind};

/// Time until a VMM's blocks must be known where they lie.
const OFFERS_PATIENCE: Duration = Duration::from_secs(3);

/// A guest that is to go on.
pub(crate) struct Restore {
    /// Guest whose VMM waits for device state.
    pub(crate) guest: Arc<Guest>,
    pub(crate) qemu: IncomingQemu,
    pub(crate) checkpoint: Visible,
    /// True if the guest is not to run yet.
    pub(crate) is_paused: bool,
}

/// Restores a checkpoint into a VMM that waits. The first lease stays until the guest is filled, the second until it
/// runs.
///
/// # Errors
/// `Refused` if the VMM is not as the saved one was, `Damaged` if the manifest cannot be read, `Failed`. The VMM is
/// of no further use then.
pub(crate) fn restore(
    (lease, noting): (Lease, Lease),
    sources: &Arc<Sources>,
    mut restore: Restore,
    progress: &Progress,
) -> Result<JobResult, Failure> {
    progress.begin("binding memory", None);
    let begun = Instant::now();
    let token = Token::new(lease.paths(), &restore.checkpoint).encode()?;
    let content = Content::open(lease, restore.checkpoint.summary.id)?;
    let description = content.image.reader().manifest().description.clone();
    let state = device_state(&description)?;
    let memory = restore.qemu.memory().map_err(|error| of_vmm(&error))?;
    let ranges = bind_where(&restore.guest, &content, &description.blocks, &memory)?;
    let pages = ranges.iter().map(|range| range.bytes / PAGE_BYTES as u64).sum();
    let mark = sources.mark(&restore.guest, &content)?;
    let link = restore.guest.bind(&ranges, &token).map_err(|error| failed(error.to_string()))?;
    let bound = begun.elapsed();
    sources.serve(&restore.guest, link, content, mark)?;
    progress.check()?;
    progress.begin("loading device state", None);
    let loading = restore.qemu.load_device_state(&state).map_err(|error| of_vmm(&error))?;
    if !restore.is_paused {
        restore.qemu.resume().map_err(|error| of_vmm(&error))?;
    }
    let total = begun.elapsed();
    note_overlays(restore.qemu, &noting, &restore.checkpoint, &restore.guest);
    let micros = |time: Duration| time.as_micros() as u64;
    Ok(JobResult::Restored(Restored {
        guest: restore.guest.identity().name.clone(),
        pid: restore.guest.identity().pid,
        checkpoint: restore.checkpoint.name(),
        pages,
        binding_us: micros(bound),
        loading_us: micros(loading),
        total_us: micros(total),
    }))
}

/// Notes the overlays that the guest writes to, so that its checkpoint is not deleted unawares.
fn note_overlays(qemu: IncomingQemu, lease: &Lease, checkpoint: &Visible, guest: &Guest) {
    let name = &guest.identity().name;
    match qemu.into_qemu() {
        Ok(mut qemu) => note_restored(lease, checkpoint, name, &mut qemu),
        Err(error) => tracing::warn!(guest = name, "the guest's overlays are not noted: {error}"),
    }
}

fn device_state(description: &Description) -> Result<DeviceState, Failure> {
    let vmm = &description.vmm;
    if vmm.kind != "qemu" {
        let message = format!("the checkpoint is of a {:?}, and only QEMUs are restored", vmm.kind);
        return Err(Failure::new(FailureKind::Refused, message));
    }
    let method: SaveMethod = vmm.device_state.parse().map_err(failed)?;
    Ok(DeviceState {
        machine: vmm.machine.clone(),
        version: vmm.version.clone(),
        method,
        bytes: description.device_state.clone(),
    })
}

/// Finds where each block of the checkpoint lies in the waiting VMM.
fn bind_where(
    guest: &Guest,
    content: &Content,
    saved: &[SavedBlock],
    memory: &[MemoryBlock],
) -> Result<Vec<BoundRange>, Failure> {
    let placed = place(guest, memory)?;
    let extra = placed.iter().find(|block| saved.iter().all(|saved| saved.name != block.name));
    if let Some(PlacedBlock { name, .. }) = extra {
        return Err(other_machine(&format!("has a memory block {name:?} more")));
    }
    let blocks = saved.iter().zip(content.image.blocks());
    let bound = blocks.filter(|(_, pages)| !pages.is_empty()).map(|(saved, pages)| {
        let at = placed.iter().position(|block| block.name == saved.name);
        let Some(at) = at else {
            return Err(other_machine(&format!("has no memory block {:?}", saved.name)));
        };
        // Blocks that grow are as long as their VMM has them now; their room is the same.
        if memory[at].total_bytes < saved.bytes {
            let (here, there) = (memory[at].total_bytes, saved.bytes);
            let what = format!("has {here} bytes of memory block {:?} and not {there}", saved.name);
            return Err(other_machine(&what));
        }
        Ok(BoundRange { address: placed[at].address, bytes: saved.bytes, first: pages.first })
    });
    bound.collect()
}

/// Finds the blocks of a VMM that has just begun to wait: what it offered last may not have been heard yet.
fn place(guest: &Guest, memory: &[MemoryBlock]) -> Result<Vec<PlacedBlock>, Failure> {
    let deadline = Instant::now() + OFFERS_PATIENCE;
    loop {
        let offered: Vec<_> =
            guest.offered().iter().map(|range| (range.address, range.bytes)).collect();
        match place_blocks(memory, &offered) {
            Err(error) if Instant::now() >= deadline => return Err(failed(error.to_string())),
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
            placed => return placed.map_err(|error| failed(error.to_string())),
        }
    }
}

fn other_machine(what: &str) -> Failure {
    let message = format!(
        "the QEMU that waits {what}: start it as the saved one was, with as much memory and the same devices"
    );
    Failure::new(FailureKind::Refused, message)
}

/// Connects to the monitor of a QEMU that waits.
///
/// # Errors
/// `Refused` if it is another process's; `Failed`.
pub(crate) fn connect(monitor: &Path, pid: i32) -> Result<IncomingQemu, Failure> {
    let settings = QemuSettings { pid: Some(pid), ..QemuSettings::default() };
    let mut qemu = IncomingQemu::connect(monitor, settings).map_err(|error| of_vmm(&error))?;
    let peer = qemu.qmp().peer_pid().map_err(|error| failed(error.to_string()))?;
    if peer != pid {
        let message = format!(
            "{} is not the monitor of process {pid}, but of {peer}: start the guest with `bindery restore`",
            monitor.display()
        );
        return Err(Failure::new(FailureKind::Refused, message));
    }
    Ok(qemu)
}
