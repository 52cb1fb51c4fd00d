//! Checkpoints as they are seen from outside: over HTTP, in metrics, and by a shell that completes their names.
#![expect(clippy::unwrap_used, reason = "a test: what fails is to be seen where it fails")]

mod common;
#[path = "common/http.rs"]
mod http;
#[path = "common/kept.rs"]
mod kept;
#[path = "common/openapi.rs"]
mod openapi;
#[path = "common/prometheus.rs"]
mod prometheus;

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

use bindery_checkpoint::Capture;
use bindery_sys::process::effective_user;
use bindery_testkit::skipped;
use common::{NOBODY, PATIENCE, TestDaemon, can_change_user};
use http::Http;
use kept::{Kept, captured};
use prometheus::{KEPT_FAMILIES, Labels};
use serde_json::Value;

const TIME_NS: u64 = 1_700_000_000_000_000_000;

/// A pool with three checkpoints of `web1`, one of them of an older record, and one of `db@lab`.
fn kept() -> Kept {
    let kept = Kept::new();
    let domain = format!("{}:web", effective_user());
    let capture = |pause_us| Some(Capture { pause_us, rounds: 2 });
    kept.write(|store| {
        let make = |guest, name, memory: &[u64], capture| {
            let time_ns = TIME_NS + 1_000_000_000 * store.list().len() as u64;
            captured(store, (&domain, guest, name), memory, (time_ns, capture));
        };
        make("web1", "monday", &[1, 2, 0, 3], None);
        make("db=lab", "monday", &[5], capture(None));
        make("web1", "tuesday", &[1, 2, 0, 4], capture(Some(6543)));
        make("web1", "wednesday", &[1, 2, 0, 5], capture(Some(7000)));
    });
    kept
}

/// Waits until the daemon has read its pool.
fn seen(http: Http, daemon: &TestDaemon, count: usize) -> Value {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let checkpoints = http.json("/api/v1/checkpoints");
        if checkpoints.as_array().unwrap().len() == count {
            return checkpoints;
        }
        assert!(Instant::now() < deadline, "{checkpoints}\n{}", daemon.log());
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn checkpoints_are_seen_over_http_before_anybody_asks_for_them() {
    let kept = kept();
    let daemon = kept.daemon_with(&["--http", "127.0.0.1:0"]);
    let http = Http::of(&daemon);
    let all = seen(http, &daemon, 4);
    let description = http.json("/api/v1/openapi.json");
    for path in ["/api/v1/checkpoints", "/api/v1/jobs"] {
        let schema = &description["paths"][path]["get"]["responses"]["200"]["content"]["application/json"]
            ["schema"];
        openapi::check(&description, schema, &http.json(path), path);
    }
    assert_eq!(all, kept.json(&daemon, &["list"]));
    let pauses: Vec<&Value> =
        all.as_array().unwrap().iter().map(|checkpoint| &checkpoint["pause_us"]).collect();
    assert_eq!(pauses, [&Value::Null, &Value::Null, &6543.into(), &7000.into()]);
    assert_eq!((&all[0]["rounds"], &all[1]["rounds"]), (&Value::Null, &2.into()));
    let last = http.json("/api/v1/checkpoints?latest=1");
    let names: Vec<&str> =
        last.as_array().unwrap().iter().map(|found| found["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["monday", "wednesday"]);
    for wrong in ["latest=0", "latest=x"] {
        assert_eq!(http.get(&format!("/api/v1/checkpoints?{wrong}")).status, 400, "{wrong}");
    }
    // What is deleted is gone from both.
    kept.done(&daemon, &["delete", "web1@monday"]);
    assert_eq!(http.json("/api/v1/checkpoints"), kept.json(&daemon, &["list"]));
}

#[test]
fn metrics_say_what_a_guest_has() {
    let kept = kept();
    let daemon = kept.daemon_with(&["--http", "127.0.0.1:0"]);
    let http = Http::of(&daemon);
    seen(http, &daemon, 4);
    let families = prometheus::parse(&http.get("/metrics").body);
    let user = effective_user().to_string();
    let value = |name: &str, guest: &str| {
        let labels = [("guest", guest), ("domain", "web"), ("user", &*user)];
        let labels: Labels = labels.map(|(name, value)| (name.into(), value.into())).into();
        families[name].samples.get(&labels).copied()
    };
    // `web1` shares a page of content 5 with `db@lab`.
    for (name, expected) in [
        ("bindery_guest_checkpoints", 3.0),
        ("bindery_guest_checkpoint_own_bytes", 4.0 * 4096.0),
        ("bindery_guest_checkpoint_shared_bytes", 5.0 * 4096.0),
        ("bindery_guest_checkpoint_failures_total", 0.0),
        ("bindery_guest_restores_total", 0.0),
        ("bindery_guest_checkpoint_pause_seconds", 0.007),
        ("bindery_guest_checkpoint_timestamp_seconds", (TIME_NS / 1_000_000_000 + 3) as f64),
    ] {
        assert!(KEPT_FAMILIES.contains(&name));
        assert_eq!(value(name, "web1"), Some(expected), "{name}");
    }
    assert_eq!(value("bindery_guest_checkpoint_pause_seconds", "db@lab"), None, "it was paused");
}

/// Without a token, a client is known by the user that its process acts as.
#[test]
fn other_users_see_no_checkpoints_over_http() {
    let kept = kept();
    let daemon = kept.daemon_with(&["--http", "127.0.0.1:0"]);
    let http = Http::of(&daemon);
    seen(http, &daemon, 4);
    if !can_change_user("other_users_see_no_checkpoints_over_http") {
        return;
    }
    let request = format!("GET /api/v1/checkpoints HTTP/1.0\\r\\nHost: {}\\r\\n\\r\\n", http.0);
    let script = format!(
        "exec 3<>/dev/tcp/{}/{}; printf '{request}' >&3; cat <&3",
        http.0.ip(),
        http.0.port()
    );
    let asked =
        Command::new("bash").args(["-c", &script]).uid(NOBODY).gid(NOBODY).output().unwrap();
    let answer = String::from_utf8(asked.stdout).unwrap();
    assert!(answer.starts_with("HTTP/1.0 200") && answer.ends_with("\r\n\r\n[]"), "{answer}");
}

/// Completions of a line, as bash has them: with its own idea of the last word.
fn bash(kept: &Kept, daemon: &TestDaemon, line: &str, last: &str) -> Vec<String> {
    let program = env!("CARGO_BIN_EXE_bindery");
    let script = format!(
        "PATH={}:$PATH; source <(bindery completions bash); COMP_LINE='{line}'; \
         COMP_POINT=${{#COMP_LINE}}; _bindery bindery '{last}' x 2> /dev/null; \
         printf '%s\\n' \"${{COMPREPLY[@]}}\"",
        std::path::Path::new(program).parent().unwrap().display()
    );
    let mut command = Command::new("bash");
    command.args(["-c", &script]).env("BINDERY_SOCKET", daemon.socket());
    let ended = command.env("BINDERY_POOLS", kept.at("registry")).output().unwrap();
    assert!(ended.stderr.is_empty(), "{}", String::from_utf8_lossy(&ended.stderr));
    String::from_utf8(ended.stdout).unwrap().split_whitespace().map(str::to_owned).collect()
}

#[test]
fn names_are_completed_in_bash() {
    if Command::new("bash").arg("--version").output().is_err() {
        return skipped!("there is no bash to complete names in");
    }
    let kept = kept();
    let daemon = kept.daemon();
    let complete = |line: &str, last: &str| bash(&kept, &daemon, line, last);
    let of_web1 = ["web1@monday", "web1@tuesday", "web1@wednesday"];
    for command in ["checkpoint show", "restore", "clone", "checkpoint verify", "checkpoint export"]
    {
        assert_eq!(complete(&format!("bindery {command} w"), "w"), of_web1, "{command}");
    }
    // Bash takes `@` for the end of a word.
    assert_eq!(complete("bindery checkpoint show web1@t", "t"), ["tuesday"]);
    assert_eq!(complete("bindery checkpoint delete db@lab@", ""), ["monday"]);
    assert_eq!(complete("bindery checkpoint delete --keep 1 d", "d"), ["db@lab"]);
    assert_eq!(complete("bindery checkpoint list ", "")[..2], ["db@lab", "web1"]);
    assert_eq!(complete("bindery checkpoint show --pool guests db", "db"), ["db@lab@monday"]);
    assert_eq!(complete("bindery checkp", "checkp"), ["checkpoint"]);
    // Nobody is there to ask.
    let socket = daemon.socket().to_owned();
    drop(daemon);
    let line = format!("bindery --socket {} restore w", socket.display());
    let other = kept.daemon();
    assert!(bash(&kept, &other, &line, "w").is_empty());
}
