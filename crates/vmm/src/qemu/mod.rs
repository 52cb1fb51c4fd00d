//! Unmodified QEMU, 7.2 to 10, over QMP.
//!
//! Abilities of a QEMU are asked for and never concluded from its version. Device state is saved by the first
//! of these ways that it has and the guest allows:
//!
//! 1. `xen-save-devices-state`: needs no Xen, leaves all memory alone. It checks no migration blockers (and
//!    ends QEMU with some devices), so they are checked here, before the guest is stopped.
//! 2. `migrate` with `x-ignore-shared`: where all of guest memory is in `memory-backend-file,share=on`.

mod answer;
pub mod arguments;
mod commit;
mod disks;
mod ignore_shared;
mod incoming;
mod layers;
mod obstacles;
mod overlay;
mod plugged;
mod ram_block;
mod run_state;
mod settings;
mod state_file;
mod xen_save;

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use serde_json::json;

use crate::qmp::Qmp;
use crate::{
    DeviceState, GuestAfter, GuestDescription, Obstacle, Overlay, Pause, Purpose, SaveMethod, Vmm,
    VmmError, hidden_writers, stream,
};
use answer::Field;
use state_file::StateFile;

pub use incoming::IncomingQemu;
pub use layers::DiskChain;
pub use settings::QemuSettings;

/// A QEMU whose guest has been started.
#[derive(Debug)]
pub struct Qemu {
    qmp: Qmp,
    settings: QemuSettings,
    machine: String,
    pid: i32,
    commands: HashSet<String>,
    capabilities: HashSet<String>,
    /// Way in which the guest that is paused now can be saved.
    method: Option<SaveMethod>,
    /// Overlays that were made and are not in use.
    prepared: HashSet<PathBuf>,
}

impl Qemu {
    /// Connects to the monitor at `socket`, which is to be one that nobody else uses, and asks what this QEMU
    /// can do.
    ///
    /// # Errors
    /// [`VmmError::Qmp`] if that fails.
    pub fn connect(socket: &Path, settings: QemuSettings) -> Result<Self, VmmError> {
        Self::new(Qmp::connect(socket, settings.answer_limit)?, settings)
    }

    fn new(mut qmp: Qmp, settings: QemuSettings) -> Result<Self, VmmError> {
        let pid = match settings.pid {
            Some(pid) => pid,
            None => qmp.peer_pid()?,
        };
        let machine = answer::machine(&mut qmp)?;
        let commands = answer::names(&mut qmp, "query-commands", "name")?;
        let capabilities = answer::names(&mut qmp, "query-migrate-capabilities", "capability")?;
        Ok(Self {
            qmp,
            settings,
            machine,
            pid,
            commands,
            capabilities,
            method: None,
            prepared: HashSet::new(),
        })
    }

    /// Returns the monitor, for what this crate has no function for. Not for pausing, resuming or migrating.
    pub const fn qmp(&mut self) -> &mut Qmp {
        &mut self.qmp
    }

    /// Returns the process that was looked at for writers that leave no mark.
    #[must_use]
    pub const fn pid(&self) -> i32 {
        self.pid
    }

    /// Undoes an overlay while the guest runs: what was written to it goes into the image below, which the
    /// guest uses again, and the overlay is removed. Nobody may need that image as it was. Blocks for `limit` at
    /// most.
    ///
    /// # Errors
    /// [`VmmError`] with QEMU's words. The overlay stays in use.
    pub fn commit_overlay(&mut self, overlay: &Overlay, limit: Duration) -> Result<(), VmmError> {
        commit::commit(&mut self.qmp, overlay, limit)
    }

    /// Returns the images below each disk, those that the guest cannot write included.
    ///
    /// # Errors
    /// [`VmmError`] if QEMU does not say.
    pub fn disk_chains(&mut self) -> Result<Vec<DiskChain>, VmmError> {
        layers::chains(&mut self.qmp)
    }

    /// Waits for a merge that an earlier connection began. Returns true if there was one. Once `is_cancelled`, it is
    /// asked to end.
    ///
    /// # Errors
    /// [`VmmError`] if the connection fails.
    pub fn settle_merge(&mut self, is_cancelled: &dyn Fn() -> bool) -> Result<bool, VmmError> {
        layers::settle(&mut self.qmp, is_cancelled)
    }

    /// Merges into the image `base` of a chain what those above it to `top` have, while the guest runs; no disk uses them
    /// afterwards. Their files stay. The view at `top`, and all above, are as before, at any time: if this ends early,
    /// it can be done again. `top` is not the topmost. Blocks until it is done.
    ///
    /// # Errors
    /// [`VmmError`] with QEMU's words, also once `is_cancelled`.
    pub fn merge_layers(
        &mut self,
        disk: &DiskChain,
        (base, top): (&str, &str),
        is_cancelled: &dyn Fn() -> bool,
    ) -> Result<(), VmmError> {
        layers::merge(&mut self.qmp, disk, (base, top), is_cancelled)
    }

    /// Finds what forbids saving, and with nothing of that, how to save.
    fn find_obstacles(&mut self) -> Result<(Vec<Obstacle>, Option<SaveMethod>), VmmError> {
        let state = run_state::of(&mut self.qmp)?;
        let mut found = Vec::from_iter(obstacles::of_state(&state));
        found.append(&mut hidden_writers(self.pid)?);
        let method = self.choose_method()?;
        match method {
            None => found.push(obstacles::no_method(&self.settings.methods)),
            Some(method) => found.extend(obstacles::of_paused(&state, method)),
        }
        // Last, since it is what `xen-save-devices-state` does not look at itself.
        found.append(&mut obstacles::of_migration(&mut self.qmp)?);
        Ok((found, method))
    }

    fn choose_method(&mut self) -> Result<Option<SaveMethod>, VmmError> {
        for method in self.settings.methods.clone() {
            let works = match method {
                SaveMethod::XenSaveDevicesState => self.commands.contains(xen_save::COMMAND),
                SaveMethod::IgnoreShared => {
                    self.capabilities.contains(ignore_shared::CAPABILITY)
                        && ignore_shared::is_memory_in_files(&mut self.qmp)?
                }
                SaveMethod::Callback => false,
            };
            if works {
                return Ok(Some(method));
            }
        }
        Ok(None)
    }

    /// Stops the virtual CPUs, unless somebody else did so first.
    fn stop(&mut self) -> Result<Pause, VmmError> {
        self.qmp.execute_within("stop", json!({}), &[], self.settings.save_limit)?;
        // QEMU sends the event before it answers, and none if it had nothing to do.
        let stopped = self.qmp.take_event(|event| event.name == run_state::STOPPED);
        Ok(stopped.map_or(Pause::WasPaused, |event| Pause::Stopped { at: event.at }))
    }
}

impl Vmm for Qemu {
    fn describe(&mut self) -> Result<GuestDescription, VmmError> {
        let name = self.qmp.execute("query-name", json!({}))?;
        let vcpus = self.qmp.execute("query-cpus-fast", json!({}))?;
        let is_running = run_state::of(&mut self.qmp)? == run_state::RUNNING;
        let (mut obstacles, _) = self.find_obstacles()?;
        let mut plugged = plugged::find(&mut self.qmp)?;
        obstacles.append(&mut plugged.obstacles);
        Ok(GuestDescription {
            name: name.get("name").and_then(|name| name.as_str()).map(str::to_owned),
            machine: self.machine.clone(),
            version: self.qmp.version().to_owned(),
            vcpus: vcpus.list("query-cpus-fast")?.len(),
            is_running,
            memory: ram_block::all(&mut self.qmp)?,
            disks: disks::writable(&mut self.qmp)?,
            plugged_arguments: plugged.words,
            obstacles,
        })
    }

    fn pause(&mut self) -> Result<Pause, VmmError> {
        let (obstacles, method) = self.find_obstacles()?;
        if !obstacles.is_empty() {
            return Err(VmmError::Obstructed(obstacles));
        }
        self.method = method;
        let is_running = run_state::of(&mut self.qmp)? == run_state::RUNNING;
        self.qmp.forget_events(run_state::STOPPED);
        self.qmp.forget_events(run_state::RESUMED);
        if !is_running {
            return Ok(Pause::WasPaused);
        }
        let error = match self.stop() {
            Ok(pause) => return Ok(pause),
            Err(error) => Box::new(error),
        };
        let guest = GuestAfter::of_resuming(self.resume());
        Err(VmmError::Interrupted { error, guest, overlays: Vec::new() })
    }

    fn prepare_overlays(&mut self, overlays: &[Overlay]) -> Result<(), VmmError> {
        if !self.commands.contains(overlay::COMMAND) {
            // They are made in the pause then.
            return Ok(());
        }
        overlay::prepare(&mut self.qmp, overlays, self.settings.save_limit)?;
        self.prepared.extend(overlays.iter().map(|overlay| overlay.path.clone()));
        Ok(())
    }

    fn discard_overlays(&mut self, overlays: &[Overlay]) {
        for overlay in overlays {
            if self.prepared.remove(&overlay.path) {
                overlay::remove(&overlay.path);
            }
        }
    }

    fn snapshot_disks(&mut self, overlays: &[Overlay]) -> Result<(), VmmError> {
        let limit = self.settings.save_limit;
        let taken = overlay::snapshot(&mut self.qmp, overlays, &self.prepared, limit);
        if matches!(&taken, Ok(()) | Err(VmmError::OverlaysInDoubt(_))) {
            overlays.iter().for_each(|overlay| _ = self.prepared.remove(&overlay.path));
        }
        taken
    }

    fn save_device_state(&mut self, purpose: Purpose) -> Result<DeviceState, VmmError> {
        let method = self.method.ok_or(VmmError::NotPaused)?;
        let limit = self.settings.save_limit;
        let file = StateFile::new(self.settings.state_directory.as_deref())?;
        match method {
            SaveMethod::IgnoreShared => ignore_shared::save(&mut self.qmp, &file, limit)?,
            _ => xen_save::save(&mut self.qmp, &file, purpose, limit)?,
        }
        let raw = file.take(self.settings.state_bytes_max)?;
        let bytes = match method {
            SaveMethod::IgnoreShared => raw,
            _ => stream::complete(&raw, &self.machine)?,
        };
        let version = self.qmp.version().to_owned();
        Ok(DeviceState { machine: self.machine.clone(), version, method, bytes })
    }

    fn check_paused(&mut self) -> Result<(), VmmError> {
        let is_running = run_state::of(&mut self.qmp)? == run_state::RUNNING;
        if is_running || self.qmp.has_event(run_state::RESUMED) {
            Err(VmmError::Disturbed)
        } else {
            Ok(())
        }
    }

    fn resume(&mut self) -> Result<SystemTime, VmmError> {
        self.method = None;
        run_state::start(&mut self.qmp, self.settings.answer_limit)
    }
}

/// Time left of `limit` since `start`.
fn left(start: Instant, limit: Duration) -> Duration {
    limit.saturating_sub(start.elapsed())
}
