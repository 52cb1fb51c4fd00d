//! QEMU's monitor: pauses by its own clock, and commands that it may refuse for a moment.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use bindery_testkit::guest::{Qmp, QmpError};
use serde_json::{Value, json};

/// Interval at which the state of a migration is asked for.
const POLL: Duration = Duration::from_millis(1);

/// The longest that QEMU may take to save or to load a guest.
const PATIENCE: Duration = Duration::from_secs(120);

/// Pauses of a guest.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pauses {
    /// The longest of them.
    pub(super) longest: Duration,
    /// Sum of all.
    pub(super) sum: Duration,
    /// Number of them.
    pub(super) count: u32,
}

/// Takes the pauses since the events were last taken.
///
/// # Errors
/// If there was none, or the last one has not ended.
pub(super) fn take_pauses(qmp: &mut Qmp) -> Result<Pauses> {
    pauses_in(&qmp.take_events()?)
}

fn pauses_in(events: &[Value]) -> Result<Pauses> {
    let mut pauses = Pauses { longest: Duration::ZERO, sum: Duration::ZERO, count: 0 };
    let mut stopped = None;
    for event in events {
        match event["event"].as_str() {
            Some("STOP") => stopped = Some(time_of(event)?),
            Some("RESUME") => {
                let Some(stopped) = stopped.take() else { continue };
                let pause = time_of(event)?.saturating_sub(stopped);
                pauses.longest = pauses.longest.max(pause);
                pauses.sum += pause;
                pauses.count += 1;
            }
            _ => {}
        }
    }
    ensure!(stopped.is_none(), "the guest stands still: {events:?}");
    ensure!(pauses.count > 0, "the guest was not paused: {events:?}");
    Ok(pauses)
}

/// Time of an event, since 1970.
fn time_of(event: &Value) -> Result<Duration> {
    let part = |name: &str| event["timestamp"][name].as_u64();
    let time = part("seconds").zip(part("microseconds"));
    let (seconds, micros) = time.with_context(|| format!("an event without a time: {event}"))?;
    Ok(Duration::from_secs(seconds) + Duration::from_micros(micros))
}

/// Sets the capabilities of migrations, and no others than these.
pub(super) fn set_capabilities(qmp: &mut Qmp, wanted: &[&str]) -> Result<()> {
    let all = ["events", "mapped-ram", "multifd", "background-snapshot"];
    let each = all.map(|name| json!({ "capability": name, "state": wanted.contains(&name) }));
    qmp.execute("migrate-set-capabilities", &json!({ "capabilities": each }))?;
    let is_direct = wanted.contains(&"mapped-ram") && wanted.contains(&"multifd");
    let parameters =
        json!({ "multifd-channels": 2, "direct-io": is_direct, "max-bandwidth": 10_u64 << 30 });
    qmp.execute("migrate-set-parameters", &parameters)?;
    Ok(())
}

/// Runs a command again until QEMU no longer refuses it: after a migration it does for a moment.
pub(super) fn insist(qmp: &mut Qmp, command: &str, arguments: &Value) -> Result<()> {
    let start = Instant::now();
    loop {
        match qmp.execute(command, arguments) {
            Err(QmpError::Refused { .. }) if start.elapsed() < Duration::from_secs(10) => {
                thread::sleep(POLL);
            }
            answer => return Ok(answer.map(drop)?),
        }
    }
}

/// Waits until a migration has ended well.
pub(super) fn await_migration(qmp: &mut Qmp) -> Result<()> {
    let start = Instant::now();
    while start.elapsed() < PATIENCE {
        let answer = qmp.execute("query-migrate", &json!({}))?;
        match answer["status"].as_str() {
            Some("completed") => return Ok(()),
            Some("failed" | "cancelled") => bail!("QEMU failed: {}", answer["error-desc"]),
            _ => thread::sleep(POLL),
        }
    }
    bail!("QEMU has saved or loaded nothing within {PATIENCE:?}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(name: &str, micros: u64) -> Value {
        json!({ "event": name, "timestamp": { "seconds": 5, "microseconds": micros } })
    }

    #[test]
    fn pauses_are_between_stop_and_resume() {
        let events = [
            event("RESUME", 1),
            event("STOP", 10),
            event("MIGRATION", 11),
            event("RESUME", 15),
            event("STOP", 100),
            event("RESUME", 107),
        ];
        let pauses = pauses_in(&events).unwrap();
        assert_eq!((pauses.longest.as_micros(), pauses.sum.as_micros(), pauses.count), (7, 12, 2));
        assert!(pauses_in(&events[..5]).is_err(), "the last pause goes on");
        assert!(pauses_in(&events[..1]).is_err(), "there was no pause");
    }
}
