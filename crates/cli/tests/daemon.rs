//! Daemons and operators: who is served, who is refused, how things end.
#![expect(clippy::unwrap_used, reason = "a test: what fails is to be seen where it fails")]

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

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
    assert_eq!(status["settings"]["workers"], 3);
    assert_eq!(status["settings"]["period_ms"], 250);
    assert_eq!(status["domains"], Value::Array(Vec::new()));
    assert_eq!(daemon.ask(&["ps", "--json"]).json(), Value::Array(Vec::new()));

    let set = daemon.ask(&["set", "workers=1", "period=2s", "--json"]).json();
    assert_eq!((&set["workers"], &set["period_ms"]), (&1.into(), &2000.into()));
    assert!(daemon.ask(&["set", "period=500ms"]).out.contains("period=500ms\n"));
    let shown = daemon.ask(&["set"]).out;
    assert!(shown.contains("workers=1\n") && shown.contains("advisor_mode=steady\n"), "{shown}");
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
fn settings_that_cannot_be_change_nothing() {
    let daemon = TestDaemon::start(&[]);
    let before = daemon.ask(&["set"]).out;
    for (setting, word) in [
        ("advisor_max_cpu=0", "1 to 25600"),
        ("advisor_target_scan_time=0", "1 to 86400"),
        ("advisor_min_pages_to_scan=200000", "advisor_max_pages_to_scan"),
        ("advisor_mode=fast", "steady"),
        ("pressure_available_low=101", "0 to 100"),
        ("across_nodes=never", "true or false"),
        // As the kernel does (EINVAL).
        ("pages_to_scan=100", "advisor_mode=none"),
    ] {
        let ended = daemon.ask(&["set", "workers=1", setting]);
        assert_eq!(ended.code, Some(2), "{setting}: {}", ended.err);
        let name = setting.split('=').next().unwrap();
        assert!(ended.err.contains(name) && ended.err.contains(word), "{setting}: {}", ended.err);
    }
    assert_eq!(daemon.ask(&["set"]).out, before);
    let by_hand = daemon.ask(&["set", "advisor_mode=none", "pages_to_scan=100"]);
    assert!(by_hand.out.contains("pages_to_scan=100\n"), "{}{}", by_hand.out, by_hand.err);
}

#[test]
fn a_configuration_file_is_read_again_and_flags_go_before_it() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("bindery.toml");
    let write = |text: &str| std::fs::write(&file, text).unwrap();
    write("workers = 7\nperiod = \"3s\"\nadvisor_max_cpu = 11\n");
    let daemon = TestDaemon::start(&["--config", file.to_str().unwrap(), "--workers", "2"]);
    let settings = || daemon.ask(&["set", "--json"]).json();
    let of = |settings: &Value| {
        ["workers", "period_ms", "advisor_max_cpu"].map(|name| settings[name].as_u64().unwrap())
    };
    assert_eq!(of(&settings()), [2, 3000, 11]);

    write("workers = 7\nadvisor_max_cpu = 12\n");
    assert_eq!(of(&daemon.ask(&["reload", "--json"]).json()), [2, 1000, 12]);

    write("workers = 7\nadvisor_max_cpu = 12\nperiod = \"never\"\n");
    let ended = daemon.ask(&["reload"]);
    assert_eq!(ended.code, Some(8), "{}", ended.err);
    assert!(ended.err.contains("bindery.toml:3:"), "{}", ended.err);
    assert_eq!(of(&settings()), [2, 1000, 12]);

    write("advisor_max_cpu = 13\n");
    let pid = rustix::process::Pid::from_raw(daemon.pid().cast_signed()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::HUP).unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    while of(&settings()) != [2, 1000, 13] {
        assert!(Instant::now() < deadline, "SIGHUP changed nothing: {:?}", settings());
        std::thread::sleep(Duration::from_millis(20));
    }
    let none = TestDaemon::start(&[]).ask(&["reload"]);
    assert_eq!(none.code, Some(8), "{}", none.err);
    assert!(none.err.contains("--config"), "{}", none.err);
}

#[test]
fn a_wrong_configuration_file_starts_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("bindery.toml");
    std::fs::write(&file, "# settings\nworkers = 1000\n").unwrap();
    let socket = directory.path().join("b.sock");
    for more in [&[][..], &["--background"]] {
        let mut command = bindery(["daemon", "--config"]);
        command.arg(&file).arg("--socket").arg(&socket).args(more);
        let ended = run(command);
        assert_eq!(ended.code, Some(8), "{}", ended.err);
        assert!(ended.err.contains("bindery.toml:2: workers is 1 to 256"), "{}", ended.err);
    }
    let missing = run(bindery(["daemon", "--config", "/nonexistent/bindery.toml"]));
    assert_eq!(missing.code, Some(4), "{}", missing.err);
    let example = run(bindery(["daemon", "--print-config"])).out;
    std::fs::write(&file, &example).unwrap();
    assert!(example.contains("# advisor_max_cpu = 50\n"), "{example}");
}

#[test]
fn merging_waits_for_memory_to_be_short_where_it_is_told_to() {
    // Not short at any time, then always short.
    let plenty = ["run_when=pressure", "pressure_available_low=0", "pressure_available_high=0"];
    let daemon = TestDaemon::start(&["--period", "50ms"]);
    let state = |name: &str| {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let status = daemon.ask(&["status", "--json"]).json();
            if status["state"]["name"] == name {
                return;
            }
            assert!(Instant::now() < deadline, "{name} never came: {}", status["state"]);
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    state("running");
    let mut set = vec!["set", "pressure_stall_high=100", "pressure_hold=0"];
    set.extend(plenty);
    assert_eq!(daemon.ask(&set).code, Some(0));
    state("idle");
    let short = ["set", "pressure_available_low=100", "pressure_available_high=100"];
    assert_eq!(daemon.ask(&short).code, Some(0));
    state("running");
    assert_eq!(daemon.ask(&["set", "run_when=always"]).code, Some(0));
    state("running");
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
        (r#"{"version":1,"request":"set","workers":100000}"#, r#""kind":"bad-setting""#),
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
