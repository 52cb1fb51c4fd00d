//! Guests that go on from a checkpoint.
//!
//! The VMM was started under the library, and waits for device state. Its memory is bound to the checkpoint, so that
//! pages come when they are touched; then it loads the device state and runs. Meanwhile a thread of its own sends
//! the rest, until nothing is missing; from then on the guest is one like any other.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bindery_checkpoint::{CheckpointId, Description, MemoryBlock as SavedBlock};
use bindery_guest::{
    Connection, Guest, LostSource, ServeOptions, Served, SourceHandle, SourceLink,
};
use bindery_sys::thread::spawn_without_signals;
use bindery_transfer::{PlacedBlock, place_blocks};
use bindery_units::{PAGE_BYTES, PageRange};
use bindery_vmm::{
    DeviceState, IncomingQemu, IncomingVmm as _, MemoryBlock, QemuSettings, SaveMethod,
};
use bindery_wire::control::BoundRange;

use super::catalogue::Visible;
use super::create::of_vmm;
use super::image::CheckpointImage;
use super::token::Token;
use super::{Keeper, Lease, failure};
use crate::access::Rights;
use crate::jobs::Progress;
use crate::protocol::checkpoint::Restored;
use crate::protocol::job::JobResult;
use crate::protocol::{Failure, FailureKind};

/// Time until a source that broke is offered again.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// Time until a VMM's blocks must be known where they lie.
const OFFERS_PATIENCE: Duration = Duration::from_secs(3);

/// Time within which a guest's restored memory comes under management.
const SETTLING: Duration = Duration::from_secs(2);

/// Interval at which a guest that is being restored is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// A guest that is to go on.
pub(crate) struct Restore {
    /// Guest whose VMM waits for device state.
    pub(crate) guest: Arc<Guest>,
    pub(crate) qemu: IncomingQemu,
    pub(crate) checkpoint: Visible,
    /// True if the guest is not to run yet.
    pub(crate) is_paused: bool,
}

/// Guests whose memory is sent to them.
#[derive(Debug, Default)]
pub(crate) struct Sources {
    serving: Mutex<BTreeMap<u32, SourceHandle>>,
    /// Time at which a source of a guest broke.
    broke: Mutex<BTreeMap<u32, Instant>>,
    /// Time at which a guest had all of its memory.
    whole: Mutex<BTreeMap<u32, Instant>>,
}

/// Memory of a checkpoint, with the pool that it is in.
struct Content {
    lease: Lease,
    id: CheckpointId,
    image: CheckpointImage,
    ahead: Vec<PageRange>,
}

/// Restores a checkpoint into a VMM that waits.
///
/// # Errors
/// `Refused` if the VMM is not as the saved one was, `Damaged` if the manifest cannot be read, `Failed`. The VMM is
/// of no further use then.
pub(crate) fn restore(
    lease: Lease,
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
    let link = restore.guest.bind(&ranges, &token).map_err(|error| failed(error.to_string()))?;
    let bound = begun.elapsed();
    sources.serve(&restore.guest, link, content)?;
    progress.check()?;
    progress.begin("loading device state", None);
    let loading = restore.qemu.load_device_state(&state).map_err(|error| of_vmm(&error))?;
    if !restore.is_paused {
        restore.qemu.resume().map_err(|error| of_vmm(&error))?;
    }
    let micros = |time: Duration| time.as_micros() as u64;
    Ok(JobResult::Restored(Restored {
        guest: restore.guest.identity().name.clone(),
        pid: restore.guest.identity().pid,
        checkpoint: restore.checkpoint.name(),
        pages,
        binding_us: micros(bound),
        loading_us: micros(loading),
        total_us: micros(begun.elapsed()),
    }))
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

fn failed(message: String) -> Failure {
    Failure::new(FailureKind::Failed, message)
}

impl Content {
    fn open(lease: Lease, id: CheckpointId) -> Result<Self, Failure> {
        let of = |error| failure::of_checkpoint(&error);
        let image = CheckpointImage::new(lease.reader(id).map_err(of)?);
        let image = image.ok_or_else(|| failed("the checkpoint has more than 4 TiB".into()))?;
        // Without it the guest waits more often, and that is all.
        let touched = lease.touched(id).inspect_err(|error| tracing::warn!("{error}"));
        let ahead = image.of_touched(&touched.unwrap_or_default());
        Ok(Self { lease, id, image, ahead })
    }

    /// Sends the pages over `link` until none is missing.
    fn serve(self, link: SourceLink, guest: &str) -> bool {
        let begun = Instant::now();
        let ahead = self.ahead.clone().into_iter();
        match link.serve(&self.image, ahead, ServeOptions::default()) {
            Ok(served) => {
                self.end(&served, guest, begun);
                true
            }
            Err(error) => {
                tracing::warn!(guest, "a restored guest misses pages, and waits for them: {error}");
                false
            }
        }
    }

    fn end(&self, served: &Served, guest: &str, begun: Instant) {
        let Served { content_pages, zero_pages, faults, damaged, .. } = served;
        let (ms, damaged) = (begun.elapsed().as_millis(), damaged.len());
        tracing::info!(
            guest,
            content_pages,
            zero_pages,
            faults,
            damaged,
            ms,
            "a restored guest has all of its memory"
        );
        let touched = self.image.to_touched(&served.touched);
        if touched.is_empty() {
            return;
        }
        if let Err(error) = self.lease.set_touched(self.id, &touched) {
            tracing::warn!(guest, "what the restore touched is not recorded: {error}");
        }
    }
}

impl Sources {
    /// Sends a guest its memory, on a thread of its own.
    fn serve(
        self: &Arc<Self>,
        guest: &Guest,
        link: SourceLink,
        content: Content,
    ) -> Result<(), Failure> {
        let (id, name) = (guest.identity().id, guest.identity().name.clone());
        lock(&self.serving).insert(id, link.handle());
        let sources = Arc::clone(self);
        let started = spawn_without_signals("source", move || {
            let is_done = content.serve(link, &name);
            lock(&sources.serving).remove(&id);
            let ends = if is_done { &sources.whole } else { &sources.broke };
            lock(ends).insert(id, Instant::now());
        });
        started.map(drop).map_err(|error| {
            lock(&self.serving).remove(&id);
            failed(format!("cannot start the thread that sends memory: {error}"))
        })
    }

    /// Goes on with a guest that has lost its source, from its checkpoint. Failures are logged, and it is tried again
    /// when the guest is looked at next.
    pub(crate) fn go_on(self: &Arc<Self>, keeper: &Keeper, guest: &Guest) {
        let Some(lost) = guest.lost_source() else { return };
        let id = guest.identity().id;
        let is_early = |at: &Instant| at.elapsed() < AGAIN_AFTER;
        if lock(&self.broke).get(&id).is_some_and(is_early) {
            return;
        }
        if let Err(failure) = self.find_again(keeper, guest, &lost) {
            lock(&self.broke).insert(id, Instant::now());
            let name = &guest.identity().name;
            tracing::error!(
                guest = name,
                missing_pages = lost.missing_pages,
                "a restored guest waits for memory that cannot be had: {failure}"
            );
        }
    }

    fn find_again(
        self: &Arc<Self>,
        keeper: &Keeper,
        guest: &Guest,
        lost: &LostSource,
    ) -> Result<(), Failure> {
        let token = Token::decode(&lost.token)?;
        let uid = guest.identity().uid;
        // What the guest says is believed as far as it could have asked for it.
        let lease = keeper.lease(Some(&token.pool), Rights::Owner)?;
        let found = token.find(&lease, uid)?;
        let content = Content::open(lease, found.summary.id)?;
        let link = guest.rebind(lost).map_err(|error| failed(error.to_string()))?;
        self.serve(guest, link, content)
    }

    /// Waits until a guest that was restored has all of its memory: pages that it lacks would be taken for zero.
    ///
    /// # Errors
    /// `Cancelled`; `Failed` if the guest ends.
    pub(crate) fn await_whole(&self, guest: &Guest, progress: &Progress) -> Result<(), Failure> {
        let id = guest.identity().id;
        let mut total = None;
        loop {
            let missing = lock(&self.serving).get(&id).map(SourceHandle::unsent_pages);
            if missing.is_none() && guest.lost_source().is_none() && self.has_settled(guest) {
                return Ok(());
            }
            if guest.has_ended() {
                return Err(failed("the guest has ended".into()));
            }
            progress.check()?;
            let missing = missing.unwrap_or(0);
            let total = *total.get_or_insert(missing);
            progress.set("waiting for restored memory", total.saturating_sub(missing), total);
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// Returns true unless a guest had all of its memory only now, and it is not managed again yet: unmanaged memory
    /// would be read whole in the pause.
    fn has_settled(&self, guest: &Guest) -> bool {
        let whole = lock(&self.whole).get(&guest.identity().id).copied();
        let managed: u64 = guest.regions().iter().map(|region| u64::from(region.pages.count)).sum();
        let offered: u64 =
            guest.offered().iter().map(|range| range.bytes / PAGE_BYTES as u64).sum();
        managed * 10 >= offered * 9 || whole.is_none_or(|whole| whole.elapsed() > SETTLING)
    }

    /// Hangs up on all guests, which look for another daemon.
    pub(crate) fn end_all(&self) {
        lock(&self.serving).values().for_each(SourceHandle::hang_up);
    }

    /// Forgets a guest that has left.
    pub(crate) fn leave(&self, guest: u32) {
        [&self.broke, &self.whole].iter().for_each(|times| _ = lock(times).remove(&guest));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // Each change is one insertion or removal: a panic elsewhere leaves the map whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Connects to the monitor of a QEMU that waits.
///
/// # Errors
/// `Refused` if it is another process's; `Failed`.
pub(crate) fn connect(monitor: &Path, pid: i32) -> Result<IncomingQemu, Failure> {
    let settings = QemuSettings { pid: Some(pid), ..QemuSettings::default() };
    IncomingQemu::connect(monitor, settings).map_err(|error| of_vmm(&error))
}
