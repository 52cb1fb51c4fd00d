//! A QEMU that waits for device state.

use std::os::fd::AsFd;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use bindery_sys::socket;
use serde_json::{Value, json};

use super::answer::{self, Field};
use super::ignore_shared::MigrationSettings;
use super::{Qemu, QemuSettings, ignore_shared, left, ram_block, run_state};
use crate::qmp::{Qmp, QmpError};
use crate::{DeviceState, IncomingVmm, MemoryBlock, SaveMethod, VmmError};

/// Name of the descriptor within QEMU.
const DESCRIPTOR: &str = "bindery-state";

/// QEMU's name of the state in which it waits.
const WAITING: &str = "inmigrate";

/// A QEMU that was started with `-incoming defer -S`.
#[derive(Debug)]
pub struct IncomingQemu {
    qmp: Qmp,
    settings: QemuSettings,
    machine: String,
    /// True if QEMU can be asked to stay when loading fails, and so to say why.
    can_stay: bool,
}

impl IncomingQemu {
    /// Connects to the socket `monitor`, and asks what this QEMU can do.
    ///
    /// # Errors
    /// [`VmmError::NotIncoming`] if it does not wait for device state.
    pub fn connect(monitor: &Path, settings: QemuSettings) -> Result<Self, VmmError> {
        let mut qmp = Qmp::connect(monitor, settings.answer_limit)?;
        is_waiting(&mut qmp)?;
        let machine = answer::machine(&mut qmp)?;
        let schema = qmp.execute("query-qmp-schema", json!({}))?;
        let can_stay = has_argument(&schema, "migrate-incoming", "exit-on-error")?;
        Ok(Self { qmp, settings, machine, can_stay })
    }

    /// Returns the type of machine whose device state can be loaded.
    #[must_use]
    pub fn machine(&self) -> &str {
        &self.machine
    }

    /// Returns the memory blocks, in QEMU's order.
    ///
    /// # Errors
    /// [`VmmError::Answer`] if QEMU does not list them.
    pub fn memory(&mut self) -> Result<Vec<MemoryBlock>, VmmError> {
        ram_block::all(&mut self.qmp)
    }

    /// Returns the monitor, for what this crate has no function for. Not for loading or starting.
    pub const fn qmp(&mut self) -> &mut Qmp {
        &mut self.qmp
    }

    /// Goes on with the guest as with any other that runs, once its device state was loaded.
    ///
    /// # Errors
    /// [`VmmError::Qmp`] if QEMU cannot be asked what it can do.
    pub fn into_qemu(self) -> Result<Qemu, VmmError> {
        Qemu::new(self.qmp, self.settings)
    }

    fn check(&self, state: &DeviceState) -> Result<(), VmmError> {
        if state.method == SaveMethod::Callback {
            return Err(VmmError::Method(state.method));
        }
        if state.machine != self.machine {
            let (saved, here) = (state.machine.clone(), self.machine.clone());
            return Err(VmmError::Machine { saved, here });
        }
        Ok(())
    }

    /// Hands the stream to QEMU, and waits until it has loaded it or has failed.
    ///
    /// The stream goes through a socket: QEMU 10 warns that files passed as descriptors are deprecated.
    fn load(&mut self, bytes: &[u8]) -> Result<(), VmmError> {
        let limit = self.settings.load_limit;
        let (ours, theirs) = socket::stream_pair().map_err(VmmError::io("making a socket pair"))?;
        let name = json!({ "fdname": DESCRIPTOR });
        self.qmp.execute_within("getfd", name, &[theirs.as_fd()], self.settings.answer_limit)?;
        drop(theirs);
        thread::scope(|scope| {
            scope.spawn(|| {
                let sent = socket::send_all(&ours, bytes, &[], limit);
                // QEMU waits for more than a stream that was cut off has, unless it sees the end.
                let ended = socket::shutdown(&ours);
                // What QEMU makes of the stream counts, and it need not read all of it.
                if let Err(error) = sent.and(ended) {
                    tracing::debug!("QEMU left device state unread: {error}");
                }
            });
            let loaded = self.await_load(limit);
            // Nobody reads on, so that the sender ends, too.
            if loaded.is_err() && socket::shutdown(&ours).is_err() {
                tracing::debug!("the device state's sender had ended");
            }
            loaded
        })
    }

    /// Tells QEMU to load from the descriptor that it was handed, and waits for the end.
    fn await_load(&mut self, limit: Duration) -> Result<(), VmmError> {
        let begun = Instant::now();
        let mut arguments = json!({ "uri": format!("fd:{DESCRIPTOR}") });
        if self.can_stay {
            arguments["exit-on-error"] = json!(false);
        }
        self.qmp.forget_events("MIGRATION");
        self.qmp.execute_within("migrate-incoming", arguments, &[], limit)?;
        let ended = self.qmp.wait_event(ignore_shared::is_end, left(begun, limit))?;
        let ended = ended.ok_or(VmmError::TimedOut { what: "loading device state", limit })?;
        if ignore_shared::status(&ended) == Some("completed") {
            return Ok(());
        }
        // Without `exit-on-error` it ends now.
        Err(VmmError::Load { words: ignore_shared::failure(&mut self.qmp)? })
    }
}

impl IncomingVmm for IncomingQemu {
    fn load_device_state(&mut self, state: &DeviceState) -> Result<Duration, VmmError> {
        self.check(state)?;
        is_waiting(&mut self.qmp)?;
        let begun = Instant::now();
        let settings = MigrationSettings::read(&mut self.qmp)?;
        // A stream that left shared memory out says so, and is refused without the same capability.
        let ignores_shared = state.method == SaveMethod::IgnoreShared;
        let capabilities = [("events", true), (ignore_shared::CAPABILITY, ignores_shared)];
        ignore_shared::set_capabilities(&mut self.qmp, &capabilities)?;
        self.load(&state.bytes).map_err(|error| match error {
            VmmError::Qmp(QmpError::Ended) => {
                let words = "QEMU has ended, and says why on its standard error".to_owned();
                VmmError::Load { words }
            }
            error => error,
        })?;
        // Left on, it would have a later migration leave memory out.
        settings.put_back(&mut self.qmp)?;
        if run_state::of(&mut self.qmp)? == run_state::RUNNING {
            return Err(VmmError::StartedItself);
        }
        Ok(begun.elapsed())
    }

    fn resume(&mut self) -> Result<SystemTime, VmmError> {
        run_state::start(&mut self.qmp, self.settings.answer_limit)
    }
}

fn is_waiting(qmp: &mut Qmp) -> Result<(), VmmError> {
    let state = run_state::of(qmp)?;
    if state == WAITING { Ok(()) } else { Err(VmmError::NotIncoming { state }) }
}

/// Returns true if `command` takes `argument`, by the answer to `query-qmp-schema`.
fn has_argument(schema: &Value, command: &str, argument: &str) -> Result<bool, VmmError> {
    let entries = schema.list("query-qmp-schema")?;
    let find = |name: &Value| entries.iter().find(|entry| entry["name"] == *name);
    let Some(command) = find(&json!(command)) else { return Ok(false) };
    let members = find(&command["arg-type"]).and_then(|kind| kind["members"].as_array());
    Ok(members.is_some_and(|members| members.iter().any(|member| member["name"] == argument)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_looked_up_in_the_schema() {
        let schema = json!([
            {"name": "migrate-incoming", "meta-type": "command", "arg-type": "151"},
            {"name": "151", "meta-type": "object", "members": [{"name": "uri", "type": "str"}]},
        ]);
        assert!(has_argument(&schema, "migrate-incoming", "uri").unwrap());
        assert!(!has_argument(&schema, "migrate-incoming", "exit-on-error").unwrap());
        assert!(!has_argument(&schema, "xen", "uri").unwrap());
        assert!(has_argument(&json!({}), "xen", "uri").is_err());
    }
}
