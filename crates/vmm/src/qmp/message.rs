//! Reads one line of QMP as what a server may say. Pure.

use std::time::{Duration, SystemTime};

use serde_json::Value;

/// An event of QEMU.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// QEMU's name of it, such as `STOP`.
    pub name: String,
    /// Data that came with it; null if none.
    pub data: Value,
    /// Time by the VMM's wall clock.
    pub at: SystemTime,
}

/// A line of a server.
#[derive(Debug, PartialEq)]
pub(crate) enum Message {
    /// The first line of a connection, with QEMU's version.
    Greeting(String),
    /// A command was done.
    Return { id: u64, value: Value },
    /// A command was refused.
    Error { id: Option<u64>, description: String },
    /// Something happened.
    Event(Event),
}

/// The longest part of a line that an error shows, in characters.
const SHOWN_MAX: usize = 200;

/// The longest line of an event, in bytes, since many are kept. QEMU's have less than 1 KiB.
const EVENT_BYTES_MAX: usize = 64 << 10;

/// Reads a line.
///
/// # Errors
/// Says what is wrong with it, in words and with its beginning.
pub(crate) fn parse(line: &[u8]) -> Result<Message, String> {
    let shown = || String::from_utf8_lossy(line).chars().take(SHOWN_MAX).collect::<String>();
    let mut value: Value =
        serde_json::from_slice(line).map_err(|error| format!("{error} in {:?}", shown()))?;
    match read(&mut value) {
        Some(Message::Event(_)) if line.len() > EVENT_BYTES_MAX => {
            Err(format!("an event of {} bytes: {:?}", line.len(), shown()))
        }
        Some(message) => Ok(message),
        None => Err(format!("no message of QMP: {:?}", shown())),
    }
}

fn read(value: &mut Value) -> Option<Message> {
    let object = value.as_object_mut()?;
    let id = object.get("id").and_then(Value::as_u64);
    if let Some(value) = object.get_mut("return") {
        return Some(Message::Return { id: id?, value: value.take() });
    }
    if let Some(error) = object.get("error") {
        let description = error.get("desc")?.as_str()?.to_owned();
        return Some(Message::Error { id, description });
    }
    if let Some(greeting) = object.get("QMP") {
        return Some(Message::Greeting(version(greeting.get("version")?)?));
    }
    let name = object.get("event")?.as_str()?.to_owned();
    let at = timestamp(object.get("timestamp")?)?;
    let data = object.get_mut("data").map_or(Value::Null, Value::take);
    Some(Message::Event(Event { name, data, at }))
}

/// Returns the version as `major.minor.micro`.
fn version(value: &Value) -> Option<String> {
    let part = |name: &str| value.get("qemu")?.get(name)?.as_u64();
    Some(format!("{}.{}.{}", part("major")?, part("minor")?, part("micro")?))
}

fn timestamp(value: &Value) -> Option<SystemTime> {
    let seconds = value.get("seconds")?.as_u64()?;
    // QEMU sends -1 for both if the host's clock cannot be read.
    let microseconds = value.get("microseconds")?.as_u64().filter(|part| *part < 1_000_000)?;
    let since = Duration::from_secs(seconds).checked_add(Duration::from_micros(microseconds))?;
    SystemTime::UNIX_EPOCH.checked_add(since)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn what_qemu_says_is_read() {
        let greeting = br#"{"QMP": {"version": {"qemu": {"micro": 22, "minor": 2, "major": 7},
            "package": "Debian"}, "capabilities": ["oob"]}}"#;
        assert_eq!(parse(greeting), Ok(Message::Greeting("7.2.22".to_owned())));
        let answer = br#"{"return": {"running": true}, "id": 3}"#;
        assert_eq!(parse(answer), Ok(Message::Return { id: 3, value: json!({"running": true}) }));
        let error = br#"{"id": 4, "error": {"class": "GenericError", "desc": "no such file"}}"#;
        let description = "no such file".to_owned();
        assert_eq!(parse(error), Ok(Message::Error { id: Some(4), description }));
        let event = br#"{"timestamp": {"seconds": 5, "microseconds": 6}, "event": "STOP"}"#;
        let at = SystemTime::UNIX_EPOCH + Duration::from_micros(5_000_006);
        let stop = Event { name: "STOP".to_owned(), data: Value::Null, at };
        assert_eq!(parse(event), Ok(Message::Event(stop)));
    }

    #[test]
    fn what_is_no_message_is_refused() {
        for line in [
            "",
            "{",
            "[]",
            "7",
            "{}",
            r#"{"return": {}}"#,
            r#"{"return": {}, "id": "x"}"#,
            r#"{"error": "x", "id": 1}"#,
            r#"{"QMP": {}}"#,
            r#"{"event": "STOP"}"#,
            r#"{"event": "STOP", "timestamp": {"seconds": -1, "microseconds": -1}}"#,
            r#"{"event": "STOP", "timestamp": {"seconds": 18446744073709551615, "microseconds": 0}}"#,
        ] {
            assert!(parse(line.as_bytes()).is_err(), "{line}");
        }
        let event =
            r#"{"event": "STOP", "timestamp": {"seconds": 1, "microseconds": 1}, "data": "x"}"#;
        assert!(parse(event.as_bytes()).is_ok());
        assert!(parse(event.replace('x', &"x".repeat(EVENT_BYTES_MAX)).as_bytes()).is_err());
        // Deeper than any answer, and than a stack should have to follow.
        assert!(parse("[".repeat(100_000).as_bytes()).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(line in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&line);
        }

        #[test]
        fn damaged_messages_are_read_without_a_panic(at in 0_usize..80, byte: u8) {
            let mut line = br#"{"timestamp": {"seconds": 5, "microseconds": 6}, "event": "STOP", "id": 1, "return": 3}"#.to_vec();
            line[at] = byte;
            let _ = parse(&line);
        }
    }
}
