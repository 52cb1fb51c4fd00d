//! Looking at a daemon over HTTP: every route, who may look, and clients that misbehave.
#![expect(clippy::unwrap_used, reason = "a test: what fails is to be seen where it fails")]

mod common;
#[path = "common/guest.rs"]
mod guest;
#[path = "common/http.rs"]
mod http;
#[path = "common/openapi.rs"]
mod openapi;
#[path = "common/prometheus.rs"]
mod prometheus;

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use bindery_testkit::guest::Kit;
use bindery_testkit::skipped;
use common::{PATIENCE, TestDaemon, bindery, run};
use guest::{EQUAL_PAGES, PAGES, TestGuest, UNIQUE_PAGES, ZERO_PAGES, can_manage};
use http::Http;
use prometheus::{KEPT_FAMILIES, Labels};
use serde_json::Value;

#[test]
#[ignore = "the guests' process of the other tests, not a test of its own"]
fn guest_process() {
    guest::live();
}

const FAST: [&str; 6] = ["--http", "127.0.0.1:0", "--period", "50ms", "--workers", "2"];

/// Waits until `holds`.
fn wait_until(daemon: &TestDaemon, what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "it never came to this: {what}\n{}", daemon.log());
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A daemon with two guests that are merged, and at rest from now on.
fn settled() -> (TestDaemon, Http, [TestGuest; 2]) {
    let daemon = TestDaemon::start(&FAST);
    let http = Http::of(&daemon);
    let guests = ["a", "web@host:1"].map(|name| TestGuest::start(&daemon.socket(), name, "web"));
    wait_until(&daemon, "all duplicates are merged", || {
        let guests = http.json("/api/v1/guests");
        let is_merged = |guest: &Value| {
            guest["pages_merged"] == EQUAL_PAGES && guest["zero_pages"] == ZERO_PAGES
        };
        let guests = guests.as_array().unwrap();
        guests.len() == 2 && guests.iter().all(is_merged)
    });
    daemon.ask(&["set", "period=10m"]);
    let scans = || http.json("/api/v1/status")["domains"][0]["full_scans"].clone();
    let mut last = scans();
    wait_until(&daemon, "periods end", || {
        std::thread::sleep(Duration::from_millis(300));
        // It waits for the period at work, and does nothing to a guest that is merged.
        assert_eq!(daemon.ask(&["merge", "a"]).code, Some(0));
        let before = std::mem::replace(&mut last, scans());
        before == last
    });
    (daemon, http, guests)
}

#[test]
fn every_route_is_there_and_answers_as_described() {
    if !can_manage("every_route_is_there_and_answers_as_described") {
        return;
    }
    let (daemon, http, _guests) = settled();
    let description = http.json("/api/v1/openapi.json");
    assert!(description["openapi"].as_str().unwrap().starts_with("3.1."));
    for (path, operations) in description["paths"].as_object().unwrap() {
        let reply = http.get(&path.replace("{name}", "web%40host:1"));
        assert_eq!(reply.status, 200, "{path}: {}", reply.body);
        assert_eq!(reply.headers["cache-control"], "no-store");
        let content = operations["get"]["responses"]["200"]["content"].as_object().unwrap();
        let (media, content) = content.iter().next().unwrap();
        assert!(reply.headers["content-type"].starts_with(media), "{path}");
        if media == "application/json" {
            openapi::check(&description, &content["schema"], &reply.json(), path);
        }
    }
    // Failures have the described form as well, and the same for HEAD without a body.
    let error = &description["components"]["schemas"]["Error"];
    for (path, status) in [
        ("/api/v1/guests/none", 404),
        ("/api/v1/guests/none/map", 404),
        ("/api/v1/guests/a/map?cells=0", 400),
        ("/api/v1/guests/a/map?cells=99999999999999999999", 400),
        ("/api/v1/history?since=-1", 400),
        ("/favicon.ico", 404),
    ] {
        let reply = http.get(path);
        assert_eq!(reply.status, status, "{path}: {}", reply.body);
        openapi::check(&description, error, &reply.json(), path);
    }
    let head = http.ask(&format!("HEAD /metrics HTTP/1.1\r\nHost: {}\r\n", http.0));
    assert_eq!((head.status, head.body.as_str()), (200, ""));
    let same = |path: &str, command: &str| {
        let said = daemon.ask(&[command, "--json"]).json();
        assert_eq!(without_clocks(http.json(path)), without_clocks(said), "{path}");
    };
    same("/api/v1/guests", "ps");
    same("/api/v1/status", "status");
    let page = http.get("/");
    assert!(page.headers["content-security-policy"].contains("default-src 'none'"));
    assert!(!page.body.contains("https://") && !page.body.contains("src="), "it needs no network");
    assert!(daemon.ask(&["status"]).out.contains(&format!("dashboard: http://{}/", http.0)));
}

/// A status without what changes from one moment to the next.
fn without_clocks(mut status: Value) -> Value {
    for field in ["uptime_s", "cpu_ms", "resident_bytes"] {
        if let Some(value) = status.get_mut(field) {
            *value = Value::Null;
        }
    }
    status
}

#[test]
fn a_map_adds_up_to_what_the_guest_has_and_shows_where_it_writes() {
    if !can_manage("a_map_adds_up_to_what_the_guest_has_and_shows_where_it_writes") {
        return;
    }
    let (daemon, http, mut guests) = settled();
    let map = |cells: u32| http.json(&format!("/api/v1/guests/a/map?cells={cells}"));
    let list = |map: &Value, name: &str| -> Vec<u64> {
        map[name].as_array().unwrap().iter().map(|pages| pages.as_u64().unwrap()).collect()
    };
    for (cells, pages_each) in [(1, 1024), (16, 64), (63, 32), (64, 16), (16_384, 16)] {
        let map = map(cells);
        assert_eq!(map["cell_pages"], pages_each);
        let lists = ["merged", "zero", "unshared", "unknown"].map(|name| list(&map, name));
        let sums = lists.each_ref().map(|pages| pages.iter().sum::<u64>() as usize);
        let rest = PAGES - EQUAL_PAGES - ZERO_PAGES - UNIQUE_PAGES;
        assert_eq!(sums, [EQUAL_PAGES, ZERO_PAGES, UNIQUE_PAGES, rest]);
        for cell in 0..lists[0].len() {
            assert_eq!(lists.iter().map(|pages| pages[cell]).sum::<u64>(), pages_each);
        }
        assert_eq!(map["regions"][0]["pages"], PAGES);
    }
    // Memory lies as the guest wrote it: equal pages first, then zero ones, then those of its own.
    let shown = map(16);
    assert_eq!(list(&shown, "merged"), [vec![64; 8], vec![0; 8]].concat());
    assert_eq!(list(&shown, "zero")[8..], [64, 64, 0, 0, 0, 0, 0, 0]);

    // It is listened to from the first map on. Writes are found once merging asks.
    daemon.ask(&["set", "period=50ms"]);
    guests[0].write(64);
    wait_until(&daemon, "what is written is hot, and private again", || {
        let map = map(16);
        list(&map, "hot")[0] == 64 && list(&map, "merged")[0] == 0
    });
    wait_until(&daemon, "it cools down", || list(&map(16), "hot").iter().all(|pages| *pages == 0));
}

#[test]
fn metrics_are_well_formed_and_say_what_the_status_says() {
    if !can_manage("metrics_are_well_formed_and_say_what_the_status_says") {
        return;
    }
    let (daemon, http, _guests) = settled();
    let text = http.get("/metrics").body;
    let families = prometheus::parse(&text);
    let value = |name: &str, labels: &[(&str, &str)]| {
        let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let labels: Labels = labels.iter().map(own).collect();
        let samples = &families.get(name).unwrap_or_else(|| panic!("no {name}")).samples;
        *samples.get(&labels).unwrap_or_else(|| panic!("{name} has no {labels:?}: {samples:?}"))
    };
    let status = daemon.ask(&["status", "--json"]).json();
    let domain = &status["domains"][0];
    let uid = domain["uid"].to_string();
    let of_domain = [("domain", "web"), ("user", &*uid)];
    assert_eq!(value("bindery_workers", &[]), 2.0);
    assert_eq!(value("bindery_period_seconds", &[]), 600.0);
    assert_eq!(value("bindery_full_scans_total", &[]), domain["full_scans"].as_f64().unwrap());
    assert_eq!(value("bindery_state", &[("state", "running")]), 1.0);
    let state =
        |name| value("bindery_domain_state", &[of_domain[0], of_domain[1], ("state", name)]);
    assert_eq!([state("merging"), state("storm")], [1.0, 0.0]);
    for (name, field, unit) in FIGURES {
        let expected = domain[field].as_f64().unwrap() / unit;
        assert_eq!(value(&format!("bindery_{name}"), &of_domain), expected, "{name}");
    }
    let phases = status["phases"].as_array().unwrap();
    assert!(phases.iter().any(|phase| phase["name"] == "apply"));
    for phase in phases {
        let labels = [("phase", phase["name"].as_str().unwrap())];
        let runs = value("bindery_phase_runs_total", &labels);
        assert_eq!(runs, phase["runs"].as_f64().unwrap(), "{phase}");
        let seconds = value("bindery_phase_longest_seconds_total", &labels);
        assert_eq!(seconds, phase["longest_us"].as_f64().unwrap() / 1e6, "{phase}");
    }
    for guest in daemon.ask(&["ps", "--json"]).json().as_array().unwrap() {
        let labels = [("guest", guest["name"].as_str().unwrap()), of_domain[0], of_domain[1]];
        for (name, field, unit) in FIGURES.into_iter().filter(|figure| !figure.0.contains("shar")) {
            let Some(expected) = guest[field].as_f64() else { continue };
            let name = format!("bindery_guest_{name}");
            if families.contains_key(&name) {
                assert_eq!(value(&name, &labels), expected / unit, "{name}");
            }
        }
        assert_eq!(value("bindery_guest_ram_bytes", &labels), (PAGES * 4096) as f64);
        assert_eq!(value("bindery_guest_pages_merged", &labels), EQUAL_PAGES as f64);
        let pid = guest["pid"].to_string();
        let info = [labels[0], labels[1], labels[2], ("pid", &*pid)];
        assert_eq!(value("bindery_guest_info", &info), 1.0);
    }
    grafana_names_what_there_is(&families.keys().cloned().collect());
    promtool_agrees(&text);
}

/// Metrics of domains, the status's fields, and how many of these are one of those.
const FIGURES: [(&str, &str, f64); 19] = [
    ("guests", "guests", 1.0),
    ("pages_shared", "pages_shared", 1.0),
    ("pages_sharing", "pages_sharing", 1.0),
    ("general_profit_bytes", "general_profit", 1.0),
    ("store_bytes", "store_bytes", 1.0),
    ("metadata_bytes", "metadata_bytes", 1.0),
    ("mappings_bytes", "mappings_bytes", 1.0),
    ("pages_managed", "pages_managed", 1.0),
    ("pages_merged", "pages_merged", 1.0),
    ("zero_pages", "zero_pages", 1.0),
    ("pages_unshared", "pages_unshared", 1.0),
    ("pages_volatile", "pages_volatile", 1.0),
    ("pages_pending", "pages_pending", 1.0),
    ("pages_foreign", "pages_foreign", 1.0),
    ("pages_scanned_total", "pages_scanned", 1.0),
    ("pages_digested_total", "pages_digested", 1.0),
    ("breaks_total", "breaks", 1.0),
    ("discards_total", "discards", 1.0),
    ("merge_cpu_seconds_total", "guest_cpu_time_us", 1e6),
];

/// The dashboard for Grafana asks for nothing that is not there.
fn grafana_names_what_there_is(names: &BTreeSet<String>) {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/grafana/bindery.json");
    let text = std::fs::read_to_string(path).unwrap();
    let dashboard: Value = serde_json::from_str(&text).unwrap();
    assert!(dashboard["panels"].as_array().unwrap().len() > 5);
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let asked: BTreeSet<&str> = words.filter(|word| word.starts_with("bindery_")).collect();
    assert!(asked.len() > 10, "{asked:?}");
    for name in asked.into_iter().filter(|name| !KEPT_FAMILIES.contains(name)) {
        assert!(names.contains(name), "{path} names {name}, which is no metric");
    }
}

fn promtool_agrees(metrics: &str) {
    let Some(promtool) = Kit::of_checkout().promtool() else {
        skipped!("promtool is not there to check metrics: run `cargo xtask setup`");
        return;
    };
    let mut command = Command::new(promtool);
    command.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(metrics.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.is_empty(), "{said}");
}

#[test]
fn history_goes_on_and_is_told_from_where_one_was() {
    let daemon = TestDaemon::start(&FAST);
    let http = Http::of(&daemon);
    let next = || http.json("/api/v1/history")["next"].as_u64().unwrap();
    wait_until(&daemon, "samples are taken", || next() >= 3);
    let history = http.json("/api/v1/history?since=1");
    assert_eq!(history["first"], 1);
    let times = history["samples"]["time_ms"].as_array().unwrap();
    assert_eq!(times.len() as u64, history["next"].as_u64().unwrap() - 1);
    assert!(times.windows(2).all(|pair| pair[0].as_u64() < pair[1].as_u64()));
    let since = next();
    let rest = http.json(&format!("/api/v1/history?since={since}"));
    // Samples may have been taken meanwhile.
    let taken = rest["next"].as_u64().unwrap() - since;
    assert_eq!(rest["samples"]["time_ms"].as_array().unwrap().len() as u64, taken);
}

#[test]
fn an_address_that_others_reach_wants_a_token() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("b.sock");
    let daemon = |arguments: &[&str]| {
        let mut command = bindery(["daemon", "--socket"]);
        command.arg(&socket).args(arguments);
        run(command)
    };
    let ended = daemon(&["--http", "0.0.0.0:0"]);
    assert_eq!(ended.code, Some(2), "{}", ended.err);
    assert!(ended.err.contains("--http-token-file"), "{}", ended.err);
    assert!(!socket.exists(), "a daemon that does not start leaves no socket");
    let token = directory.path().join("token");
    let token = token.to_str().unwrap();
    assert_eq!(daemon(&["--http", "0.0.0.0:0", "--http-token-file", token]).code, Some(4));
    std::fs::write(token, "short").unwrap();
    std::fs::set_permissions(token, PermissionsExt::from_mode(0o600)).unwrap();
    assert_eq!(daemon(&["--http", "0.0.0.0:0", "--http-token-file", token]).code, Some(8));
    assert_eq!(daemon(&["--http-token-file", token]).code, Some(2));
    assert_eq!(daemon(&["--http", "here"]).code, Some(2));
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let ended = daemon(&["--http", &taken.local_addr().unwrap().to_string()]);
    assert_eq!(ended.code, Some(6), "{}", ended.err);

    std::fs::write(token, "correct-horse-battery\n").unwrap();
    std::fs::set_permissions(token, PermissionsExt::from_mode(0o600)).unwrap();
    let arguments = ["--http", "0.0.0.0:0", "--http-token-file", token];
    let daemon = TestDaemon::start_at(&socket, &arguments);
    let port = Http::of(&daemon).0.port();
    let http = Http(([127, 0, 0, 1], port).into());
    let with = "Authorization: Bearer correct-horse-battery\r\n";
    for path in ["/metrics", "/api/v1/status", "/api/v1/guests/a/map"] {
        let refused = http.get(path);
        assert_eq!((refused.status, &*refused.headers["www-authenticate"]), (401, "Bearer"));
        assert_eq!(http.get_with(path, "Authorization: Bearer correct-horse\r\n").status, 401);
        assert_ne!(http.get_with(path, with).status, 401);
    }
    assert_eq!((http.get("/").status, http.get("/healthz").status), (200, 200));
    assert!(!daemon.log().contains("correct-horse"), "a token is not logged");
}

#[test]
fn names_of_others_get_no_answer_on_loopback() {
    let daemon = TestDaemon::start(&FAST);
    let http = Http::of(&daemon);
    let with_host =
        |host: &str| http.ask(&format!("GET /api/v1/status HTTP/1.1\r\nHost: {host}\r\n"));
    assert_eq!(with_host("localhost:80").status, 200);
    assert_eq!(with_host("evil.example").status, 421);
    assert_eq!(with_host("127.0.0.1.evil.example:80").status, 421);
    let post = http.ask(&format!("POST /api/v1/status HTTP/1.1\r\nHost: {}\r\n", http.0));
    assert_eq!((post.status, &*post.headers["allow"]), (405, "GET, HEAD"));
}

#[test]
fn in_the_background_it_says_where() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("b.sock");
    let mut command = bindery(["daemon", "--background", "--http", "127.0.0.1:0", "--json"]);
    command.arg("--socket").arg(&socket);
    let started = run(command).json();
    let http = Http(started["http"].as_str().unwrap().parse().unwrap());
    assert_eq!(http.json("/api/v1/status")["pid"], started["pid"]);
    let mut command = bindery(["stop", "--socket"]);
    command.arg(&socket);
    assert_eq!(run(command).code, Some(0));
    let gone = || TcpStream::connect(http.0).is_err();
    let deadline = Instant::now() + PATIENCE;
    while !gone() {
        assert!(Instant::now() < deadline, "it listens still");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn clients_that_misbehave_stop_nobody() {
    if !can_manage("clients_that_misbehave_stop_nobody") {
        return;
    }
    let daemon = TestDaemon::start(&FAST);
    let http = Http::of(&daemon);
    let garbage: [&[u8]; 10] = [
        b"",
        b"\0\0\0\0\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"BNDY\xff\xff\xff\xff",
        b"{\"version\":1,\"request\":\"status\"}\n",
        b"GET /metrics HTTP/1.1\r\n\r\n",
        b"GET http://[::1 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 18446744073709551615\r\n\r\nx",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n",
    ];
    for bytes in garbage {
        let heard = String::from_utf8_lossy(&http.send(bytes)).into_owned();
        assert!(!heard.starts_with("HTTP/1.1 200"), "{heard}");
    }
    let mut huge = b"GET / HTTP/1.1\r\nHost: localhost\r\nCookie: ".to_vec();
    huge.resize(4 << 20, b'x');
    let heard = String::from_utf8_lossy(&http.send(&huge)).into_owned();
    assert!(heard.is_empty() || heard.contains("431"), "{heard}");
    let resident = || http.json("/api/v1/status")["resident_bytes"].as_u64().unwrap();
    let before = resident();

    // More connections than are served, each in the middle of something.
    let slow: Vec<TcpStream> = (0..200)
        .map(|at| {
            let mut stream = http.connect();
            let part: &[u8] = [&b"GET / HT"[..], b"", b"GET /metrics HTTP/1.1\r\nX: "][at % 3];
            stream.write_all(part).unwrap();
            stream
        })
        .collect();
    // Merging and operators do without HTTP meanwhile.
    let mut one = TestGuest::start(&daemon.socket(), "one", "web");
    let _two = TestGuest::start(&daemon.socket(), "two", "web");
    wait_until(&daemon, "guests are merged all the same", || {
        let guests = daemon.ask(&["ps", "--json"]).json();
        let merged = |guest: &Value| guest["pages_merged"] == EQUAL_PAGES;
        guests.as_array().unwrap().iter().filter(|guest| merged(guest)).count() == 2
    });
    one.check();
    // Those that are slow are not waited for: others come in their turn.
    let start = Instant::now();
    let mut stream = http.connect();
    stream.set_read_timeout(Some(3 * PATIENCE)).unwrap();
    stream
        .write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    eprintln!("answered behind 200 slow connections after {:.1} s", start.elapsed().as_secs_f64());
    drop(slow);
    wait_until(&daemon, "it answers at once again", || http.get("/healthz").status == 200);
    let grown = resident().saturating_sub(before);
    assert!(grown < 16 << 20, "misbehaving clients cost {grown} bytes");
}

#[test]
fn health_says_when_resources_are_short() {
    const DESCRIPTORS: usize = 40;
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("b.sock");
    let command = common::daemon_command(&socket, &FAST);
    let mut shell = Command::new("sh");
    shell.stdout(Stdio::null()).stderr(Stdio::null());
    let limit = format!("ulimit -n {DESCRIPTORS}; exec \"$@\"");
    shell.args(["-c", &limit, "sh"]).arg(command.get_program()).args(command.get_args());
    let daemon = TestDaemon::spawn(shell, &socket);
    let http = Http::of(&daemon);
    // One connection that is there already: when descriptors are short no other is to be had.
    let mut stream = http.connect();
    let mut health = || {
        stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        let mut buffer = [0; 4096];
        let count = stream.read(&mut buffer).unwrap();
        String::from_utf8_lossy(&buffer[..count]).into_owned()
    };
    assert!(health().starts_with("HTTP/1.1 200"));
    let mut idle = Vec::new();
    wait_until(&daemon, "it is unwell", || {
        if idle.len() <= DESCRIPTORS {
            let mut stream = std::os::unix::net::UnixStream::connect(&socket).unwrap();
            stream.write_all(b"{").unwrap();
            idle.push(stream);
        }
        let answer = health();
        answer.starts_with("HTTP/1.1 503") && answer.contains("LimitNOFILE")
    });
    drop(idle);
    // It is well again once a connection could be taken.
    wait_until(&daemon, "it is well again", || {
        daemon.ask(&["status"]);
        health().starts_with("HTTP/1.1 200")
    });
}
