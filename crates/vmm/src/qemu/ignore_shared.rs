//! Saves device state by `migrate` with the capability `x-ignore-shared`, where all of the guest's memory is
//! in files that are mapped shared.
//!
//! QEMU 7.2 leaves out any shared memory, QEMU 10 only files that have names. The stricter rule is asked for
//! here, so that memory never travels in the stream.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::answer::{self, Field};
use super::left;
use super::state_file::{StateFile, TemporaryPath};
use crate::VmmError;
use crate::qmp::{Event, Qmp};

/// QEMU's name of the capability.
pub(super) const CAPABILITY: &str = "x-ignore-shared";

/// Bandwidth for the stream, in bytes a second: no limit.
const BANDWIDTH: u64 = 1 << 40;

/// Name of the descriptor within QEMU.
const DESCRIPTOR: &str = "bindery-state";

/// Returns true if every memory backend is a file that is mapped shared.
pub(super) fn is_memory_in_files(qmp: &mut Qmp) -> Result<bool, VmmError> {
    const COMMAND: &str = "query-memdev";
    let answer = qmp.execute(COMMAND, json!({}))?;
    let backends = answer.list(COMMAND)?;
    for backend in backends {
        let is_shared = backend.get("share").and_then(Value::as_bool) == Some(true);
        // One without a name is no object that a user made.
        let Some(id) = backend.get("id").and_then(Value::as_str) else { return Ok(false) };
        let path = format!("/objects/{id}");
        if !is_shared || answer::property(qmp, &path, "type")? != "memory-backend-file" {
            return Ok(false);
        }
    }
    Ok(!backends.is_empty())
}

/// Saves the devices' state to `file`. Settings of migration that are changed for it are put back.
pub(super) fn save(qmp: &mut Qmp, file: &StateFile, limit: Duration) -> Result<(), VmmError> {
    let before = MigrationSettings::read(qmp)?;
    let saved = before.change(qmp).and_then(|()| migrate(qmp, file, limit));
    let restored = before.put_back(qmp);
    if let (Err(_), Err(error)) = (&saved, &restored) {
        tracing::error!(
            "QEMU may leave shared memory out of its next migration: `{CAPABILITY}` stays on: {error}"
        );
    }
    saved.and(restored)
}

fn migrate(qmp: &mut Qmp, file: &StateFile, limit: Duration) -> Result<(), VmmError> {
    let begun = Instant::now();
    qmp.forget_events("MIGRATION");
    let uri = match file {
        StateFile::Path(path) => format!("exec:{}", write_command(path)),
        StateFile::Memory(memory) => {
            let writer = StateFile::writer(memory)?;
            let arguments = json!({ "fdname": DESCRIPTOR });
            qmp.execute_within("getfd", arguments, &[writer.as_fd()], limit)?;
            format!("fd:{DESCRIPTOR}")
        }
    };
    qmp.execute("migrate", json!({ "uri": uri }))?;
    let ended = |event: &Event| is_end(event);
    if let Some(event) = qmp.wait_event(ended, left(begun, limit))? {
        outcome(qmp, &event)?;
        return match file {
            StateFile::Path(path) => path.wait_written(left(begun, limit)),
            StateFile::Memory(_) => Ok(()),
        };
    }
    qmp.execute("migrate_cancel", json!({}))?;
    qmp.wait_event(ended, limit)?;
    Err(VmmError::TimedOut { what: "saving device state", limit })
}

/// Returns a command that writes its input to the file, and names the file only once it is whole: QEMU calls a
/// migration completed while the command has yet to write the last of it.
fn write_command(path: &TemporaryPath) -> String {
    let [whole, unfinished, failed] =
        [&path.0, &path.unfinished(), &path.failed()].map(|path| quoted(&path.to_string_lossy()));
    format!("cat > {unfinished} && mv {unfinished} {whole} || mv {unfinished} {failed}")
}

/// Quotes a word for the shell.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

fn outcome(qmp: &mut Qmp, event: &Event) -> Result<(), VmmError> {
    if status(event) == Some("completed") {
        return Ok(());
    }
    Err(VmmError::Save { words: failure(qmp)? })
}

/// Returns QEMU's words on the migration that failed.
pub(super) fn failure(qmp: &mut Qmp) -> Result<String, VmmError> {
    let answer = qmp.execute("query-migrate", json!({}))?;
    let words = answer.get("error-desc").and_then(Value::as_str);
    Ok(words.unwrap_or("it says no more than that it failed; see its standard error").to_owned())
}

/// Returns the state of a migration that an event names, if it does.
pub(super) fn status(event: &Event) -> Option<&str> {
    (event.name == "MIGRATION").then(|| event.data.get("status")?.as_str())?
}

/// Returns true for the event that a migration is over.
pub(super) fn is_end(event: &Event) -> bool {
    matches!(status(event), Some("completed" | "failed" | "cancelled"))
}

/// Turns capabilities of migration on or off.
pub(super) fn set_capabilities(qmp: &mut Qmp, states: &[(&str, bool)]) -> Result<(), VmmError> {
    let state = |(name, state): &(&str, bool)| json!({ "capability": name, "state": state });
    let list: Vec<_> = states.iter().map(state).collect();
    let arguments = json!({ "capabilities": list });
    Ok(qmp.execute("migrate-set-capabilities", arguments).map(drop)?)
}

/// Settings of migration that a user may have made.
pub(super) struct MigrationSettings {
    reports_events: bool,
    ignores_shared: bool,
    bandwidth: u64,
}

impl MigrationSettings {
    pub(super) fn read(qmp: &mut Qmp) -> Result<Self, VmmError> {
        let answer = qmp.execute("query-migrate-capabilities", json!({}))?;
        let list = answer.list("query-migrate-capabilities")?;
        let is_on = |name: &str| {
            list.iter().any(|entry| entry["capability"] == name && entry["state"] == true)
        };
        let parameters = qmp.execute("query-migrate-parameters", json!({}))?;
        let bandwidth = parameters.get("max-bandwidth").and_then(Value::as_u64);
        Ok(Self {
            reports_events: is_on("events"),
            ignores_shared: is_on(CAPABILITY),
            bandwidth: bandwidth.ok_or(VmmError::Answer {
                command: "query-migrate-parameters",
                missing: "max-bandwidth",
            })?,
        })
    }

    fn change(&self, qmp: &mut Qmp) -> Result<(), VmmError> {
        set_capabilities(qmp, &[("events", true), (CAPABILITY, true)])?;
        set_bandwidth(qmp, BANDWIDTH)
    }

    /// Makes them what they were.
    pub(super) fn put_back(&self, qmp: &mut Qmp) -> Result<(), VmmError> {
        let capabilities = [("events", self.reports_events), (CAPABILITY, self.ignores_shared)];
        let has_capabilities = set_capabilities(qmp, &capabilities);
        set_bandwidth(qmp, self.bandwidth).and(has_capabilities)
    }
}

fn set_bandwidth(qmp: &mut Qmp, bytes_per_second: u64) -> Result<(), VmmError> {
    let arguments = json!({ "max-bandwidth": bytes_per_second });
    Ok(qmp.execute("migrate-set-parameters", arguments).map(drop)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::process::{Command, Stdio};

    fn run(path: &TemporaryPath) {
        let mut shell = Command::new("sh");
        let shell = shell.args(["-c", &write_command(path)]);
        let mut child = shell.stdin(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(b"state").unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_file_is_named_once_it_is_whole() {
        let directory = tempfile::tempdir().unwrap();
        let path = TemporaryPath(directory.path().join("it's a state"));
        run(&path);
        path.wait_written(Duration::ZERO).unwrap();
        assert_eq!(std::fs::read(&path.0).unwrap(), b"state");
        drop(path);
        let full = TemporaryPath(directory.path().join("full"));
        std::os::unix::fs::symlink("/dev/full", full.unfinished()).unwrap();
        run(&full);
        let error = full.wait_written(Duration::from_secs(60)).unwrap_err();
        assert!(matches!(error, VmmError::Save { .. }), "{error}");
        drop(full);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }
}
