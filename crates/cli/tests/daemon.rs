//! Daemons and operators: who is served, who is refused, how things end.
#![expect(clippy::unwrap_used, reason = "a test: what fails is to be seen where it fails")]

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::Instant;

use common::{
    PATIENCE, TestDaemon, as_nobody, bindery, can_change_user, daemon_command, program_for_all, run,
};
use serde_json::Value;

#[test]
fn without_a_daemon_the_exit_code_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("none.sock");
    let commands: [&[&str]; 6] =
        [&["ps"], &["status"], &["top"], &["set", "workers=1"], &["unmerge", "a"], &["stop"]];
    for arguments in commands {
        let mut command = bindery(arguments);
        command.arg("--socket").arg(&socket);
        let ended = run(command);
        assert_eq!(ended.code, Some(3), "{arguments:?}: {}", ended.err);
        assert!(ended.err.contains("bindery daemon"), "it does not say what to do: {}", ended.err);
        assert!(ended.out.is_empty());
    }
}

#[test]
fn errors_are_json_where_json_was_asked_for() {
    let ended = run(bindery(["ps", "--json", "--socket", "/nonexistent/b.sock"]));
    let error: Value = serde_json::from_str(&ended.err).unwrap();
    assert_eq!(error["error"]["exit_code"], 3);
}

#[test]
fn status_and_settings_go_round() {
    let daemon = TestDaemon::start(&["--workers", "3", "--period", "250ms"]);
    let status = daemon.ask(&["status", "--json"]).json();
    assert_eq!(status["pid"], daemon.pid());
    assert_eq!(status["workers"], 3);
    assert_eq!(status["period_ms"], 250);
    assert_eq!(status["domains"], Value::Array(Vec::new()));
    assert_eq!(daemon.ask(&["ps", "--json"]).json(), Value::Array(Vec::new()));

    let set = daemon.ask(&["set", "workers=1", "period=2s", "--json"]);
    assert_eq!(set.json(), serde_json::json!({ "workers": 1, "period_ms": 2000 }));
    assert_eq!(daemon.ask(&["set", "period=500ms"]).out, "workers=1 period=500ms\n");
    assert_eq!(daemon.ask(&["set", "period=500"]).code, Some(2));
    assert_eq!(daemon.ask(&["set", "workers=0"]).code, Some(2));

    for arguments in [["unmerge", "nobody"], ["merge", "nobody"], ["unmanage", "4194304"]] {
        let ended = daemon.ask(&arguments);
        assert_eq!(ended.code, Some(4), "{arguments:?}: {}", ended.err);
    }
    assert!(daemon.ask(&["status"]).out.contains("no guests"));
    assert!(daemon.ask(&["top"]).out.contains("0 guests"));
}

#[test]
fn a_second_daemon_names_the_first_and_leaves_it_alone() {
    let daemon = TestDaemon::start(&[]);
    let ended = run({
        let mut command = bindery(["daemon", "--socket"]);
        command.arg(daemon.socket());
        command
    });
    assert_eq!(ended.code, Some(6), "{}", ended.err);
    assert!(ended.err.contains(&format!("pid {}", daemon.pid())), "{}", ended.err);
    let background = run({
        let mut command = bindery(["daemon", "--background", "--socket"]);
        command.arg(daemon.socket());
        command
    });
    assert_eq!(background.code, Some(6), "{}", background.err);
    assert!(background.err.contains(&format!("pid {}", daemon.pid())), "{}", background.err);
    assert_eq!(daemon.ask(&["status"]).code, Some(0));
}

#[test]
fn signals_and_stop_end_it_and_remove_the_socket() {
    for signal in ["TERM", "INT"] {
        let mut daemon = TestDaemon::start(&[]);
        assert!(daemon.socket().exists());
        assert_eq!(daemon.end_with(signal), Some(0), "SIG{signal}");
        assert!(!daemon.socket().exists(), "SIG{signal} leaves the socket");
    }
    let mut daemon = TestDaemon::start(&[]);
    assert_eq!(daemon.ask(&["stop", "--json"]).json()["stopping"], true);
    assert_eq!(daemon.await_end(), Some(0));
    assert!(!daemon.socket().exists());
}

#[test]
fn a_killed_daemon_is_succeeded_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("b.sock");
    for _ in 0..3 {
        let mut child = daemon_command(&socket, &[]).spawn().unwrap();
        let deadline = Instant::now() + PATIENCE;
        loop {
            let mut command = bindery(["status", "--json", "--socket"]);
            command.arg(&socket);
            let ended = run(command);
            if ended.code == Some(0) {
                assert_eq!(ended.json()["pid"], child.id());
                break;
            }
            assert!(Instant::now() < deadline, "{}", ended.err);
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(socket.exists(), "a killed daemon leaves its socket: that is the case in question");
    }
}

#[test]
fn in_the_background_it_listens_when_the_command_returns() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("new").join("b.sock");
    let ended = run({
        let mut command = bindery(["daemon", "--background", "--json", "--socket"]);
        command.arg(&socket);
        command
    });
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    let pid = ended.json()["pid"].as_u64().unwrap();
    let ask = |arguments: &[&str]| {
        let mut command = bindery(arguments);
        command.arg("--socket").arg(&socket);
        run(command)
    };
    assert_eq!(ask(&["status", "--json"]).json()["pid"], pid);
    let log = std::fs::read_to_string(socket.with_extension("log")).unwrap();
    assert!(log.contains("listening"), "{log}");
    assert_eq!(ask(&["stop"]).code, Some(0));
    let deadline = Instant::now() + PATIENCE;
    while std::path::Path::new(&format!("/proc/{pid}")).exists() {
        assert!(Instant::now() < deadline, "the daemon did not end");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

#[test]
fn a_directory_open_to_all_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o777)).unwrap();
    let ended = run(bindery([
        "daemon".as_ref(),
        "--socket".as_ref(),
        directory.path().join("b.sock").as_os_str(),
    ]));
    assert_eq!(ended.code, Some(5), "{}", ended.err);
    assert!(ended.err.contains("lets others write"), "{}", ended.err);
}

#[test]
fn other_users_are_refused() {
    if !can_change_user("other_users_are_refused") {
        return;
    }
    let daemon = TestDaemon::start(&[]);
    let program = program_for_all(daemon.directory());
    let ask = || {
        let mut command = Command::new(&program);
        command.arg("ps").arg("--socket").arg(daemon.socket());
        run(as_nobody(command))
    };
    // By the socket's mode.
    let ended = ask();
    assert_eq!(ended.code, Some(5), "{}", ended.err);
    // And by the daemon, where the mode lets them in.
    std::fs::set_permissions(daemon.socket(), PermissionsExt::from_mode(0o666)).unwrap();
    let ended = ask();
    assert_eq!(ended.code, Some(5), "{}", ended.err);
    assert!(ended.err.contains("belongs to user 0"), "{}", ended.err);
    assert_eq!(daemon.ask(&["ps"]).code, Some(0));
}

#[test]
fn nonsense_on_the_socket_disturbs_nobody() {
    let daemon = TestDaemon::start(&[]);
    let garbage: [&[u8]; 7] = [
        b"",
        b"B",
        b"BNDYgarbage after the magic",
        b"BNDY\xff\xff\xff\xff",
        b"GET / HTTP/1.1\r\n\r\n",
        b"{\"version\":1,\"request\":\"status\"",
        &[0; 100_000],
    ];
    for bytes in garbage {
        let mut stream = UnixStream::connect(daemon.socket()).unwrap();
        // It may hang up before it has taken everything.
        let _ = stream.write_all(bytes);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let _ = stream.read_to_end(&mut Vec::new());
        assert_eq!(daemon.ask(&["status"]).code, Some(0));
    }
}

#[test]
fn operators_by_hand_get_an_answer_for_every_line() {
    let daemon = TestDaemon::start(&[]);
    let stream = UnixStream::connect(daemon.socket()).unwrap();
    let mut answers = BufReader::new(stream.try_clone().unwrap()).lines();
    for (line, expected) in [
        (r#"{"version":1,"request":"guests"}"#, r#""answer":"guests""#),
        (r#"{"version":1,"request":"dance"}"#, r#""kind":"unknown-request""#),
        (r#"{"version":9,"request":"guests"}"#, r#""kind":"version""#),
        ("nonsense", r#""kind":"bad-request""#),
        (r#"{"version":1,"request":"set","workers":100000}"#, r#""kind":"bad-request""#),
        (r#"{"version":1,"request":"status"}"#, r#""answer":"status""#),
    ] {
        writeln!(&stream, "{line}").unwrap();
        let answer = answers.next().unwrap().unwrap();
        assert!(answer.contains(expected), "{line}: {answer}");
    }
}

#[test]
fn many_idle_connections_keep_nobody_out() {
    let daemon = TestDaemon::start(&[]);
    let idle: Vec<UnixStream> =
        (0..100).map(|_| UnixStream::connect(daemon.socket()).unwrap()).collect();
    assert_eq!(daemon.ask(&["status"]).code, Some(0));
    drop(idle);
}

#[test]
fn out_of_descriptors_it_still_says_so() {
    const DESCRIPTORS: usize = 32;
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("b.sock");
    let command = daemon_command(&socket, &[]);
    let mut shell = Command::new("sh");
    shell.stdout(Stdio::null()).stderr(Stdio::null());
    let limit = format!("ulimit -n {DESCRIPTORS}; exec \"$@\"");
    shell.args(["-c", &limit, "sh"]).arg(command.get_program()).args(command.get_args());
    let mut daemon = TestDaemon::spawn(shell, &socket);
    let state = || daemon.ask(&["status", "--json"]).json()["state"]["name"].clone();
    assert_eq!(state(), "running");

    // Operators who begin a request and do not end it.
    let mut idle = Vec::new();
    while state() != "short-of-resources" {
        let mut stream = UnixStream::connect(&socket).unwrap();
        stream.write_all(b"{").unwrap();
        idle.push(stream);
        assert!(idle.len() <= DESCRIPTORS, "it takes more connections than it has descriptors");
    }
    idle.clear();
    let deadline = Instant::now() + PATIENCE;
    while state() != "running" {
        assert!(Instant::now() < deadline, "it never recovered");
    }
    assert_eq!(daemon.end_with("TERM"), Some(0));
}
