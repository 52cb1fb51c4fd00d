//! Peers that do not behave as QEMU does: each is an error in time, and none a hang or a wrong answer.
#![expect(clippy::unwrap_used, reason = "a test: what fails is to be seen where it fails")]

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use bindery_vmm::qmp::{Qmp, QmpError};
use bindery_vmm::{Paused, Qemu, QemuSettings};
use proptest::prelude::*;
use serde_json::{Value, json};
use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_millis(200);

/// The longest that any of these calls may take on a busy machine.
const SOON: Duration = Duration::from_secs(5);

const GREETING: &str =
    r#"{"QMP": {"version": {"qemu": {"micro": 2, "minor": 0, "major": 10}}, "capabilities": []}}"#;

/// The server's end of a connection.
struct Peer {
    reader: BufReader<UnixStream>,
}

impl Peer {
    /// Sends bytes. A client that has gone is no failure.
    fn send(&mut self, bytes: &[u8]) {
        let _ = self.reader.get_mut().write_all(bytes);
    }

    fn line(&mut self, line: &str) {
        self.send(format!("{line}\n").as_bytes());
    }

    /// Reads the next command; null once the client has gone.
    fn command(&mut self) -> Value {
        let mut line = String::new();
        match self.reader.read_line(&mut line) {
            Ok(count) if count > 0 => serde_json::from_str(&line).expect("clients send JSON"),
            _ => Value::Null,
        }
    }

    fn answer(&mut self, value: &Value) {
        let id = self.command()["id"].clone();
        self.line(&json!({ "return": value, "id": id }).to_string());
    }

    fn greet(&mut self) {
        self.line(GREETING);
        self.answer(&json!({}));
    }

    /// Waits until the client has gone.
    fn stay(&mut self) {
        while !self.command().is_null() {}
    }
}

/// Starts a peer, and connects to it.
fn meet(
    play: impl FnOnce(&mut Peer) + Send + 'static,
) -> (Result<Qmp, QmpError>, JoinHandle<()>, TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("qmp.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let peer = thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        play(&mut Peer { reader: BufReader::new(stream) });
    });
    (Qmp::connect(&path, PATIENCE), peer, directory)
}

/// Lets `play` answer one command after a proper greeting, and returns what the client makes of it.
fn ask(play: impl FnOnce(&mut Peer) + Send + 'static) -> Result<Value, QmpError> {
    let (qmp, peer, _directory) = meet(|peer| {
        peer.greet();
        play(peer);
    });
    let begun = Instant::now();
    let answer = qmp.unwrap().execute("query-status", json!({}));
    assert!(begun.elapsed() < SOON, "{answer:?} after {:?}", begun.elapsed());
    peer.join().unwrap();
    answer
}

fn event(name: &str) -> String {
    let timestamp = json!({ "seconds": 7, "microseconds": 8 });
    json!({ "event": name, "timestamp": timestamp, "data": { "n": 1 } }).to_string()
}

#[test]
fn answers_and_events_are_told_apart() {
    let (qmp, peer, _directory) = meet(|peer| {
        peer.greet();
        let id = peer.command()["id"].clone();
        peer.line(&event("STOP"));
        peer.line(&json!({ "return": 5, "id": id }).to_string());
        peer.line(&event("RESUME"));
        peer.stay();
    });
    let mut qmp = qmp.unwrap();
    assert_eq!(qmp.version(), "10.0.2");
    assert_eq!(qmp.peer_pid().unwrap(), std::process::id().cast_signed());
    assert_eq!(qmp.execute("query-status", json!({})).unwrap(), 5);
    assert!(qmp.has_event("STOP"));
    // Waiting for one loses no other.
    let resumed = qmp.wait_event(|event| event.name == "RESUME", SOON).unwrap().unwrap();
    let stop = qmp.wait_event(|event| event.name == "STOP", Duration::MAX).unwrap().unwrap();
    assert_eq!((stop.data, stop.at), (json!({ "n": 1 }), resumed.at));
    assert_eq!(qmp.wait_event(|_| true, Duration::from_millis(10)).unwrap(), None);
    drop(qmp);
    peer.join().unwrap();
}

#[test]
fn qemus_words_are_passed_on() {
    let error = ask(|peer| {
        let id = peer.command()["id"].clone();
        let words = json!({ "class": "GenericError", "desc": "no room on the device" });
        peer.line(&json!({ "error": words, "id": id }).to_string());
    });
    let error = error.unwrap_err().to_string();
    assert_eq!(error, "QEMU refused `query-status`: no room on the device");
}

#[test]
fn a_peer_that_never_greets_is_given_up() {
    for greeting in ["", r#"{"QMP": {"ver"#] {
        let (qmp, peer, _directory) = meet(move |peer| {
            peer.send(greeting.as_bytes());
            peer.stay();
        });
        assert!(matches!(qmp.unwrap_err(), QmpError::NoGreeting { .. }));
        peer.join().unwrap();
    }
}

#[test]
fn a_listener_that_takes_nobody_is_given_up() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("qmp.sock");
    let listener = bindery_sys::socket::listen(&path, 0).unwrap();
    let begun = Instant::now();
    // It takes the only place in the queue, and keeps it.
    let first = Qmp::connect(&path, PATIENCE).unwrap_err();
    assert!(matches!(first, QmpError::NoGreeting { .. }), "{first}");
    let second = Qmp::connect(&path, PATIENCE).unwrap_err();
    assert!(matches!(second, QmpError::Unreachable { .. }), "{second}");
    assert!(begun.elapsed() < SOON);
    drop(listener);
    assert!(matches!(Qmp::connect(&path, PATIENCE), Err(QmpError::Unreachable { .. })));
}

#[test]
fn a_peer_that_never_answers_is_given_up_and_its_late_answer_dropped() {
    let (qmp, peer, _directory) = meet(|peer| {
        peer.greet();
        let (late, asked) = (peer.command()["id"].clone(), peer.command()["id"].clone());
        peer.line(&json!({ "return": "late", "id": late }).to_string());
        peer.line(&json!({ "return": "in time", "id": asked }).to_string());
        peer.stay();
    });
    let mut qmp = qmp.unwrap();
    let error = qmp.execute("query-status", json!({})).unwrap_err();
    assert!(matches!(error, QmpError::Silent { limit: PATIENCE, .. }), "{error}");
    let limit = SOON;
    assert_eq!(qmp.execute_within("query-name", json!({}), &[], limit).unwrap(), "in time");
    drop(qmp);
    peer.join().unwrap();
}

#[test]
fn events_without_end_do_not_put_off_the_limit() {
    let error = ask(|peer| {
        let line = event("RTC_CHANGE");
        while writeln!(peer.reader.get_mut(), "{line}").is_ok() {}
    });
    assert!(matches!(error.unwrap_err(), QmpError::Silent { .. }));
}

#[test]
fn a_line_that_never_ends_is_refused() {
    let error = ask(|peer| {
        let chunk = [b'x'; 1 << 16];
        while peer.reader.get_mut().write_all(&chunk).is_ok() {}
    });
    let error = error.unwrap_err();
    // A busy machine may take longer than the limit to send as much as is too much.
    assert!(matches!(error, QmpError::Malformed { .. } | QmpError::Silent { .. }), "{error}");
}

#[test]
fn half_a_line_and_an_end_is_an_end() {
    let error = ask(|peer| {
        peer.command();
        peer.send(br#"{"return": {}, "id""#);
    });
    assert!(matches!(error.unwrap_err(), QmpError::Ended));
}

#[test]
fn a_connection_that_was_broken_stays_so() {
    let (qmp, peer, _directory) = meet(|peer| {
        peer.greet();
        peer.command();
        peer.line("nonsense");
        peer.line(r#"{"return": 1, "id": 3}"#);
        peer.stay();
    });
    let mut qmp = qmp.unwrap();
    assert!(matches!(qmp.execute("stop", json!({})).unwrap_err(), QmpError::Malformed { .. }));
    assert!(matches!(qmp.execute("cont", json!({})).unwrap_err(), QmpError::Ended));
    assert!(matches!(qmp.wait_event(|_| true, SOON), Err(QmpError::Ended)));
    drop(qmp);
    peer.join().unwrap();
}

#[test]
fn answers_to_what_was_not_asked_are_refused() {
    for line in [r#"{"return": {}, "id": 99}"#, r#"{"error": {"desc": "x"}}"#, GREETING, "[]"] {
        let error = ask(move |peer| {
            peer.command();
            peer.line(line);
        });
        assert!(matches!(error.unwrap_err(), QmpError::Malformed { .. }), "{line}");
    }
}

/// Answers as a QEMU does whose guest runs until it is asked to stop and stands by then. Returns the commands.
fn play_qemu_that_others_stop(peer: &mut Peer) -> Vec<String> {
    let mut commands = Vec::new();
    loop {
        let command = peer.command();
        let Some(name) = command["execute"].as_str() else { return commands };
        let answer = match name {
            "qom-get" => json!("pc-i440fx-10.0-machine"),
            "query-commands" => json!([{ "name": "xen-save-devices-state" }]),
            "query-migrate-capabilities" => json!([]),
            "query-status" => json!({ "status": "running" }),
            _ => json!({}),
        };
        commands.push(name.to_owned());
        peer.line(&json!({ "return": answer, "id": command["id"] }).to_string());
    }
}

#[test]
fn a_guest_that_others_stopped_first_is_not_resumed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("qmp.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let peer = thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let mut peer = Peer { reader: BufReader::new(stream) };
        peer.line(GREETING);
        play_qemu_that_others_stop(&mut peer)
    });
    let begun = Instant::now();
    let mut qemu = Qemu::connect(&path, QemuSettings::default()).unwrap();
    drop(Paused::begin(&mut qemu, &[]).unwrap());
    assert!(begun.elapsed() < SOON);
    drop(qemu);
    let commands = peer.join().unwrap();
    assert!(commands.contains(&"stop".to_owned()), "{commands:?}");
    assert!(!commands.contains(&"cont".to_owned()), "{commands:?}");
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: ProptestConfig::default().cases / 8, failure_persistence: None, ..ProptestConfig::default()
    })]

    /// Whatever comes between an answer's pieces, and wherever it is cut, it is found; and garbage before it
    /// is an error.
    #[test]
    fn an_answer_is_found_between_events_or_refused_after_garbage(
        events in 0_usize..4,
        garbage in prop::option::of(prop::collection::vec(any::<u8>().prop_filter("no end", |b| *b != b'\n'), 1..40)),
        cut in 0_usize..400,
    ) {
        let is_garbage = garbage.is_some();
        let answer = ask(move |peer| {
            let id = peer.command()["id"].clone();
            let mut bytes = Vec::new();
            (0..events).for_each(|_| bytes.extend(format!("{}\n", event("STOP")).into_bytes()));
            if let Some(garbage) = garbage {
                bytes.extend(garbage);
                bytes.push(b'\n');
            }
            bytes.extend(format!("{}\n", json!({ "return": 9, "id": id })).into_bytes());
            let (first, second) = bytes.split_at(cut.min(bytes.len()));
            peer.send(first);
            thread::yield_now();
            peer.send(second);
        });
        match answer {
            Ok(value) => prop_assert!(!is_garbage && value == json!(9)),
            Err(error) => prop_assert!(is_garbage, "{}", error),
        }
    }
}
